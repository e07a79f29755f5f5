"""One fit on one split: its batches, history, best weights and early stop.

The loop trains it as a member of a cohort.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np

from gcnbatch import metrics, philox
from gcnbatch.backends.base import MemberEpoch
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.errors import GcnbatchError, InputError
from gcnbatch.training.checkpoint import Arrays, Checkpoint
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fit_files import SCALING, EventFile, FitFiles
from gcnbatch.training.position import Position, learning_rate, rates_differ
from gcnbatch.training.validation import Score, Validation

OTHER_RANKS = "other roundings than on the same number to the end"


_DIVERGED = "Lower train.learning_rate or set train.clip_norm, and start again."


OTHER_RATES = "had other learning rates than this version gives for its schedule"


State = Callable[[], Arrays]  # returns a copy of the member's training state, or of a part of it


class Fit:
    """One fit: the loop trains it in a cohort and gives it the results of its epochs.

    Parameters
    ----------
    experiment : Experiment
    split : Split

    Attributes
    ----------
    files : FitFiles or None
        The fit resumes from them and writes to them; None: nothing is written.
    task, scaling
        Of `Experiment.task`.
    best : dict of arrays
        The best weights so far.
    rows : list of dict
        The history of all epochs, also of those before it was resumed.
    step_seconds : list of float
        Host time of each step, divided by the number of members that the step trained.
    graphs, seconds : int, float
        Graphs that this process trained on, and the member's share of the time.
    failure : GcnbatchError or None
        Why it cannot go on.
    carried : dict of arrays or None
        The state in a cohort that was closed, for the next one.
    validation : Validation
        Scores its validation rows.
    """

    def __init__(self, experiment: Experiment, split: Split) -> None:
        self.experiment, self.split = experiment, split
        self.task, self.scaling = experiment.task(split)
        self.train, self.header, self.monitor = experiment.config.train, experiment.header, experiment.monitor
        self.files: FitFiles | None = None
        self._say: Callable[[str], object] = lambda line: None
        self.position = Position()
        self.best: Arrays = {}
        self.rows: list[dict[str, Any]] = []
        self.step_seconds: list[float] = []
        self.graphs, self.seconds = 0, 0.0
        self.failure: GcnbatchError | None = None
        self.validation = Validation(experiment, split, self.scaling)
        self._graphs = experiment.source.graphs_of(split.train)
        self._next: tuple[int, list[Int64]] | None = None  # an epoch and its batches
        self._coming: tuple[int, Future[list[Int64]]] | None = None  # those of a later one, which a thread shuffles
        self.carried: Arrays | None = None
        self._saving: Future[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it has epochs left to train."""
        return not self.position.finished and self.failure is None

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-len(self._graphs) // self.train.batch_size)

    # -------------------------------------------------------------------------------------------- cohorts

    def write_to(self, folder: Path, say: Callable[[str], object]) -> None:
        """Keep history.jsonl, last.safetensors and best.safetensors in this folder, and resume from it.

        Parameters
        ----------
        folder : Path
        say : callable
            Called with each message for the user.
        """
        self._say = say
        events = EventFile(folder) if self.train.tensorboard else None
        data = str(self.experiment.dataset.path)
        self.files = FitFiles(folder, data, self.experiment.fingerprint, self.about(), self._arrays(), events)

    def about(self) -> dict[str, Any]:
        """Return what `infer` needs to use the weights: model, header of the data, scaling, tasks without outputs."""
        return {
            "model": self.experiment.config.model.model_dump(mode="json"),
            "header": self.header.model_dump(mode="json"),
            "scaling": {"mean": self.scaling.mean.tolist(), "std": self.scaling.std.tolist()},
            "left_out": [self.header.task_names[task] for task in np.flatnonzero(self.validation.left_out)],
        }

    def best_weights(self) -> Checkpoint:
        """Return the best weights so far with their description, as they are stored."""
        about = {**self.about(), "epoch": self.position.best_epoch + 1}
        return Checkpoint(self.best | self._arrays(), about)

    def _arrays(self) -> Arrays:
        return {f"{SCALING}/{name}": array for name, array in self.scaling.arrays().items()}

    def enter(self, state: State, ranks: int = 1) -> Arrays | None:
        """Take a place in a cohort of so many ranks; return the state to load: of the cohort before, or the checkpoint.

        Raises
        ------
        InputError
            As `FitFiles.restore`.
        """
        carried, self.carried = self.carried, None
        if carried is not None or self.files is None:
            return carried
        layout = self.task.model.layout()
        if (found := self.files.restore(layout, state(), self.train.epochs, self.steps)) is None:
            self.position.ranks = ranks
            return None
        if found.position.epoch < self.train.epochs and rates_differ(self.train, found.history):
            self._say(f"{self.files.folder} {OTHER_RATES}; it goes on with those of now")
        self.best, self.position, self.rows = found.best, found.position, found.history
        self.position.finished = self._has_ended()  # a finished run may have been extended
        if self.running and found.position.ranks != ranks:
            before, now = _ranks(found.position.ranks), _ranks(ranks)
            self._say(f"{self.files.folder} trained on {before}, now on {now}: {OTHER_RANKS}")
        self.position.ranks = ranks
        return found.state

    def save(self, state: Arrays, threads: Executor) -> None:
        """Start to write a checkpoint, if the member has a folder; the member must not train until it is `saved`."""
        if self.files:
            self._saving = threads.submit(self.files.save, state, self.best, self.position)

    def saved(self) -> None:
        """Wait until the last checkpoint is written.

        Raises
        ------
        MachineError
            When it cannot be written.
        """
        if self._saving:
            self._saving.result()

    # -------------------------------------------------------------------------------------------- an epoch

    def epoch(self) -> MemberEpoch:
        """Return the rest of the current epoch."""
        position = self.position
        rate = learning_rate(self.train, position.epoch, position.plateau)
        return MemberEpoch(position.epoch, self._batches(position.epoch), rate, position.step)

    def next_batches(self) -> list[Int64] | None:
        """Return the batches that the epoch after the current one will have, or None after the last one."""
        following = self.position.epoch + 1
        return self._batches(following) if following < self.train.epochs else None

    def shuffle_ahead(self, threads: Executor) -> None:
        """Start to shuffle the batches of the epoch after the next."""
        epoch = self.position.epoch + 2
        if epoch < self.train.epochs:
            self._coming = epoch, threads.submit(self._shuffled, epoch)

    def _batches(self, epoch: int) -> list[Int64]:
        if self._next is None or self._next[0] != epoch:
            if self._coming and self._coming[0] == epoch:
                batches, self._coming = self._coming[1].result(), None
            else:
                batches = self._shuffled(epoch)
            self._next = epoch, batches
        return self._next[1]

    def _shuffled(self, epoch: int) -> list[Int64]:
        return shuffled_batches(self._graphs, self.train.batch_size, self.experiment.config.seed, epoch)

    def end_epoch(self, done: MemberEpoch, loss: float, score: Score, seconds: float, weights: State) -> dict[str, Any]:
        """Write the epoch's history row, keep the best weights; return the row.

        Parameters
        ----------
        done : MemberEpoch
            What `epoch` returned.
        loss : float
            Mean training loss.
        score : Score
            Of the validation rows.
        seconds : float
            The member's share of the epoch's time.
        weights : callable
            Returns a copy of parameters and running statistics.

        Raises
        ------
        InputError
            When weights would be kept that no model can have: training has diverged in its last steps.
        """
        seen = len(self._graphs) - sum(len(batch) for batch in done.batches[: done.first])
        row = {
            "epoch": done.epoch + 1,
            "train_loss": loss,
            "valid_loss": score.loss,
            **({} if self.monitor == "loss" else {f"valid_{self.monitor}": score.monitored}),
            "learning_rate": done.learning_rate,
            "seconds": round(seconds, 4),
            "graphs_per_second": round(seen / max(seconds, 1e-9), 1),
        }
        self.graphs += seen
        if self.position.end_epoch(score.monitored, metrics.higher_is_better(self.monitor), self.train):
            best = weights()
            if misfit := self.task.model.layout().misfit(best):
                got = f"{misfit.got} in {misfit.name}"
                raise InputError(f"weights after epoch {done.epoch + 1}", got, misfit.expected, _DIVERGED)
            self.best = best
        self.rows.append(row)
        if self.files:
            self.files.append(row)
        self.position.finished = self._has_ended()
        return row

    def _has_ended(self) -> bool:
        return self.position.epoch >= self.train.epochs or self.position.stops_early(self.train)

    def check_loss(self, total: float, weight: float) -> float:
        """Return the mean loss of the current epoch.

        Raises
        ------
        InputError
            When it is not finite.
        """
        # `Experiment` checks that every task has a training label; only a strange checkpoint has a weight of 0.
        loss = total / weight if weight else math.nan
        if not math.isfinite(loss):
            raise InputError(
                f"training loss in epoch {self.position.epoch + 1}",
                str(loss),
                "a finite number",
                _DIVERGED,
            )
        return loss


def _ranks(count: int) -> str:
    return f"{count} ranks" if count > 1 else "one process"


def shuffled_batches(graphs: Int64, size: int, seed: int, epoch: int) -> list[Int64]:
    """Return an epoch's batches of `size` graphs (the last may be smaller), shuffled by seed and epoch."""
    order = philox.generator(seed, "shuffle", epoch).permutation(graphs)
    return [order[start : start + size] for start in range(0, len(order), size)]
