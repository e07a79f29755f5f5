"""Products with the adjacency, by every SpMM kernel, compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.data.sparse import Adjacency, Csr
from tests.ops.adapters import Adapter
from tests.ops.cases import CASES, LARGE_CASES, Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity


def spmm(case: Case) -> Problem:
    def run(ops, adjacency, h, dy):
        return {"y": ops.spmm(adjacency, h), "dh": ops.spmm_backward(adjacency, dy)}

    rng = case.rng()
    h, dy = normal(rng, case.N, case.columns), normal(rng, case.N, case.P)
    return Problem(run, {"adjacency": case.adjacency(rng), "h": h, "dy": dy})


@pytest.mark.parametrize("case", [*CASES, *LARGE_CASES], ids=lambda case: case.name)
def test_spmm(spmm_backend: Adapter, case: Case):
    assert_parity(spmm_backend, spmm(case))


def swapped(adjacency: Adjacency) -> Adjacency:
    """Return the adjacency with reversed edges, of one channel."""
    return Adjacency(adjacency.transpose, adjacency.forward, 1)


def with_entries(matrix: Csr, change) -> Csr:
    return Csr(matrix.indptr, matrix.indices, change(matrix.data), matrix.n_cols)


def changed(adjacency: Adjacency, change) -> Adjacency:
    """Return the adjacency with changed entries."""
    both = (with_entries(matrix, change) for matrix in (adjacency.forward, adjacency.transpose))
    return Adjacency(*both, adjacency.n_channels)


def without_first(entries):
    return np.concatenate([[np.float32(0)], entries[1:]])


def channels_rolled(h, channels: int):
    return np.roll(h.reshape(len(h), channels, -1), 1, axis=1).reshape(h.shape)


MUTANTS = {
    "an entry missing": mutant(spmm=lambda right, a, h: right(changed(a, without_first), h)),
    "an entry missing in dh": mutant(spmm_backward=lambda right, a, dy: right(changed(a, without_first), dy)),
    "entries of the neighbour": mutant(spmm=lambda right, a, h: right(changed(a, lambda data: np.roll(data, 1)), h)),
    "float16 entries": mutant(spmm=lambda right, a, h: right(changed(a, half), h)),
    "float16 result": mutant(spmm_backward=lambda right, a, dy: half(right(a, dy))),
    "a node off": mutant(spmm=lambda right, a, h: right(a, np.roll(h, 1, axis=0))),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], spmm(case))


def test_other_mutants_are_rejected():
    """Reject channels in another order, and reversed edges."""
    rolled = mutant(spmm=lambda right, a, h: right(a, channels_rolled(h, a.n_channels)))
    assert_rejected(rolled, spmm(next(case for case in CASES if case.name == "four channels")))
    other_way = mutant(spmm=lambda right, a, h: right(swapped(a), h))
    assert_rejected(other_way, spmm(next(case for case in CASES if case.name == "one graph of 257")))
