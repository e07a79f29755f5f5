"""Fixtures and marks of all tests. Tests marked ``gpu`` or ``numba`` are skipped, with the reason, where there is none.

Those of a file are then reported as one test, with their number; the others count as deselected. `tests.numerical` says
which tests get the mark ``numerical``.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys

# Before NumPy is imported: concurrent test processes must not each start a thread per core.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Where the environment forbids byte code, as in many containers, each of some hundred processes that tests start would
# compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from gcnbatch import confined
from gcnbatch.backends import registry
from gcnbatch.cli import app
from gcnbatch.data import audit, guard
from gcnbatch.data.importers import inert_pickle
from tests import numerical
from tests.training.runs import lighten

UNBOUNDED = pytest.StashKey[str]()

settings.register_profile("gcnbatch", deadline=None)  # a loaded machine takes any time for an example
settings.load_profile("gcnbatch")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run at most N cases of each test function on each backend; another WORD chooses others"
    parser.addoption("--cases", nargs=2, metavar=("N", "WORD"), help=text)


def pytest_itemcollected(item: pytest.Item) -> None:
    numerical.mark(item)
    item.stash[UNBOUNDED] = numerical.why_unbounded(item)


@pytest.hookimpl(tryfirst=True)  # also where the test would be skipped
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.stash[UNBOUNDED]:
        pytest.fail(item.stash[UNBOUNDED], pytrace=False)


def _why_no_gpu() -> str:
    state = next(state for state in registry.status() if state.name == "batched")
    return "" if state.ready else state.reason


def _why_no_numba() -> str:
    return "" if find_spec("numba") else "Numba is not installed (the extra 'fast')"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, which takes a quarter of that time.

    Later it leaves out what is there then. In each of the processes that tests fork, it would touch, and so copy, all.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give neighbouring tests to one worker with ``-n auto``: the fixtures of a module are then made once."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests of a file that need what is missing as a single test: to skip some thousands takes a while."""
    left_out: set[pytest.Item] = set()
    for marker, reason in (("gpu", _why_no_gpu()), ("numba", _why_no_numba())):
        needing: dict[Path, list[pytest.Item]] = {}
        for item in items if reason else ():
            if item not in left_out and item.get_closest_marker(marker) and not item.stash[UNBOUNDED]:
                needing.setdefault(item.path, []).append(item)
        for first, *others in needing.values():
            count = f"{len(others) + 1} tests: " if others else ""
            first.add_marker(pytest.mark.skip(reason=f"{count}{reason}"), append=False)
            left_out.update(others)
    if cases := config.getoption("cases"):
        left_out.update(set(items) - set(numerical.few(items, int(cases[0]), cases[1])))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@contextmanager
def answered_signals() -> Iterator[None]:
    """Handle SIGINT and SIGHUP even in the background of a script or under nohup, where processes inherit ignored ones.

    Processes that the tests start then have the default action.
    """
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    previous = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if previous[number] is signal.SIG_IGN:
            signal.signal(number, handler)
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def _answer_signals() -> Iterator[None]:
    with answered_signals():
        yield


def _here(function: Callable[[], bytes], *limits: object) -> bytes:
    return function()


@pytest.fixture(autouse=True, scope="session")
def _write_without_sync() -> Iterator[None]:
    """Tests cannot see whether the disk has the data; waiting for it takes most of the time of a write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def _open_data_sets_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """Open data sets and convert rows in this process, except in modules marked ``hostile``.

    The fork of a test process takes 20 ms.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not request.node.get_closest_marker("hostile"):
            for reader in (audit, inert_pickle):
                patch.setattr(reader, "confined", SimpleNamespace(call=_here, Failed=confined.Failed))
            patch.setattr(guard, "run", _rows_here)
        yield


def _rows_here(
    function: Callable[[Sequence[Any], int], Any], rows: Sequence[Any], library: str, first: int = 0
) -> Iterator[Any]:
    if rows:
        yield pickle.loads(pickle.dumps(function(rows, first)))  # as through the pipe of a fork


_rows_in_forks = guard.run


@pytest.fixture
def rows_in_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert rows in forks, as commands do: for tests of rows that crash a library or keep it busy."""
    monkeypatch.setattr(guard, "run", _rows_in_forks)


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    lighten(monkeypatch)


@pytest.fixture(scope="module")
def light_module() -> Iterator[None]:
    """Do as `light` in a module whose fixtures train runs, too."""
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        yield


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs ``gcnbatch`` with these arguments here, and returns (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gcnbatch", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            app.main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return run
