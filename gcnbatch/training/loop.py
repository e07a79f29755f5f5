"""The training loop: a cohort of members in lockstep epochs, with validation, checkpoints and Ctrl-C.

A cohort of one member is the ordinary run. A member's results do not depend on the cohorts that it trains in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch, Runner
from gcnbatch.errors import InputError
from gcnbatch.model.predict import predict_rows
from gcnbatch.text import counted
from gcnbatch.timeline import span
from gcnbatch.training.fit import Fit
from gcnbatch.training.progress import Progress, open_progress
from gcnbatch.training.stop import Interrupted, StopRequest
from gcnbatch.training.validation import SCORERS, scores

THREADS = 8  # that write checkpoints: each waits for the disk several times
Form = Callable[[Sequence[Fit]], Runner]  # makes a cohort of the first of these members
Done = Callable[[Runner, dict[int, Fit]], object]  # takes the finished members of a cohort by number


def fit(
    members: Sequence[Fit],
    form: Form,
    done: Done | None,
    quiet: bool = False,
    after_epoch: Callable[[dict[int, Fit]], object] = lambda members: None,
    tolerant: bool = False,
) -> None:
    """Train all members to the end (or to their early stop), in one cohort after the other.

    A cohort is closed when at most half of its members run; the others enter the next one.

    Parameters
    ----------
    form : callable
        Returns a cohort of the first members of a list; its size says how many.
    done : callable
        Called with a cohort and its finished members by number; the best weights are loaded. Their last checkpoints may
        not be written yet: `Fit.saved` waits for them. None: nothing is done.
    quiet : bool
        No progress bar.
    after_epoch : callable
        Called with the members, by number, that trained in an epoch; may set their `failure`.
    tolerant : bool
        A loss or weights that are not finite are the failure of their member and do not end the others.

    Raises
    ------
    Interrupted
        After Ctrl-C; the checkpoints are written.
    GcnbatchError
        When a loss is not finite, or the best weights are not.
    """
    savers = ThreadPoolExecutor(THREADS)
    try:
        waiting = list(members)
        while waiting:
            for member in members:
                member.saved()
            with span("prepare a cohort"):
                cohort = form(waiting)
            here, waiting = waiting[: cohort.size], waiting[cohort.size :]
            try:
                CohortLoop(cohort, here, savers, quiet, after_epoch, tolerant).train()
                ended = {i: member for i, member in enumerate(here) if member.position.finished}
                if done and ended:
                    with span("predict with the best weights"):
                        for i, member in ended.items():
                            cohort.load_state(member.best, i)
                        done(cohort, ended)
                left = {i: member for i, member in enumerate(here) if member.running}
                for i, member in left.items():
                    member.carried = cohort.state(i)
                waiting = [*left.values(), *waiting]
            finally:
                with span("close a cohort"):
                    for member in here:
                        if member.files:
                            member.files.close()
                    cohort.close()
    except BaseException:
        savers.shutdown()
        raise
    savers.shutdown(wait=done is None)  # what `done` began waits for the checkpoints


class CohortLoop:
    """The epochs of one cohort."""

    def __init__(
        self,
        cohort: Runner,
        members: Sequence[Fit],
        savers: Executor,
        quiet: bool,
        after_epoch: Callable[[dict[int, Fit]], object],
        tolerant: bool,
    ) -> None:
        self.cohort, self.members, self._savers, self.quiet = cohort, members, savers, quiet
        self._after_epoch, self._tolerant = after_epoch, tolerant
        self._source = members[0].experiment.source
        self._eval_batch_size = members[0].train.eval_batch_size
        self._saved_at = time.monotonic()
        self._stop = StopRequest()

    def train(self) -> None:
        """Train until all members have ended, or so many that the others should move to another cohort."""
        for i, member in enumerate(self.members):
            self._enter(i, member)
        # `Fit.check_loss` reports a loss that is not finite, once; NumPy would warn at every operation.
        quietly = np.errstate(over="ignore", invalid="ignore")
        with (
            quietly,
            ThreadPoolExecutor(SCORERS) as self._scorers,
            self._stop,
            self._progress() as progress,
        ):
            self._counted = time.monotonic()
            while len(running := self._running()) > len(self.members) // 2:
                self._epoch(running, progress)

    def _progress(self) -> Progress:
        steps = max(member.steps for member in self.members)
        done = min(member.position.epoch * steps + member.position.step for member in self.members)
        return open_progress(max(member.train.epochs for member in self.members), steps, done, self.quiet)

    def _running(self) -> dict[int, Fit]:
        return {i: member for i, member in enumerate(self.members) if member.running}

    # -------------------------------------------------------------------------------------------- an epoch

    def _epoch(self, running: dict[int, Fit], progress: Progress) -> None:
        """Run the rest of every member's current epoch and its validation."""
        began = time.monotonic()
        with span("begin an epoch"):
            epochs = [member.epoch() if i in running else None for i, member in enumerate(self.members)]
            self.cohort.begin_epoch(epochs)
        with span("run the steps of an epoch"):
            self._steps(running, epochs, progress)
        with span("begin an epoch"):
            following = [running[i].next_batches() if i in running else None for i in range(len(self.members))]
            if any(batches is not None for batches in following):
                self.cohort.expect(following)  # overlaps with the last steps, which may still run on a device
            for member in running.values():
                member.shuffle_ahead(self._scorers)
        with span("predict validation rows"):
            logits = self.validate(list(running))  # a device computes them right after the last step
            losses = self._losses(running)
        self._count_time(running)
        share = (time.monotonic() - began) / len(running)
        rows = []
        with span("score an epoch"):
            scored = scores([running[i].validation for i in losses], [logits[i] for i in losses], self._scorers)
            for (i, loss), score in zip(losses.items(), scored, strict=True):
                done = epochs[i]
                assert done is not None
                with self._failing(running[i]):
                    rows.append(running[i].end_epoch(done, loss, score, share, partial(self.cohort.weights, i)))
            self._after_epoch(running)
        with span("keep checkpoints"):
            self._keep(running)
        if rows:
            progress.end(_mean_row(rows), running[min(losses)].position.best_epoch + 1)

    def _steps(self, running: dict[int, Fit], epochs: list[MemberEpoch | None], progress: Progress) -> None:
        own = [epoch for epoch in epochs if epoch is not None]
        first, last = min(epoch.first for epoch in own), max(len(epoch.batches) for epoch in own)
        seconds = []
        for index in range(first, last):
            clock = time.perf_counter()
            self.cohort.step(index)
            seconds.append((time.perf_counter() - clock) / len(own))
            progress.step()
            if index + 1 < last and (self._stop.made or self._due()):
                self._advance(running, epochs, index + 1)
                self._keep(running)
        for member in running.values():
            member.step_seconds += seconds

    def _advance(self, running: dict[int, Fit], epochs: list[MemberEpoch | None], done: int) -> None:
        """Note that the steps before `done` have run."""
        for i, member in running.items():
            epoch = epochs[i]
            assert epoch is not None
            member.position.step = min(max(done, epoch.first), len(epoch.batches))

    def _losses(self, running: dict[int, Fit]) -> dict[int, float]:
        """Return the mean training losses of the epoch by member."""
        totals, losses = self.cohort.take_losses(), {}
        for i, member in running.items():
            with self._failing(member):
                losses[i] = member.check_loss(*totals[i])
        return losses

    @contextmanager
    def _failing(self, member: Fit) -> Iterator[None]:
        """Let an error that training has diverged be the failure of its member, if the loop is tolerant."""
        try:
            yield
        except InputError as error:
            if not self._tolerant:
                raise
            member.failure = error

    def validate(self, numbers: Sequence[int]) -> list[NDArray[np.float32] | None]:
        """Return the logits of the validation rows of these members; None for the others, and without such rows."""
        rows = [member.split.valid if i in numbers else None for i, member in enumerate(self.members)]
        asked = [own if own is not None and len(own) else None for own in rows]
        return predict_rows(self.cohort, self._source, asked, self._eval_batch_size)

    # -------------------------------------------------------------------------------------------- checkpoints

    def _keep(self, running: dict[int, Fit]) -> None:
        """Write the checkpoints that are due, and all before an interrupt; begin those of members that have ended."""
        self._count_time(running)
        stopping = self._stop.made  # a request that arrives later waits for the next checkpoint
        everyone = stopping or self._due()
        for i, member in running.items():
            if member.files and (everyone or member.position.finished):
                member.save(self.cohort.state(i), self._savers)
        if everyone:
            for member in self.members:
                member.saved()
            self._saved_at = time.monotonic()
        if stopping:
            position = next(iter(running.values())).position
            raise Interrupted(
                f"stopped after {counted(position.epoch, 'epoch')} and {counted(position.step, 'step')}", "all is saved"
            )

    def _due(self) -> bool:
        return time.monotonic() - self._saved_at >= self.members[0].train.checkpoint_seconds

    def _count_time(self, running: dict[int, Fit]) -> None:
        """Divide the time since the last call among the members that trained in it."""
        now = time.monotonic()
        share, self._counted = (now - self._counted) / len(running), now
        for member in running.values():
            member.seconds += share
            member.position.seconds += share

    def _enter(self, number: int, member: Fit) -> None:
        if state := member.enter(partial(self.cohort.state, number), self.cohort.about().get("ranks", 1)):
            self.cohort.load_state(state, number)


def _mean_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the history row of one member, or the members' mean; a figure that one of them lacks is None."""
    mean = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        mean[name] = None if None in values else sum(values) / len(values)
    mean["epoch"] = min(row["epoch"] for row in rows)
    return mean
