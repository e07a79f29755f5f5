"""Which backend takes a task: the one asked for, or of ``auto`` the fastest that is ready and does not refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gcnbatch.backends import registry
from gcnbatch.compare.workload import opened
from gcnbatch.errors import BackendUnavailable, InputError
from gcnbatch.runners.choice import BackendChoice, make_runner, refusal
from gcnbatch.runners.task import RunnerTask
from tests.entries import MadeEntry, NamedBackend, register
from tests.train.runs import configure, write_set


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerTask]:
    path = tmp_path_factory.mktemp("choice") / "data.h5"
    write_set(path)
    with opened(configure(f"data.path={path}")) as work:
        yield work.task


def made(name: str, **about: str) -> MadeEntry:
    return MadeEntry(name, **{"made": NamedBackend(name), **about})


def test_auto_takes_the_fastest_that_is_ready_and_opens_no_other(monkeypatch, task: RunnerTask) -> None:
    entries = made("best", made="no driver"), made("good"), made("slow")
    register(monkeypatch, *entries)
    said: list[str] = []
    choice = BackendChoice("auto", 3, say=said.append)
    assert choice.make_runner(task).backend == choice.backend_for([task]).name == choice.fastest.name == "good"
    assert [entry.opened for entry in entries] == [[], [(3, None)], []]
    assert said == []


def test_auto_goes_on_to_the_next_that_takes_the_task_and_says_so(monkeypatch, task: RunnerTask) -> None:
    entries = made("best", refused="sparse features"), made("good", refused="anything"), made("slow")
    register(monkeypatch, *entries)
    said: list[str] = []
    choice = BackendChoice("auto", say=said.append)
    assert choice.fastest.name == "best"
    assert [choice.make_runner(task).backend for _ in range(2)] == ["slow", "slow"]
    assert said == ["backend slow: best does not take sparse features"] * 2
    assert [len(entry.opened) for entry in entries] == [1, 1, 1]


def test_one_backend_takes_all_tasks_of_a_run(monkeypatch, task: RunnerTask) -> None:
    class Picky(MadeEntry):
        def refuses(self, backend, given):
            return "the second fold" if given is not task else None

    register(monkeypatch, Picky("best", made=NamedBackend("best")), made("slow"))
    other = RunnerTask(**vars(task))
    assert BackendChoice("auto").backend_for([task]).name == "best"
    assert BackendChoice("auto").backend_for([task, other]).name == "slow"


@pytest.mark.parametrize(("name", "hint"), [("best", ". Use --backend slow."), ("slow", "")])
def test_a_backend_asked_for_by_name_takes_the_task_or_nobody_does(monkeypatch, task, name: str, hint: str) -> None:
    register(monkeypatch, made("best", refused="this"), made("slow", refused="this"))
    message = f"backend {name}: it does not take this{hint}"
    choice = BackendChoice(name)
    backend = choice.fastest
    assert refusal(backend, task) == "this"
    for make in (lambda: choice.make_runner(task), lambda: make_runner(backend, task)):
        with pytest.raises(InputError) as error:
            make()
        assert str(error.value) == message


def test_where_every_backend_refuses_the_slowest_says_why(monkeypatch, task: RunnerTask) -> None:
    register(monkeypatch, made("best", refused="this"), made("slow", refused="that"))
    with pytest.raises(InputError, match="backend slow: it does not take that"):
        BackendChoice("auto").backend_for([task])


def test_names_that_the_registry_does_not_know_or_that_cannot_start(monkeypatch) -> None:
    register(monkeypatch, made("best", made="no driver"), made("slow"))
    with pytest.raises(InputError) as error:
        BackendChoice("bets")
    assert str(error.value) == "backend: 'bets'; expected auto, slow, best. Did you mean 'best'?"
    with pytest.raises(BackendUnavailable, match=r"backend best: no driver\. Mend it\."):
        BackendChoice("best")


def test_a_gpu_may_be_used_where_the_name_allows_one(monkeypatch) -> None:
    register(monkeypatch, MadeEntry("device", on_gpu=True), MadeEntry("host"))
    assert [registry.may_use_gpu(name) for name in ("auto", "device", "host")] == [True, True, False]
    register(monkeypatch, MadeEntry("host"))
    assert not registry.may_use_gpu("auto")


def test_every_entry_names_modules_that_offer_what_they_must() -> None:
    for entry in registry.BACKENDS:
        for module, functions in (
            (entry._backend_module, ("check", "open_backend")),
            (entry._runner_module, ("refuses", "make_runner")),
        ):
            assert all(callable(getattr(module, function)) for function in functions), entry.name
