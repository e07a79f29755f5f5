"""Measurement of `bench spmm`: each method on each problem is checked against float64, then timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import environment
from gcnbatch.backends import registry
from gcnbatch.backends.cuda import entry
from gcnbatch.backends.cuda.runtime.graph import NotCaptured
from gcnbatch.errors import BackendUnavailable, InputError, closest
from gcnbatch.lab.bench import clock
from gcnbatch.lab.bench.spmm.methods import (
    COMPARED,
    DEVICE_METHODS,
    NAMES,
    SCIPY,
    Absent,
    Methods,
    NotInstalled,
    Operands,
)
from gcnbatch.lab.bench.spmm.problems import SpmmProblem, check_memory
from gcnbatch.progress import counter
from gcnbatch.reference.rounding import product_bound

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.backend import CudaBackend

Record = dict[str, Any]
Exact = NDArray[np.float64]
Say = Callable[[str], object]
REPEATS = 20
# Cache and launch mode of a measurement, as in its record.
STATES = (("warm", "graph"), ("cold", "graph"), ("warm", "host"))


@dataclass
class Outcome:
    """Result of a run: `records`, `absent` methods with the reason, and `wrong` results, which were not timed."""

    records: list[Record] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def chosen_methods(wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the wanted methods, each once; `COMPARED` if there are none.

    Raises
    ------
    InputError
        An unknown method.
    """
    names = tuple(dict.fromkeys(wanted)) or COMPARED
    for name in names:
        if name not in NAMES:
            raise InputError("--methods", f"'{name}'", ", ".join(NAMES), closest(name, NAMES))
    return names


def run(
    problems: Sequence[tuple[Callable[[], SpmmProblem], Sequence[int]]],
    names: Sequence[str] = COMPARED,
    repeats: int = REPEATS,
    device: int = 0,
    say: Say = lambda line: None,
) -> Outcome:
    """Measure `names` on every problem at every number of columns.

    Without a GPU, only SciPy is measured, and `say` is called with a message about it.

    Parameters
    ----------
    problems : sequence of (callable, columns)
        Each callable creates its problem just before its measurement.

    Raises
    ------
    InputError
        For a device that does not exist, and a problem that does not fit in its memory.
    BackendUnavailable
        When only methods for a device were requested, and there is none.
    """
    found = Outcome()
    backend = _open(names, device, found, say)
    if backend is None:
        registry.report_on_host(SCIPY, device, None, say)
    session = _Session(names, repeats, backend, found)
    points = sum(len(columns) for _, columns in problems)
    with counter(points * len(session.names), " rows", leave=False) as bar:
        for make, columns in problems:
            problem = make()
            for width in columns:
                session.point(problem, width, bar)
    return found


def _open(names: Sequence[str], device: int, found: Outcome, say: Say) -> CudaBackend | None:
    wanted = [name for name in names if name in DEVICE_METHODS]
    if not wanted:
        return None
    try:
        return entry.open_backend("batched", device)
    except BackendUnavailable as error:
        if SCIPY not in names:
            raise BackendUnavailable(
                "bench spmm", error.got, hint="Without a GPU: --methods scipy; see 'gcnbatch info'."
            ) from error
        found.absent |= dict.fromkeys(wanted, error.got)
        say(f"no GPU: SciPy on the CPU alone is measured ({error.got})")
        return None


