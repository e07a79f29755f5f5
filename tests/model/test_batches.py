"""Batches: gathers of any graphs, from memory and from a file, against dense algebra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcnbatch.data import sparse
from gcnbatch.data.batches import BatchSource, GraphBatch
from gcnbatch.data.graph_features import FeatureTable
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.sparse import Csr
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from tests.builders import arrays_of, build_graphset, graphsets

few = settings(max_examples=60, derandomize=True)


def dense(matrix: Csr) -> NDArray[Any]:
    """Return the dense matrix, with repeated entries summed; check the arrays of the `Csr`."""
    assert matrix.indices.dtype == np.int32
    assert matrix.data.dtype == np.float32
    assert matrix.indptr[0] == 0
    assert matrix.indptr[-1] == len(matrix.indices) == len(matrix.data)
    rows = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
    full = np.zeros((len(matrix.indptr) - 1, matrix.n_cols), dtype=np.float32)
    np.add.at(full, (rows, matrix.indices), matrix.data)
    return full


def channels_of(graphs: GraphSet, graph: int, symmetric: bool) -> NDArray[np.float64]:
    """Return the dense A (C, n, n) of one graph in float64, with entry [c, dst, src]."""
    n = int(graphs.node_ptr[graph + 1] - graphs.node_ptr[graph])
    a = np.zeros((graphs.header.n_channels, n, n))
    edges = range(int(graphs.edge_ptr[graph]), int(graphs.edge_ptr[graph + 1]))
    for e in edges:
        weight = 1.0 if graphs.weight is None else graphs.weight[e]
        a[graphs.channel[e], graphs.dst[e], graphs.src[e]] += weight
    if not symmetric:
        return a
    scale = a.sum(axis=2)[:, :, None] * a.sum(axis=1)[:, None, :]
    return np.where(scale > 0, a / np.sqrt(np.where(scale > 0, scale, 1)), 0)


def picked_from(graphs: GraphSet, numbers: list[int]) -> NDArray[np.int64]:
    return np.array([number % graphs.n_graphs for number in numbers] if graphs.n_graphs else [], dtype=np.int64)


@few
@given(graphsets(), st.lists(st.integers(0, 100), max_size=6), st.booleans())
def test_a_batch_is_block_diagonal_in_the_requested_order(
    graphs: GraphSet, numbers: list[int], symmetric: bool
) -> None:
    # If weights cancel, only rounding errors remain, and normalisation would amplify them.
    if symmetric and graphs.weight is not None:
        graphs.weight[:] = np.abs(graphs.weight) + np.float32(0.1)
    picked = picked_from(graphs, numbers)
    batch = BatchSource(graphs, "symmetric" if symmetric else "stored").batch(picked)
    sizes = np.diff(graphs.node_ptr)[picked]
    np.testing.assert_array_equal(batch.node_ptr, np.concatenate([[0], np.cumsum(sizes)]))
    n, channels = int(sizes.sum()), graphs.header.n_channels
    assert batch.n_nodes == n
    expected = np.zeros((n, n, channels))
    for place, graph in enumerate(picked):
        block = slice(int(batch.node_ptr[place]), int(batch.node_ptr[place + 1]))
        expected[block, block] = channels_of(graphs, int(graph), symmetric).transpose(1, 2, 0)
    forward, transpose = dense(batch.adjacency.forward), dense(batch.adjacency.transpose)
    np.testing.assert_allclose(forward.reshape(n, n, channels), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(transpose, forward.T)
    assert batch.adjacency.n_channels == channels
    nodes = np.concatenate([np.arange(*graphs.node_ptr[g : g + 2]) for g in picked]) if len(picked) else np.arange(0)
    x = graphs.x.toarray() if isinstance(batch.x, Csr) else graphs.x
    np.testing.assert_array_equal(dense(batch.x) if isinstance(batch.x, Csr) else batch.x, x[nodes].astype(np.float32))
    assert (batch.x.data if isinstance(batch.x, Csr) else batch.x).dtype == np.float32
    np.testing.assert_array_equal(batch.rows, picked if graphs.header.level == "graph" else nodes)


@pytest.mark.parametrize(("limit", "what"), [(11, "12 nodes times channels"), (12, r"\d+ edges")])
def test_a_batch_beyond_32_bits_is_refused(monkeypatch: pytest.MonkeyPatch, limit: int, what: str) -> None:
    graphs = build_graphset(1, n_channels=3, max_nodes=4, edges_per_node=9)
    monkeypatch.setattr(sparse, "MAX_ENTRIES", limit)
    with pytest.raises(InputError, match=f"batch size: a batch of {what}; expected at most {limit}. Lower train.batch"):
        BatchSource(graphs).batch(np.array([0]))


def assert_same_batch(one: GraphBatch, other: GraphBatch) -> None:
    np.testing.assert_array_equal(one.node_ptr, other.node_ptr)
    np.testing.assert_array_equal(one.rows, other.rows)
    pairs = [(one.adjacency.forward, other.adjacency.forward), (one.adjacency.transpose, other.adjacency.transpose)]
    if isinstance(one.x, Csr):
        pairs.append((one.x, other.x))
    else:
        np.testing.assert_array_equal(one.x.view(np.uint32), other.x.view(np.uint32))
    for left, right in pairs:
        np.testing.assert_array_equal(dense(left).view(np.uint32), dense(right).view(np.uint32))


@settings(few, max_examples=30)
@given(graphsets(), st.lists(st.integers(0, 100), max_size=6), st.sampled_from(["symmetric", "stored"]))
def test_batches_from_memory_and_from_file_are_equal_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, graphs: GraphSet, numbers: list[int], adjacency: str
) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "slices.h5"
    write_graphset(path, graphs)
    picked = picked_from(graphs, numbers)
    with Dataset(path) as dataset:
        of_memory, of_file = (BatchSource(data, adjacency, True).batch(picked) for data in (graphs, dataset))
        assert_same_batch(of_memory, of_file)
        joined = [one and one.values[one.rows] for one in (of_memory.graph_features, of_file.graph_features)]
        np.testing.assert_array_equal(joined[0], joined[1])
        if graphs.graph_features is not None:
            np.testing.assert_array_equal(joined[0], graphs.graph_features.dense()[picked][:, : graphs.header.n_joined])


@few
@given(graphsets(n_graphs=4, level="graph"), st.permutations(range(4)))
def test_a_graph_does_not_depend_on_the_others_of_its_batch(graphs: GraphSet, order: list[int]) -> None:
    source = BatchSource(graphs)
    whole = source.batch(np.array(order))
    full = dense(whole.adjacency.forward)
    for place, graph in enumerate(order):
        alone = dense(source.batch(np.array([graph])).adjacency.forward)
        first, end = whole.node_ptr[place : place + 2]
        channels = graphs.header.n_channels
        np.testing.assert_array_equal(full[first:end, first * channels : end * channels], alone)


def test_normalized_weights_are_unchanged() -> None:
    graphs = build_graphset(4, weights=True)
    stated = GraphSet(**{**vars(graphs), "header": graphs.header.model_copy(update={"normalized": True})})
    picked = np.arange(4)
    assert_same_batch(BatchSource(stated, "symmetric").batch(picked), BatchSource(graphs, "stored").batch(picked))


def test_one_symmetric_channel_is_its_own_transpose() -> None:
    graphs = build_graphset(6, n_channels=1)
    both_ways = GraphSet(
        **{
            **vars(graphs),
            "edge_ptr": graphs.edge_ptr * 2,
            "src": np.repeat(graphs.src, 2),
            "dst": np.repeat(graphs.dst, 2),
            "channel": np.repeat(graphs.channel, 2),
        }
    )
    both_ways.src[1::2], both_ways.dst[1::2] = graphs.dst, graphs.src
    batch = BatchSource(both_ways).batch(np.arange(6))
    assert batch.adjacency.transpose is batch.adjacency.forward
    np.testing.assert_array_equal(dense(batch.adjacency.forward), dense(batch.adjacency.forward).T)
    asymmetric = BatchSource(graphs).batch(np.arange(6)).adjacency
    assert asymmetric.transpose is not asymmetric.forward


@few
@given(graphsets(), st.lists(st.integers(0, 100), max_size=3))
def test_batches_do_not_share_memory_with_the_set(graphs: GraphSet, numbers: list[int]) -> None:
    source, picked = BatchSource(graphs), picked_from(graphs, numbers)
    if graphs.header.level == "node" and graphs.n_graphs == len(picked) == 1:
        assert source.batch(picked) is source.batch(picked)  # the one exception: it is made once
        return
    first = source.batch(picked)
    for array in (first.x.data if isinstance(first.x, Csr) else first.x, first.adjacency.forward.indices):
        array[...] = 0
    second = source.batch(picked)
    assert_same_batch(second, BatchSource(graphs).batch(picked))


@few
@given(graphsets(level="graph"), st.lists(st.integers(0, 20), max_size=3), st.booleans(), st.booleans())
def test_sources_of_parts_join_to_that_of_the_whole_set(
    graphs: GraphSet, cuts: list[int], symmetric: bool, joins: bool
) -> None:
    if symmetric and graphs.weight is not None:
        graphs.weight[:] = np.abs(graphs.weight) + np.float32(0.1)
    about = ("symmetric" if symmetric else "stored", joins and graphs.graph_features is not None)
    parts = np.split(np.arange(graphs.n_graphs), sorted(cut % (graphs.n_graphs + 1) for cut in cuts))
    whole = BatchSource(graphs, *about)
    found = BatchSource.joined([BatchSource(graphs.take(part), *about) for part in parts])
    assert (found.n_graphs, found.normalize) == (whole.n_graphs, whole.normalize)
    assert_equal_values(vars(found), vars(whole), ("node_ptr",))
    assert found.prepared is not None
    assert whole.prepared is not None
    assert found.prepared.symmetric == whole.prepared.symmetric
    assert_equal_values(vars(found.prepared), vars(whole.prepared), ("x", "stored_graph_features", "scales"))
    for name in ("forward", "transpose"):
        rows, expected = vars(found.prepared)[name], vars(whole.prepared)[name]
        assert_equal_values(vars(rows), vars(expected), ("row_length", "entry_ptr", "indices", "data"))


def assert_equal_values(found: dict[str, Any], expected: dict[str, Any], names: tuple[str, ...]) -> None:
    """Check arrays with types, pairs of arrays, sparse matrices and None."""
    for name in names:
        for one, other in zip(_arrays(found[name]), _arrays(expected[name]), strict=True):
            assert one.dtype == other.dtype, name
            np.testing.assert_array_equal(one, other, err_msg=name)


def _arrays(value: Any) -> list[NDArray[Any]]:
    if value is None:
        return []
    if isinstance(value, FeatureTable):
        return arrays_of(value)
    if sp.issparse(value):
        return [value.indptr, value.indices, value.data]
    return list(value) if isinstance(value, tuple) else [value]
