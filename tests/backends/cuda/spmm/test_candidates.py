"""Candidates of "auto" on a GPU: all match the reference, and agree to the bit with each other and SWA SpMM for CSR."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.batches.batch import GraphLayout
from gcnbatch.backends.cuda.spmm.kernels import CANDIDATES, KERNELS
from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.lab.bench.spmm.methods import launch_batch
from gcnbatch.reference.rounding import product_bound

WIDTHS = (1, 2, 4, 12, 16, 31, 32, 64, 75, 96, 128, 130, 192, 256, 640)
BATCHES = {
    "short": ([33, 0, 7, 1, 64, 20], 3),
    "one entry or none": ([50] * 11, 1),
    "long": ([40, 3, 257], 13),
    "no entry": ([5, 6], 0),
    "no graph": ([], 2),
}


def ragged(sizes: list[int], most: int) -> tuple[Csr, GraphLayout]:
    """Return graphs whose rows have 0 to `most` entries, some of them twice."""
    rng = np.random.default_rng(len(sizes) + most)
    node_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    per_row = rng.integers(0, most + 1, node_ptr[-1])
    first, n = np.repeat(node_ptr[:-1], sizes), np.repeat(sizes, sizes).astype(np.int64)
    indices = np.repeat(first, per_row) + (rng.random(per_row.sum()) * np.repeat(n, per_row)).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(per_row)])
    data = rng.standard_normal(len(indices)).astype(np.float32)
    return Csr(indptr.astype(np.int32), indices.astype(np.int32), data, len(n)), GraphLayout(node_ptr)


@pytest.fixture(scope="module")
def device() -> Any:
    from gcnbatch.backends.cuda.runtime.device import open_device
    from gcnbatch.backends.registry import open_backend

    open_backend("batched")
    return open_device()


@pytest.mark.gpu
@pytest.mark.parametrize("case", BATCHES)
def test_candidates_match_the_reference_and_each_other_to_the_bit(device: Any, case: str) -> None:
    csr, layout = ragged(*BATCHES[case])
    found = batch.adjacency(Adjacency(csr, csr, 1), layout, coo=False).map(device.upload)
    shape, entries = (layout.n_nodes, layout.n_nodes), csr.data.astype(np.float64)
    matrix, size = (sp.csr_array((data, csr.indices, csr.indptr), shape=shape) for data in (entries, np.abs(entries)))
    for width in WIDTHS:
        dense = np.random.default_rng(width).standard_normal((layout.n_nodes, width)).astype(np.float32)
        exact = matrix @ dense
        bound = product_bound(np.diff(csr.indptr), size @ np.abs(dense))
        operand, out = device.upload(dense), device.empty(dense.shape)
        expected = None
        for name, kernel in {**CANDIDATES, "swa_csr": KERNELS["swa_csr"], "csr": KERNELS["csr"]}.items():
            if out.nbytes:
                device.driver.memset_d8_async(out.ptr, 0xFF, out.nbytes, device.stream)
            launch_batch(device, kernel, out, operand, found)
            got = device.download(out)
            assert np.all(np.abs(got - exact) <= bound), (name, width)
            if name != "csr":
                expected = got if expected is None else expected
                assert got.tobytes() == expected.tobytes(), (name, width)


@pytest.mark.gpu
def test_nan_and_infinity_propagate(device: Any) -> None:
    csr, layout = ragged([6, 6], 3)
    found = batch.adjacency(Adjacency(csr, csr, 1), layout, coo=False).map(device.upload)
    dense = np.ones((12, 32), np.float32)
    dense[2, 5], dense[7, 6] = np.nan, np.inf
    operand, out = device.upload(dense), device.empty(dense.shape)
    matrix = sp.csr_array((csr.data, csr.indices, csr.indptr), shape=(12, 12))
    for kernel in CANDIDATES.values():
        launch_batch(device, kernel, out, operand, found)
        assert np.array_equal(np.isfinite(device.download(out)), np.isfinite(matrix @ dense))
