"""A kernel that something else inverts, where no cell lacks a target."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.mixture import fit_members
from gcnbatch.mixture import kernel as kernels
from gcnbatch.mixture.molecules import Prepared
from gcnbatch.mixture.similarity import Similarity
from tests.entries import HostInverse
from tests.mixture.problems import molecules, problem


class Inverter:
    """Inverts in float64; `calls` has the rows of each call."""

    def __init__(self, can: bool = True) -> None:
        self.can, self.calls = can, list[int]()

    def __call__(self, own: Prepared, weight: float, diagonal: np.ndarray) -> HostInverse | None:
        self.calls.append(len(own))
        return HostInverse(Similarity(own, 1, weight).square() + np.diag(diagonal)) if self.can else None


@pytest.mark.parametrize("can", [True, False], ids=["inverts", "cannot"])
@pytest.mark.parametrize("target", ["regression", "multiclass"])
def test_members_are_those_of_the_whole_matrix(monkeypatch: pytest.MonkeyPatch, target: str, can: bool) -> None:
    of, whole = molecules(90), kernels.whole_matrix
    host, on_host = fit_members(problem(of, target), of)
    asked: list[int] = []
    monkeypatch.setattr(kernels, "whole_matrix", lambda own, of: asked.append(len(of)) or whole(own, of))
    invert = Inverter(can)
    found, left_out = fit_members(problem(of, target), of, invert=invert)
    assert (invert.calls, asked) == ([90], [] if can else [90])
    for name in on_host:
        np.testing.assert_allclose(left_out[name], on_host[name], rtol=1e-6, atol=1e-8)
    assert found.kernel is not None
    assert host.kernel is not None
    np.testing.assert_allclose(found.kernel.weights, host.kernel.weights, rtol=1e-5, atol=1e-8)


def test_tasks_with_missing_cells_are_solved_on_the_host() -> None:
    of, invert = molecules(90), Inverter()
    missing = problem(of, tasks=3, missing=0.3)
    expected, found = (fit_members(missing, of, invert=how)[1] for how in (None, invert))
    assert not invert.calls
    assert all(np.array_equal(expected[name], found[name], equal_nan=True) for name in expected)