class _Session:
    """Device, clock and methods of one run."""

    def __init__(self, names: Sequence[str], repeats: int, backend: CudaBackend | None, found: Outcome) -> None:
        self._backend, self._repeats, self._found = backend, repeats, found
        self.names = [name for name in names if name not in found.absent]
        self._about: Record = {"commit": environment.commit(), "cpu": environment.cpu_model()}
        if backend is not None:
            self._clock = clock.DeviceClock(backend, repeats)
            self._methods = Methods(backend.device, self._clock.fastest)
            self._about |= clock.machine(backend) | {"copy_gb_per_s": round(self._clock.copy_speed(), 1)}

    def point(self, problem: SpmmProblem, columns: int, bar: Any) -> None:
        """Measure all methods at one number of columns."""
        matrix, dense = problem.matrix, problem.dense(columns)
        exact = matrix.astype(np.float64) @ dense.astype(np.float64)
        bound = product_bound(np.diff(matrix.indptr), abs(matrix).astype(np.float64) @ np.abs(dense))
        operands = self._operands(problem, columns)
        for name in self.names:
            bar.set_description(f"{problem.name}, {columns} columns, {name}")
            if name == SCIPY:
                times = clock.host_times(lambda: matrix @ dense, self._repeats)
                how = _method(name, "", _worst(matrix @ dense, exact))
                self._note(problem, columns, {**how, "cache": "host", "launch": "none"}, times)
            elif operands is not None:
                self._device_method(operands, name, exact, bound)
            bar.update()

    def _operands(self, problem: SpmmProblem, columns: int) -> Operands | None:
        if self._backend is None:
            return None
        rows, inner = problem.matrix.shape
        needed = 4 * (rows + inner) * columns + 12 * problem.matrix.nnz
        device = self._backend.device
        check_memory(f"problem {problem.name}", 2 * needed, device.memory().free, device.name)
        return Operands(device, problem, columns)

    def _device_method(self, operands: Operands, name: str, exact: Exact, bound: Exact) -> None:
        problem, columns = operands.problem, operands.columns
        with ExitStack() as stack:
            try:
                call, choice = stack.enter_context(self._methods.prepared(name, operands))
            except Absent as reason:
                where = "" if isinstance(reason, NotInstalled) else f"figure {problem.name}: "
                self._found.absent.setdefault(name, f"{where}{reason}")
                return
            operands.poison()
            call()
            got = operands.device.download(operands.out)
            error, ratio = _worst(got, exact), float((np.abs(got - exact) / bound).max(initial=0.0))
            if not ratio <= 1:
                self._found.wrong.append(
                    f"{name} on {problem.name} with {columns} columns: error {error:.3g}, {ratio:.3g} of its bound"
                )
                return
            for (cache, launch), measured in zip(
                STATES, (self._clock.warm, self._clock.cold, self._clock.host), strict=True
            ):
                try:
                    times = measured(call)
                except NotCaptured as reason:
                    self._found.absent.setdefault(f"{name} in a graph", f"figure {problem.name}: {reason}")
                    continue
                how = {**_method(name, choice, error), "cache": cache, "launch": launch}
                self._note(problem, columns, how, times)

    def _note(self, problem: SpmmProblem, columns: int, how: Record, times: Sequence[float]) -> None:
        measured, work = clock.summary(times), problem.work(columns)
        what = {"bench": "spmm", "figure": problem.name, **problem.about, "nnz": int(problem.matrix.nnz)}
        point = {**what, "columns": columns, "flops": work.flops, "bytes": work.bytes, **self._about}
        rates = clock.rates(work.flops, work.bytes, measured["us"])
        self._found.records.append({**point, **how, **measured, **rates})


def _method(name: str, choice: str, error: float) -> Record:
    return {"method": name, "choice": choice, "error": float(f"{error:.3g}")}


def _worst(got: NDArray[Any], exact: Exact) -> float:
    """Return the largest error, NaN if anything is NaN."""
    return float(np.abs(got - exact).max(initial=0.0))


def by_point(records: Sequence[Record], cache: str = "warm", launch: str = "graph") -> Iterator[tuple[Record, Record]]:
    """Yield a record of each point (problem, columns) and {method: record} of one state; SciPy has only one."""
    points: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if record["method"] == SCIPY or (record["cache"], record["launch"]) == (cache, launch):
            points.setdefault(point_of(record), {})[record["method"]] = record
    for methods in points.values():
        yield next(iter(methods.values())), methods


def point_of(record: Record) -> tuple[Any, ...]:
    """Return the identification of a record's problem and width."""
    names = ("figure", "data", "batch", "dim", "nnz_per_row", "channels", "seed", "columns")
    return tuple(str(record.get(name)) for name in names)
