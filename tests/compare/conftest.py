"""Registries of test backends, and small data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend
from gcnbatch.backends.registry import BackendStatus
from gcnbatch.data.writer import write_graphset
from tests.builders import build_graphset

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Register these backends only; one given as text cannot start, for that reason."""

    def put(**backends: Backend | str) -> None:
        def state(name: str) -> BackendStatus:
            found = backends[name]
            return (
                BackendStatus(name, False, found, "Mend it.") if isinstance(found, str) else BackendStatus(name, True)
            )

        monkeypatch.setattr(registry, "status", lambda device=0: [state(name) for name in backends])
        monkeypatch.setattr(registry, "open_backend", lambda name, *others: backends[name])

    return put


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binary set of 40 graphs, some empty, two channels."""
    path = tmp_path_factory.mktemp("compare") / "small.h5"
    write_graphset(path, build_graphset(40, n_features=6))
    return path
