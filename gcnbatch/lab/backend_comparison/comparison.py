"""A comparison of backends: parity first; measurements only if all backends agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gcnbatch import environment, fileio, folders, outputs
from gcnbatch.backends import registry
from gcnbatch.backends.registry import BackendStatus
from gcnbatch.config import Config
from gcnbatch.errors import BackendUnavailable, DeviceLost, InputError, MachineError, closest
from gcnbatch.fileio import Output
from gcnbatch.lab.backend_comparison import fast_math, report, timeline
from gcnbatch.lab.backend_comparison.operations import Cost, Row, profile
from gcnbatch.lab.backend_comparison.parity import Agreement, Parity
from gcnbatch.lab.backend_comparison.timeline import Trace
from gcnbatch.lab.backend_comparison.timing import measure
from gcnbatch.lab.backend_comparison.workload import Effort, Say, Workload, opened
from gcnbatch.progress import counter
from gcnbatch.runners.choice import refusal
from gcnbatch.runners.task import RunnerTask

if TYPE_CHECKING:
    from tqdm import tqdm

FORMAT = 1
Result = TypeVar("Result")


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
    states = {state.name: state for state in registry.status(config.device)}
    for name in names:
        if name not in states:
            raise InputError("--backends", f"'{name}'", ", ".join(states), closest(name, states))
    with folders.results(folder, f"compare-{config.name}") as (target, _):
        trace = None if trace_file is None else _trace_output(trace_file, target, config)
        backends = _Backends({name: states[name] for name in names or states}, config, say)
        with opened(config) as workload, counter(1 + 4 * len(backends.ready), " parts") as bar:
            backends.leave_out_refusing(workload.task)
            content, traces = _content(config, workload, backends, effort, bar)
        report.write(target, content, traces)
        if trace is not None and traces:
            fileio.write_json(trace, timeline.events(traces))
    return target, content


class _Backends:
    """The requested backends: those that can start are open, without fast-math; `states` says why others are not.

    A backend that fails later is left out, too. A failure of the host or a lost device is raised.
    """

    def __init__(self, states: dict[str, BackendStatus], config: Config, say: Say) -> None:
        self.states, self._say = states, say
        for name, state in states.items():
            if not state.ready:
                say(f"{name} is left out: {state.reason}")
        exact = config.cuda.model_copy(update={"fast_math": False})
        self.open = self.each(lambda name: registry.open_backend(name, config.device, exact))

    @property
    def ready(self) -> list[str]:
        """Names of the backends that are not left out."""
        return [name for name, state in self.states.items() if state.ready]

    def each(self, work: Callable[[str], Result]) -> dict[str, Result]:
        """Return what `work` returns for each backend by name; leave out those that fail."""
        found = {}
        for name in self.ready:
            try:
                found[name] = work(name)
            except MachineError as error:
                if isinstance(error, DeviceLost) or not registry.entry(name).on_gpu:
                    raise
                known = isinstance(error, BackendUnavailable)
                reason = error.got if known else f"{error.subject}: {error.got}"
                self._leave_out(name, reason, error.hint, error.got if known else str(error))
        if not found:
            why = "; ".join(f"{state.name}: {state.reason}" for state in self.states.values())
            hint = next(iter(self.states.values())).hint
            raise BackendUnavailable("--backends", f"none can be compared here ({why})", hint=hint)
        return found

    def leave_out_refusing(self, task: RunnerTask) -> None:
        """Leave out the backends that refuse this model and data."""
        for name in self.ready:
            if why := refusal(self.open[name], task):
                self._leave_out(name, reason := f"it does not take {why}", "", reason)
        if not self.ready:
            others = [name for name in registry.names() if name not in self.states]
            raise InputError("--backends", "none that takes this model and data", f"one of {', '.join(others)}")

    def _leave_out(self, name: str, reason: str, hint: str, said: str) -> None:
        self.states[name] = BackendStatus(name, False, reason, hint)
        self._say(f"{name} is left out: {said}")

    def to_json(self) -> list[dict[str, Any]]:
        """Return the state of each, and the clock and device of those that are compared."""
        meters = {name: self.open[name].meter for name in self.ready}
        about = {name: {"clock": meter.clock, "about": meter.about()} for name, meter in meters.items()}
        return [{**state._asdict(), **about.get(name, {})} for name, state in self.states.items()]


class _Measured(NamedTuple):
    """What is measured of a backend that agrees; `fast` is empty without cuda.fast_math."""

    timing: dict[str, Any]
    costs: dict[Row, Cost]
    trace: Trace
    fast: dict[str, Any]


def _content(
    config: Config, workload: Workload, backends: _Backends, effort: Effort, bar: tqdm[Any]
) -> tuple[dict[str, Any], list[Trace]]:
    """Return the content of ``report.json``, and the traces; only parity if a backend does not agree."""
    began = time.monotonic()
    parity = Parity(workload, effort, bar.set_description)
    bar.update()

    def check(name: str) -> Agreement:
        bar.set_description(f"{name}: parity")
        found = parity.check(backends.open[name])
        bar.update()
        return found

    def measured(name: str) -> _Measured:
        backend = backends.open[name]
        timing = measure(backend, workload, effort, lambda what: bar.set_description(f"{name}: {what}"))
        bar.update()
        bar.set_description(f"{name}: operations")
        costs = profile(backend, workload, effort)
        bar.update()
        bar.set_description(f"{name}: timeline")
        trace = timeline.trace(backend, workload)
        busy = trace.busy / timing["training"]["microseconds_per_batch"]["median"]
        fast: dict[str, Any] = {}
        if config.cuda.fast_math and registry.entry(name).on_gpu:
            bar.set_description(f"{name}: fast-math")
            compiled = registry.open_backend(name, config.device, config.cuda)
            fast = fast_math.compare(backend, compiled, parity, workload, effort)
        bar.update()
        return _Measured({**timing, "busy_share": min(busy, 1.0)}, costs, trace, fast)

    agreements, found = backends.each(check), dict[str, _Measured]()
    if all(agreement.passed for agreement in agreements.values()):
        found = backends.each(measured)
    timing = {name: one.timing for name, one in found.items()}
    operations = {
        name: {row.label: {"family": row.family, **cost.to_json()} for row, cost in one.costs.items()}
        for name, one in found.items()
    }
    content = {
        "format": FORMAT,
        "name": config.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "command": environment.command(),
        "backends": backends.to_json(),
        "data": workload.to_json(),
        "effort": vars(effort),
        "parity": parity.to_json({name: agreements[name] for name in backends.ready}),
        "timing": timing or None,
        "speedup": _speedups(timing) if found else None,
        "operations": operations or None,
        "fast_math": {name: one.fast for name, one in found.items() if one.fast},
        "environment": environment.collect(),
        "config": config.model_dump(mode="json"),
    }
    return content, [one.trace for one in found.values()]


def _speedups(timing: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for training and inference and for each baseline, the speedup of every backend after it."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for work in ("training", "inference"):
        seconds = {name: one[work]["seconds"]["median"] for name, one in timing.items()}
        names = list(seconds)
        found[work] = {
            base: {name: seconds[base] / seconds[name] for name in names[number + 1 :]}
            for number, base in enumerate(names[:-1])
        }
    return found


def _trace_output(path: Path, folder: Path, config: Config) -> Output:
    """Refuse a file that cannot be written or must not be, before the work starts."""
    if path.resolve() in [(folder / name).resolve() for name in report.NAMES]:
        raise InputError(f"--timeline {path}", "a file of the report itself", "another file")
    reads = [config.data.path] if Path(config.data.path).is_file() else []
    return outputs.check(path, timeline.TRACE, reads, "--timeline")
