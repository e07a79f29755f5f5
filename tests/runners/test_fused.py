"""The runners of the fused backend without a GPU: the choice by level, and queued steps around reads and writes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.model.gcn import freeze_layers
from gcnbatch.runners.choice import make_runner, refusal
from gcnbatch.runners.cohort import group
from gcnbatch.runners.fused_graphs import FusedGraphsRunner
from gcnbatch.runners.fused_kipf import FusedKipfRunner
from tests.backends.cuda.fused.kipf.test_host import ONE_GRAPH
from tests.backends.cuda.fused.test_refusals import fused_backend
from tests.training.runs import configure, write_set


class EngineLog:
    """An engine that logs the names of called methods and does nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append(name)


@pytest.fixture(params=["graphs", "one graph"])
def runner(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("driver"))
    monkeypatch.setattr(loader, "driver_cuda_version", lambda: (13, 0))
    is_graphs = request.param == "graphs"
    write_set(tmp_path / "data.h5", **({} if is_graphs else ONE_GRAPH))
    model = () if is_graphs else ("model.kind=kipf",)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", *model)) as work:
        made: Any = make_runner(fused_backend(), [work.task])
    assert type(made) is (FusedGraphsRunner if is_graphs else FusedKipfRunner)
    made._engine = EngineLog()
    monkeypatch.setattr(made._backend, "read", lambda array: np.zeros(array.shape, array.dtype))
    return made


def test_queued_steps_run_before_the_state_is_read_or_written(runner) -> None:
    for call in (runner.take_losses, runner.state, lambda: runner.load_state(runner.state())):
        runner._engine.calls.clear()
        call()
        assert runner._engine.calls[0] == "flush"
    runner.close()
    assert runner._engine.calls[-1] == "close"


def test_gradients_are_read_from_the_engines_arrays(runner) -> None:
    loss, gradients = runner.gradients(np.arange(1))
    assert runner._engine.calls == ["gradients"]
    assert loss == 0
    state = runner.state()
    trained = {name: value.shape for name, value in state.items() if f"adam.m/{name}" in state}
    assert {name: array.shape for name, array in gradients.items()} == trained


def test_frozen_layers_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5")
    with opened(configure(f"data.path={tmp_path / 'data.h5'}")) as work:
        task = replace(work.task, model=freeze_layers(work.task.model, ["conv1"]))
    assert refusal(fused_backend(), task) == "frozen layers (train.freeze)"
    assert group([task, work.task]) == [[0], [1]]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (("model.jumping_knowledge=cat", "model.widths=[8,8]"), "jumping knowledge (model.jumping_knowledge)"),
        (("model.jumping_knowledge=max", "model.widths=[8,8]"), "jumping knowledge (model.jumping_knowledge)"),
        (("model.virtual_node=true", "model.widths=[8,8]"), "virtual nodes (model.virtual_node)"),
        (("model.ffn=true",), "feed-forward networks (model.ffn)"),
        (("model.norm=layer",), "layer norm (model.norm)"),
    ],
)
def test_a_recipe_that_the_engine_does_not_have_is_refused(tmp_path: Path, model: tuple[str, ...], reason: str) -> None:
    write_set(tmp_path / "data.h5")
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", *model)) as work:
        assert refusal(fused_backend(), work.task) == reason
