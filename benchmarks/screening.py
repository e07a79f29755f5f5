"""Measure what bounds a screening: processor time of each stage of the main thread, and of the worker processes.

usage: python benchmarks/screening.py RUN DATA [BACKEND] [PROCESSES] [ENDING]

Prints a JSON row. Times are microseconds a molecule. Those of stages are of the main thread: processor time, and with
waiting. A molecule that the main process finishes in t us and a worker in w us keeps w / t workers busy; more workers,
or a GPU, do not help then.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gcnbatch.data import guard
from gcnbatch.inference import ensemble, journal, parts, predictor
from gcnbatch.inference.molecules import CsvOptions

spent: dict[str, float] = {}  # seconds of processor time of the main thread
lasted: dict[str, float] = {}  # seconds


def timed(owner: Any, name: str, stage: str) -> None:
    """Count the calls of a function or method as a stage."""
    inner = getattr(owner, name)

    def outer(*args: Any, **kwargs: Any) -> Any:
        return _counted(stage, lambda: inner(*args, **kwargs))

    setattr(owner, name, outer)


def timed_steps(owner: Any, name: str, stage: str) -> None:
    """Count the steps of a generator as a stage."""
    inner = getattr(owner, name)

    def outer(*args: Any, **kwargs: Any) -> Iterator[Any]:
        steps, end = inner(*args, **kwargs), object()
        while (item := _counted(stage, lambda: next(steps, end))) is not end:
            yield item

    setattr(owner, name, outer)


def _counted(stage: str, call: Callable[[], Any]) -> Any:
    begin, clock = time.thread_time(), time.perf_counter()
    try:
        return call()
    finally:
        spent[stage] = spent.get(stage, 0.0) + time.thread_time() - begin
        lasted[stage] = lasted.get(stage, 0.0) + time.perf_counter() - clock


def measure(run: Path, data: Path, backend: str, processes: int, ending: str) -> dict[str, Any]:
    """Predict `data` into a temporary file and return the record."""
    timed_steps(guard, "in_workers", "read rows and take chunks")
    timed(parts.Part, "joined", "join chunks")
    timed(parts.Part, "source", "prepare batches")
    timed(predictor.Predictor, "predict", "predict")
    timed(journal.Journal, "append", "write")
    with tempfile.TemporaryDirectory() as folder:
        wall, own, thread = time.perf_counter(), time.process_time(), time.thread_time()
        options = CsvOptions(processes=processes)
        done = ensemble.infer([run], data, f"{folder}/out{ending}", backend=backend, csv=options, quiet=True)
        wall, own = time.perf_counter() - wall, time.process_time() - own
        thread = time.thread_time() - thread
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    shares = {"main thread": thread, "main process": own, "workers": children.ru_utime + children.ru_stime, **spent}
    return {
        "file": data.name,
        "molecules": done.rows,
        "backend": done.backend,
        "processes": processes,
        "molecules_per_second": round(done.rows / wall),
        "us_a_molecule": {name: round(seconds / done.rows * 1e6, 2) for name, seconds in shares.items()},
        "with_waiting": {name: round(seconds / done.rows * 1e6, 2) for name, seconds in lasted.items()},
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) < 2:
        sys.exit(__doc__)
    backend = arguments[2] if len(arguments) > 2 else "auto"
    count = int(arguments[3]) if len(arguments) > 3 else 0
    ending = arguments[4] if len(arguments) > 4 else ".csv"
    print(json.dumps(measure(Path(arguments[0]), Path(arguments[1]), backend, count, ending)))
