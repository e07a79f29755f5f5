"""The queue of predictions: one thread loads the runs and predicts the molecules of waiting requests in one batch.

While the models predict a batch, worker processes read the molecules of the next one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from gcnbatch.errors import DeviceLost, MachineError
from gcnbatch.inference.loaded import Begun, LoadedRun
from gcnbatch.predictions import Predictions

Result = TypeVar("Result")
Runs = Mapping[str, LoadedRun]  # by name
BATCH = 4096  # molecules that are predicted together


class Full(Exception):
    """The queue has no room for further molecules."""


@dataclass
class _Job:
    """Molecules of a request, or a function to call, and the future of the result."""

    run: LoadedRun | None
    smiles: Sequence[str] = ()
    applicability: bool = False
    call: Callable[[], Any] | None = None
    result: Future[Any] = field(default_factory=Future)

    def joins(self, other: _Job) -> bool:
        """Whether both can be predicted together."""
        alike = self.run is other.run and self.applicability == other.applicability
        return alike and self.call is None and other.call is None


class PredictionQueue:
    """Queue of jobs, and the thread that holds the runs and works on them.

    Parameters
    ----------
    load : callable
        Opens the runs by name, in the thread: the backend's arrays belong to it.
    most_waiting : int
        Molecules that may wait.
    """

    def __init__(self, load: Callable[[], AbstractContextManager[Runs]], most_waiting: int) -> None:
        self._load, self._most_waiting = load, most_waiting
        self._jobs: deque[_Job] = deque()
        self._change = threading.Condition()
        self._ended = False
        self.waiting = 0  # molecules
        self.failure = ""  # why the models cannot predict any more
        self._loaded: Future[Runs] = Future()
        self._thread = threading.Thread(target=self._work, name="models", daemon=True)

    def start(self) -> Runs:
        """Start the thread; return the loaded runs by name.

        Raises
        ------
        Exception
            That of `load`.
        """
        self._thread.start()
        return self._loaded.result()

    @property
    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread after the queued jobs."""
        with self._change:
            self._ended = True
            self._change.notify()
        self._thread.join()

    async def predict(self, run: LoadedRun, smiles: Sequence[str], applicability: bool = False) -> Predictions:
        """Return the predictions of molecules, at least one.

        Raises
        ------
        Full
        """
        found: Predictions = await self._result(_Job(run, smiles, applicability))
        return found

    async def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in the thread; return its result.

        Raises
        ------
        Full
        """
        found: Result = await self._result(_Job(None, [""], call=function))
        return found

    async def _result(self, job: _Job) -> Any:
        with self._change:
            if self._ended or not self.alive:
                raise MachineError("the models", "their thread has ended", hint="Start the server again.")
            if self._jobs and self.waiting + len(job.smiles) > self._most_waiting:
                raise Full
            self._jobs.append(job)
            self.waiting += len(job.smiles)
            self._change.notify()
        return await asyncio.wrap_future(job.result)  # a cancelled request cancels it

    def _work(self) -> None:
        try:
            with self._load() as runs:
                self._loaded.set_result(runs)
                self._answer()
        except BaseException as error:
            if self._loaded.done():
                raise
            self._loaded.set_exception(error)

    def _answer(self) -> None:
        """Work on jobs until the queue is closed."""
        under_way: tuple[list[_Job], Begun] | None = None
        while True:
            jobs = self._take(wait=under_way is None)
            if not jobs and under_way is None:
                return
            begun = self._begin(jobs, alone=under_way is None)
            if under_way is not None:
                self._finish(*under_way)
            under_way = begun

    def _take(self, wait: bool) -> list[_Job]:
        """Return the jobs of the next batch. If none is queued, return none, or `wait` for one or the end."""
        with self._change:
            while not (taken := self._next()) and wait and not self._ended:
                self._change.wait()
            return taken

    def _next(self) -> list[_Job]:
        taken: list[_Job] = []
        left: deque[_Job] = deque()
        size = 0
        for job in self._jobs:
            if taken and (size >= BATCH or not job.joins(taken[0])):
                left.append(job)
                continue
            self.waiting -= len(job.smiles)
            if job.result.set_running_or_notify_cancel():  # else its request has ended
                taken.append(job)
                size += len(job.smiles)
        self._jobs = left
        return taken

    def _begin(self, jobs: list[_Job], alone: bool) -> tuple[list[_Job], Begun] | None:
        """Start the processes on the molecules of jobs, or call the function of a job; see `LoadedRun.begin`."""
        if not jobs:
            return None
        run, call = jobs[0].run, jobs[0].call
        try:
            if call is not None:
                jobs[0].result.set_result(call())
            elif run is not None:
                return jobs, run.begin([text for job in jobs for text in job.smiles], alone)
        except Exception as error:
            self._fail(jobs, error)
        return None

    def _finish(self, jobs: list[_Job], begun: Begun) -> None:
        """Predict the molecules; give each job its rows."""
        run = jobs[0].run
        assert run is not None
        try:
            table = run.finish(begun, jobs[0].applicability)
        except Exception as error:
            self._fail(jobs, error)
            return
        first = 0
        for job in jobs:
            rows = np.arange(first, first := first + len(job.smiles))
            job.result.set_result(table if len(jobs) == 1 else table.take(rows))

    def _fail(self, jobs: Sequence[_Job], error: Exception) -> None:
        if isinstance(error, DeviceLost):
            self.failure = str(error)
        for job in jobs:
            job.result.set_exception(error)
