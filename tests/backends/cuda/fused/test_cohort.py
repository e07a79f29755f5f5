"""Cohorts on a GPU: every member's results are equal to the bit to those of the same model alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch, Runner
from gcnbatch.backends.cuda.fused.wide import geometry as wide
from gcnbatch.backends.registry import open_backend
from gcnbatch.data.weighted_targets import split
from gcnbatch.lab.backend_comparison.workload import Workload, opened
from gcnbatch.model.layers import Dropout
from gcnbatch.runners.choice import cohort_size, make_runner
from gcnbatch.runners.fused_graphs import FusedGraphsRunner
from gcnbatch.runners.task import RunnerTask
from gcnbatch.training.fit_files import is_weight
from tests.training.runs import configure, write_set

pytestmark = pytest.mark.gpu

EPOCHS, BATCH = 3, 30
MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "huber, weights, bounds": (
        {"n_channels": 1, "target": "regression", "censored": True, "sample_weight": True},
        ("model.widths=[64,64]", "train.loss=huber", "train.bounds=one_sided", "train.task_weights=[1,2]"),
    ),
    "64 columns, clipping": ({"n_channels": 1, "max_nodes": 12}, ("model.widths=[64,64]", "train.clip_norm=0.1")),
    "channels, dropout, dense": (
        {"n_channels": 3, "max_nodes": 12},
        ("model.widths=[33,64]", "model.dropout=0.25", "model.dense=[16]", "model.head=[8]", "train.l2=1e-3"),
    ),
    "max readout, classes, SGD": (
        {"target": "multiclass", "max_nodes": 12},
        ("model.widths=[8]", "model.readout=max", "train.optimizer=sgd", "train.weight_decay=1e-2"),
    ),
    "mean readout, regression": (
        {"target": "regression", "n_channels": 1},
        ("model.widths=[64,24]", "model.readout=mean", "model.norm=none"),
    ),
    "features of graphs": (
        {"n_channels": 5, "max_nodes": 12, "graph_features": 217, "n_counts": 85},
        ("model.widths=[64,64]", "model.head=[128]", "model.dropout=0.2", "train.weight_decay=1e-2"),
    ),
    "channels of 64 columns, clipping": (
        {"n_channels": 3, "n_features": 40},
        ("model.widths=[64,64,64]", "model.dropout=0.2", "train.clip_norm=0.1", "model.readout=sum,max"),
    ),
    "features of graphs, two dense layers, classes": (
        {"target": "multiclass", "n_channels": 1, "max_nodes": 12, "graph_features": 9},
        ("model.widths=[33]", "model.head=[130,7]", "model.readout=mean,max,sum", "train.clip_norm=0.1"),
    ),
    "residual connections, dropout": (
        {"n_channels": 2, "max_nodes": 12},
        ("model.widths=[64,64,64]", "model.residual=true", "model.readout=sum,max", "model.dropout=0.25"),
    ),
    "residual connections, many tiles": (
        {"n_channels": 1, "max_nodes": 170},
        ("model.widths=[64,64]", "model.residual=true", "train.weight_decay=1e-2"),
    ),
    "more tiles than multiprocessors": ({"n_channels": 1, "max_nodes": 170}, ("model.widths=[64,64]",)),
}


@dataclass
class Plan:
    """A member: its task, and for each epoch its batches, or None after it stopped."""

    task: RunnerTask
    epochs: list[MemberEpoch | None]
    rows: list[NDArray[np.int64] | None]  # to predict after each epoch


def plans(work: Workload, members: int) -> list[Plan]:
    """Return members that differ in everything that members may differ in; the task's own is the first."""
    return [plan_of(work, member) for member in range(members)]


def plan_of(work: Workload, member: int) -> Plan:
    rng, task, everything = np.random.default_rng(member), work.task, work.task.source.n_graphs
    factor = 1.0 + 0.25 * member
    layers = tuple(
        replace(layer, rate=0.1 + 0.5 * rng.random()) if isinstance(layer, Dropout) else layer
        for layer in task.model.layers
    )
    scaled = {name: getattr(task.train, name) * factor for name in ("weight_decay", "l2", "clip_norm")}
    targets = task.targets.copy()
    masked = rng.random(everything) < 0.2
    targets[masked] = -1 if targets.dtype == np.int32 else np.nan
    if targets.dtype == np.float32 and task.loss.target == "regression":
        values = split(targets).values if task.loss.weighted else targets
        values[...] = (values - np.float32(factor)) / np.float32(factor)
    weights = (task.loss.weights * (0.5 + rng.random(len(task.loss.weights)))).astype(np.float32)
    own = replace(
        task,
        model=replace(task.model, layers=layers),
        loss=replace(task.loss, weights=weights),
        targets=targets,
        train=task.train.model_copy(update=scaled),
        seed=100 + member,
        initial={name: value * np.float32(factor) for name, value in task.initial.items()},
    )
    rows = rng.permutation(everything)[: everything - 7 * (member % 5)]
    stops = EPOCHS if member % 3 != 1 else 1 + member % 2  # some members stop early
    epochs: list[MemberEpoch | None] = []
    for epoch in range(EPOCHS):
        order = rng.permutation(rows)
        batches = np.split(order, range(BATCH - member % 2, len(order), BATCH - member % 2))
        epochs.append(MemberEpoch(epoch, batches, 1e-2 / factor / (1 + epoch)) if epoch < stops else None)
    asked = [rng.permutation(everything)[: 5 + member] if (member + epoch) % 4 else None for epoch in range(EPOCHS)]
    return Plan(own, epochs, asked)


