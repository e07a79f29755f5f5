"""The inverse of a positive definite matrix on a device, and a kernel that is fitted with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.mixture.inverse import TILE, DeviceInverse, steps
from gcnbatch.backends.cuda.runtime.context import MemoryInfo
from gcnbatch.backends.registry import open_backend
from gcnbatch.errors import MachineError
from gcnbatch.mixture.members import fit_members
from gcnbatch.mixture.similarity import Similarity
from gcnbatch.training.mixed import compared
from tests.backends.cuda.mixture.test_similarity import prepared
from tests.entries import HostInverse
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


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, TILE, 3 * TILE - 5, 700])
def test_an_inverse_on_a_device_is_that_of_the_host(rows: int) -> None:
    """Bounds are those of a Cholesky factorisation: n roundings, times the condition of the matrix."""
    own, rng = prepared(rows), np.random.default_rng(1)
    added = rng.uniform(0.05, 0.2, rows)
    ops = open_backend("batched").mixture_ops()
    matrix = ops.similarity(compared(own), 2.0).matrix(compared(own)).astype(np.float64)
    matrix = np.tril(matrix) + np.tril(matrix, -1).T + np.diag(added)
    expected, x = np.linalg.inv(matrix), rng.normal(size=(rows, 67))
    inverse = ops.inverse(compared(own), 2.0, added)
    bound = 2.0**-53 * 10 * (rows + 10) * np.linalg.cond(matrix) * np.linalg.norm(expected, 2)
    some = np.flatnonzero(rng.random(rows) < 0.4)
    for found, of in ((inverse.block(np.arange(rows)), expected), (inverse.block(some), expected[np.ix_(some, some)])):
        assert np.abs(found - of).max(initial=0) <= bound
        assert np.array_equal(found, found.T)
    assert np.abs(inverse.products(x) - expected @ x).max() <= bound * np.abs(x).sum(axis=0).max()
    again = ops.inverse(compared(own), 2.0, added)
    assert np.array_equal(again.products(x), inverse.products(x))


def test_a_matrix_that_would_take_much_of_the_memory_is_refused() -> None:
    device: Any = SimpleNamespace(name="GPU 8", memory=lambda: MemoryInfo(free=8 << 30, total=8 << 30))
    told = r"memory of GPU 8: 2\.3 GB for 12,000 rows; expected at most 2\.1 GB, a quarter of it"
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
    """Similarities have float32's rounding; a ridge of at least 0.01 makes at most some hundreds of them."""
    of = molecules(300)
    own, ops = problem(of, target), open_backend("fused").mixture_ops()
    host, on_host = fit_members(own, of)
    device, on_device = fit_members(own, of, invert=lambda own, *about: ops.inverse(compared(own), *about))
    assert device.kernel is not None
    assert host.kernel is not None
    for name in on_host:
        np.testing.assert_allclose(on_device[name], on_host[name], atol=1e-4)
    np.testing.assert_allclose(device.predict(of)["kernel"], host.predict(of)["kernel"], atol=1e-4)


def test_the_whole_matrix_is_never_on_the_host_where_a_backend_inverts_it() -> None:
    calls: list[int] = []

    def invert(own, weight: float, added: np.ndarray) -> HostInverse:
        calls.append(len(own))
        return HostInverse(Similarity(own, 1, weight).square() + np.diag(added))

    of = molecules(90)
    host, on_host = fit_members(problem(of), of)
    found, left_out = fit_members(problem(of), of, invert=invert)
    assert calls == [90]
    for name in on_host:
        np.testing.assert_allclose(left_out[name], on_host[name], rtol=1e-6, atol=1e-8)
    assert found.kernel is not None
    assert host.kernel is not None
    np.testing.assert_allclose(found.kernel.weights, host.kernel.weights, rtol=1e-5, atol=1e-8)
    missing = problem(of, tasks=3, missing=0.3)
    expected, other = (fit_members(missing, of, invert=how)[1] for how in (None, invert))
    assert calls == [90]  # an exact system of complete rows alone
    assert all(np.array_equal(expected[name], other[name], equal_nan=True) for name in expected)
