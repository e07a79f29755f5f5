"""Runs with losses of regression, weights of tasks and rows, and one-sided bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import TrainConfig
from gcnbatch.data.graphs import Split
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.data.weighted_targets import split
from gcnbatch.errors import InputError
from gcnbatch.lab.backend_comparison.parity import Parity
from gcnbatch.lab.backend_comparison.workload import QUICK, opened
from gcnbatch.mixture.transforms import Kind
from gcnbatch.training import run
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.targets import Scaling, Targets
from gcnbatch.training.validation import Validation
from tests.backends.cuda.models import MODELS
from tests.training.runs import assert_same_run, assert_same_weights, configure, fit, history, write_set

WEIGHTED = [name for name in MODELS if any(word in name for word in ("huber", "absolute", "weights", "bounds"))]
REGRESSION = {"target": "regression", "n_tasks": 2, "censored": True, "sample_weight": True}
EVERYTHING = ("train.loss=huber", "train.bounds=one_sided", "train.task_weights=[1,3]")


@contextmanager
def targets_of(path: Path, **train: Any) -> Iterator[tuple[Dataset, Targets]]:
    with Dataset(path) as dataset:
        kinds: tuple[Kind, ...] = ("none",) * dataset.header.n_outputs
        yield dataset, Targets.of(dataset, dataset.splits["first"], TrainConfig(**train), kinds)


@pytest.mark.parametrize("name", WEIGHTED)
def test_training_agrees_with_the_reference(name: str, tmp_path: Path) -> None:
    data, assignments = MODELS[name]
    write_set(tmp_path / "data.h5", **data)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", *assignments)) as workload:
        assert workload.task.loss.weighted
        agreement = Parity(workload, QUICK).check(open_backend("cpu"))
    assert agreement.passed, agreement.worst


def test_labels_have_the_weights_of_their_row_and_task_and_the_bound_of_their_cell(tmp_path: Path) -> None:
    graphs = write_set(tmp_path / "data.h5", **REGRESSION, splits=True)
    with targets_of(tmp_path / "data.h5", bounds="one_sided", task_weights=(1.0, 3.0)) as (dataset, found):
        rows = dataset.splits["first"].train
        values, weights, bounds = split(found.values)
        labels = graphs.y[rows]
        np.testing.assert_array_equal(values[rows], found.scaling.apply(labels))
        assert graphs.sample_weight is not None
        assert graphs.censored is not None
        known = ~np.isnan(labels)
        expected = graphs.sample_weight[rows, None] * np.array([[1, 3]])
        np.testing.assert_array_equal(weights[rows][known], expected[known])
        np.testing.assert_array_equal(bounds[rows][known], graphs.censored[rows][known])
        others = np.delete(found.values, rows, axis=0)
    assert np.isnan(others).all()
    assert np.isnan(np.hstack([weights, bounds])[rows][~np.tile(known, 2)]).all()


def test_plain_losses_have_plain_targets(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", target="regression", n_tasks=2, censored=True, splits=True)
    with targets_of(tmp_path / "data.h5") as (_, found):
        assert not found.is_weighted
        assert found.values.shape[1] == 2
    write_set(tmp_path / "plain.h5", target="regression", n_tasks=2, splits=True)
    with targets_of(tmp_path / "plain.h5", bounds="one_sided") as (_, found):  # without any bound
        assert not found.is_weighted


@pytest.mark.usefixtures("light")
def test_equal_weights_change_no_bit_of_a_weighted_run(tmp_path: Path) -> None:
    graphs = write_set(tmp_path / "one.h5", target="regression", sample_weight=True)
    for name, weight in (("one", 1), ("other", 4)):
        weights = np.full(graphs.n_rows, weight, np.float32)
        write_graphset(tmp_path / f"{name}.h5", replace(graphs, sample_weight=weights))
        fit(tmp_path / f"{name}.h5", tmp_path / name)
    assert_same_run(tmp_path / "one", tmp_path / "other")


@pytest.mark.usefixtures("light")
def test_rows_without_weight_teach_nothing(tmp_path: Path) -> None:
    """Their targets may be any: the run stays the same."""
    graphs = write_set(tmp_path / "one.h5", target="regression", n_tasks=1, missing=0.0, splits=True)
    ignored = graphs.splits["first"].train[::2]
    weights = np.ones(graphs.n_rows, np.float32)
    weights[ignored] = 0
    y = graphs.y.copy()
    y[ignored] += 1
    for name, targets in (("one", graphs.y), ("other", y)):
        write_graphset(tmp_path / f"{name}.h5", replace(graphs, y=targets, sample_weight=weights))
        fit(tmp_path / f"{name}.h5", tmp_path / name, "split.kind=predefined", "train.standardize=false")
    assert_same_weights(tmp_path / "one", tmp_path / "other")
    assert history(tmp_path / "one") == history(tmp_path / "other")


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("loss", ["absolute", "huber"])
def test_the_validation_loss_is_of_the_same_kind_and_without_weights(tmp_path: Path, loss: str) -> None:
    write_set(tmp_path / "data.h5", target="regression", n_tasks=1, sample_weight=True, missing=0.0)
    config = configure(f"data.path={tmp_path / 'data.h5'}", f"train.loss={loss}", "train.huber_delta=0.5")
    run.start(config, tmp_path / "run", quiet=True)
    with Dataset(tmp_path / "data.h5") as dataset:
        experiment = Experiment(config, dataset)
        rng = np.random.default_rng(0)
        rows = rng.permutation(dataset.n_graphs)[:9]
        logits = rng.normal(size=(9, 1)).astype(np.float32)
        validation = Validation(experiment, Split(rows[:0], rows, rows[:0]), Scaling.identity(1))
        total, weight = validation.loss(logits, dataset.y[rows], None)
    size = np.abs(logits - dataset.y[rows])
    costs = size if loss == "absolute" else np.where(size <= 0.5, size**2 / 2, 0.5 * (size - 0.25))
    assert total / weight == pytest.approx(costs.mean(), rel=1e-6)


@pytest.mark.usefixtures("light")
def test_the_loss_auto_is_huber_and_allows_classes(tmp_path: Path) -> None:
    write_set(tmp_path / "values.h5", **REGRESSION)
    write_set(tmp_path / "classes.h5")
    for name, losses in (("values", ("auto", "huber")), ("classes", ("auto", "squared"))):
        folders = [tmp_path / f"{name}-{loss}" for loss in losses]
        for folder, loss in zip(folders, losses, strict=True):
            fit(tmp_path / f"{name}.h5", folder, f"train.loss={loss}")
        assert_same_weights(*folders)


@pytest.mark.usefixtures("light")
def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", **REGRESSION)
    fit(tmp_path / "data.h5", tmp_path / "whole", *EVERYTHING, "train.epochs=4")
    fit(tmp_path / "data.h5", tmp_path / "longer", *EVERYTHING, "train.epochs=2")
    run.resume(tmp_path / "longer", epochs=4, quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "longer")


@pytest.mark.parametrize(
    ("data", "assignment", "message"),
    [
        ({}, "train.loss=huber", "train.loss: 'huber' for binary targets; expected regression targets. Classes have"),
        (
            {"target": "multiclass"},
            "train.task_weights=[1]",
            "train.task_weights: given for multiclass targets; expected targets of several tasks",
        ),
        ({}, "train.task_weights=[1,2,3]", "train.task_weights: 3 values; expected 2, one per task"),
    ],
)
def test_losses_and_weights_that_fit_no_target_are_refused(
    tmp_path: Path, data: dict[str, Any], assignment: str, message: str
) -> None:
    write_set(tmp_path / "data.h5", **data)
    with pytest.raises(InputError, match=re.escape(message)):
        fit(tmp_path / "data.h5", tmp_path / "run", assignment)


def test_training_rows_whose_weights_are_all_zero_are_refused(tmp_path: Path) -> None:
    graphs = write_set(tmp_path / "data.h5", sample_weight=True)
    write_graphset(tmp_path / "data.h5", replace(graphs, sample_weight=np.zeros(graphs.n_rows, np.float32)))
    with pytest.raises(InputError, match=r"data\.h5: training rows whose weights are all zero; expected some weight"):
        fit(tmp_path / "data.h5", tmp_path / "run")


def test_it_is_said_that_bounds_are_one_sided(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", **REGRESSION, missing=0.0)
    said: list[str] = []
    config = configure(f"data.path={tmp_path / 'data.h5'}", "train.bounds=one_sided")
    run.start(config, tmp_path / "run", quiet=True, say=said.append)
    assert any(
        line.endswith("are bounds: predictions beyond a bound cost nothing, and metrics leave bounds out")
        for line in said
    )
