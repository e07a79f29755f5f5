"""A graph convolution with bias, and all its gradients, compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.backends.cpu import sources
from gcnbatch.backends.cpu.sources import HostAdjacency, sources_of
from gcnbatch.data.distinct import RepeatedRows
from gcnbatch.data.sparse import Adjacency
from tests.ops.adapters import Adapter, open_adapter
from tests.ops.cases import CASES, Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity


def convolve(case: Case, form=lambda adjacency, x: adjacency, x=None) -> Problem:
    """Return a problem of features `x`, by default normal; `form` makes the adjacency that operations receive."""

    def run(ops, adjacency, x, w, b, dy, dw_out, db_out):
        formed = form(adjacency, x)
        y, saved = ops.convolve(formed, x, w, b)
        dx, dw, db = ops.convolve_backward(formed, dy, saved, w, out=(dw_out, db_out))
        not_needed, dw_alone, db_alone = ops.convolve_backward(formed, dy, saved, w, need_dx=False)
        assert not_needed is None
        alone = {"dw_alone": dw_alone, "db_alone": db_alone}
        return {"y": y, "dx": dx, "dw_out": dw, "db_out": db, **alone}

    rng = case.rng()
    shapes = (case.N, case.F), (case.F, case.columns), (case.columns,), (case.N, case.P)
    drawn, w, b, dy = (normal(rng, *shape) for shape in shapes)
    out = {"dw_out": np.full_like(w, np.nan), "db_out": np.full_like(b, np.nan)}
    given = drawn if x is None else x
    return Problem(run, {"adjacency": case.adjacency(rng), "x": given, "w": w, "b": b, "dy": dy, **out})


def test_convolve(spmm_backend: Adapter, case: Case):
    assert_parity(spmm_backend, convolve(case))


ON_CPU = ["cpu", pytest.param("cpu-fast", marks=pytest.mark.numba)]


def sources_for(name: str):
    if name == "cpu":
        return sources_of
    from gcnbatch.backends.cpu.compiled import compiled_sources_of

    return compiled_sources_of


@pytest.mark.parametrize("case", [case for case in CASES if case.C > 1], ids=lambda case: case.name)
@pytest.mark.parametrize("name", ON_CPU)
def test_products_of_the_rows_that_edges_start_from(name: str, case: Case, monkeypatch: pytest.MonkeyPatch):
    """Multiply only the rows of X that a channel reads, however many these are."""
    monkeypatch.setattr(sources, "MOST", 1.0)

    def form(adjacency: Adjacency, x):
        return HostAdjacency(adjacency.forward, lambda: adjacency.transpose, case.C, find=sources_for(name))

    problem = convolve(case, form)
    assert form(problem.inputs["adjacency"].matrix, None).sources is not None  # type: ignore[union-attr]
    assert_parity(open_adapter(name), problem)


@pytest.mark.parametrize("case", [case for case in CASES if case.N > 0], ids=lambda case: case.name)
@pytest.mark.parametrize("name", ON_CPU)
def test_products_of_features_that_repeat(name: str, case: Case):
    """Multiply each of three different rows once; the gradient by the features is never asked for."""
    rng = np.random.default_rng(1)
    rows, row_of = normal(rng, 3, case.F), rng.integers(0, 3, case.N).astype(np.int32)

    def form(adjacency: Adjacency, x):
        atoms = RepeatedRows(rows.astype(np.float32), row_of)
        of = adjacency.forward
        return HostAdjacency(of, lambda: adjacency.transpose, case.C, x, atoms, sources_for(name))

    def run(ops, adjacency, x, w, b, dy):
        formed = form(adjacency, x)
        y, saved = ops.convolve(formed, x, w, b)
        _, dw, db = ops.convolve_backward(formed, dy, saved, w, need_dx=False)
        return {"y": y, "dw": dw, "db": db}

    inputs = {name: value for name, value in convolve(case, x=rows[row_of]).inputs.items() if "out" not in name}
    assert_parity(open_adapter(name), Problem(run, inputs))


@pytest.mark.parametrize("name", ON_CPU)
def test_sources_of_four_atoms(name: str):
    """Number the pairs by channel, then by row, whose edges may repeat."""
    # Rows of two nodes; columns are (node 0, channel 0), (node 0, channel 1), (node 1, channel 0), (node 1, channel 1).
    matrix = sources.Csr(np.array([0, 2, 4], np.int32), np.array([3, 0, 3, 3], np.int32), np.ones(4, np.float32), 4)
    nodes, bounds, forward, transpose = sources_for(name)(matrix, 2)
    assert nodes.tolist() == [0, 1]
    assert bounds.tolist() == [0, 1, 2]
    assert forward.indices.tolist() == [1, 0, 1, 1]
    assert (transpose.indptr.tolist(), transpose.indices.tolist()) == ([0, 1, 4], [0, 0, 1, 1])


def test_distinct_rows_of_bytes_that_are_no_whole_words():
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)[np.arange(40) % 2]
    found = RepeatedRows.of(x)
    assert found is not None
    np.testing.assert_array_equal(found[:], x)
    assert len(found.values) == 2


def test_repeated_rows_of_parts_join_to_those_of_the_whole_array():
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)[np.random.default_rng(1).integers(5, size=200)]
    whole, parts = RepeatedRows.of(x), [RepeatedRows.of(part) for part in (x[:60], x[60:])]
    found = RepeatedRows.joined([part for part in parts if part is not None])
    assert whole is not None
    for name in ("values", "numbers"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    assert found.numbers.dtype == np.int32
    np.testing.assert_array_equal(found[np.arange(50, 70)], x[50:70])


MUTANTS = {
    "float16": mutant(convolve=lambda right, *arguments: (half(right(*arguments)[0]), right(*arguments)[1])),
    "no bias": mutant(convolve=lambda right, adjacency, x, w, b: right(adjacency, x, w, 0 * b)),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], convolve(case))
