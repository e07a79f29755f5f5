"""The choice of a backend: the named one, or for ``auto`` the fastest that can start and takes the task."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from gcnbatch.backends import registry
from gcnbatch.backends.base import Runner
from gcnbatch.errors import BackendUnavailable, InputError
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.runners import choice as choices
from gcnbatch.runners.choice import BackendChoice, KeptRunners, make_runner, refusal
from gcnbatch.runners.task import RunnerTask
from tests.entries import MadeEntry, NamedBackend, register
from tests.training.runs import configure, write_set


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerTask]:
    path = tmp_path_factory.mktemp("choice") / "data.h5"
    write_set(path)
    with opened(configure(f"data.path={path}")) as work:
        yield work.task


def made(name: str, **about: str) -> MadeEntry:
    return MadeEntry(name, **{"made": NamedBackend(name), **about})


def runner_of(choice: BackendChoice, task: RunnerTask) -> Runner:
    with choice.predictor([task]) as runner:
        return runner


def test_a_choice_may_keep_its_runners(task: RunnerTask) -> None:
    choice, fresh = KeptRunners("cpu"), BackendChoice("cpu")
    again = replace(task, targets=task.targets.copy())
    assert runner_of(choice, task) is runner_of(choice, again)
    assert runner_of(choice, task) is not runner_of(choice, replace(task, model=copy(task.model)))
    assert runner_of(fresh, task) is not runner_of(fresh, task)


def test_auto_keeps_runners_of_the_host_for_few_graphs(monkeypatch, task: RunnerTask) -> None:
    gpu, host = MadeEntry("gpu", on_gpu=True, made=NamedBackend("gpu")), made("host")
    register(monkeypatch, gpu, host, made("slow"))
    graphs = task.source.n_graphs
    monkeypatch.setattr(choices, "FEW", graphs + 1)
    auto, named = KeptRunners("auto"), KeptRunners("gpu")
    few = runner_of(auto, task)
    assert [few.backend, runner_of(named, task).backend, named.for_few] == ["host", "gpu", None]
    assert runner_of(auto, task) is few
    monkeypatch.setattr(choices, "FEW", graphs)
    assert runner_of(auto, task).backend == "gpu"
    register(monkeypatch, host, gpu)
    assert KeptRunners("auto").for_few is None


def test_auto_opens_only_the_fastest_backend_that_can_start(monkeypatch, task: RunnerTask) -> None:
    entries = made("best", made="no driver"), made("good"), made("slow")
    register(monkeypatch, *entries)
    said: list[str] = []
    choice = BackendChoice("auto", 3, say=said.append)
    assert runner_of(choice, task).backend == choice.backend_for([task]).name == choice.fastest.name == "good"
    assert [entry.opened for entry in entries] == [[], [(3, None)], []]
    assert said == []


def test_auto_reports_a_slower_backend_that_takes_the_task(monkeypatch, task: RunnerTask) -> None:
    entries = made("best", refused="sparse features"), made("good", refused="anything"), made("slow")
    register(monkeypatch, *entries)
    said: list[str] = []
    choice = BackendChoice("auto", say=said.append)
    assert choice.fastest.name == "best"
    assert [runner_of(choice, task).backend for _ in range(2)] == ["slow", "slow"]
    assert said == ["backend slow: best does not take sparse features"] * 2
    assert [len(entry.opened) for entry in entries] == [1, 1, 1]


OPERATIONS = "gcnbatch.runners.distributed"
TWO: Any = SimpleNamespace(size=2)  # ranks


class SharedBackend(NamedBackend):
    """A backend that ranks can share, if nothing is missing."""

    missing = ""

    def check_ranks(self) -> None:
        if self.missing:
            raise BackendUnavailable("NCCL", self.missing)


def test_auto_takes_the_fastest_backend_that_ranks_can_share(monkeypatch, task: RunnerTask) -> None:
    shared = SharedBackend("good")
    entries = made("best"), MadeEntry("good", made=shared, ranks_runner=OPERATIONS), made("slow")
    register(monkeypatch, *entries)
    said: list[str] = []
    choice = BackendChoice("auto", say=said.append)
    assert choice.backend_for([task], TWO) is shared
    assert said == ["backend good: best cannot share one run among 2 ranks"]
    assert choice.backend_for([task]).name == "best"
    assert entries[2].opened == []
    monkeypatch.setattr(shared, "missing", "nccl4py is not installed", raising=False)
    with pytest.raises(BackendUnavailable, match=r"^NCCL: nccl4py is not installed$"):  # not one that is much slower
        choice.backend_for([task], TWO)


@dataclass(frozen=True)
class Apart(MadeEntry):
    """An entry whose backend ranks can share, if they reach each other."""

    ranks_runner: str = "none"
    apart: str = ""

    @property
    def ranks(self):
        return SimpleNamespace(refuses=lambda backend, task, ranks: self.apart or None)


def test_auto_takes_the_next_backend_where_the_fastest_does_not_take_these_ranks(monkeypatch, task: RunnerTask) -> None:
    best = Apart("best", made=NamedBackend("best"), apart="ranks on several hosts")
    register(monkeypatch, best, MadeEntry("good", made=SharedBackend("good"), ranks_runner=OPERATIONS))
    said: list[str] = []
    choice = BackendChoice("auto", say=said.append)
    assert (choice.backend_for([task], TWO).name, choice.backend_for([task]).name) == ("good", "best")
    assert said == ["backend good: best does not take ranks on several hosts"]
    with pytest.raises(
        InputError, match=r"^backend best: it does not take ranks on several hosts\. Use --backend good"
    ):
        BackendChoice("best").backend_for([task], TWO)


def test_a_named_backend_that_ranks_cannot_share_is_refused(monkeypatch, task: RunnerTask) -> None:
    register(monkeypatch, made("best"), MadeEntry("good", made=SharedBackend("good"), ranks_runner=OPERATIONS))
    with pytest.raises(InputError, match=r"^backend best: cannot share one run among 2 ranks\. Use --backend good, "):
        BackendChoice("best").backend_for([task], TWO)


def test_one_backend_takes_all_tasks_of_a_run(monkeypatch, task: RunnerTask) -> None:
    class Picky(MadeEntry):
        def refuses(self, backend, given):
            return "the second fold" if given is not task else None

    register(monkeypatch, Picky("best", made=NamedBackend("best")), made("slow"))
    other = RunnerTask(**vars(task))
    assert BackendChoice("auto").backend_for([task]).name == "best"
    assert BackendChoice("auto").backend_for([task, other]).name == "slow"


@pytest.mark.parametrize(("name", "hint"), [("best", ". Use --backend slow."), ("slow", "")])
def test_a_task_that_the_named_backend_refuses_is_an_error(monkeypatch, task, name: str, hint: str) -> None:
    register(monkeypatch, made("best", refused="this"), made("slow", refused="this"))
    message = f"backend {name}: it does not take this{hint}"
    choice = BackendChoice(name)
    backend = choice.fastest
    assert refusal(backend, task) == "this"
    for make in (lambda: runner_of(choice, task), lambda: make_runner(backend, [task])):
        with pytest.raises(InputError) as error:
            make()
        assert str(error.value) == message


def test_if_every_backend_refuses_the_error_has_the_slowest_ones_reason(monkeypatch, task: RunnerTask) -> None:
    register(monkeypatch, made("best", refused="this"), made("slow", refused="that"))
    with pytest.raises(InputError, match="backend slow: it does not take that"):
        BackendChoice("auto").backend_for([task])


def test_unknown_and_unavailable_backends_are_refused(monkeypatch) -> None:
    register(monkeypatch, made("best", made="no driver"), made("slow"))
    with pytest.raises(InputError) as error:
        BackendChoice("bets")
    assert str(error.value) == "backend: 'bets'; expected auto, slow, best. Did you mean 'best'?"
    with pytest.raises(BackendUnavailable, match=r"backend best: no driver\. Fix it\."):
        BackendChoice("best")


def test_may_use_gpu_follows_the_name(monkeypatch) -> None:
    register(monkeypatch, MadeEntry("device", on_gpu=True), MadeEntry("host"))
    assert [registry.may_use_gpu(name) for name in ("auto", "device", "host")] == [True, True, False]
    register(monkeypatch, MadeEntry("host"))
    assert not registry.may_use_gpu("auto")


def test_every_entry_names_modules_with_the_required_functions() -> None:
    for entry in registry.BACKENDS:
        for module, functions in (
            (entry._module, ("check", "open_backend")),
            (entry.runners, ("refuses", "cohort_size", "make_runner")),
            *([(entry.ranks, ("refuses", "make_runner"))] if entry.data_parallel else []),
        ):
            assert all(callable(getattr(module, function)) for function in functions), entry.name
