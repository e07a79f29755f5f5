"""Readout compared with the reference."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cpu.ops import CpuOps
from gcnbatch.backends.registry import open_backend
from tests.ops.adapters import Adapter
from tests.ops.cases import CASES, Case, multiples_of_half, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity

KINDS = ["sum", "mean", "max"]


def readout(case: Case, kind: str) -> Problem:
    """Return a problem: values with ties for the maximum, values with all digits for sums."""

    def run(ops, h, node_ptr, dr):
        r, saved = ops.readout(h, node_ptr, kind)
        return {"r": r, "dh": ops.readout_backward(dr, node_ptr, kind, saved)}

    rng = case.rng()
    h, dr = normal(rng, case.N, case.P), normal(rng, len(case.sizes), case.P)
    return Problem(run, {"h": multiples_of_half(h) if kind == "max" else h, "node_ptr": case.node_ptr, "dr": dr})


PROBLEMS = {kind: lambda case, kind=kind: readout(case, kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_readout(backend: Adapter, case: Case, kind: str):
    assert_parity(backend, readout(case, kind))


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize("ops", [CpuOps(), open_backend("cpu").ops], ids=["NumPy", "default"])
def test_sums_on_the_cpu_are_rounded_once(ops: Any, kind: str):
    """Sums of float32 in a row would lose the digits of an output that is a small difference of large sums."""
    h = normal(np.random.default_rng(3), 2000, 5)
    sums = h.astype(np.float64).sum(axis=0)
    np.testing.assert_array_equal(
        ops.readout(h, np.array([0, 0, 2000]), kind)[0],
        np.float32([np.zeros(5), sums / 2000 if kind == "mean" else sums]),
    )


def last_winner(right, dr, node_ptr, kind, saved):
    h, r = saved.h, saved.r
    dh = np.zeros_like(h)
    for b, (first, end) in enumerate(pairwise(node_ptr)):
        if first < end:
            dh[end - 1 - (h[first:end][::-1] == r[b]).argmax(axis=0), np.arange(h.shape[1])] = dr[b]
    return dh


def a_node_missing(right, h, node_ptr, kind):
    shorter = h.copy()
    shorter[np.abs(h).sum(axis=1).argmin()] = 0
    return right(shorter, node_ptr, kind)


MUTANTS = {
    "the last of equal values": ("max", mutant(readout_backward=last_winner)),
    "a node missing": ("sum", mutant(readout=a_node_missing)),
    "sum for mean": ("mean", mutant(readout=lambda right, h, node_ptr, kind: right(h, node_ptr, "sum"))),
    "float16 values": ("sum", mutant(readout=lambda right, h, node_ptr, kind: right(half(h), node_ptr, kind))),
    "float16 mean": (
        "mean",
        mutant(readout=lambda right, h, node_ptr, kind: (half(right(h, node_ptr, kind)[0]), None)),
    ),
    "gradient not divided": (
        "mean",
        mutant(readout_backward=lambda right, dr, node_ptr, kind, saved: right(dr, node_ptr, "sum", saved)),
    ),
    "gradient of the node before": (
        "max",
        mutant(readout_backward=lambda right, *arguments: np.roll(right(*arguments), 1, axis=0)),
    ),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    kind, wrong = MUTANTS[name]
    assert_rejected(wrong, readout(case, kind))


def test_the_gradient_of_the_graph_before_is_rejected():
    case = next(case for case in CASES if case.name == "eleven mixed sizes")
    wrong = mutant(
        readout_backward=lambda right, dr, node_ptr, kind, saved: right(np.roll(dr, 1, axis=0), node_ptr, kind, saved)
    )
    for kind in KINDS:
        assert_rejected(wrong, readout(case, kind))