@dataclass
class Results:
    """After each epoch: the losses, the state and the predictions of a member."""

    losses: list[tuple[float, float]]
    states: list[dict[str, NDArray[Any]]]
    predictions: list[NDArray[np.float32] | None]


def alone(backend: Any, plan: Plan) -> Results:
    runner, found = make_runner(backend, [plan.task]), Results([], [], [])
    for one, rows in zip(plan.epochs, plan.rows, strict=True):
        if one is not None:
            runner.begin_epoch([one])
            for index in range(len(one.batches)):
                runner.step(index)
        found.losses.append(runner.take_losses()[0])
        found.states.append(runner.state())
        found.predictions.append(None if rows is None else runner.predict([rows])[0])
    runner.close()
    return found


def together(cohort: Runner, given: list[Plan], epochs: range = range(EPOCHS)) -> list[Results]:
    found = [Results([], [], []) for _ in given]
    for number in epochs:
        cohort.begin_epoch([plan.epochs[number] for plan in given])
        for index in range(max(len(one.batches) for plan in given if (one := plan.epochs[number]))):
            cohort.step(index)
        if number + 1 < EPOCHS:
            cohort.expect([one and one.batches for plan in given for one in [plan.epochs[number + 1]]])
        predictions = cohort.predict([plan.rows[number] for plan in given])
        for member, losses in enumerate(cohort.take_losses()):
            found[member].losses.append(losses)
            weights = cohort.weights(member)
            found[member].states.append(state := cohort.state(member))
            assert list(weights) == [name for name in state if is_weight(name)]
            for name, value in weights.items():
                np.testing.assert_array_equal(value, state[name], err_msg=name)
            found[member].predictions.append(predictions[member])
    return found


def assert_equal(found: Results, expected: Results) -> None:
    assert found.losses == expected.losses
    for state, wanted in zip(found.states, expected.states, strict=True):
        assert state.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(state[name], value, err_msg=name)
    for logits, want in zip(found.predictions, expected.predictions, strict=True):
        np.testing.assert_array_equal(logits, want)


@pytest.fixture(params=MODELS)
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workload]:
    about, assignments = MODELS[request.param]
    write_set(tmp_path / "data.h5", n_graphs=97, **about)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", *assignments)) as work:
        yield work


@pytest.mark.parametrize("members", [2, 7, 33])
def test_members_train_to_the_bits_of_the_same_models_alone(work: Workload, members: int) -> None:
    backend: Any = open_backend("fused")
    given = plans(work, members)
    tasks = [plan.task for plan in given]
    assert cohort_size(backend, tasks) == members
    cohort = make_runner(backend, tasks)
    assert isinstance(cohort, FusedGraphsRunner)
    found = together(cohort, given)
    cohort.close()
    for plan, results in zip(given, found, strict=True):
        assert_equal(results, alone(backend, plan))


@pytest.mark.parametrize(
    ("members", "edges_per_node"), [(4, 2), (4, 8), (8, 2), (16, 2), (16, 8), (33, 2), (64, 2), (64, 8)]
)
def test_teams_and_groups_of_any_number_of_warps_train_to_the_bits_of_models_alone(
    members: int, edges_per_node: int, tmp_path: Path
) -> None:
    """60 tiles and eight sums have teams of four, two and one warps, and groups of sixteen, eight and four."""
    about = {"n_channels": 1, "n_features": 75, "max_nodes": 63, "edges_per_node": edges_per_node}
    write_set(tmp_path / "data.h5", n_graphs=97, **about)
    backend: Any = open_backend("fused")
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", "model.widths=[64,64]")) as work:
        given = plans(work, members)
        cohort = make_runner(backend, [plan.task for plan in given])
        found = together(cohort, given)
        cohort.close()
        for plan, results in zip(given, found, strict=True):
            assert_equal(results, alone(backend, plan))


def test_a_cohort_without_wide_kernels_predicts_the_same_bits(work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "CAPABILITIES", ())
    backend: Any = open_backend("fused")
    given = plans(work, 3)
    cohort = make_runner(backend, [plan.task for plan in given])
    for plan, results in zip(given, together(cohort, given), strict=True):
        assert_equal(results, alone(backend, plan))


def test_a_cohort_resumes_within_an_epoch(work: Workload) -> None:
    """Members stop after two steps of the second epoch; other cohorts, and models alone, go on from their states."""
    backend: Any = open_backend("fused")
    given, stopped = plans(work, 5), 2
    tasks = [plan.task for plan in given]
    expected = [alone(backend, plan) for plan in given]
    cohort = make_runner(backend, tasks)
    together(cohort, given, range(1))
    cohort.begin_epoch([plan.epochs[1] for plan in given])
    for index in range(stopped):
        cohort.step(index)
    states = [cohort.state(member) for member in range(5)]
    cohort.close()
    for order in ([0, 1, 2, 3, 4], [3, 0]):
        again = make_runner(backend, [tasks[member] for member in order])
        for place, member in enumerate(order):
            again.load_state(states[member], place)
        rest = [one and one._replace(first=stopped) for member in order for one in [given[member].epochs[1]]]
        again.begin_epoch(rest)
        for index in range(stopped, max(len(one.batches) for one in rest if one)):
            again.step(index)
        for place, member in enumerate(order):
            for name, value in expected[member].states[1].items():
                if name != "loss":
                    np.testing.assert_array_equal(again.state(place)[name], value, err_msg=name)
        again.close()
