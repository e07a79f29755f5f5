"""Slices of rows of one graph: the rows of the whole graph's matrix to the bit, read without the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch.data import normalize, row_slices
from gcnbatch.data.batches import PreparedSet
from gcnbatch.data.chunks import StoredArray
from gcnbatch.data.row_slices import entries_before, read_rows, weight_sums
from gcnbatch.data.store import Dataset, write_graphset
from tests.builders import build_graphset

SETS: dict[str, dict[str, Any]] = {
    "one channel": {"n_channels": 1},
    "channels and weights": {"n_channels": 3, "weights": True, "features": "csr"},
    "a second graph": {"n_graphs": 2, "weights": True},
}


@pytest.mark.parametrize("options", SETS.values(), ids=SETS)
def test_slices_are_the_rows_of_the_whole_graph(tmp_path: Path, options: dict[str, Any], monkeypatch: Any) -> None:
    for module in (row_slices, normalize):
        monkeypatch.setattr(module, "EDGES", 50)
    graphs = build_graphset(
        **{"n_graphs": 1, "level": "node", "max_nodes": 40, "edges_per_node": 5, "target": "multiclass", **options}
    )
    write_graphset(tmp_path / "set.h5", graphs)
    graph, channels = graphs.n_graphs - 1, graphs.header.n_channels
    alone = graphs.take([graph])
    whole = {normal: PreparedSet(alone, normal).forward for normal in (False, True)}
    with Dataset(tmp_path / "set.h5", check=False) as dataset:
        sums, before = weight_sums(dataset, graph), entries_before(dataset, graph)
        np.testing.assert_array_equal(np.diff(before), np.bincount(alone.dst, minlength=alone.n_nodes))
        for first, stop in ((0, alone.n_nodes), (7, 23), (5, 5), (alone.n_nodes - 1, alone.n_nodes)):
            for normal, rows in whole.items():
                found = read_rows(dataset, first, stop, graph, sums if normal else None)
                begin, end = rows.indptr[[first, stop]]
                assert found.matrix.shape == (stop - first, alone.n_nodes * channels)
                np.testing.assert_array_equal(found.matrix.indptr, rows.indptr[first : stop + 1] - begin)
                np.testing.assert_array_equal(found.matrix.indices, rows.indices[begin:end])
                np.testing.assert_array_equal(found.matrix.data, rows.data[begin:end])
                dense = [x.toarray() if sp.issparse(x) else x for x in (found.x, alone.x[first:stop])]
                np.testing.assert_array_equal(*dense)
                np.testing.assert_array_equal(found.y, alone.y[first:stop])
        with pytest.raises(IndexError, match=f"rows 3 … 99 of a graph of {alone.n_nodes} nodes"):
            read_rows(dataset, 3, 99, graph)


def test_a_slice_of_sorted_edges_reads_its_own_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_slices, "EDGES", 50)
    graphs = build_graphset(1, level="node", max_nodes=100, edges_per_node=4, n_channels=1)
    order = np.argsort(graphs.dst, kind="stable")
    graphs.src[:], graphs.dst[:] = graphs.src[order], graphs.dst[order]
    write_graphset(tmp_path / "set.h5", graphs)
    reads: dict[str, int] = {}
    whole = StoredArray.__getitem__

    def counted(array: StoredArray, rows: slice) -> Any:
        found = whole(array, rows)
        reads[array.name] = reads.get(array.name, 0) + len(found)
        return found

    with Dataset(tmp_path / "set.h5", check=False) as dataset:
        monkeypatch.setattr(StoredArray, "__getitem__", counted)
        read_rows(dataset, 50, 60)
    own = int(((graphs.dst >= 50) & (graphs.dst < 60)).sum())
    assert reads == {"edges/dst": 400, "edges/src": own, "edges/channel": own, "nodes/x": 10}
