"""Predictions of any rows, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcnbatch.data.batches import BatchSource
from gcnbatch.model.predict import predict_rows
from tests.builders import build_graphset


class Echo:
    """A runner whose logits are the numbers of their rows."""

    def __init__(self, source: BatchSource) -> None:
        self.source, self.sizes = source, list[int]()

    def predict(self, graphs: NDArray[np.int64], rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        self.sizes.append(len(graphs))
        all_rows = self.source.batch(graphs).rows
        asked = all_rows if rows is None else all_rows[rows]
        return np.stack([asked, -asked], axis=1).astype(np.float32)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.sampled_from(["graph", "node"]), st.lists(st.integers(0, 10**6), max_size=30), st.integers(1, 9))
def test_predictions_are_in_the_requested_order(level: Any, numbers: list[int], batch_size: int) -> None:
    graphs = build_graphset(15, level=level, max_nodes=4)
    source = BatchSource(graphs)
    runner: Any = Echo(source)
    rows = np.array([number % graphs.n_rows for number in numbers], dtype=np.int64)
    reported: list[int] = []
    found = predict_rows(runner, source, rows, batch_size, reported.append)
    np.testing.assert_array_equal(found, np.stack([rows, -rows], axis=1).astype(np.float32))
    assert found.dtype == np.float32
    assert reported == runner.sizes
    assert all(size <= batch_size for size in reported)
    assert sum(reported) == (len(rows) if level == "graph" else len(_graphs_of(graphs.node_ptr, rows)))


def _graphs_of(node_ptr: NDArray[np.int64], rows: NDArray[np.int64]) -> set[int]:
    return {next(g for g in range(len(node_ptr)) if node_ptr[g] <= row < node_ptr[g + 1]) for row in rows}


@pytest.mark.parametrize("level", ["graph", "node"])
def test_no_rows_give_an_empty_prediction_of_the_right_width(level: Any) -> None:
    graphs = build_graphset(3, level=level, target="multiclass", n_classes=4)
    source = BatchSource(graphs)
    runner: Any = Echo(source)
    assert predict_rows(runner, source, np.zeros(0, np.int64), 5).shape == (0, 4)
    assert runner.sizes == []
