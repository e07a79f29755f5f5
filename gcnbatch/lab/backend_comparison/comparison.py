"""A comparison of backends: parity first; measurements only if all backends agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import environment, fileio, folders, outputs
from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend
from gcnbatch.backends.registry import BackendStatus
from gcnbatch.config import Config
from gcnbatch.errors import BackendUnavailable, DeviceLost, InputError, MachineError, nearest
from gcnbatch.fileio import Output
from gcnbatch.lab.backend_comparison import fast_math, report, timeline
from gcnbatch.lab.backend_comparison.operations import Cost, Row, profile
from gcnbatch.lab.backend_comparison.parity import Agreement, Parity
from gcnbatch.lab.backend_comparison.timeline import Trace
from gcnbatch.lab.backend_comparison.timing import measure
from gcnbatch.lab.backend_comparison.workload import Effort, Say, Workload, opened
from gcnbatch.progress import counter
from gcnbatch.runners.choice import refusal

if TYPE_CHECKING:
    from tqdm import tqdm

FORMAT = 1


def compare(
    config: Config,
    names: Sequence[str] = (),
    folder: Path | None = None,
    trace_file: Path | None = None,
    effort: Effort | None = None,
    say: Say = lambda line: None,
) -> tuple[Path, dict[str, Any]]:
    """Compare backends on a model and its data; write the report and return its folder and content.

    Parameters
    ----------
    config : Config
    names : sequence of str
        Backends in the order of the report; none: all backends, slowest first.
    folder : Path or None
        New or empty; None: ``runs/compare-<name>-<time>``.
    trace_file : Path or None
        File for the timeline; None: no file.
    effort : Effort or None
    say : callable
        Called with each message for the user.

    Raises
    ------
    InputError
        For an unknown backend, a folder that is not empty or in use, data that cannot be used, and a file for the
        timeline that holds something else.
    BackendUnavailable
        When no backend can be compared here. A failing backend is left out, and the report gives the reason.
    MachineError
        When the host fails, or a device is lost.
    """
    effort = effort or Effort()
    states = _wanted(names, config.device)
    with folders.results(folder, f"compare-{config.name}") as (target, _):
        trace = None if trace_file is None else _trace_output(trace_file, target, config)
        backends = _open(states, config, say)
        with opened(config) as workload, counter(1 + 4 * len(backends), " parts") as bar:
            _leave_out_refused(states, backends, workload, say)
            found = _Comparison(config, workload, states, backends, effort, bar, say)
            content, traces = found.content(), list(found.traces.values())
        report.write(target, content, traces)
        if trace is not None and traces:
            fileio.write_json(trace, timeline.events(traces))
    return target, content


class _Comparison:
    """Results by backend; a failing backend is recorded in `states` and removed."""

    def __init__(
        self,
        config: Config,
        workload: Workload,
        states: list[BackendStatus],
        backends: dict[str, Backend],
        effort: Effort,
        bar: tqdm[Any],
        say: Say,
    ) -> None:
        self._config, self._workload, self._effort, self._bar, self._say = config, workload, effort, bar, say
        self._states, self._backends = states, backends
        self._began = time.monotonic()
        self.agreements: dict[str, Agreement] = {}
        self.timing: dict[str, dict[str, Any]] = {}
        self.costs: dict[str, dict[Row, Cost]] = {}
        self.traces: dict[str, Trace] = {}
        self.fast: dict[str, dict[str, Any]] = {}
        self.parity = Parity(workload, effort, self._show)
        bar.update()
        self._with_each(self._check)
        if all(agreement.passed for agreement in self.agreements.values()):
            self._with_each(self._measure)
        self._seconds = time.monotonic() - self._began

    def _with_each(self, work: Callable[[str, Backend], None]) -> None:
        held: list[dict[str, Any]] = [
            *(self._backends, self.agreements, self.timing, self.costs, self.traces, self.fast)
        ]
        for name, backend in list(self._backends.items()):
            try:
                work(name, backend)
            except MachineError as error:
                _leave_out(self._states, name, error, self._say)
                for found in held:
                    found.pop(name, None)
        if not self._backends:
            raise _none(self._states)

    def _show(self, what: str) -> None:
        self._bar.set_description(what)

    def _check(self, name: str, backend: Backend) -> None:
        self._show(f"{name}: parity")
        self.agreements[name] = self.parity.check(backend)
        self._bar.update()

    def _measure(self, name: str, backend: Backend) -> None:
        timing = measure(backend, self._workload, self._effort, lambda what: self._show(f"{name}: {what}"))
        self._bar.update()
        self._show(f"{name}: operations")
        self.costs[name] = profile(backend, self._workload, self._effort)
        self._bar.update()
        self._show(f"{name}: timeline")
        self.traces[name] = timeline.trace(backend, self._workload)
        busy = self.traces[name].busy / timing["training"]["microseconds_per_batch"]["median"]
        self.timing[name] = {**timing, "busy_share": min(busy, 1.0)}
        if self._config.cuda.fast_math and registry.entry(name).on_gpu:
            self._show(f"{name}: fast-math")
            fast = registry.open_backend(name, self._config.device, self._config.cuda)
            self.fast[name] = fast_math.compare(backend, fast, self.parity, self._workload, self._effort)
        self._bar.update()

    def content(self) -> dict[str, Any]:
        """Return the content of ``report.json``."""
        clocks = {name: {"clock": one.meter.clock, "about": one.meter.about()} for name, one in self._backends.items()}
        return {
            "format": FORMAT,
            "name": self._config.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(self._seconds, 1),
            "command": environment.command(),
            "backends": [{**state._asdict(), **clocks.get(state.name, {})} for state in self._states],
            "data": self._workload.to_json(),
            "effort": vars(self._effort),
            "parity": self.parity.to_json(self.agreements),
            "timing": self.timing or None,
            "speedup": self._speedups() if self.timing else None,
            "operations": self._operations() if self.costs else None,
            "fast_math": self.fast,
            "environment": environment.collect(),
            "config": self._config.model_dump(mode="json"),
        }

    def _speedups(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return, for training and inference and for each baseline, the speedup of every backend after it."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for work in ("training", "inference"):
            seconds = {name: one[work]["seconds"]["median"] for name, one in self.timing.items()}
            names = list(seconds)
            found[work] = {
                base: {name: seconds[base] / seconds[name] for name in names[number + 1 :]}
                for number, base in enumerate(names[:-1])
            }
        return found

    def _operations(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {
            name: {row.label: {"family": row.family, **cost.to_json()} for row, cost in rows.items()}
            for name, rows in self.costs.items()
        }


def _wanted(names: Sequence[str], device: int) -> list[BackendStatus]:
    states = {state.name: state for state in registry.status(device)}
    for name in names:
        if name not in states:
            raise InputError("--backends", f"'{name}'", ", ".join(states), nearest(name, states))
    return [states[name] for name in dict.fromkeys(names or states)]


def _open(states: list[BackendStatus], config: Config, say: Say) -> dict[str, Backend]:
    """Open the backends that can start, without fast-math; record in `states` why others cannot."""
    opened_ones: dict[str, Backend] = {}
    exact = config.cuda.model_copy(update={"fast_math": False})
    for state in list(states):
        if not state.ready:
            say(f"{state.name} is left out: {state.reason}")
            continue
        try:
            opened_ones[state.name] = registry.open_backend(state.name, config.device, exact)
        except MachineError as error:
            _leave_out(states, state.name, error, say)
    if not opened_ones:
        raise _none(states)
    return opened_ones


def _leave_out(states: list[BackendStatus], name: str, error: MachineError, say: Say) -> None:
    """Record in `states` why a backend failed; raise failures of the host and lost devices."""
    if isinstance(error, DeviceLost) or not registry.entry(name).on_gpu:
        raise error
    number = next(number for number, state in enumerate(states) if state.name == name)
    reason = error.got if isinstance(error, BackendUnavailable) else f"{error.subject}: {error.got}"
    states[number] = BackendStatus(name, False, reason, error.hint)
    say(f"{name} is left out: {reason if isinstance(error, BackendUnavailable) else error}")


def _none(states: Sequence[BackendStatus]) -> BackendUnavailable:
    why = "; ".join(f"{state.name}: {state.reason}" for state in states)
    return BackendUnavailable("--backends", f"none can be compared here ({why})", hint=states[0].hint)


def _leave_out_refused(states: list[BackendStatus], backends: dict[str, Backend], workload: Workload, say: Say) -> None:
    """Record in `states` which backends refuse this model and data, and remove them."""
    for number, state in enumerate(states):
        if state.name in backends and (why := refusal(backends[state.name], workload.task)):
            states[number] = state._replace(ready=False, reason=f"it does not take {why}", hint="")
            del backends[state.name]
            say(f"{state.name} is left out: {states[number].reason}")
    if not backends:
        others = [name for name in registry.names() if name not in {state.name for state in states}]
        raise InputError("--backends", "none that takes this model and data", f"one of {', '.join(others)}")


def _trace_output(path: Path, folder: Path, config: Config) -> Output:
    """Refuse a file that cannot be written or must not be, before the work starts."""
    if path.resolve() in [(folder / name).resolve() for name in report.NAMES]:
        raise InputError(f"--timeline {path}", "a file of the report itself", "another file")
    reads = [config.data.path] if Path(config.data.path).is_file() else []
    return outputs.check(path, timeline.TRACE, reads, "--timeline")
