"""Features of whole graphs: measured ones, and counts of fragments in sparse rows."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gcnbatch.data import sharding
from gcnbatch.data.graph_features import FeatureTable, HostFeatures
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.store import Dataset, write_graphset
from tests.builders import arrays_of, assert_graphsets_equal, build_graphset
from tests.data.file_changes import store_counts_densely

COUNTS = st.sampled_from([0, 0, 0, 1, 2, 255, 256, 70_000, 2**24])
tables = st.tuples(st.integers(0, 5), st.integers(1, 6)).flatmap(
    lambda shape: st.tuples(arrays.arrays(np.float32, shape, elements=COUNTS), st.integers(0, shape[1]))
)


@given(tables, st.lists(st.integers(0, 4), max_size=6), st.integers(0, 6))
def test_a_table_has_the_values_of_its_dense_columns(drawn, numbers: list[int], width: int) -> None:
    dense, n_counts = drawn
    dense[:, : dense.shape[1] - n_counts][dense[:, : dense.shape[1] - n_counts] == 1] = np.nan
    table = FeatureTable.of(dense, n_counts)
    assert table.shape == dense.shape
    assert table.dense().dtype == np.float32
    np.testing.assert_array_equal(table, dense)
    assert len(table.counts.data) == np.count_nonzero(dense[:, dense.shape[1] - n_counts :])
    rows = np.array([number % len(dense) for number in numbers if len(dense)], np.int64)
    np.testing.assert_array_equal(table[rows], dense[rows])
    np.testing.assert_array_equal(FeatureTable.joined([table, table[rows]]), np.concatenate([dense, dense[rows]]))
    np.testing.assert_array_equal(table.first(min(width, dense.shape[1])), dense[:, :width])
    batch = HostFeatures(table, rows)
    np.testing.assert_array_equal(batch.values[batch.rows], dense[rows])


def test_fingerprints_are_columns_of_the_whole_table() -> None:
    dense = np.float32([[np.nan, 3, 0, 0, 2], [1, 0, 0, 4, 5]])
    counts = FeatureTable.of(dense, 4).counts_of(slice(3, 5))
    assert (counts.indptr.tolist(), counts.indices.tolist(), counts.data.tolist()) == ([0, 1, 3], [1, 0, 1], [2, 4, 5])


def test_an_array_becomes_a_table_by_the_header() -> None:
    graphs = build_graphset(graph_features=4, n_counts=3)
    assert graphs.graph_features is not None
    given = GraphSet(**{**vars(graphs), "graph_features": graphs.graph_features.dense()})
    assert given.graph_features is not None
    assert [array.shape for array in arrays_of(given.graph_features)] == [
        array.shape for array in arrays_of(graphs.graph_features)
    ]
    np.testing.assert_array_equal(given.graph_features, graphs.graph_features)


@pytest.mark.parametrize(("features", "n_counts"), [(5, 3), (4, 4)])
def test_dense_counts_of_version_0_1_are_read_and_become_sparse_in_copies(
    tmp_path: Path, features: int, n_counts: int
) -> None:
    graphs = build_graphset(9, graph_features=features, n_counts=n_counts, splits=True)
    path, picked = tmp_path / "set.h5", np.array([7, 2, 3])
    write_graphset(path, graphs)
    dense = store_counts_densely(path)
    with Dataset(path) as loaded, Dataset(path, check=False) as opened:
        for dataset in (opened, loaded):
            np.testing.assert_array_equal(dataset.read(picked).graph_features, dense[picked])
            np.testing.assert_array_equal(dataset.measured_features(2, 6), dense[2:6, : features - n_counts])
            np.testing.assert_array_equal(FeatureTable.joined([*dataset.feature_tables()]), dense)
            np.testing.assert_array_equal(FeatureTable.joined([*dataset.feature_tables(picked[1:])]), dense[picked[1:]])
        write_graphset(tmp_path / "copy.h5", opened.load())
        sharding.shard(loaded, tmp_path / "shards", max_graphs=4)
    for name in ("copy.h5", "shards"):
        with Dataset(tmp_path / name) as copy:
            assert_graphsets_equal(copy.load(), graphs)
    with h5py.File(tmp_path / "copy.h5") as file:
        assert ("graphs/features" in file) == (features > n_counts)
        assert file["graphs/counts/data"].dtype == np.uint32
