"""Gathering, joining and splitting graph sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.data.csr import compressed, transposed
from gcnbatch.data.graphs import bounded_ranges, concatenate
from gcnbatch.data.sparse import ragged_rows
from tests.builders import assert_graphsets_equal, build_graphset, graphsets


def test_ragged_rows_of_the_docstring():
    rows, pointer = ragged_rows(np.array([0, 3, 4]), np.array([1, 0]))
    assert rows.tolist() == [3, 0, 1, 2]
    assert pointer.tolist() == [0, 1, 4]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_ragged_rows_equal_a_loop(lengths, data):
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    picked = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=10)), dtype=np.int64)
    rows, pointer = ragged_rows(ptr, picked)
    segments = [list(range(ptr[g], ptr[g + 1])) for g in picked]
    assert rows.tolist() == list(itertools.chain(*segments))
    assert np.diff(pointer).tolist() == [len(segment) for segment in segments]


def test_bounded_ranges_of_the_docstring():
    assert list(bounded_ranges(np.array([0, 3, 4, 9]), 4)) == [(0, 2), (2, 3)]
    assert list(bounded_ranges(np.array([0]), 4)) == []


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 9))
def test_bounded_ranges_cover_all_segments_and_are_as_long_as_allowed(lengths, most):
    ranges = list(bounded_ranges(np.concatenate([[0], np.cumsum(lengths)]), most))
    assert [segment for first, stop in ranges for segment in range(first, stop)] == list(range(len(lengths)))
    for first, stop in ranges:
        assert sum(lengths[first:stop]) <= most or stop == first + 1
        assert stop == len(lengths) or sum(lengths[first : stop + 1]) > most


@settings(max_examples=40)
@given(graphsets(splits=False))
def test_concatenating_single_graphs_gives_the_set_back(graphs):
    if graphs.n_graphs:
        assert_graphsets_equal(concatenate([graphs.take([g]) for g in range(graphs.n_graphs)]), graphs)


@settings(max_examples=40)
@given(graphsets(splits=False), st.randoms())
def test_taking_twice_is_taking_the_composition(graphs, random):
    order = list(range(graphs.n_graphs))
    random.shuffle(order)
    again = [random.randrange(graphs.n_graphs) for _ in range(5)] if graphs.n_graphs else []
    assert_graphsets_equal(graphs.take(order).take(again), graphs.take([order[i] for i in again]))


def test_take_keeps_each_graph_whole():
    graphs = build_graphset(6, level="node", weights=True, groups=True)
    picked = graphs.take([2, 5, 0, 2])
    for place, source in enumerate([2, 5, 0, 2]):
        assert_graphsets_equal(picked.take([place]), graphs.take([source]))


def test_take_drops_splits_and_leaves_the_set_alone():
    graphs, same = build_graphset(splits=True), build_graphset(splits=True)
    assert graphs.take([1, 0]).splits == {}
    assert_graphsets_equal(graphs, same)


@pytest.mark.parametrize("numbers", [[-1], [6]])
def test_numbers_outside_the_set_are_refused(numbers):
    with pytest.raises(IndexError, match="graph numbers must lie in 0 … 5"):
        build_graphset(6).take(numbers)


@pytest.mark.parametrize("numbers", [np.ones(6, bool), [0.5]])
def test_masks_and_fractions_are_refused(numbers):
    with pytest.raises(TypeError, match="graph numbers must be integers"):
        build_graphset(6).take(numbers)


@pytest.mark.parametrize(
    "other", [{"weights": True}, {"groups": True}, {"features": "int8"}, {"features": "csr"}, {"n_tasks": 3}]
)
def test_sets_of_different_layouts_do_not_join(other):
    with pytest.raises(ValueError, match="cannot join sets of different layouts"):
        concatenate([build_graphset(), build_graphset(**other)])


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("repeated", [False, True])
def test_compressed_rows_and_their_transpose_are_those_of_scipy(kind: type, repeated: bool) -> None:
    random = np.random.default_rng(0)
    places = random.choice(7 * 11, 30, replace=repeated)
    rows, columns, values = (places // 11).astype(kind), (places % 11).astype(kind), random.random(30, np.float32)
    found, expected = (
        compressed(rows, columns, values, (7, 11)),
        sp.coo_array((values, (rows, columns)), (7, 11)).tocsr(),
    )
    for one, other in ((found, expected), (transposed(found), expected.T.tocsr())):
        assert one.indptr.dtype == one.indices.dtype == kind
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
