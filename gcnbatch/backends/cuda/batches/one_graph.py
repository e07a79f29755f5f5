"""A set of one graph on the device: the upload of its matrices, and its rows with labels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.batches.batch import DeviceAdjacency, DeviceBatch, DeviceCsr, Int64
from gcnbatch.backends.cuda.spmm.kernels import SpmmKernel
from gcnbatch.backends.cuda.spmm.large import mark
from gcnbatch.data.batches import PreparedSet
from gcnbatch.data.labelled import labelled_rows, rows_of
from gcnbatch.data.sparse import Csr

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


def rows_with_labels(prepared: PreparedSet, targets: NDArray[Any], kernel: SpmmKernel, per_graph: bool) -> Int64 | None:
    """Return the rows of one graph that have labels, if they are few; None for the papers' kernels and loops."""
    nodes = len(prepared.forward.row_length)
    alone = len(prepared.forward.entry_ptr) == 2 and len(targets) == nodes > 1
    return labelled_rows(targets) if alone and kernel.pieces and not per_graph else None


def labelled_bytes(prepared: PreparedSet, targets: NDArray[Any], kernel: SpmmKernel, per_graph: bool) -> int:
    """Return a bound of the bytes of device memory of the rows with labels: matrices in pieces have no values."""
    rows = rows_with_labels(prepared, targets, kernel, per_graph)
    if rows is None:
        return 0
    entries = int(prepared.forward.row_length[rows].sum())
    of_rows = 20 * (len(rows) + len(targets) * prepared.channels + 1)  # pointers, pieces, scales
    return 16 * entries + of_rows + targets[:1].nbytes * len(rows)


def labelled_batch(
    device: Device,
    whole: DeviceBatch,
    stored: Csr,
    scales: tuple[NDArray[np.float32], ...] | None,
    rows: Int64,
    targets: NDArray[Any],
) -> DeviceBatch:
    """Return a batch of one graph with the rows that have labels alone.

    Parameters
    ----------
    device : Device
    whole : DeviceBatch
    stored : Csr
        `forward` of its adjacency, on the host.
    scales : (float32 (N,), float32 (N,)) or None
        As `gcnbatch.data.batches.PreparedSet.scales`.
    rows : int64, (R,)
    targets : (R, K)
        Theirs, on the host.
    """
    found = rows_of(stored, whole.layout.n_channels, rows)
    sides = None if scales is None else (scales[0][rows], scales[1])
    forward, transpose = (
        upload_alone(device, batch.csr(matrix, coo=False, pieces=True, alone=True, scales=own))
        for matrix, own in ((found.forward, sides), (found.transpose, sides and sides[::-1]))
    )
    adjacency = DeviceAdjacency(forward, transpose, found.n_channels, whole.node_ptr, whole.layout)
    return replace(whole, adjacency=adjacency, targets=device.upload(targets))


def upload_alone(device: Device, matrix: DeviceCsr) -> DeviceCsr:
    """Upload a matrix of one graph; mark its indices where that is of use."""
    uploaded = matrix.map(device.upload)
    if matrix.large is None or matrix.large.scales is None:
        return uploaded
    return mark(device, uploaded, np.bincount(matrix.indices, minlength=matrix.n_cols))
