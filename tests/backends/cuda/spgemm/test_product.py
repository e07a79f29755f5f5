"""SpGEMM on a GPU against SciPy: exact patterns, values and bits of the sums, for every combination of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.spgemm.product import SpGemm
from gcnbatch.backends.products import open_products
from gcnbatch.data.khop import write
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.lab.bench.spgemm.matrices import CLASSES, of_class
from gcnbatch.lab.bench.spgemm.runs import measure, open_contenders
from gcnbatch.options.datasets import HopOptions
from tests.builders import assert_graphsets_equal, build_graphset

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Device:
    from gcnbatch.backends.cuda.entry import open_ready

    return open_ready()


def random_matrix(rows: int, columns: int, per_row: Any, seed: int = 0, positive: bool = True) -> sp.csr_array:
    """Return a matrix with about this many entries per row (one number, or one per row) and sorted columns."""
    rng = np.random.default_rng(seed)
    counts = np.broadcast_to(np.asarray(per_row), rows)
    row = np.repeat(np.arange(rows), counts)
    keys = np.unique(row * columns + rng.integers(0, columns, len(row)))
    values = rng.random(len(keys), dtype=np.float32) + np.float32(0.5)
    if not positive:
        values *= rng.choice([-1, 1], len(keys)).astype(np.float32)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(keys // columns, minlength=rows))])
    return sp.csr_array((values, keys % columns, indptr), shape=(rows, columns))


def banded(n: int, half: int, seed: int = 0) -> sp.csr_array:
    rng, half = np.random.default_rng(seed), min(half, n - 1)
    found = sp.diags_array(
        [rng.random(n) + 0.5 for _ in range(2 * half + 1)], offsets=range(-half, half + 1), shape=(n, n)
    )
    return sp.csr_array(found, dtype=np.float32)


def crowded(rows: int, columns: int) -> sp.csr_array:
    """Return rows whose columns are close together, except one at the other end."""
    near = random_matrix(rows, 3000, 30)
    far = sp.csr_array(
        (np.ones(rows), np.full(rows, columns - 3001), np.arange(rows + 1)), shape=(rows, columns - 3000)
    )
    return sp.csr_array(sp.hstack([near, far], format="csr"), dtype=np.float32)


def skewed(n: int, seed: int = 3) -> sp.csr_array:
    """Return a matrix with mostly short rows, a few of up to n / 2 entries, and some empty ones."""
    rng = np.random.default_rng(seed)
    counts = np.minimum((rng.pareto(1.1, n) * 2).astype(int), n // 2)
    counts[::7] = 0
    return random_matrix(n, n, counts, seed)


def pattern(a: sp.csr_array, b: sp.csr_array) -> sp.csr_array:
    ones = [sp.csr_array((np.ones(m.nnz), m.indices, m.indptr), shape=m.shape) for m in (a, b)]
    found = sp.csr_array(ones[0] @ ones[1])
    found.sort_indices()
    return found


def assert_product(multiply: SpGemm, a: sp.csr_array, b: sp.csr_array, bits: bool = True) -> sp.csr_array:
    """Compare the product of positive matrices with SciPy's: pattern, float64 values, float32 bits."""
    b = b.copy()
    b.sum_duplicates()
    left = multiply.upload(b) if a is b else upload_as_is(multiply, a)
    found = multiply.download(multiply(left, multiply.upload(b)))
    exact = sp.csr_array(a.astype(np.float64) @ b.astype(np.float64))
    exact.sort_indices()
    assert found.shape == exact.shape
    np.testing.assert_array_equal(found.indptr, exact.indptr)
    np.testing.assert_array_equal(found.indices, exact.indices)
    np.testing.assert_allclose(found.data, exact.data, rtol=2e-6)
    plain = sp.csr_array(a @ b)
    plain.sort_indices()
    if bits:
        np.testing.assert_array_equal(found.data.view(np.int32), plain.data.view(np.int32))
    return found


def upload_as_is(multiply: SpGemm, a: sp.csr_array) -> Any:
    """Upload a left factor with its repeated and unsorted columns."""
    from gcnbatch.data.sparse import Csr

    up = multiply.device.upload
    return Csr(up(a.indptr.astype(np.int32)), up(a.indices.astype(np.int32)), up(a.data.astype(np.float32)), a.shape[1])


