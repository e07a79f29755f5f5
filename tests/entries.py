"""Registry entries for tests: they open given backends, refuse tasks, or cannot start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.cpu import CpuBackend
from gcnbatch.backends.registry import BackendEntry, BackendStatus
from gcnbatch.errors import MachineError
from gcnbatch.runners import ops
from gcnbatch.runners.cohort import JoinedRunner
from gcnbatch.runners.task import RunnerTask


@dataclass(frozen=True)
class MadeEntry(BackendEntry):
    """An entry without a module.

    Parameters
    ----------
    made : Backend or MachineError or str
        The backend or the error of `open`; a text is the reason why the backend cannot start.
    refused : str
        The reason why it refuses every task; empty: it takes all.
    opened : list
        Arguments of the calls of `open`.
    """

    summary: str = "made for a test"
    backend: str = "none"
    made: Backend | MachineError | str = field(default_factory=CpuBackend)
    refused: str = ""
    opened: list[tuple[Any, ...]] = field(default_factory=list)

    def probe(self, device: int = 0) -> BackendStatus:
        if isinstance(self.made, str):
            return BackendStatus(self.name, False, self.made, "Fix it.")
        return BackendStatus(self.name, True)

    def open(self, *how: Any) -> Backend:
        self.opened.append(how)
        if isinstance(self.made, MachineError):
            raise self.made
        assert not isinstance(self.made, str)
        return self.made

    @property
    def runners(self) -> Any:
        """Its module of runners: the entry itself."""
        return self

    def refuses(self, backend: Backend, task: RunnerTask) -> str | None:
        return self.refused or None

    def cohort_size(self, backend: Backend, tasks: Sequence[RunnerTask]) -> int:
        return 1

    def make_runner(self, backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
        return ops.make_runner(backend, tasks)


@dataclass(frozen=True)
class CohortEntry(MadeEntry):
    """An entry whose backend trains up to `most` models in a cohort; `sizes` notes those of its cohorts."""

    steps_are_operations: bool = False
    most: int = 64
    sizes: list[int] = field(default_factory=list)

    def cohort_size(self, backend: Backend, tasks: Sequence[RunnerTask]) -> int:
        return min(self.most, len(tasks))

    def make_runner(self, backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
        self.sizes.append(len(tasks))
        return JoinedRunner([ops.make_runner(backend, [task]) for task in tasks])


class NamedBackend(CpuBackend):
    """The backend ``cpu`` under another name."""

    def __init__(self, name: str) -> None:
        self.name = name


def register(monkeypatch: pytest.MonkeyPatch, *entries: BackendEntry) -> None:
    """Replace the registry with these entries, fastest first."""
    monkeypatch.setattr(registry, "BACKENDS", entries)
