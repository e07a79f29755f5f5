"""Whole models on a GPU: agreement with the reference, repeats to the bit, launch counts, resume, streaming."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.fused.engine import FusedEngine
from gcnbatch.backends.cuda.fused.wide import geometry as geometry_fused_wide
from gcnbatch.backends.cuda.spmm.kernels import KERNELS
from gcnbatch.backends.registry import open_backend
from gcnbatch.cli import app
from gcnbatch.config import Config
from gcnbatch.config_sections import CudaConfig
from gcnbatch.lab.backend_comparison.parity import Parity
from gcnbatch.lab.backend_comparison.reference import Jitter, ReferenceBackend
from gcnbatch.lab.backend_comparison.timeline import DEVICE
from gcnbatch.lab.backend_comparison.workload import QUICK, opened
from gcnbatch.runners.choice import make_runner, refusal
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.runners.task import RunnerTask
from gcnbatch.text import counted
from gcnbatch.training import run
from gcnbatch.training.checkpoint import load
from gcnbatch.training.fit import Fit, shuffled_batches
from gcnbatch.training.progress import Progress
from gcnbatch.training.stop import Interrupted
from tests.backends.cuda.models import CUDA, FOUR_STEPS, MODELS, ONE_GRAPH, TRAINING
from tests.training.runs import assert_same_run, assert_same_weights, configure, options, write_set

pytestmark = pytest.mark.gpu


@pytest.fixture(params=MODELS)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    data, assignments = MODELS[request.param]
    write_set(tmp_path / "data.h5", **data)
    return configure(f"data.path={tmp_path / 'data.h5'}", *assignments)


def fits(config: Config, name: str) -> None:
    with opened(config) as work:
        if name == "fused" and config.model.kind == "kipf" and work.task.source.n_graphs > 1:
            pytest.skip("of node-level sets the fused backend takes those of one graph")


@pytest.mark.parametrize("name", TRAINING)
def test_training_agrees_with_the_reference(config: Config, name: str) -> None:
    fits(config, name)
    effort = QUICK if config.cuda.precision == "tf32" else FOUR_STEPS  # in TF32 the reference runs twice as often
    with opened(config) as workload:
        agreement = Parity(workload, effort).check(open_backend(name, options=config.cuda))
    assert agreement.passed, agreement.worst


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    """The reference's runs of a model on graphs of 0 to 45 nodes with three channels."""
    path = tmp_path_factory.mktemp("ragged") / "data.h5"
    write_set(path, n_graphs=48, n_channels=3, max_nodes=45)
    with opened(configure(f"data.path={path}", "model.widths=[33,64]", "model.dropout=0.25")) as workload:
        yield Parity(workload, FOUR_STEPS)


@pytest.mark.parametrize("spmm", KERNELS)
@pytest.mark.parametrize("name", CUDA)
def test_training_agrees_with_the_reference_for_every_spmm_kernel(ragged: Parity, name: str, spmm: Any) -> None:
    agreement = ragged.check(open_backend(name, options=CudaConfig(spmm=spmm)))
    assert agreement.passed, agreement.worst


@pytest.mark.parametrize("name", TRAINING)
def test_two_runs_are_equal_to_the_bit(config: Config, name: str, tmp_path: Path, light: None) -> None:
    fits(config, name)
    same = repeatable(config, name)
    for place in ("one", "other"):
        run.start(same, tmp_path / place, quiet=True)
    assert_same_run(tmp_path / "one", tmp_path / "other")


def repeatable(config: Config, name: str) -> Config:
    """Return the configuration on a backend with an SpMM kernel that does not add atomically."""
    spmm = "csr" if name == "nonbatched" else config.cuda.spmm
    return config.model_copy(update={"backend": name, "cuda": config.cuda.model_copy(update={"spmm": spmm})})


def test_streamed_batches_train_like_resident_ones(config: Config, tmp_path: Path, light: None) -> None:
    for resident in ("on", "off"):
        cuda = config.cuda.model_copy(update={"resident": resident})
        run.start(config.model_copy(update={"backend": "batched", "cuda": cuda}), tmp_path / resident, quiet=True)
    assert_same_weights(tmp_path / "on", tmp_path / "off")