CASES = {
    "tiny rows": lambda: (random_matrix(5000, 5000, 2),) * 2,
    "block diagonal": lambda: (sp.block_diag([banded(n, 2, n) for n in range(1, 130)], format="csr"),) * 2,
    "uniform": lambda: (random_matrix(3000, 3000, 8),) * 2,
    "wider": lambda: (random_matrix(3000, 9000, 16), random_matrix(9000, 4000, 17)),
    "band": lambda: (banded(2500, 30),) * 2,
    "wide band": lambda: (banded(1500, 200),) * 2,
    "one row": lambda: (random_matrix(1, 700, 400), random_matrix(700, 33, 5)),
    "one column": lambda: (random_matrix(500, 300, 4), random_matrix(300, 1, 1)),
    "one by one": lambda: (random_matrix(1, 1, 1), random_matrix(1, 1, 1)),
    "dense": lambda: (random_matrix(130, 64, 300), random_matrix(64, 257, 900)),
    "diagonal": lambda: (sp.csr_array(sp.eye_array(1000, dtype=np.float32) * 3),) * 2,
    "mixed sizes": lambda: (random_matrix(2000, 2000, np.arange(2000) % 60),) * 2,
    "257 rows": lambda: (random_matrix(257, 257, 5),) * 2,
    "more columns than fit beside a place": lambda: (random_matrix(200, 300, 20), random_matrix(300, 30_000_000, 9)),
    "neighbours": lambda: (banded(4000, 8), random_matrix(4000, 100_000, 60)),
    "columns in few ranges": lambda: (random_matrix(500, 500, 40), crowded(500, 1_000_000)),
}


@pytest.mark.parametrize("two_passes", [False, True], ids=["one pass", "two passes"])
@pytest.mark.parametrize("case", CASES)
def test_products_have_scipys_pattern_and_bits(device: Device, case: str, two_passes: bool) -> None:
    a, b = CASES[case]()
    multiply = SpGemm(device, two_passes=two_passes)
    longest = np.diff(sp.csr_array(b).indptr)[a.indices]
    bounds = np.add.reduceat(np.append(longest, 0), a.indptr[:-1]) * (np.diff(a.indptr) > 0)
    assert_product(multiply, sp.csr_array(a), sp.csr_array(b), bits=bounds.max(initial=0) <= multiply.long_limit)


@pytest.mark.parametrize("two_passes", [False, True], ids=["one pass", "two passes"])
def test_long_rows_are_split_and_merged(device: Device, two_passes: bool) -> None:
    matrix = skewed(20_000)
    multiply = SpGemm(device, two_passes=two_passes)
    found = assert_product(multiply, matrix, matrix, bits=False)
    left = multiply.upload(matrix)
    again = multiply.download(multiply(left, left))
    np.testing.assert_array_equal(found.data.view(np.int32), again.data.view(np.int32))


def test_a_long_row_that_selects_long_and_short_rows_of_b(device: Device) -> None:
    b = random_matrix(3000, 40_000, np.where(np.arange(3000) % 50 == 0, 9000, 3))
    assert_product(SpGemm(device), random_matrix(3, 3000, [2500, 0, 1]), b, bits=False)


@pytest.mark.parametrize("two_passes", [False, True], ids=["one pass", "two passes"])
def test_rows_that_overflow_their_tables_are_recomputed(device: Device, two_passes: bool) -> None:
    matrix = random_matrix(3000, 3000, np.arange(3000) % 60)
    multiply = SpGemm(device, ratio=1e6, two_passes=two_passes)
    left = multiply.upload(matrix)
    assert_product(multiply, matrix, matrix)
    multiply(left, left)
    outgrown = int(multiply.read(device.workspace("spgemm", 0).view(264, 8).astype_view(np.uint64))[0]) & 0xFFFFFFFF
    assert outgrown > 1000


def test_a_left_factor_may_have_repeated_and_unsorted_columns(device: Device) -> None:
    rng = np.random.default_rng(5)
    indices = rng.integers(0, 200, 3000)
    a = sp.csr_array((rng.random(3000, dtype=np.float32) + 0.5, indices, np.arange(0, 3001, 10)), shape=(300, 200))
    assert not a.has_canonical_format
    assert_product(SpGemm(device), a, random_matrix(200, 500, 6))


