"""Rows of labelled nodes: of the adjacency of one graph, and of each rank's part of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graph_part import Halo, read_part
from gcnbatch.data.labelled import labelled_part, labelled_rows, rows_of
from gcnbatch.data.sparse import Csr
from gcnbatch.data.store import Dataset, write_graphset
from tests.builders import build_graphset
from tests.ranks.threads import on_ranks

NODES = 60
GRAPHS: dict[str, dict[str, Any]] = {
    "one channel": {"n_channels": 1},
    "symmetric": {"n_channels": 1, "symmetric": True},
    "weights": {"n_channels": 2, "weights": True},
}


def dense(matrix: Csr, columns: np.ndarray | None = None, width: int = 0) -> np.ndarray:
    """Return a matrix as an array; `columns` are the numbers of its columns in an array of this width."""
    columns = np.arange(matrix.n_cols) if columns is None else columns
    found = np.zeros((len(matrix.indptr) - 1, width or matrix.n_cols))
    for row in range(len(found)):
        at = slice(matrix.indptr[row], matrix.indptr[row + 1])
        np.add.at(found[row], columns[matrix.indices[at]], matrix.data[at])
    return found


def one_graph(options: dict[str, Any]) -> Any:
    given = {name: value for name, value in options.items() if name != "symmetric"}
    found = build_graphset(1, level="node", max_nodes=NODES, edges_per_node=4, **given)
    if "symmetric" not in options:
        return found
    ends = np.concatenate([[found.src, found.dst], [found.dst, found.src]], axis=1)
    src, dst = np.unique(ends, axis=1)
    return replace(
        found, src=src, dst=dst, channel=np.zeros_like(found.channel, shape=len(src)), edge_ptr=np.array([0, len(src)])
    )


def cells(nodes: np.ndarray, channels: int) -> np.ndarray:
    return (nodes[:, None] * channels + np.arange(channels)).ravel()


def targets_of(rows: list[int]) -> np.ndarray:
    found = np.full((NODES, 1), -1, np.int32)
    found[rows] = 0
    return found


def test_rows_with_any_label_count_until_they_are_more_than_half() -> None:
    y = np.full((6, 2), np.nan, np.float32)
    assert labelled_rows(y) is None
    y[[1, 4], [0, 1]] = 0
    np.testing.assert_array_equal(labelled_rows(y), [1, 4])
    y[5, 1] = 1
    np.testing.assert_array_equal(labelled_rows(y), [1, 4, 5])
    y[0, 0] = 1
    assert labelled_rows(y) is None


@pytest.mark.parametrize("options", GRAPHS.values(), ids=GRAPHS)
def test_rows_and_their_transpose_are_those_of_the_adjacency(options: dict[str, Any]) -> None:
    whole = BatchSource(one_graph(options)).batch(np.array([0])).adjacency
    rows = np.array([3, 4, 17, 59])
    few = rows_of(whole.forward, whole.n_channels, rows)
    np.testing.assert_array_equal(dense(few.forward), dense(whole.forward)[rows])
    np.testing.assert_array_equal(dense(few.transpose), dense(whole.transpose)[:, rows])


@pytest.mark.parametrize("options", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 70])
def test_parts_with_labels_together_are_the_labelled_rows(options: dict[str, Any], ranks: int, tmp_path: Path) -> None:
    write_graphset(tmp_path / "set.h5", one_graph(options))
    rows = np.array([0, 1, 2, 25, 40, 41, 59])
    targets = targets_of(rows.tolist())

    def part_of(communicator: Any) -> Any:
        part = read_part(dataset, True, communicator)
        return part, labelled_part(part, targets, communicator)

    with Dataset(tmp_path / "set.h5") as dataset:
        channels = dataset.header.n_channels
        whole = BatchSource(dataset.load()).batch(np.array([0])).adjacency
        found = on_ranks(ranks, part_of)
    firsts = found[0][0].bounds
    own_rows = [firsts[rank] + few.rows for rank, (_, few) in enumerate(found)]
    np.testing.assert_array_equal(np.concatenate(own_rows), rows)
    for rank, (_, few) in enumerate(found):
        first, stop = firsts[rank : rank + 2]
        of_forward = [few.adjacency.of_forward for _, few in found]
        of_transpose = [few.adjacency.of_transpose for _, few in found]
        assert few.total == len(rows)
        assert_halo_is_what_others_send(
            of_forward, rank, [np.arange(*firsts[owner : owner + 2]) for owner in range(ranks)]
        )
        assert_halo_is_what_others_send(of_transpose, rank, own_rows)
        nodes = np.concatenate([np.arange(first, stop), few.adjacency.of_forward.nodes]).astype(np.int64)
        expected = dense(whole.forward)[own_rows[rank]]
        forward = dense(few.adjacency.forward, cells(nodes, channels), NODES * channels)
        np.testing.assert_allclose(forward, expected, rtol=1e-6)
        nodes = np.concatenate([own_rows[rank], few.adjacency.of_transpose.nodes]).astype(np.int64)
        transpose = dense(few.adjacency.transpose, nodes, NODES)[:, rows]
        expected = dense(whole.transpose)[:, rows][first * channels : stop * channels]
        np.testing.assert_allclose(transpose, expected, rtol=1e-6)
        assert_scales_make_the_values(few.adjacency.forward, few.adjacency.of_forward)
        assert_scales_make_the_values(few.adjacency.transpose, few.adjacency.of_transpose)


def assert_halo_is_what_others_send(halos: list[Halo], rank: int, held: list[np.ndarray]) -> None:
    """Assert that a rank's halo has the nodes that others send; `held` are the nodes of each rank's operand."""
    sent = [nodes[halo.sent[rank]] for nodes, halo in zip(held, halos, strict=True)]
    assert [len(nodes) for nodes in sent] == list(halos[rank].received)
    np.testing.assert_array_equal(halos[rank].nodes, np.concatenate(sent))


def assert_scales_make_the_values(matrix: Csr, halo: Halo) -> None:
    if halo.scales is not None:
        rows, columns = halo.scales
        assert (len(rows), len(columns)) == (len(matrix.indptr) - 1, matrix.n_cols)
        row = np.repeat(np.arange(len(rows)), np.diff(matrix.indptr))
        np.testing.assert_allclose(rows[row] * columns[matrix.indices], matrix.data, rtol=1e-6)


def test_parts_of_a_graph_with_many_labels_have_none(tmp_path: Path) -> None:
    write_graphset(tmp_path / "set.h5", one_graph({"n_channels": 1}))
    targets = targets_of(list(range(31)))
    with Dataset(tmp_path / "set.h5") as dataset:
        assert on_ranks(
            2, lambda communicator: labelled_part(read_part(dataset, True, communicator), targets, communicator)
        ) == [None, None]
