"""The generic runner on the cpu backend: steps, state, loss, predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.base import Clock, MemberEpoch, Runner
from gcnbatch.backends.cpu import CpuBackend, CpuOps
from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import ChemGCNConfig, KipfConfig, TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graphs import GraphSet
from gcnbatch.lab.backend_comparison.parity import bounds, distance, longest_sum
from gcnbatch.lab.backend_comparison.reference import Jitter, jittered, jitters
from gcnbatch.model.gcn import Loss, build, uniform_weights
from gcnbatch.model.layers import Context
from gcnbatch.reference import ReferenceOps
from gcnbatch.runners.choice import make_runner
from gcnbatch.runners.task import RunnerTask
from gcnbatch.training.fit_files import is_weight
from tests.builders import build_graphset
from tests.model.cases import Given, cast

BATCHES = [np.array([3, 0, 5]), np.array([1]), np.array([2, 4])]


@dataclass(frozen=True)
class Setup:
    graphs: GraphSet
    task: RunnerTask

    def runner(self) -> Runner:
        return make_runner(open_backend("cpu"), [self.task])


def setup(model: Any = None, graphs: GraphSet | None = None, **train: Any) -> Setup:
    graphs = build_graphset(6, missing=0.2) if graphs is None else graphs
    config = model or ChemGCNConfig(widths=(4, 3), dropout=0.2)
    header = graphs.header
    loss = Loss(header.target, uniform_weights(header))
    source = BatchSource(graphs, config.adjacency)
    return Setup(graphs, RunnerTask(build(config, header), loss, source, graphs.y, TrainConfig(**train), seed=3))


def run_epoch(runner: Runner, epoch: int = 0, rate: float = 0.01) -> None:
    runner.begin_epoch([MemberEpoch(epoch, BATCHES, rate)])
    for index in range(len(BATCHES)):
        runner.step(index)


def assert_states_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def reference_step(
    given: Setup, state: dict[str, Any], clock: Clock, rate: float, dtype: Any, jitter: Jitter | None
) -> dict[str, Any]:
    """Return the state after a step of the reference from `state`, with the sums of loss and weight, in `dtype`."""
    task, ops = given.task, jittered(ReferenceOps(), jitter) if jitter else ReferenceOps()
    layout, train = task.model.layout(), task.train
    names = ("adam.m", "adam.v") if train.optimizer == "adam" else ("sgd.velocity",)
    values = {name: state[name].astype(dtype) for name in layout.initial(task.seed)}
    found = task.source.batch(BATCHES[clock.step])
    batch = cast(Given(found.x, found.adjacency, found.node_ptr, task.targets[found.rows]), dtype)
    ctx = Context(ops, values, batch, True, task.seed, clock)
    logits, saved = task.model.forward(ctx, batch.x)
    total, weight, dlogits = task.loss(ops, logits, batch.targets, task.loss.weights.astype(dtype))
    gradients = task.model.backward(ctx, dlogits, saved)
    if train.clip_norm:
        norm = np.sqrt(sum(float(np.sum(gradient.astype(np.float64) ** 2)) for gradient in gradients.values()))
        gradients = {name: g * dtype(min(1.0, train.clip_norm / norm)) for name, g in gradients.items()}
    after = {"loss": np.array([float(total), float(weight)])}
    for name, gradient in gradients.items():
        decays = layout.slots[name].spec.decays
        decay, l2 = (np.full_like(gradient, factor * decays) for factor in (train.weight_decay, train.l2))
        moments = [state[f"{moment}/{name}"].astype(dtype) for moment in names]
        if train.optimizer == "adam":
            options = (train.beta1, train.beta2, train.epsilon, decay, l2)
            ops.adam_step(values[name], gradient, *moments, int(state["updates"][0]) + 1, rate, *options)
        else:
            ops.sgd_step(values[name], gradient, *moments, rate, train.momentum, decay, l2)
        after |= {f"{moment}/{name}": value for moment, value in zip(names, moments, strict=True)}
    return after | values


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.1, "l2": 0.2, "clip_norm": 0.1},
        {"optimizer": "sgd", "momentum": 0.7, "weight_decay": 0.1, "l2": 0.2},
    ],
    ids=["adam", "adam with everything", "sgd"],
)
def test_each_step_agrees_with_the_reference_from_the_same_state(train: dict[str, Any]) -> None:
    """Within the bounds of `compare-backends`."""
    given, rate = setup(**train), 0.01
    runner, units = given.runner(), longest_sum(given.task.model) ** 0.5
    runner.begin_epoch([MemberEpoch(4, BATCHES, rate)])
    for index in range(len(BATCHES)):
        before = runner.state()
        runner.step(index)
        after, start = runner.state(), (given, before, Clock(4, index), rate)
        exact = reference_step(*start, np.float64, None)
        allowed = bounds(exact, (reference_step(*start, np.float32, move) for move in jitters(16, units)))
        assert after.keys() == {*exact, "updates"}
        for name, value in exact.items():
            assert distance(after[name], value) <= allowed[name], name
        assert after["updates"].tolist() == [index + 1]
        assert runner.take_losses()[0] == tuple(after["loss"])
        assert runner.take_losses()[0] == (0.0, 0.0)


def test_two_runners_agree_to_the_bit() -> None:
    given = setup()
    one, other = given.runner(), given.runner()
    for runner in (one, other):
        run_epoch(runner)
    assert_states_equal(one.state(), other.state())


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_state_from_any_step_continues_to_the_bit(optimizer: str) -> None:
    given = setup(optimizer=optimizer)
    whole, first, second = given.runner(), given.runner(), given.runner()
    run_epoch(whole)
    first.begin_epoch([MemberEpoch(0, BATCHES, 0.01)])
    first.step(0)
    second.load_state(first.state())
    second.begin_epoch([MemberEpoch(0, BATCHES, 0.01)])
    for index in (1, 2):
        second.step(index)
    assert_states_equal(whole.state(), second.state())
    assert whole.take_losses()[0] == second.take_losses()[0]


def test_a_state_is_a_copy() -> None:
    runner = setup().runner()
    before = runner.state()
    kept = {name: value.copy() for name, value in before.items()}
    run_epoch(runner)
    assert_states_equal(before, kept)
    assert not np.array_equal(runner.state()["conv1.weight"], kept["conv1.weight"])


def test_weights_are_a_copy_of_a_part_of_the_state() -> None:
    runner = setup().runner()
    run_epoch(runner)
    state, weights = runner.state(), runner.weights()
    assert list(weights) == [name for name in state if is_weight(name)]
    run_epoch(runner)
    assert_states_equal(weights, {name: state[name] for name in weights})


def test_weights_alone_are_a_valid_state() -> None:
    given = setup()
    runner = given.runner()
    run_epoch(runner)
    weights = runner.weights()
    runner.load_state(weights)
    state = runner.state()
    assert not np.any(state["adam.m/conv1.weight"])
    assert not np.any(state["adam.v/conv1.weight"])
    assert (state["updates"].tolist(), state["loss"].tolist()) == ([0], [0.0, 0.0])
    for name, value in weights.items():
        np.testing.assert_array_equal(state[name], value)


def test_the_seed_determines_initial_weights_and_dropout() -> None:
    given = setup()
    other = Setup(given.graphs, RunnerTask(**{**vars(given.task), "seed": 4}))
    one, two = given.runner(), other.runner()
    assert not np.array_equal(one.state()["conv1.weight"], two.state()["conv1.weight"])
    two.load_state(one.state())
    for runner in (one, two):
        run_epoch(runner)
    assert not np.array_equal(one.state()["output.bias"], two.state()["output.bias"])


def test_dropout_differs_from_epoch_to_epoch_and_step_to_step() -> None:
    given = setup(ChemGCNConfig(widths=(32,), dropout=0.5))
    losses = set()
    for epoch, index in ((0, 0), (0, 1), (1, 0)):
        runner = given.runner()
        runner.begin_epoch([MemberEpoch(epoch, [BATCHES[0], BATCHES[0]], 0.01)])
        runner.step(index)
        losses.add(runner.take_losses()[0][0])
    assert len(losses) == 3


@pytest.mark.numerical(bound="both predict from one state")
@pytest.mark.parametrize("readout", ["sum", "mean", "max"])
def test_a_prediction_does_not_depend_on_the_rest_of_its_batch(readout: Any) -> None:
    runner = setup(ChemGCNConfig(widths=(8, 8), readout=readout, dropout=0.5)).runner()
    run_epoch(runner)
    together = runner.predict([np.array([5, 1, 4, 0, 2, 3])])[0]
    for place, graph in enumerate([5, 1, 4, 0, 2, 3]):
        np.testing.assert_allclose(
            runner.predict([np.array([graph])])[0], together[place : place + 1], rtol=1e-5, atol=1e-6
        )


def test_predicting_changes_nothing() -> None:
    runner = setup().runner()
    run_epoch(runner)
    before = runner.state()
    runner.predict([np.arange(6)])
    assert_states_equal(runner.state(), before)


def test_a_batch_without_any_label_has_no_loss_and_no_gradient() -> None:
    graphs = build_graphset(6, missing=1.0)
    runner = setup(graphs=graphs, optimizer="sgd").runner()
    before = runner.state()
    run_epoch(runner)
    assert runner.take_losses()[0] == (0.0, 0.0)
    for name, value in runner.state().items():
        if "running" not in name and name != "updates":
            np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_node_level_sets_of_several_graphs_train_on_the_rows_of_their_batch() -> None:
    graphs = build_graphset(6, level="node", target="multiclass", features="csr")
    runner = setup(KipfConfig(widths=(4,)), graphs).runner()
    run_epoch(runner)
    assert runner.take_losses()[0][1] == np.count_nonzero(graphs.y >= 0)
    logits = runner.predict([np.array([2, 0])])[0]
    assert logits.shape == (8, 3)
    np.testing.assert_array_equal(runner.predict([np.array([2, 0])], [np.array([7, 1, 1])])[0], logits[[7, 1, 1]])


def test_the_propagated_features_of_one_graph_are_computed_once() -> None:
    graphs = build_graphset(1, level="node", target="multiclass", n_channels=1, max_nodes=9)
    products: list[int] = []

    class Counting(CpuOps):
        def spmm(self, adjacency: Any, h: Any, zeros: float = 0.0) -> Any:
            products.append(h.shape[1])
            return super().spmm(adjacency, h, zeros)

    backend = CpuBackend()
    backend.ops = Counting()
    config = KipfConfig(widths=(16,), input_dropout=False)
    model = build(config, graphs.header, one_dense_graph=True)
    loss = Loss("multiclass", uniform_weights(graphs.header))
    runner = make_runner(backend, [RunnerTask(model, loss, BatchSource(graphs), graphs.y, TrainConfig(), seed=0)])
    only = np.zeros(1, dtype=np.int64)
    runner.begin_epoch([MemberEpoch(0, [only, only], 0.01)])
    for step in range(2):
        runner.step(step)
    runner.predict([only])
    classes = graphs.header.n_outputs
    assert products == [graphs.n_features, classes, classes, classes]
