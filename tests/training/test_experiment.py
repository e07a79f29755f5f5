"""Experiments: targets without leaks, weights by their formulas, refusals before the first step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.data.graphs import GraphSet, Split
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.targets import Scaling
from tests.builders import build_graphset
from tests.training.runs import configure

SPLIT = Split(train=np.arange(12), valid=np.arange(12, 16), test=np.arange(16, 20))

Open = Callable[..., Experiment]


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens an experiment on a set; its files are closed after the test."""
    opened: list[Dataset] = []

    def make(graphs: GraphSet, *assignments: str) -> Experiment:
        path = tmp_path / f"set{len(opened)}.h5"
        write_graphset(path, graphs)
        opened.append(Dataset(path))
        return Experiment(configure(f"data.path={path}", *assignments), opened[-1])

    yield make
    for dataset in opened:
        dataset.close()


def some(**options: Any) -> GraphSet:
    return build_graphset(20, **{"missing": 0.2, **options})


# ------------------------------------------------------------------------------------------------ targets


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_only_training_rows_have_targets(experiment: Open, target: str) -> None:
    graphs = some(target=target)
    task, scaling = experiment(graphs).task(SPLIT)
    others = np.concatenate([SPLIT.valid, SPLIT.test])
    missing = task.targets < 0 if target == "multiclass" else np.isnan(task.targets)
    assert missing[others].all()
    assert task.targets.dtype == (np.int32 if target == "multiclass" else np.float32)
    expected = scaling.apply(graphs.y[SPLIT.train]) if target == "regression" else graphs.y[SPLIT.train]
    np.testing.assert_array_equal(task.targets[SPLIT.train], expected)


def test_targets_are_scaled_by_the_training_rows_alone(experiment: Open) -> None:
    graphs = some(target="regression", n_tasks=2, missing=0.3)
    y = graphs.y * np.array([100, 1], np.float32) + np.array([5, -3], np.float32)
    y[SPLIT.train, 1] = np.where(np.isnan(y[SPLIT.train, 1]), np.nan, 7)  # constant
    task, scaling = experiment(replace(graphs, y=y)).task(SPLIT)
    scaled = task.targets[SPLIT.train]
    np.testing.assert_allclose(np.nanmean(scaled, axis=0), [0, 0], atol=1e-6)
    np.testing.assert_allclose(np.nanstd(scaled, axis=0), [1, 0], atol=1e-6)
    np.testing.assert_allclose(scaling.undo(scaled), y[SPLIT.train], rtol=1e-5)
    assert scaling.std[1] == 7


def test_targets_are_unscaled_without_standardize(experiment: Open) -> None:
    graphs = some(target="regression")
    task, scaling = experiment(graphs, "train.standardize=false").task(SPLIT)
    np.testing.assert_array_equal(task.targets[SPLIT.train], graphs.y[SPLIT.train].astype(np.float32))
    np.testing.assert_array_equal([*scaling.mean, *scaling.std], [0, 0, 1, 1])
    assert np.array_equal(Scaling.identity(2).undo(graphs.y), graphs.y, equal_nan=True)


@pytest.mark.parametrize("y", [np.arange(20) / 100 + 298150000, np.full(20, 1e39)])
def test_targets_that_float32_does_not_resolve_must_be_standardised(experiment: Open, y: np.ndarray) -> None:
    graphs = replace(some(target="regression", n_tasks=1), y=y[:, None])
    with pytest.raises(InputError, match=r"train\.standardize: false with .* of task 'task0', which float32 does not"):
        experiment(graphs, "train.standardize=false").task(SPLIT)
    targets = experiment(graphs).task(SPLIT)[0].targets[SPLIT.train]
    assert len(np.unique(targets)) == len(np.unique(y[SPLIT.train]))


# ------------------------------------------------------------------------------------------------ weights


def test_balanced_positive_weight_is_negatives_per_positive(experiment: Open) -> None:
    graphs = some(missing=0.0, n_tasks=3)
    y = np.zeros((20, 3), np.float32)
    y[:3, 0] = 1
    y[SPLIT.train, 1] = 1
    y[:6, 2] = np.nan
    y[6:8, 2] = 1
    task, _ = experiment(replace(graphs, y=y, header=graphs.header), "train.class_weights=balanced").task(SPLIT)
    np.testing.assert_allclose(task.loss.weights, [9 / 3, 1 / 12, 4 / 2])


def test_balanced_classes_weigh_the_same_in_total(experiment: Open) -> None:
    graphs = some(target="multiclass", missing=0.0)
    y = np.repeat(np.array([0, 1, 2, -1], np.int32), [6, 3, 1, 10])[:, None]
    task, _ = experiment(replace(graphs, y=y), "train.class_weights=balanced").task(SPLIT)
    np.testing.assert_allclose(task.loss.weights * [6, 3, 1], np.full(3, 10 / 3), rtol=1e-6)


