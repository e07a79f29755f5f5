"""The registry: one entry per backend, fastest first. docs/ARCHITECTURE.md, "Add a backend", lists the steps.

The configuration and the command line read names and capabilities here, so this module imports no backend. An entry
names two modules, one with the backend and one with its runner. Their first use imports them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from gcnbatch.errors import BackendUnavailable, InputError, closest

if TYPE_CHECKING:
    from gcnbatch.backends.base import Backend, Runner
    from gcnbatch.config_sections import CudaConfig
    from gcnbatch.ranks.communicator import Communicator
    from gcnbatch.ranks.world import World
    from gcnbatch.runners.task import RunnerTask

AUTO = "auto"  # the name of the fastest backend that can start and supports the task


class BackendModule(Protocol):
    """Functions of a backend's module."""

    def check(self, device: int) -> None:
        """Raise `BackendUnavailable` with reason and fix if the backend cannot start; start nothing."""

    def open_backend(self, name: str, device: int, options: CudaConfig | None) -> Backend:
        """Open the backend; without `options`, use the defaults."""


class RunnerModule(Protocol):
    """Functions of a runner's module."""

    def refuses(self, backend: Backend, task: RunnerTask) -> str | None:
        """Return the property of the task that the backend does not support, or None."""

    def cohort_size(self, backend: Backend, tasks: Sequence[RunnerTask]) -> int:
        """Return how many of these tasks of one architecture, from the front, may run in shared launches now.

        At least 1. Memory and a measured table decide; 1 where the backend shares no launches.
        """

    def make_runner(self, backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
        """Return the runner of these tasks, which `refuses` accepts; at most `cohort_size` many."""


class RanksModule(Protocol):
    """Functions of the module with a backend's runner for several ranks that train one model."""

    def refuses(self, backend: Backend, task: RunnerTask, ranks: World) -> str | None:
        """Return the property of task or ranks that the backend does not support, or None; rank 0 alone calls.

        Raises
        ------
        BackendUnavailable
            Something that the ranks need to exchange the backend's arrays is missing.
        """

    def make_runner(self, backend: Backend, task: RunnerTask, ranks: Communicator) -> Runner:
        """Return this rank's runner of a task that `refuses` accepts; all ranks call."""


class BackendStatus(NamedTuple):
    """Whether a backend can start here, and if not, the reason and the fix."""

    name: str
    ready: bool
    reason: str = ""
    hint: str = ""


class StepTime(NamedTuple):
    """Wall time in us of a training step on Tox21 (2 x 64, batch 50), and the machine; see benchmarks/RESULTS.md."""

    step_us: int
    machine: str


@dataclass(frozen=True)
class BackendEntry:
    """One backend.

    Parameters
    ----------
    name : str
        Its name on the command line and in configurations, equal to `Backend.name`.
    summary : str
        One line for users: where and how it computes.
    backend : str
        The module that opens it; see `BackendModule`.
    runner : str
        The module of its runner; see `RunnerModule`. The default trains with any backend's operations.
    step_time : StepTime or None
    on_gpu : bool
        Whether ``--device`` and the section [cuda] apply to it.
    steps_are_operations : bool
        Whether its training steps call `Ops`, so that ``compare-backends`` can time them one by one.
    ranks_runner : str
        The module of its runner for ranks that share training steps; see `RanksModule`. Empty: they cannot.
    """

    name: str
    summary: str
    backend: str
    runner: str = "gcnbatch.runners.ops"
    step_time: StepTime | None = None
    on_gpu: bool = False
    steps_are_operations: bool = True
    ranks_runner: str = ""

    @property
    def data_parallel(self) -> bool:
        """Whether ranks can share its training steps."""
        return bool(self.ranks_runner)

    def probe(self, device: int = 0) -> BackendStatus:
        """Return whether the backend can start on this device."""
        try:
            self._module.check(device)
        except BackendUnavailable as error:
            return BackendStatus(self.name, False, error.got, error.hint)
        return BackendStatus(self.name, True)

    def open(self, device: int = 0, options: CudaConfig | None = None) -> Backend:
        """Open the backend.

        Raises
        ------
        BackendUnavailable
            When the backend cannot start here.
        InputError
            When there is no such device.
        MachineError
            When the device does not open.
        """
        return self._module.open_backend(self.name, device, options)

    @property
    def runners(self) -> RunnerModule:
        """The module of its runner."""
        return cast(RunnerModule, import_module(self.runner))

    @property
    def ranks(self) -> RanksModule:
        """The module of its runner for ranks; only if it is `data_parallel`."""
        return cast(RanksModule, import_module(self.ranks_runner))

    @property
    def _module(self) -> BackendModule:
        return cast(BackendModule, import_module(self.backend))


BACKENDS: tuple[BackendEntry, ...] = (
    BackendEntry(
        name="fused",
        summary="CUDA: a training step in six launches or one, replayed as a CUDA graph",
        backend="gcnbatch.backends.cuda.fused.entry",
        runner="gcnbatch.runners.fused",
        step_time=StepTime(23, "NVIDIA H200"),
        on_gpu=True,
        steps_are_operations=False,
        ranks_runner="gcnbatch.runners.fused_ranks",
    ),
    BackendEntry(
        name="batched",
        summary="CUDA: a launch per operation and batch",
        backend="gcnbatch.backends.cuda.entry",
        step_time=StepTime(253, "NVIDIA H200"),
        on_gpu=True,
        ranks_runner="gcnbatch.runners.distributed",
    ),
    BackendEntry(
        name="nonbatched",
        summary="CUDA: a launch per operation and graph, the papers' baseline",
        backend="gcnbatch.backends.cuda.entry",
        step_time=StepTime(6_198, "NVIDIA H200"),
        on_gpu=True,
    ),
    BackendEntry(
        name="cpu",
        summary="NumPy, with Numba's loops where it is installed",
        backend="gcnbatch.backends.cpu",
        step_time=StepTime(940, "two cores"),
        ranks_runner="gcnbatch.runners.distributed",
    ),
)


def names() -> list[str]:
    """Return the backends' names, slowest first."""
    return [entry.name for entry in reversed(BACKENDS)]


def choices() -> list[str]:
    """Return the names that users may give: ``"auto"``, then the backends."""
    return [AUTO, *names()]


def entry(name: str) -> BackendEntry:
    """Return the entry of a name.

    Raises
    ------
    InputError
        Unknown name.
    """
    for found in BACKENDS:
        if found.name == name:
            return found
    raise InputError("backend", f"'{name}'", ", ".join(choices()), closest(name, choices()))


def slower_than(name: str) -> list[BackendEntry]:
    """Return the entries of slower backends, fastest first."""
    return list(BACKENDS[BACKENDS.index(entry(name)) + 1 :])


def may_use_gpu(name: str) -> bool:
    """Return whether the backend `name` computes on a GPU; ``"auto"`` may."""
    return any(found.on_gpu for found in (BACKENDS if name == AUTO else [entry(name)]))


def status(device: int = 0) -> list[BackendStatus]:
    """Return the state of every backend on this device, slowest first."""
    return [found.probe(device) for found in reversed(BACKENDS)]


def ready(name: str, device: int = 0) -> Iterator[BackendEntry]:
    """Yield the entry of the named backend, or for ``"auto"`` of every backend that can start here, fastest first.

    Raises
    ------
    InputError
        Unknown name, or no such device.
    BackendUnavailable
        The named backend cannot start; the error has the reason and the fix.
    """
    if name == AUTO:
        yield from (found for found in BACKENDS if found.probe(device).ready)
        return
    found = entry(name)
    state = found.probe(device)
    if not state.ready:
        raise BackendUnavailable(f"backend {name}", state.reason, hint=state.hint)
    yield found


def report_unused(name: str, device: int | None, resident: str | None, say: Callable[[str], object]) -> None:
    """Report options of a GPU that were given, if the backend `name` computes on the host; ``"auto"``: the fastest."""
    if (device or resident) and not (found := next(ready(name, device or 0))).on_gpu:
        report_on_host(f"backend {found.name}", device, resident, say)


def report_on_host(what: str, device: int | None, resident: str | None, say: Callable[[str], object]) -> None:
    """Report options of a GPU that were given although `what` computes on the host."""
    if given := [option for option, value in (("--device", device), ("--resident", resident)) if value]:
        say(f"not used: {' and '.join(given)}; {what} computes on the host")


def open_backend(name: str, device: int = 0, options: CudaConfig | None = None) -> Backend:
    """Open the backend `name`, or for ``"auto"`` the fastest that can start.

    `gcnbatch.runners.choice.BackendChoice` opens the fastest that also supports a task.

    Parameters
    ----------
    device : int
        Number of a GPU among those that CUDA_VISIBLE_DEVICES shows; backends on the host ignore it.
    options : CudaConfig or None
        Options of the CUDA backends; None means the defaults.

    Raises
    ------
    InputError, BackendUnavailable
        As `ready`.
    MachineError
        The device does not open.
    """
    return next(ready(name, device)).open(device, options)


def close_devices() -> None:
    """Close what this thread has opened, before it ends: CUDA ends the process of a thread that ends with a device."""
    if (opened := sys.modules.get("gcnbatch.backends.cuda.runtime.device")) is not None:
        opened.close_devices()
