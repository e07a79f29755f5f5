"""Products of one large graph with rows that are stored without their zeros."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.batches.batch import DeviceAdjacency, DeviceCsr, GraphLayout
from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.spmm import large as spmm_large
from gcnbatch.backends.cuda.spmm.kernels import SpmmOperands
from gcnbatch.backends.cuda.spmm.large import CompressedRows, mark, much_read
from gcnbatch.backends.cuda.spmm.pieces import Large, Scales, cut_rows
from gcnbatch.backends.ops import Reader
from gcnbatch.data.sparse import Csr
from tests.backends.cuda.ops.recorder import Recorder
from tests.backends.cuda.spmm.test_large import assert_agrees, skewed
from tests.ops.test_dropout import KEY

N_ROWS, N_COLUMNS, MANY = 130, 257, 0.75  # the share of zeros that products are told


class Chip(Recorder):
    """A recording device with L2, whose arrays hold nothing."""

    l2_bytes = 60 << 20

    def upload(self, host: np.ndarray) -> Any:
        return self.empty(host.shape, host.dtype)

    def zeros(self, shape: Any, dtype: Any) -> Any:
        return self.empty((shape,), dtype)


def scaled_matrix(rng: np.random.Generator, longest: int = 5_000) -> tuple[Csr, Csr, DeviceCsr]:
    """Return an unweighted matrix with scales: as stored, with its values, and in pieces."""
    matrix = skewed(rng, N_ROWS, N_COLUMNS, longest)
    rows, columns = (rng.uniform(0.1, 1, n).astype(np.float32) for n in (N_ROWS, N_COLUMNS))
    row = np.repeat(np.arange(N_ROWS), np.diff(matrix.indptr))
    values = Csr(matrix.indptr, matrix.indices, rows[row].astype(np.float64) * columns[matrix.indices], N_COLUMNS)
    large = Large(cut_rows(matrix.indptr), Scales(rows, columns))
    return matrix, values, DeviceCsr(matrix.indptr, matrix.indices, np.zeros(0, np.float32), N_COLUMNS, None, large)


def multiply(device: Any, held: Any, x: Any, width: int, zeros: float = MANY, before: Any = None) -> Any:
    """Return the product of a matrix on the device by the first `width` columns of `x`, added to `before`, if given."""
    out = device.upload(np.full((N_ROWS, width), np.nan, np.float32) if before is None else before)
    about = (0, 0, width, x.shape[1], 0, 0, held.indices.size, N_ROWS, width, int(before is not None))
    spmm_large.multiply(device, SpmmOperands(out, x, held, *about), held.large, zeros)
    return out


@pytest.mark.parametrize(
    ("width", "zeros", "scaled", "compressed"),
    [
        (128, 0.75, True, 1),
        (128, 0.66, True, 1),
        (128, 0.65, True, 0),  # too many elements for one copy
        (96, 0.75, True, 1),
        (95, 0.75, True, 0),
        (128, 0.75, False, 0),
        (256, 0.75, True, 2),
        (192, 0.75, True, 1),  # the last 64 columns are dense
    ],
)
def test_wide_products_with_many_zeros_read_compressed_rows(width, zeros, scaled, compressed) -> None:
    device = Chip()
    _, _, held = scaled_matrix(np.random.default_rng(0))
    if not scaled:
        held.large = held.large._replace(scales=None)
    multiply(device, held.map(device.upload), device.empty((N_COLUMNS, width)), width, zeros)
    pair = [entry for entry in device.entries if entry.startswith("spmm_compress")]
    assert pair == ["spmm_compress", "spmm_compressed"] * compressed
    assert device.entries.count("spmm_reduce_pieces") == -(-width // 128)


def sparse_rows(rng: np.random.Generator, width: int, share: float) -> np.ndarray:
    """Return a matrix whose elements are not zero with this probability; its last rows are empty and full."""
    x = rng.normal(size=(N_COLUMNS, width)) * (rng.random((N_COLUMNS, width)) < share)
    x[-1], x[-2] = 0, rng.normal(size=width)
    return x.astype(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [96, 101, 127, 128, 250])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.25, 0.45, 1.0])
def test_products_of_compressed_rows_agree_with_the_reference(width: int, share: float) -> None:
    from gcnbatch.backends.registry import open_backend

    rng = np.random.default_rng(width)
    device: Any = open_backend("batched").device
    _, values, held = scaled_matrix(rng)
    x = sparse_rows(rng, width, share)
    matrix, on_device = held.map(device.upload), device.upload(x)
    got, again = (device.download(multiply(device, matrix, on_device, width)) for _ in range(2))
    assert np.array_equal(got, again)
    assert_agrees(got, values, x.astype(np.float64), 2)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["scaled", "marked", "weighted"])
@pytest.mark.parametrize(("width", "zeros"), [(128, MANY), (100, MANY), (128, 0.0), (47, 0.0), (131, 0.0)])
def test_a_product_is_added_to_what_its_rows_hold(
    monkeypatch: pytest.MonkeyPatch, form: str, width: int, zeros: float
) -> None:
    from gcnbatch.backends.registry import open_backend

    rng = np.random.default_rng(width)
    device: Any = open_backend("batched").device
    monkeypatch.setitem(device.__dict__, "l2_bytes", 20 * 512)
    _, values, held = scaled_matrix(rng)
    if form == "weighted":
        held = replace(held, data=values.data.astype(np.float32), large=held.large._replace(scales=None))
    matrix, x = held.map(device.upload), device.upload(sparse_rows(rng, width, 0.3))
    if form == "marked":
        matrix = mark(device, matrix, np.bincount(held.indices, minlength=N_COLUMNS))
    alone = device.download(multiply(device, matrix, x, width, zeros)).astype(np.float64)
    before = rng.normal(size=(N_ROWS, width)).astype(np.float32)
    got = device.download(multiply(device, matrix, x, width, zeros, before))
    # The product is rounded, or its last scaling is fused with the sum; then the sum is rounded.
    assert np.all(np.abs(got - (before + alone)) <= 2.0**-24 * (np.abs(alone) * 2 + np.abs(before + alone)) * 1.0001)


@pytest.mark.gpu
def test_columns_of_a_wider_operand_and_short_rows_agree_with_the_reference() -> None:
    from gcnbatch.backends.registry import open_backend

    rng = np.random.default_rng(1)
    device: Any = open_backend("batched").device
    _, values, held = scaled_matrix(rng, longest=40)  # no row has several pieces
    x = sparse_rows(rng, 131, 0.25)  # rows are not aligned
    got = device.download(multiply(device, held.map(device.upload), device.upload(x), 100))
    assert_agrees(got, values, x[:, :100].astype(np.float64), 2)


@pytest.mark.gpu
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-45, -0.0])
def test_any_value_reaches_its_neighbours_alone(value: float) -> None:
    from gcnbatch.backends.registry import open_backend

    rng = np.random.default_rng(2)
    device: Any = open_backend("batched").device
    matrix, _, held = scaled_matrix(rng)
    ones = np.ones(N_ROWS, np.float32), np.ones(N_COLUMNS, np.float32)
    held.large = held.large._replace(scales=Scales(*ones))
    x = np.zeros((N_COLUMNS, 128), np.float32)
    x[7, 77] = value
    got = device.download(multiply(device, held.map(device.upload), device.upload(x), 128))
    uses = np.array([np.count_nonzero(part == 7) for part in np.split(matrix.indices, matrix.indptr[1:-1])])
    expected = np.zeros((N_ROWS, 128), np.float32)
    with np.errstate(under="ignore"):
        expected[uses > 0, 77] = np.float32(value) * uses[uses > 0].astype(np.float32)
    np.testing.assert_array_equal(got, expected)


def square(rng: np.random.Generator) -> DeviceAdjacency:
    """Return one graph of `N_COLUMNS` nodes, unweighted with scales, as a batch on the host."""
    matrix = skewed(rng, N_COLUMNS, N_COLUMNS, 5_000)
    scale = rng.uniform(0.1, 1, N_COLUMNS).astype(np.float32)
    large = Large(cut_rows(matrix.indptr), Scales(scale, scale))
    held = DeviceCsr(matrix.indptr, matrix.indices, np.zeros(0, np.float32), N_COLUMNS, None, large)
    return DeviceAdjacency(held, held, 1, np.array([0, N_COLUMNS], np.int32), GraphLayout(np.array([0, N_COLUMNS])))


@pytest.mark.parametrize(
    ("kernel", "width", "first", "zeros", "compressed"),
    [
        ("auto", 128, 8, MANY, True),
        ("csr", 104, 0, MANY, True),
        ("naive", 128, 0, MANY, False),
        ("auto", 128, 4, MANY, False),  # its random bits begin within a block
        ("auto", 100, 0, MANY, False),
        ("auto", 136, 0, MANY, False),
        ("auto", 128, 0, 0.5, False),
    ],
)
def test_activations_that_one_product_reads_are_compressed(kernel, width, first, zeros, compressed) -> None:
    device: Any = Chip()
    ops, graphs = BatchedOps(device, "fp32", kernel), square(np.random.default_rng(0)).map(device.upload)
    x = device.empty((N_COLUMNS, width))
    h, kept = ops.relu_dropout(x, 0.5, KEY._replace(first=first), out=x, reader=Reader(graphs, zeros))
    assert kept.bits.size == -(-(N_COLUMNS * width + first % 8) // 8)
    assert device.entries == ["spmm_compress_relu_dropout" if compressed else "relu_dropout_forward"]
    y = ops.spmm(graphs, h, zeros)
    assert y.shape == (N_COLUMNS, width)
    assert ("spmm_compressed" in device.entries) == (compressed or (kernel != "naive" and zeros == MANY))
    assert "spmm_compress" not in device.entries or not compressed


def test_activations_without_a_reader_are_dense() -> None:
    device: Any = Chip()
    x = device.empty((N_COLUMNS, 128))
    h, _ = BatchedOps(device, "fp32", "auto").relu_dropout(x, 0.5, KEY, out=x)
    assert h is x


@pytest.mark.gpu
@pytest.mark.parametrize("width", [104, 128])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_compressed_activations_give_the_bits_of_dense_ones(width: int, rate: float) -> None:
    from gcnbatch.backends.registry import open_backend

    rng = np.random.default_rng(width)
    backend: Any = open_backend("batched")
    device, ops, key = backend.device, backend.ops, KEY._replace(first=2**33)
    graphs = square(rng).map(device.upload)
    x = rng.normal(size=(N_COLUMNS, width)).astype(np.float32)
    dense, kept = ops.relu_dropout(device.upload(x), rate, key)
    expected = ops.spmm(graphs, dense, MANY)
    compressed, same = ops.relu_dropout(device.upload(x), rate, key, reader=Reader(graphs, MANY))
    assert isinstance(compressed, CompressedRows)
    np.testing.assert_array_equal(device.download(ops.spmm(graphs, compressed, MANY)), device.download(expected))
    np.testing.assert_array_equal(device.download(same.bits), device.download(kept.bits))
    assert same[1:] == kept[1:]


def test_rows_that_most_entries_read_are_marked_where_no_slice_of_all_fits_l2() -> None:
    device = Chip()
    _, _, held = scaled_matrix(np.random.default_rng(0))
    matrix, uses = held.map(device.upload), np.bincount(held.indices, minlength=N_COLUMNS)
    assert mark(device, matrix, uses) is matrix  # all of 257 rows fit
    device.l2_bytes = 20 * 512
    marked = mark(device, matrix, uses)
    assert marked.large.marked
    assert not matrix.large.marked
    ((entry, launch, given),) = device.launched
    assert entry == "spmm_mark"
    assert launch.grid[0] * launch.block[0] >= given["n_entries"] == held.indices.size
    found = much_read(uses, device.l2_bytes)
    assert np.count_nonzero(found) == 20
    assert uses[found == 1].min() >= uses[found == 0].max()
    device.launched.clear()
    for width, zeros in ((128, MANY), (47, 0.0)):
        multiply(device, marked, device.empty((N_COLUMNS, width)), width, zeros)
    assert [entry for entry in device.entries if entry != "spmm_reduce_pieces"] == [
        *("spmm_compress", "spmm_compressed"),
        *("spmm_large_slices", "spmm_large_marked"),
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "zeros"), [(128, MANY), (100, MANY), (128, 0.0), (47, 0.0)])
def test_marks_change_no_bit_of_a_product(monkeypatch: pytest.MonkeyPatch, width: int, zeros: float) -> None:
    from gcnbatch.backends.registry import open_backend

    rng = np.random.default_rng(3)
    device: Any = open_backend("batched").device
    _, _, held = scaled_matrix(rng)
    x = device.upload(sparse_rows(rng, width, 0.3))
    monkeypatch.setitem(device.__dict__, "l2_bytes", 20 * 512)
    plain = held.map(device.upload)
    marked = mark(device, held.map(device.upload), np.bincount(held.indices, minlength=N_COLUMNS))
    hot = device.download(marked.indices) < 0
    assert 0 < np.count_nonzero(hot) < hot.size
    assert np.array_equal(device.download(marked.indices) & 0x7FFFFFFF, held.indices)
    both = [device.download(multiply(device, matrix, x, width, zeros)) for matrix in (plain, marked)]
    assert np.array_equal(*both)
