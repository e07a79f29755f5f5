"""The device arrays of a data set that only fp16 steps read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.data.batches import PreparedRows, PreparedSet
from gcnbatch.data.graphs import Int64

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


class Fp16Features:
    """The propagated features of a set of one channel, in fp16.

    Attributes
    ----------
    columns : int
        K.
    u : DeviceArray of fp16 bits, (nodes, K)
        A X times `scale`, once `put` has uploaded all of it.
    scale, inner_scale : float
        Of U in the first layer, and in the others.
    row_sums : DeviceArray, (nodes,)
        Of the adjacency.
    reach : float
        The largest row sum of |Aᵀ|, at least 1.
    """

    def __init__(self, device: Device, prepared: PreparedSet, node_ptr: Int64) -> None:
        assert prepared.channels == 1
        x: Any = prepared.stored_x
        n_nodes = int(node_ptr[-1])
        self._device, self._n_in, self.columns = device, x.shape[1], geometry.columns_of_u(x.shape[1])
        forward = largest_row(prepared.forward)
        self.scale = geometry.scale_of(max(float(x.max(initial=0)), -float(x.min(initial=0))) * forward)
        self.inner_scale = geometry.inner_scale(forward)
        self.reach = max(largest_row(prepared.transpose), 1.0)
        self.u, self.row_sums = device.empty((n_nodes, self.columns), np.uint16), device.empty(n_nodes)

    def put(self, first: int, part: NDArray[np.float32]) -> None:
        """Upload propagated features, [A X | row sums | 0], of the nodes from `first` on."""
        u = np.zeros((len(part), self.columns), np.float16)
        with np.errstate(over="ignore"):  # features may hold infinities
            u[:, : self._n_in] = part[:, : self._n_in] * np.float32(self.scale)
        self._device.upload(u.view(np.uint16), self.u.view(first * self.columns, u.shape))
        self._device.upload(np.ascontiguousarray(part[:, self._n_in]), self.row_sums.view(first, len(part)))


def bytes_of_features(n_in: int, nodes: int) -> int:
    """Return the device memory of the features of so many nodes."""
    return (2 * geometry.columns_of_u(n_in) + 4) * nodes


def largest_row(rows: PreparedRows) -> float:
    """Return the largest sum of absolute values over a row."""
    ends = np.concatenate([np.zeros(1), np.cumsum(np.abs(rows.data), dtype=np.float64)])
    sums = np.diff(ends[np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.row_length, dtype=np.int64)])])
    return float(sums.max(initial=0))
