"""Registries of test backends, and small data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gcnbatch.backends.base import Backend
from gcnbatch.data.writer import write_graphset
from gcnbatch.errors import MachineError
from gcnbatch.lab.backend_comparison import charts
from tests.builders import build_graphset
from tests.entries import MadeEntry, register

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Register these backends, slowest first; a text is why one cannot start, an error what opening raises."""

    def put(**backends: Backend | MachineError | str) -> None:
        entries = [
            MadeEntry(name, made=made, on_gpu=name != "cpu", steps_are_operations=name != "fused")
            for name, made in backends.items()
        ]
        register(monkeypatch, *reversed(entries))

    return put


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pictures of a report, for tests of its figures."""
    monkeypatch.setattr(charts, "draw", lambda *about: [])


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binary set of 40 graphs, some empty, two channels."""
    path = tmp_path_factory.mktemp("compare") / "small.h5"
    write_graphset(path, build_graphset(40, n_features=6))
    return path
