"""Members of a run in processes of their own, for backends on the host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend
from gcnbatch.config import Config, resolve
from gcnbatch.data.store import Dataset
from gcnbatch.errors import MachineError
from gcnbatch.train import warm_start
from gcnbatch.train.experiment import Experiment
from gcnbatch.train.fits import Fits, Say
from gcnbatch.train.plan import Planned, data_file, plan
from gcnbatch.train.report import Report
from gcnbatch.train.stop import Interrupted, StopRequest
from gcnbatch.worker import WorkerDied, Workers

_POLL_SECONDS = 0.1


def processes(backend: Backend, jobs: int, members: int) -> int:
    """Return the number of processes for this many members: 1 where a device trains them together."""
    return 1 if registry.entry(backend.name).on_gpu else min(jobs or 1, members)


def fit_in_processes(
    folder: Path, config: Config, planned: Sequence[Planned], count: int, say: Say, lock: int
) -> dict[str, dict[str, Any]]:
    """Fit these members in `count` processes; return their metrics by name.

    Parameters
    ----------
    folder, config
        Of the run; the configuration names the backend.
    lock : int
        File descriptor of the folder's lock, which the processes hold, too.

    Raises
    ------
    Interrupted
        After Ctrl-C; every member has a checkpoint.
    GcnbatchError
        That of the first member that failed.
    """
    text, titles = json.dumps(config.model_dump(mode="json")), {one.name: one.title for one in planned}
    metrics: dict[str, dict[str, Any]] = {}

    def done(name: str, result: dict[str, Any]) -> None:
        metrics[name] = result
        say(f"{titles[name]} is done")

    with pool(count, lock) as workers:
        run_calls(workers, {one.name: (fit_member, str(folder), text, one.name) for one in planned}, done)
    return metrics


@contextmanager
def pool(count: int, lock: int) -> Iterator[Workers]:
    """Yield processes with as many BLAS threads as this one, on which bits may depend."""
    try:
        with Workers(count, one_blas_thread=False, keep_open=(lock,)) as workers:
            yield workers
    except WorkerDied as error:
        raise MachineError(
            "a training process", "ended", hint="It may have run out of memory; lower --jobs."
        ) from error


def run_calls(
    workers: Workers,
    calls: Mapping[str, tuple[Any, ...]],
    done: Callable[[str, Any], object],
    died: Callable[[str, WorkerDied], Any] | None = None,
) -> None:
    """Run calls (function and arguments) by name; give `done` each name and result, in the order of their ends.

    When a call fails or Ctrl-C arrives, the others are stopped with a checkpoint. `died` returns the result of a call
    whose process ended; None: such a call has failed.

    Raises
    ------
    Interrupted
    Exception
        Of the first call that failed.
    """
    left = {workers.submit(*call): name for name, call in calls.items()}
    with StopRequest() as stop:
        try:
            while left and not stop.made:
                for call in wait(left, _POLL_SECONDS, FIRST_COMPLETED).done:
                    name = left.pop(call)
                    try:
                        result = call.result()
                    except WorkerDied as error:
                        if died is None:
                            raise
                        result = died(name, error)
                    done(name, result)
        finally:
            if left:
                for call in left:
                    call.cancel()
                workers.terminate()
                wait(left)
    if stop.made:
        raise Interrupted("stopped", "all is saved")


def fit_member(folder: str, config: str, name: str) -> dict[str, Any]:
    """Fit a member of a run in this process and return its metrics."""
    planned, backend = _opened(folder, config)
    return Fits(Path(folder), backend, 1, True, lambda line: None, Report.write).fit([planned[name]])[name]


@lru_cache(maxsize=1)
def _opened(folder: str, config: str) -> tuple[dict[str, Planned], Backend]:
    """Open the data set and the backend of a run; they stay open for the next member."""
    settings = resolve(json.loads(config))
    dataset = Dataset(data_file(settings, Path(folder)), settings.data.memory_mb, check=False)
    backend = registry.open_backend(settings.backend, settings.device, settings.cuda)
    weights = warm_start.weights(settings, dataset.header, Path(folder))
    return {one.name: one for one in plan(Experiment(settings, dataset, weights))}, backend