def halfway(config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in `folder` and stop after the first epoch."""
    finish = Fit.end_epoch

    def stop(member: Fit, *about: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return finish(member, *about)

    with monkeypatch.context() as patched:
        patched.setattr(Fit, "end_epoch", stop)
        with pytest.raises(Interrupted):
            run.start(config, folder, quiet=True)


def interrupted(config: Config, folder: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in `folder` until Ctrl-C arrives after this many steps of the first epoch."""
    count, done = Progress.step, iter(range(1, steps + 1))

    def step(progress: Progress) -> None:
        count(progress)
        if next(done) == steps:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "step", step)
        with pytest.raises(Interrupted, match=f"^stopped after 0 epochs and {counted(steps, 'step')}"):
            run.start(config, folder, quiet=True)


@pytest.mark.parametrize("name", TRAINING)
def test_a_resumed_run_ends_in_the_same_bits(
    config: Config, name: str, tmp_path: Path, light: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop between two epochs and, if an epoch has several steps, before the last step of the first epoch."""
    fits(config, name)
    config = repeatable(config, name)
    run.start(config, tmp_path / "whole", quiet=True)
    with opened(config) as work:
        steps = len(work.batches) - 1
    halfway(config, tmp_path / "between", monkeypatch)
    if steps:
        interrupted(config, tmp_path / "within", steps, monkeypatch)
    for stopped in ("between", "within")[: 1 + bool(steps)]:
        run.resume(tmp_path / stopped, quiet=True)
        assert_same_weights(tmp_path / "whole", tmp_path / stopped)


LONG = {
    "narrow": ("model.widths=[64,64]", "model.dropout=0.25"),
    "wide": ("model.widths=[130,192]", "model.dropout=0.25"),
    "fp16": ("model.widths=[128,128]", "cuda.precision=tf32"),
}


@pytest.mark.parametrize("model", LONG.values(), ids=LONG)
def test_queued_steps_run_when_a_run_stops(
    model: tuple[str, ...], tmp_path: Path, light: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an epoch's 24 steps, the first 8 run as one graph, 11 as graphs of 8 and of 1 steps, 5 after resuming."""
    write_set(tmp_path / "data.h5", 122, n_channels=1, max_nodes=12, n_features=20)
    about = ("backend=fused", "train.batch_size=4", "train.epochs=2")
    config = configure(f"data.path={tmp_path / 'data.h5'}", *about, *model)
    started: list[int] = []
    launch = FusedEngine._launch

    def noted(engine: FusedEngine, steps: int) -> None:
        started.append(steps)
        launch(engine, steps)

    run.start(config, tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patched:
        patched.setattr(FusedEngine, "_launch", noted)
        interrupted(config, tmp_path / "stopped", 19, monkeypatch)
        assert started == [8, 8, 1, 1, 1]
        run.resume(tmp_path / "stopped", quiet=True)
    assert started[5:] == [5, 8, 16]
    assert_same_weights(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("name", TRAINING)
def test_a_run_resumes_on_another_backend(
    config: Config, name: str, tmp_path: Path, light: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in the bits of a runner that loads the same state; `Parity` compares its steps with the reference."""
    fits(config, name)
    config, folder = repeatable(config, name), tmp_path / "run"
    halfway(config.model_copy(update={"backend": "cpu"}), folder, monkeypatch)
    before = load(folder / "last.safetensors").group("state")
    run.resume(folder, backend_name=name, quiet=True)
    with opened(config) as work:
        runner = make_runner(open_backend(name, options=config.cuda), [work.task])
        runner.load_state(before)
        for epoch in range(1, config.train.epochs):
            graphs = work.task.source.graphs_of(work.split.train)
            batches = shuffled_batches(graphs, config.train.batch_size, config.seed, epoch)
            runner.begin_epoch([MemberEpoch(epoch, batches, config.train.learning_rate)])
            for step in range(len(batches)):
                runner.step(step)
        expected = runner.state()
        runner.close()
    for parameter, value in load(folder / "last.safetensors").group("state").items():
        if parameter != "loss":
            np.testing.assert_array_equal(value, expected[parameter], err_msg=parameter)


@pytest.mark.parametrize(
    ("name", "resident"), [*((name, "auto") for name in TRAINING), *((name, "off") for name in CUDA)]
)
def test_a_step_does_not_wait_for_the_device(
    config: Config, name: str, resident: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamed batches wait only for a copy of two batches before, whose pinned buffer they refill."""
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.backends.cuda.runtime.events import Event

    def wait(*_: Any) -> None:
        raise AssertionError("the host waits for the device")

    def wait_for_copy(event: Event) -> None:
        if event.stream is event._device.stream:
            wait()
        copies.append(event)
        event._event.synchronize()

    fits(config, name)
    copies: list[Event] = []
    with opened(config) as workload:
        options = config.cuda.model_copy(update={"resident": resident})
        runner = make_runner(open_backend(name, options=options), [workload.task])
        for epoch in range(2):  # in the first, kernels are loaded and graphs recorded; each begins with an upload
            runner.begin_epoch([MemberEpoch(epoch, workload.repeated(4), 1e-3)])
            runner.step(0)
            with monkeypatch.context() as patched:
                if epoch:
                    for method in ("synchronize", "download"):
                        patched.setattr(Device, method, wait)
                    patched.setattr(Event, "since", wait)
                    patched.setattr(Event, "synchronize", wait_for_copy)
                for step in (1, 2, 3):
                    runner.step(step)
        assert runner.take_losses()[0][1] > 0
        runner.close()
    assert bool(copies) == (resident == "off")


@pytest.mark.numerical(bound="both predict from one state")
@pytest.mark.parametrize(
    ("name", "is_narrow"), [*((name, False) for name in TRAINING), ("fused", True)], ids=[*TRAINING, "narrow"]
)
def test_predictions_use_the_present_weights_and_statistics(
    config: Config, name: str, is_narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays derived from weights and running statistics are recomputed after a step.

    The fused backend is tested with and without its wide kernels.
    """
    fits(config, name)
    if is_narrow:
        if config.model.kind == "kipf":
            pytest.skip("has one kind of kernels")
        monkeypatch.setattr(geometry_fused_wide, "CAPABILITIES", ())
        config = config.model_copy(
            update={"cuda": config.cuda.model_copy(update={"precision": "fp32"})}
        )  # those of before take no other
    with opened(config) as work:
        at_hand, reference = (make_runner(open_backend(of, options=config.cuda), [work.task]) for of in (name, "cpu"))
        graphs = np.concatenate(work.batches)
        for epoch in range(3):
            at_hand.begin_epoch([MemberEpoch(epoch, work.batches, 5e-2)])
            for step in range(len(work.batches) if epoch else 0):  # before the first step, too
                at_hand.step(step)
            reference.load_state(at_hand.state())
            want = reference.predict([graphs])[0]
            atol = 2e-2 if config.cuda.precision == "tf32" else 1e-4
            np.testing.assert_allclose(
                at_hand.predict([graphs])[0], want, rtol=0, atol=atol * float(np.abs(want).max())
            )
        at_hand.close()


def test_predictions_of_one_graph_agree_with_the_reference(config: Config) -> None:
    if config.model.kind != "kipf":
        pytest.skip("the fused backend predicts graphs as it trains on them")
    fits(config, "fused")
    with opened(config) as work:
        found = [
            make_runner(open_backend(name), [work.task]).predict([np.array([0])])[0] for name in ("fused", "batched")
        ]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5 * float(np.abs(found[1]).max()))


def test_batched_graph_launches_of_epochs_equal_single_steps(tmp_path: Path) -> None:
    """Run steps of Kipf's GCN as long graphs, with a wrong prediction of the next epoch, and one by one."""
    write_set(tmp_path / "data.h5", **ONE_GRAPH, features="csr")
    config = configure(f"data.path={tmp_path / 'data.h5'}", "model.kind=kipf", "model.widths=[16]")
    states = []
    with opened(config) as work:
        for observed in (False, True):
            runner = make_runner(open_backend("fused"), [work.task])
            for epoch, steps, rate in ((0, 45, 1e-2), (1, 3, 1e-2), (7, 2, 1e-3)):
                runner.begin_epoch([MemberEpoch(epoch, work.repeated(steps), rate)])
                for step in range(steps):
                    runner.step(step)
                    if observed:
                        runner.take_losses()
            states.append({name: array for name, array in runner.state().items() if name != "loss"})
            runner.close()
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)


def test_a_comparison_shows_the_kernels_of_a_fused_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, assignments = MODELS["one channel of 64 columns"]
    write_set(tmp_path / "data.h5", **data)
    where = ("--data", tmp_path / "data.h5", "-o", tmp_path / "report", "--timeline", tmp_path / "trace.json")
    asked = ("--backends", "batched,fused", "--quick", "--json", *where, *options(*assignments))
    monkeypatch.setattr(sys, "argv", ["gcnbatch", "compare-backends", *map(str, asked)])
    with pytest.raises(SystemExit) as left:
        app.main()
    assert not left.value.code
    report = json.loads(capsys.readouterr().out)
    assert report["parity"]["passed"]
    assert [state["ready"] for state in report["backends"]] == [True, True]
    launches = report["timing"]["fused"]["launches_per_step"]
    assert 0 < launches < report["timing"]["batched"]["launches_per_step"]
    kernels = report["operations"]["fused"]
    assert sum(kernel["launches"] for kernel in kernels.values()) == launches
    assert all(name.startswith("fused_") and kernel["microseconds"] > 0 for name, kernel in kernels.items())
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    pids = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    place = (pids["fused: one training step"], DEVICE, "X")
    shown = [event["name"] for event in events if (event["pid"], event["tid"], event["ph"]) == place]
    assert len(shown) == launches
    assert set(shown) == set(kernels)


def first_step(task: RunnerTask, name: str, batches: list[Any]) -> int:
    """Return the launches of one training step on `name`."""
    backend = open_backend(name)
    runner = make_runner(backend, [task])
    runner.begin_epoch([MemberEpoch(0, batches, 1e-3)])
    runner.step(0)
    before = backend.meter.launches
    runner.step(1)
    return backend.meter.launches - before


def test_launches_of_a_step(tmp_path: Path) -> None:
    """ChemGCN as in the papers, L = 2 layers, here with C = 2 channels and B graphs that have nodes.

    Non-batched: MatMul and Add forward, db and dW backward, B C times per layer; SpMM forward and backward for each of
    the `filled` pairs of graph and channel that have an edge. TensorFlow's kernel adds, so its output is zeroed B times
    forward (the other channels add) and B C times backward. dX runs B times, except in the first layer.
    Batched: MatMul and Add in one launch, all their gradients in another, SpMM in one each. All other launches are the
    same: the gather, two of batch norm forward and two backward per layer, two of the readout, three of the output
    layer and its loss, one of the optimiser.
    """
    graphs = write_set(tmp_path / "data.h5", n_graphs=30)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", "model.widths=[64,64]", "train.batch_size=8")) as work:
        batched, per_graph = (first_step(work.task, name, work.batches) for name in CUDA)
        part = graphs.take(work.batches[1])
        graph = np.repeat(np.arange(part.n_graphs), np.diff(part.edge_ptr))
        filled = len(np.unique(graph * 2 + part.channel))
        B, C, L = np.count_nonzero(np.diff(part.node_ptr)), 2, 2
    assert batched == 1 + L * (4 + 4) + 2 + 3 + 1 == 23
    assert per_graph - batched == L * (4 * B * C + 2 * filled + B + B * C - 4) + (L - 1) * B


def farthest(some: dict[str, NDArray[Any]], others: dict[str, NDArray[Any]]) -> float:
    """Return the largest distance of two gradients of a parameter, relative to the norm of the first."""
    return max(
        float(np.linalg.norm(others[name] - value) / max(np.linalg.norm(value), 1e-6)) for name, value in some.items()
    )


def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to TF32 (11 significant bits), ties away from zero."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


class Rounding(Jitter):
    """Operands of products are rounded to TF32, and no result is moved."""

    def moved(self, operand: NDArray[Any]) -> NDArray[Any]:
        return rounded(operand)


def distance_of_rounding(task: RunnerTask, batch: NDArray[np.int64]) -> float:
    """Return how far gradients of the reference move when the operands of products are rounded to TF32."""
    exact, moved = (
        OpsRunner(ReferenceBackend(np.float32, by_loops=False, jitter=jitter), task).gradients(batch)[1]
        for jitter in (None, Rounding(np.random.default_rng(0), units=0, operands=1))
    )
    return farthest(exact, moved)


@pytest.mark.parametrize("name", ["fused", "batched"])
def test_tf32_is_close_and_is_not_fp32(config: Config, name: str) -> None:
    if config.model.kind == "kipf":
        pytest.skip("sparse features have no dense product on tensor cores")
    gradients = {}
    with opened(config) as workload:
        batch = workload.batches[0]
        for precision in ("fp32", "tf32"):
            backend = open_backend(name, options=config.cuda.model_copy(update={"precision": precision}))
            if reason := refusal(backend, workload.task):
                pytest.skip(reason)
            gradients[precision] = make_runner(backend, [workload.task]).gradients(batch)[1]
        rounding = distance_of_rounding(workload.task, batch)
    bound = 5e-2 if name == "fused" else 2e-2  # fused rounds A Z, others Z
    assert 0 < farthest(gradients["fp32"], gradients["tf32"]) < max(bound, 2 * rounding)