def test_repeated_columns_on_the_right_are_summed_on_upload(device: Device) -> None:
    b = sp.csr_array((np.array([1, 2, 4], np.float32), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2))
    a = sp.csr_array(np.array([[2.0], [0.0], [1.0]], dtype=np.float32))
    multiply = SpGemm(device)
    found = multiply.download(multiply(multiply.upload(a), multiply.upload(b)))
    np.testing.assert_array_equal(found.toarray(), [[4, 10], [0, 0], [2, 5]])


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (4, 5, 3)])
def test_empty_factors_give_an_empty_product(device: Device, shape: tuple[int, int, int]) -> None:
    multiply = SpGemm(device)
    a, b = (sp.csr_array(size, dtype=np.float32) for size in (shape[:2], shape[1:]))
    found = multiply.download(multiply(multiply.upload(a), multiply.upload(b)))
    assert (found.shape, found.nnz) == ((shape[0], shape[2]), 0)


def test_factors_without_common_indices_give_an_empty_product(device: Device) -> None:
    a = sp.csr_array(([1.0, 2.0], [0, 0], [0, 1, 2]), shape=(2, 2), dtype=np.float32)
    b = sp.csr_array(([3.0], [1], [0, 0, 1]), shape=(2, 2), dtype=np.float32)
    multiply = SpGemm(device)
    assert multiply.download(multiply(multiply.upload(a), multiply.upload(b))).nnz == 0


def test_sums_of_zero_stay_and_nan_and_infinities_pass(device: Device) -> None:
    a = sp.csr_array(np.array([[1, 1, 0], [0, 2, 3], [1, 0, 1]], dtype=np.float32))
    b = sp.csr_array(np.array([[1, 5, 0], [-1, np.inf, 0], [np.nan, -np.inf, 4]], dtype=np.float32))
    multiply = SpGemm(device)
    found = multiply.download(multiply(multiply.upload(a), multiply.upload(b)))
    assert found.nnz == pattern(a, b).nnz
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found.toarray(), [[0, np.inf, 0], [np.nan, np.nan, 12], [np.nan, -np.inf, 4]])


def test_signed_values_keep_the_pattern_of_the_entries(device: Device) -> None:
    matrix = random_matrix(2000, 2000, 9, positive=False)
    multiply = SpGemm(device)
    left = multiply.upload(matrix)
    found = multiply.download(multiply(left, left))
    expected = pattern(matrix, matrix)
    np.testing.assert_array_equal(found.indices, expected.indices)
    exact = matrix.astype(np.float64) @ matrix.astype(np.float64)
    assert abs(found - exact).max() < 1e-5


@pytest.mark.parametrize("mode", ["channels", "propagated"])
@pytest.mark.parametrize("features", ["float32", "csr"])
def test_khop_on_a_device_gives_the_hosts_file(tmp_path: Path, mode: Any, features: str) -> None:
    graphs = build_graphset(60, max_nodes=25, edges_per_node=3, n_features=40, features=features, weights=True)
    weight = np.abs(graphs.weight) + np.float32(0.1)
    write_graphset(tmp_path / "in.h5", type(graphs)(**{**vars(graphs), "weight": weight}))
    made = {}
    for name in ("cpu", "cuda"):
        with Dataset(tmp_path / "in.h5") as source:
            options = HopOptions(hops=3, mode=mode, normalize=mode == "propagated")
            write(source, tmp_path / f"{name}.h5", options, open_products(name))
        with Dataset(tmp_path / f"{name}.h5") as result:
            made[name] = result.load()
    if mode == "propagated" and features == "float32":
        np.testing.assert_allclose(made["cuda"].x, made["cpu"].x, rtol=1e-5, atol=1e-6)
    else:
        assert_graphsets_equal(made["cuda"], made["cpu"])


def test_all_benchmarked_methods_agree_and_report_their_phases(device: Device) -> None:
    pytest.importorskip("nvmath")
    contenders, notes = open_contenders(None)
    assert notes == []
    problems = [of_class(name, 0.01) for name in CLASSES]
    for row in measure(problems, contenders, 2):
        assert bool(row.phases) == (row.contender == "gcnbatch")
        assert row.ms > 0
