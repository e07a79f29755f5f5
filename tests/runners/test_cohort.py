"""Runners of one model, joined ones, and the grouping of tasks by architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import ChemGCNConfig, TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.errors import InputError
from gcnbatch.lab.backend_comparison.workload import Workload, opened
from gcnbatch.model.gcn import Loss, build, uniform_weights
from gcnbatch.runners.choice import cohort_size, make_predictor, make_runner
from gcnbatch.runners.cohort import JoinedRunner, group
from gcnbatch.runners.ops import OpsPredictor, OpsRunner
from gcnbatch.runners.task import RunnerTask, no_targets
from tests.builders import build_graphset
from tests.entries import MadeEntry, register
from tests.training.runs import configure, write_set

BATCHES = [np.arange(8), np.arange(8, 16), np.arange(16, 21)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    path = tmp_path_factory.mktemp("cohort") / "data.h5"
    write_set(path)
    with opened(configure(f"data.path={path}")) as work:
        yield work


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_runner_of_one_model_runs_the_steps_of_its_epoch_alone(work: Workload) -> None:
    backend = open_backend("cpu")
    assert cohort_size(backend, [work.task, work.task]) == 1
    runner, other = (make_runner(backend, [work.task]) for _ in range(2))
    assert (runner.backend, runner.size) == ("cpu", 1)
    runner.begin_epoch([MemberEpoch(2, BATCHES, 0.01, first=1)])
    for index in range(5):
        runner.step(index)
    assert runner.state()["updates"].tolist() == [2]
    other.begin_epoch([MemberEpoch(2, BATCHES, 0.01)])
    for index in (1, 2):
        other.step(index)
    assert runner.take_losses() == other.take_losses()
    assert_equal(runner.state(), other.state())


def test_an_idle_member_keeps_its_state(work: Workload) -> None:
    runner = make_runner(open_backend("cpu"), [work.task])
    runner.begin_epoch([MemberEpoch(0, BATCHES, 0.01)])
    before = runner.state()
    runner.expect([None])
    runner.begin_epoch([None])
    runner.step(0)
    assert runner.take_losses() == [(0.0, 0.0)]
    assert runner.predict([None]) == [None]
    assert_equal(runner.state(), before)
    other = make_runner(open_backend("cpu"), [replace(work.task, seed=1)])
    other.load_state(before)
    np.testing.assert_array_equal(other.predict([BATCHES[0]])[0], runner.predict([BATCHES[0]])[0])


def test_models_that_predict_from_one_batch_have_the_bits_of_each_alone(
    work: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend("cpu")
    tasks = [replace(work.task, seed=seed) for seed in range(3)]
    alone = [make_runner(backend, [task]) for task in tasks]
    gathered: list[int] = []
    gather = type(backend.feed(work.task.source, work.task.targets)).gather

    def noted(feed: Any, graphs: Any) -> Any:
        gathered.append(len(graphs))
        return gather(feed, graphs)

    for predictor in (make_predictor(backend, tasks), again := OpsPredictor(backend, tasks)):
        again.take(tasks)
        for graphs in ([BATCHES[0]] * 3, [BATCHES[0], None, BATCHES[1]]):
            with monkeypatch.context() as patch:
                patch.setattr(type(backend.feed(work.task.source, work.task.targets)), "gather", noted)
                found = predictor.predict(graphs)
            for one, own, logits in zip(alone, graphs, found, strict=True):
                np.testing.assert_array_equal(logits, one.predict([own])[0])
        predictor.close()
    assert gathered == 2 * [len(BATCHES[0]), len(BATCHES[0]), len(BATCHES[1])]


MODELS: dict[str, dict[str, Any]] = {
    "mean, dense layers": {"dense": [5], "readout": ["mean"], "dropout": 0.2},
    "layer norm, virtual node, maxima": {"norm": "layer", "virtual_node": True, "readout": ["max", "sum"]},
    "no norm, residual, all layers read": {"norm": "none", "residual": True, "jumping_knowledge": "cat"},
    "largest of all layers, ffn": {"jumping_knowledge": "max", "ffn": True, "widths": [4, 4, 4]},
    "head, no features": {"head": [6], "graph_features": "off"},
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("about", [{}, {"n_channels": 1}, {"features": "csr"}, {"features": "int8", "n_counts": 0}])
def test_models_predict_a_small_batch_at_once_as_each_alone(about: dict[str, Any], options: dict[str, Any]) -> None:
    given = {"n_channels": 3, "features": "float32", "graph_features": 6, "n_counts": 4, "max_nodes": 7} | about
    graphs, backend = build_graphset(12, target="regression", seed=4, **given), open_backend("cpu")
    model = build(ChemGCNConfig(**{"widths": [4, 4], "head": [5], **options}), graphs.header)
    source = BatchSource(graphs, graph_features=True)
    loss = Loss("regression", uniform_weights(graphs.header))
    rng = np.random.default_rng(1)
    weights = [
        {
            slot.spec.name: rng.uniform(0.1, 1, slot.spec.shape).astype(np.float32)
            for slot in model.layout().slots.values()
        }
        for _ in range(3)
    ]
    for of in weights:
        for name in [name for name in of if name.endswith("features.mean")]:
            of[name][-given["n_counts"] or 6 :] = 0  # as training leaves counts
    targets = no_targets(graphs.header, 12)
    tasks = [RunnerTask(model, loss, source, targets, TrainConfig(), 0, of) for of in weights]
    alone = [make_runner(backend, [task]) for task in tasks]
    runner = OpsPredictor(backend, tasks)
    runner.take(tasks)
    for few in (np.array([4]), np.array([0, 7, 2])):  # 7 has no nodes
        found = runner.predict([few] * 3)
        for one, logits in zip(alone, found, strict=True):
            (expected,) = one.predict([few])
            assert logits is not None
            assert expected is not None
            np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
            assert not np.array_equal(logits, np.zeros_like(logits))
    runner.close()


def test_models_predict_at_once_only_where_it_takes_less_time(monkeypatch: pytest.MonkeyPatch, work: Workload) -> None:
    tasks = [replace(work.task, seed=seed) for seed in range(3)]
    runner = OpsPredictor(open_backend("cpu"), tasks)
    sizes: list[int] = []
    at_once = OpsRunner.logits_of_all
    monkeypatch.setattr(
        OpsRunner,
        "logits_of_all",
        lambda self, models, batch: sizes.append(len(batch.node_ptr) - 1) or at_once(self, models, batch),
    )
    few = BATCHES[0][:3]
    for expected in ([], [3]):  # a runner that is used once would prepare what it uses once
        runner.predict([few] * 3)
        runner.predict([BATCHES[0]] * 3)
        runner.predict([few, few, None])
        assert sizes == expected
        runner.take(tasks)
    other = make_runner(open_backend("cpu"), [replace(work.task, seed=9)])
    runner.load_state(other.state(), 1)
    np.testing.assert_array_equal(runner.predict([few] * 3)[1], other.predict([few])[0])


def test_members_of_joined_runners_have_the_bits_of_the_same_models_alone(work: Workload) -> None:
    backend = open_backend("cpu")
    tasks = [replace(work.task, seed=seed) for seed in range(3)]
    epochs = [MemberEpoch(0, BATCHES, 0.01), None, MemberEpoch(0, BATCHES[:2], 0.02, first=1)]
    rows: list[Any] = [BATCHES[2], BATCHES[0], None]
    few: list[Any] = [np.array([3, 1]), None, None]
    alone = [make_runner(backend, [task]) for task in tasks]
    inner = JoinedRunner([make_runner(backend, [task]) for task in tasks[1:]])
    joined = JoinedRunner([make_runner(backend, tasks[:1]), inner])
    assert (joined.backend, joined.size, joined.eval_batch_size) == ("cpu", 3, alone[0].eval_batch_size)
    assert joined.about() == alone[0].about()
    joined.begin_epoch(epochs)
    for index in range(3):
        joined.step(index)
    joined.expect([BATCHES, None, None])
    for one, epoch in zip(alone, epochs, strict=True):
        one.begin_epoch([epoch])
        for index in range(3):
            one.step(index)
    found = joined.predict(rows, few)
    for member, (one, own, asked) in enumerate(zip(alone, rows, few, strict=True)):
        assert_equal(joined.state(member), one.state())
        assert_equal(joined.weights(member), one.weights())
        np.testing.assert_array_equal(found[member], one.predict([own], [asked])[0])
    assert joined.take_losses() == [losses for one in alone for losses in one.take_losses()]
    joined.load_state(alone[0].state(), 2)
    assert_equal(joined.state(2), alone[0].state())
    assert_equal(joined.state(1), alone[1].state())
    joined.close()


def test_gradients_are_those_of_the_only_model(work: Workload) -> None:
    runner = make_runner(open_backend("cpu"), [work.task])
    (loss, gradients), (same, others) = runner.gradients(BATCHES[0]), JoinedRunner([runner]).gradients(BATCHES[0])
    assert loss == same
    assert_equal(gradients, others)
    with pytest.raises(ValueError, match="too many values"):
        JoinedRunner([runner, runner]).gradients(BATCHES[0])


def test_a_refused_member_is_refused_with_its_reason(work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, MadeEntry("cpu", refused="such graphs"))
    with pytest.raises(InputError, match="backend cpu: it does not take such graphs"):
        make_runner(open_backend("cpu"), [work.task])


def like(work: Workload, *assignments: str) -> RunnerTask:
    """Return the task with these keys set, on the same data."""
    config = configure(*assignments)
    model = build(config.model, work.experiment.header)
    return replace(work.task, model=model, train=config.train, seed=config.seed)


@pytest.mark.parametrize(
    "same",
    [
        ("seed=1", "seed=2"),
        ("train.learning_rate=0.1", "train.schedule=cosine"),
        ("train.epochs=3", "train.patience=2"),
        ("model.dropout=0.1", "model.dropout=0.3"),
        ("train.weight_decay=0.1", "train.l2=0.2"),
        ("train.clip_norm=1", "train.clip_norm=2"),
    ],
)
def test_members_of_a_cohort_may_differ_in_values(work: Workload, same: tuple[str, str]) -> None:
    assert group([like(work, text) for text in same]) == [[0, 1]]


def test_shapes_kernels_and_data_separate_cohorts(work: Workload) -> None:
    given = ["", "model.widths=[8, 8]", "model.readout=mean", "train.batch_size=9", "train.optimizer=sgd"]
    given += ["model.dropout=0.1", "train.weight_decay=0.1", "train.clip_norm=1", "train.beta1=0.8"]
    tasks = [like(work, *filter(None, [text])) for text in given]
    elsewhere = replace(tasks[0], source=BatchSource(work.experiment.dataset.load()))
    found = group([*tasks, elsewhere, *tasks])
    assert sorted(found) == sorted([*([i, i + 10] for i in range(9)), [9]])
