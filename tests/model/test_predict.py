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

    def predict(
        self, graphs: list[NDArray[np.int64] | None], rows: list[NDArray[np.int64] | None]
    ) -> list[NDArray[np.float32] | None]:
        self.sizes.append(sum(len(own) for own in graphs if own is not None))
        return [None if own is None else self._logits(own, asked) for own, asked in zip(graphs, rows, strict=True)]

    def _logits(self, graphs: NDArray[np.int64], rows: NDArray[np.int64] | None) -> NDArray[np.float32]:
        all_rows = self.source.batch(graphs).rows
        asked = all_rows if rows is None else all_rows[rows]
        return np.stack([asked, -asked], axis=1).astype(np.float32)


@settings(max_examples=50, derandomize=True)
@given(st.sampled_from(["graph", "node"]), st.lists(st.integers(0, 10**6), max_size=30), st.integers(1, 9))
def test_predictions_are_in_the_requested_order(level: Any, numbers: list[int], batch_size: int) -> None:
    graphs = build_graphset(15, level=level, max_nodes=4)
    source = BatchSource(graphs)
    runner: Any = Echo(source)
    rows = np.array([number % graphs.n_rows for number in numbers], dtype=np.int64)
    reported: list[int] = []
    (found,) = predict_rows(runner, source, [rows], batch_size, reported.append)
    np.testing.assert_array_equal(found, np.stack([rows, -rows], axis=1).astype(np.float32))
    assert found is not None
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
    (found,) = predict_rows(runner, source, [np.zeros(0, np.int64)], 5)
    assert found is not None
    assert found.shape == (0, 4)
    assert runner.sizes == []


def test_members_are_predicted_together_each_its_own_rows() -> None:
    """Batches of all members go to the runner in one call; a member with None, or without further batches, has None."""
    graphs = build_graphset(9)
    runner: Any = Echo(BatchSource(graphs))
    asked = [np.array([4, 0, 7, 2, 1]), None, np.array([3, 8])]
    reported: list[int] = []
    found = predict_rows(runner, runner.source, asked, 2, reported.append)
    assert reported == runner.sizes == [4, 2, 1]
    assert found[1] is None
    for rows, logits in ((asked[0], found[0]), (asked[2], found[2])):
        np.testing.assert_array_equal(logits, np.stack([rows, -rows], axis=1))  # type: ignore[operator, list-item]
