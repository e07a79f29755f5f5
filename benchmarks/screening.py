"""Measure what bounds a screening: processor time of each stage of the main process, and of its workers.

usage: python benchmarks/screening.py RUN DATA [BACKEND] [PROCESSES]

Prints a JSON row. Times are microseconds a molecule; those of stages are of the main thread. A molecule that the main
process finishes in t us and a worker in w us keeps w / t workers busy; more workers, or a GPU, do not help then.
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

from gcnbatch.inference import ensemble, inputs, journal, members, predictor
from gcnbatch.inference.inputs import CsvOptions
from gcnbatch.inference.trust import Trust

spent: dict[str, float] = {}  # seconds of the main thread


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
    begin = time.thread_time()
    try:
        return call()
    finally:
        spent[stage] = spent.get(stage, 0.0) + time.thread_time() - begin


def measure(run: Path, data: Path, backend: str, processes: int) -> dict[str, Any]:
    """Predict `data` into a temporary CSV and return the record."""
    timed_steps(inputs, "featurize", "read rows and take chunks")
    timed(inputs, "_part", "join chunks")
    timed(predictor, "sources_of", "prepare batches")
    timed(members.Member, "outputs", "predict")
    timed(Trust, "columns", "calibrate")
    timed(journal.Journal, "append", "write")
    with tempfile.TemporaryDirectory() as folder:
        wall, own = time.perf_counter(), time.process_time()
        options = CsvOptions(processes=processes)
        done = ensemble.infer([run], data, f"{folder}/out.csv", backend=backend, csv=options, quiet=True)
        wall, own = time.perf_counter() - wall, time.process_time() - own
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    shares = {"main process": own, "workers": children.ru_utime + children.ru_stime, **spent}
    return {
        "file": data.name,
        "molecules": done.rows,
        "backend": done.backend,
        "processes": processes,
        "molecules_per_second": round(done.rows / wall),
        "us_a_molecule": {name: round(seconds / done.rows * 1e6, 2) for name, seconds in shares.items()},
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) < 2:
        sys.exit(__doc__)
    backend = arguments[2] if len(arguments) > 2 else "auto"
    count = int(arguments[3]) if len(arguments) > 3 else 0
    print(json.dumps(measure(Path(arguments[0]), Path(arguments[1]), backend, count)))