def test_pos_weight_has_one_value_or_one_per_task(experiment: Open) -> None:
    for text, expected in (("3", [3, 3]), ("[3, 0.5]", [3, 0.5])):
        task, _ = experiment(some(), f"train.pos_weight={text}", "train.class_weights=balanced").task(SPLIT)
        np.testing.assert_array_equal(task.loss.weights, np.array(expected, np.float32))
    task, _ = experiment(some()).task(SPLIT)
    np.testing.assert_array_equal(task.loss.weights, [1, 1])


def test_a_task_that_the_training_rows_cannot_teach_is_not_trained_on(experiment: Open) -> None:
    graphs = some(missing=0.0, n_tasks=3)
    graphs.y[:] = np.arange(20)[:, None] % 2
    graphs.y[SPLIT.train, 1] = 1
    graphs.y[SPLIT.train, 2] = np.nan
    opened = experiment(graphs)
    assert opened.left_out(SPLIT).tolist() == [False, True, True]
    task, _ = opened.task(SPLIT)
    assert np.isnan(task.targets[SPLIT.train]).all(axis=0).tolist() == [False, True, True]


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "assignments", "message"),
    [
        ({}, ["train.pos_weight=[1, 2, 3]"], r"train\.pos_weight: 3 values; expected 1, or 2, one per task"),
        (
            {"target": "multiclass"},
            ["train.pos_weight=2"],
            r"train\.pos_weight: given for multiclass targets; expected binary targets",
        ),
        ({}, ["train.l2_layers=[1, 2]"], r"train\.l2_layers: 2; expected 1 to 1, the model's convolutions"),
        (
            {"target": "regression"},
            ["train.class_weights=balanced"],
            r"train\.class_weights: 'balanced' for regression targets; expected binary or multiclass targets",
        ),
        (
            {"target": "regression"},
            ["train.monitor=rmse"],
            r"train\.monitor: 'rmse' has no mean over 2 tasks of different units; expected one of auto, loss, r2",
        ),
        ({}, ["train.monitor=rmse"], r"train\.monitor: 'rmse' is not defined for a binary target"),
        ({}, ["model.kind=kipf"], r"model\.kind: kipf with a graph-level data set; expected a node-level set\. Use"),
    ],
)
def test_settings_that_do_not_match_the_data_are_refused(
    experiment: Open, options: dict[str, Any], assignments: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        experiment(some(**options), *assignments).task(SPLIT)


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_training_rows_without_a_label_are_refused(experiment: Open, target: str) -> None:
    graphs = some(target=target)
    y = graphs.y.copy()
    y[SPLIT.train] = -1 if target == "multiclass" else np.nan
    of = "task 'task0'" if target == "multiclass" else "any of 2 tasks"
    with pytest.raises(InputError, match=rf"set0\.h5: no label of {of} in the training rows; .* \(--target-col"):
        experiment(replace(graphs, y=y)).task(SPLIT)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "train.patience=3",
            r"train\.patience: 3: no validation rows to watch; expected some\. Set split\.valid above 0",
        ),
        ("train.schedule=plateau", r"train\.schedule: 'plateau': no validation rows to watch"),
    ],
)
def test_patience_and_plateau_need_validation_rows(experiment: Open, assignment: str, message: str) -> None:
    opened = experiment(some(), assignment)
    opened.task(SPLIT)
    with pytest.raises(InputError, match=message):
        opened.task(replace(SPLIT, valid=np.arange(0)))


# ------------------------------------------------------------------------------------------------ data


def test_the_fingerprint_is_the_files_sha256(experiment: Open) -> None:
    opened = experiment(some())
    assert opened.fingerprint == hashlib.sha256(opened.dataset.path.read_bytes()).hexdigest()


def test_rows_of_a_node_level_set_belong_to_their_graphs(experiment: Open) -> None:
    graphs = build_graphset(9, level="node", target="multiclass", missing=0.0)
    opened = experiment(graphs)
    for graph in range(9):
        rows = np.arange(graphs.node_ptr[graph], graphs.node_ptr[graph + 1])
        np.testing.assert_array_equal(opened.source.graphs_of(rows), [graph] if len(rows) else [])
    np.testing.assert_array_equal(
        opened.source.graphs_of(np.arange(graphs.n_nodes)), np.flatnonzero(np.diff(graphs.node_ptr))
    )
    by_graph = experiment(some())
    np.testing.assert_array_equal(by_graph.source.graphs_of(np.array([3, 7])), [3, 7])
