"""Products of one large graph: pieces of rows, slices of columns, and on a GPU the product."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.backends.cuda.batches.batch import GraphLayout, adjacency
from gcnbatch.backends.cuda.runtime.launch import MAX_GRID_X
from gcnbatch.backends.cuda.spmm import large as spmm_large
from gcnbatch.backends.cuda.spmm import pieces as spmm_pieces
from gcnbatch.backends.cuda.spmm.kernels import KERNELS
from gcnbatch.backends.cuda.spmm.large import large_product, reduction_geometry, slice_columns
from gcnbatch.backends.cuda.spmm.pieces import PIECE, Large, Scales, cut, cut_rows
from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.reference import ReferenceOps
from gcnbatch.reference.rounding import product_bound

H200_CACHE = 60 << 20


def pointers(lengths):
    return np.concatenate([[0], np.cumsum(lengths)])


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 5], [131_000, 0, 1, 512, 513], [3] * 1000, [2047, 2048, 2049]])
def test_pieces_cover_every_entry_of_every_row_once_and_in_order(lengths):
    indptr = pointers(lengths)
    first, target, split_row, split_first, longest = cut_rows(indptr)
    assert longest == np.max(np.diff(first), initial=0)
    assert first[-1] == indptr[-1]
    assert np.all(np.diff(first) >= 0)
    assert np.max(np.diff(first), initial=0) < PIECE + spmm_pieces.STEP
    row_of = np.full(len(target), -1)
    row_of[target >= 0] = target[target >= 0]
    slots = -1 - target[target < 0]
    assert slots.tolist() == list(range(split_first[-1]))
    row_of[target < 0] = np.repeat(split_row, np.diff(split_first))
    assert np.array_equal(np.unique(row_of), np.arange(len(lengths)))
    assert np.all(np.diff(row_of) >= 0)
    assert np.array_equal(np.bincount(row_of, weights=np.diff(first), minlength=len(lengths)), lengths)


def test_pieces_of_one_row_have_equal_work():
    first, *_ = cut_rows(pointers([131_000]))
    sizes = np.diff(first)
    assert sizes.max() - sizes.min() <= spmm_pieces.STEP


def test_only_large_and_skewed_matrices_are_cut():
    assert cut(pointers([2_000] * 500)) is None  # long rows, but few entries
    assert cut(pointers([3] * 400_000)) is None  # many entries, but in rows no longer than a piece
    assert cut(pointers([3] * 400_000 + [1_000])) is not None
    assert cut(pointers([64] * 20_000)) is not None


def test_a_small_graph_is_cut_if_it_is_alone_and_skewed():
    cora = [4] * 2_700 + [169] + [30] * 7
    assert cut(pointers(cora)) is None
    found = cut(pointers(cora), Scales(np.ones(2708), np.ones(2708)), alone=True)
    assert found is not None
    assert found.scales is None
    assert found.pieces.split_row.size == 0  # its rows are not cut: no second launch
    shape = large_product(2_708, 13_264, found.pieces.longest, 2_708, 16, H200_CACHE, 132)
    assert shape.lane_bits + shape.group_bits == 5  # a warp a row
    assert cut(pointers([4] * 2_700 + [30] * 8), alone=True) is None
    assert cut(pointers([]), alone=True) is None


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_kernels_that_support_pieces_get_them(kernel):
    indptr = pointers([64] * 20_000)
    matrix = Csr(indptr, np.zeros(indptr[-1], np.int32), np.ones(indptr[-1], np.float32), 20_000)
    layout, form = GraphLayout(np.array([0, 20_000])), KERNELS[kernel]
    found = adjacency(Adjacency(matrix, matrix, 1), layout, form.coo, form.pieces).forward
    assert (found.large is not None) == (kernel in ("auto", "csr"))


@pytest.mark.parametrize("width", [1, 3, 4, 7, 16, 31, 41, 64, 100, 128])
@pytest.mark.parametrize("n_columns", [1, 5_000, 232_965, 2_449_029, 100_000_000])
def test_slices_cover_the_columns_and_a_warp_covers_a_slice(width, n_columns):
    shape = large_product(10**6, 10**9, 512, n_columns, width, H200_CACHE, 132)
    assert (shape.n_slices - 1) * shape.slice_width < width <= shape.n_slices * shape.slice_width
    assert shape.slice_width % 8 == 0
    assert shape.slice_width <= 4 << shape.lane_bits
    assert shape.lane_bits + shape.group_bits <= 5
    assert shape.product.grid[0] << 7 >> (shape.lane_bits + shape.group_bits) >= 10**6
    assert shape.slices.grid[0] * 256 * 4 >= n_columns * shape.slice_width
    assert max(shape.product.grid[0], shape.slices.grid[0]) <= MAX_GRID_X
    reduction, lane_bits = reduction_geometry(1_000, width)
    assert reduction.grid[0] * 4 >= 1_000
    assert reduction.grid[1] * 4 << lane_bits >= width


def test_a_slice_fills_at_most_half_of_l2_if_possible():
    for n_columns in (10_000, 232_965, 450_000):
        _, width = slice_columns(128, n_columns, H200_CACHE)
        assert width * n_columns * 4 <= H200_CACHE // 2
    assert slice_columns(128, 10**7, H200_CACHE) == (1, 128)


def skewed(rng, n_rows, n_cols, longest):
    """Return a matrix with rows of power-law lengths, longest first, one of them empty; columns repeat."""
    lengths = np.minimum((longest * (np.arange(n_rows) + 1.0) ** -0.9).astype(np.int64), longest)
    lengths[n_rows // 2] = 0
    lengths[-1] = 0
    indptr = pointers(lengths).astype(np.int32)
    indices = rng.integers(0, n_cols, indptr[-1]).astype(np.int32)
    return Csr(indptr, indices, rng.normal(size=indptr[-1]).astype(np.float32), n_cols)


def assert_agrees(got, matrix, h, roundings=0):
    """Compare a sparse product with the reference; an entry has `roundings` before the product."""
    wide = Csr(matrix.indptr, matrix.indices, matrix.data.astype(np.float64), matrix.n_cols)
    size = Csr(matrix.indptr, matrix.indices, np.abs(wide.data), matrix.n_cols)
    exact, magnitude = (
        ReferenceOps().spmm(Adjacency(each, each, 1), of) for each, of in ((wide, h), (size, np.abs(h)))
    )
    assert np.all(np.abs(got - exact) <= product_bound(np.diff(matrix.indptr) + roundings, magnitude))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 3, 16, 31, 41, 64, 128, 130, 300])
@pytest.mark.parametrize("cache", [H200_CACHE, 40_000])  # the second: several slices
def test_products_of_a_skewed_graph_agree_with_the_reference(monkeypatch, width, cache):
    from gcnbatch.backends.registry import open_backend

    monkeypatch.setattr(spmm_pieces, "LARGE_ENTRIES", 1)
    rng = np.random.default_rng(width)
    n = 257
    forward, transpose = skewed(rng, n, n, 6_000), skewed(rng, n, n, 3_001)
    host = Adjacency(forward, transpose, 1)
    backend = open_backend("batched")
    monkeypatch.setitem(backend.device.__dict__, "l2_bytes", cache)
    found = adjacency(host, GraphLayout(np.array([0, n])), coo=False, pieces=True).map(backend.device.upload)
    assert found.forward.large is not None
    h = rng.normal(size=(n, width)).astype(np.float32)
    on_device = backend.device.upload(h)
    for operation in ("spmm", "spmm_backward"):
        before = backend.device.launches
        got = backend.device.download(getattr(backend.ops, operation)(found, on_device))
        again = backend.device.download(getattr(backend.ops, operation)(found, on_device))
        assert backend.device.launches - before >= 4  # pieces, and the reduction of cut rows
        assert np.array_equal(got, again)
        matrix = forward if operation == "spmm" else transpose
        assert_agrees(got, matrix, h.astype(np.float64))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 16, 41, 128, 130])
def test_the_unweighted_form_agrees_with_the_reference(monkeypatch, width):
    from gcnbatch.backends.registry import open_backend

    rng = np.random.default_rng(width)
    n_rows, n_cols = 130, 257
    matrix = skewed(rng, n_rows, n_cols, 5_000)
    rows, columns = (rng.uniform(0.1, 1, n).astype(np.float32) for n in (n_rows, n_cols))
    device = open_backend("batched").device
    from gcnbatch.backends.cuda.batches.batch import DeviceCsr
    from gcnbatch.backends.cuda.spmm.kernels import SpmmOperands

    large = Large(cut_rows(matrix.indptr), Scales(rows, columns))
    nothing = np.zeros(0, np.float32)
    held = DeviceCsr(matrix.indptr, matrix.indices, nothing, n_cols, None, large).map(device.upload)
    x = rng.normal(size=(n_cols, width)).astype(np.float32)
    out = device.upload(np.full((n_rows, width), np.nan, np.float32))
    operands = SpmmOperands(
        out, device.upload(x), held, 0, 0, width, width, 0, 0, len(matrix.indices), n_rows, width, 0
    )
    spmm_large.multiply(device, operands, held.large)

    row = np.repeat(np.arange(n_rows), np.diff(matrix.indptr))
    data = rows[row].astype(np.float64) * columns[matrix.indices]
    assert_agrees(device.download(out), Csr(matrix.indptr, matrix.indices, data, n_cols), x.astype(np.float64), 2)


@pytest.mark.gpu
@pytest.mark.parametrize("sections", [{}, {"model": {"input_dropout": True}}, {"cuda": {"resident": "off"}}], ids=str)
def test_a_network_in_pieces_trains_like_the_reference(monkeypatch, tmp_path, sections):
    from gcnbatch.backends.registry import open_backend
    from gcnbatch.config import resolve
    from gcnbatch.data import synthetic
    from gcnbatch.lab.backend_comparison.parity import Parity
    from gcnbatch.lab.backend_comparison.workload import QUICK, opened

    monkeypatch.setattr(spmm_pieces, "LARGE_ENTRIES", 1)
    monkeypatch.setattr(spmm_pieces, "DENSE_ROWS", 1)
    monkeypatch.setattr(spmm_pieces, "piece_of", lambda n_entries, n_rows, longest: 8)
    synthetic.write("reddit", tmp_path / "reddit.h5", scale=0.004)
    tree = {
        "data": {"path": str(tmp_path / "reddit.h5")},
        "split": {"kind": "predefined"},
        "cuda": sections.get("cuda", {}),
        "model": {"kind": "kipf", "widths": [16], "input_dropout": False, **sections.get("model", {})},
    }
    config = resolve(tree)
    with opened(config) as workload:
        agreement = Parity(workload, QUICK).check(open_backend("batched", options=config.cuda))
    assert agreement.passed, agreement.worst


@pytest.mark.gpu
def test_fast_math_and_exact_kernels_run_in_one_process():
    from gcnbatch.backends.registry import open_backend
    from gcnbatch.config_sections import CudaConfig

    exact, fast = open_backend("batched"), open_backend("batched", options=CudaConfig(fast_math=True))
    logits = np.linspace(-3, 3, 4_100, dtype=np.float32).reshape(100, 41)
    y, weights = np.arange(100, dtype=np.int32)[:, None] % 41, np.ones(41, np.float32)
    results = []
    for backend in (exact, fast):
        device = backend.device
        loss = backend.ops.softmax_cross_entropy(*map(device.upload, (logits, y, weights)))
        results.append(device.download(loss[2]))
    assert not np.array_equal(*results)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-7)
    assert exact.device.kernels is not fast.device.kernels


@pytest.mark.gpu
def test_a_value_that_is_not_a_number_reaches_only_its_neighbours(monkeypatch):
    from gcnbatch.backends.registry import open_backend

    monkeypatch.setattr(spmm_pieces, "LARGE_ENTRIES", 1)
    n = 257
    indptr = pointers([700] * 3 + [1] * (n - 3)).astype(np.int32)
    indices = np.concatenate([np.arange(700) % (n - 1)] * 3 + [np.full(n - 3, n - 1)]).astype(np.int32)
    matrix = Csr(indptr, indices, np.ones(len(indices), np.float32), n)
    backend = open_backend("batched")
    found = adjacency(Adjacency(matrix, matrix, 1), GraphLayout(np.array([0, n])), coo=False, pieces=True)
    x = np.ones((n, 16), np.float32)
    x[n - 1] = np.nan
    got = backend.device.download(backend.ops.spmm(found.map(backend.device.upload), backend.device.upload(x)))
    assert np.all(got[:3] == 700)
    assert np.isnan(got[3:]).all()
