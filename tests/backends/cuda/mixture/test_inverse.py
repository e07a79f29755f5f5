"""The inverse of a positive definite matrix on a device, and a kernel that is fitted with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.mixture.inverse import TILE, DeviceInverse, block, products, steps
from gcnbatch.backends.cuda.runtime.context import MemoryInfo
from gcnbatch.backends.registry import open_backend
from gcnbatch.errors import MachineError
from gcnbatch.mixture.kernel import RIDGES
from gcnbatch.mixture.members import fit_members
from gcnbatch.mixture.molecules import Preparation
from gcnbatch.training.mixed import compared
from tests.backends.cuda.mixture.test_similarity import error_bound, prepared
from tests.mixture.problems import molecules, problem


@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_steps_follow_the_blocked_algorithm(tiles: int) -> None:
    """Run them with NumPy on tiles of one element."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(tiles, tiles))
    matrix = matrix @ matrix.T + np.eye(tiles)
    a, z = np.tril(matrix), np.zeros((tiles, tiles))
    for kernel, k, launch in steps(tiles):
        if kernel == "inverse_diagonal":
            a[k, k] = np.sqrt(a[k, k])
            z[k, k] = 1 / a[k, k]
        elif kernel == "inverse_panel":
            assert launch.grid[0] == tiles - k - 1
            a[k + 1 :, k] *= z[k, k]
        elif kernel == "inverse_trailing":
            assert launch.grid[:2] == (tiles - k - 1,) * 2
            a[k + 1 :, k + 1 :] -= np.tril(np.outer(a[k + 1 :, k], a[k + 1 :, k]))
        else:
            assert launch.grid[0] == k
            z[k, :k] = -z[k, k] * (a[k, :k] @ z[:k, :k])
    np.testing.assert_allclose(z.T @ z, np.linalg.inv(matrix), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (64, 65), (65, 64), (1182, 130)])
def test_tiles_cover_products_and_blocks(rows: int, columns: int) -> None:
    across = products(3, columns).grid
    assert across[0] == 3
    for tiles, size in ((across[1], columns), (block(rows).grid[0], rows), (block(rows).grid[1], rows)):
        assert (tiles - 1) * TILE < size <= tiles * TILE


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, TILE, 3 * TILE - 5, 700])
def test_an_inverse_on_a_device_is_that_of_the_host(rows: int) -> None:
    """Each of both has an error of the size of n roundings of a Cholesky or LU factorisation, times the condition."""
    own, rng = prepared(rows), np.random.default_rng(1)
    added = rng.uniform(0.05, 0.2, rows)
    ops = open_backend("batched").mixture_ops()
    matrix = ops.similarity(compared(own), 2.0).products(compared(own), np.eye(rows))
    matrix = np.tril(matrix) + np.tril(matrix, -1).T + np.diag(added)
    expected, x = np.linalg.inv(matrix), rng.normal(size=(rows, 67))
    inverse = ops.inverse(compared(own), 2.0, added)
    bound = 2 * 2.0**-53 * (3 * rows + 10) * np.linalg.cond(matrix) * np.linalg.norm(expected, 2)
    some = np.flatnonzero(rng.random(rows) < 0.4)
    for found, of in ((inverse.block(np.arange(rows)), expected), (inverse.block(some), expected[np.ix_(some, some)])):
        assert np.abs(found - of).max(initial=0) <= bound
        assert np.array_equal(found, found.T)
    np.testing.assert_allclose(inverse.sums(), expected.sum(axis=1), rtol=0, atol=bound * rows)
    assert np.abs(inverse.products(x) - expected @ x).max() <= bound * np.abs(x).sum(axis=0).max()
    again = ops.inverse(compared(own), 2.0, added)
    assert np.array_equal(again.products(x), inverse.products(x))


def test_a_matrix_that_would_take_much_of_the_memory_is_refused() -> None:
    device: Any = SimpleNamespace(name="GPU 8", memory=lambda: MemoryInfo(free=8 << 30, total=8 << 30))
    told = r"memory of GPU 8: 2\.3 GB for 12,000 rows; expected at most 2\.1 GB, 25% of it"
    with pytest.raises(MachineError, match=told):
        DeviceInverse(device, iter(()), np.ones(12_000))


@pytest.mark.gpu
@pytest.mark.parametrize("row", [0, 100, 129])
def test_a_matrix_that_is_not_positive_definite_is_refused(row: int) -> None:
    own, added = prepared(130), np.full(130, 0.1)
    added[row] = -2
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        open_backend("batched").mixture_ops().inverse(compared(own), 1.0, added)


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["regression", "binary", "multiclass"])
def test_members_are_those_that_the_host_fits(target: str) -> None:
    """An error of each similarity changes a solution by at most n times it over the ridge; here in z and in a."""
    of = molecules(300)
    own, ops = problem(of, target), open_backend("fused").mixture_ops()
    prepared_own = Preparation.fit(of).apply(of)
    error = error_bound(prepared_own, prepared_own).max()
    bound = 2 * len(of) * error / min(RIDGES) * np.nanmax(np.abs(own.values))
    host, on_host = fit_members(own, of)
    device, on_device = fit_members(own, of, invert=lambda own, *about: ops.inverse(compared(own), *about))
    assert device.kernel is not None
    assert host.kernel is not None
    for name in on_host:
        np.testing.assert_allclose(on_device[name], on_host[name], rtol=0, atol=bound)
    np.testing.assert_allclose(device.predict(of)["kernel"], host.predict(of)["kernel"], rtol=0, atol=bound)
