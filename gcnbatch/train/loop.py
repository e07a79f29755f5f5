"""The training loop of one split: epochs, validation, best weights, checkpoints.

A run that was killed continues from its last checkpoint and ends with the same bits.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from gcnbatch import fileio, philox
from gcnbatch.backends.base import Runner
from gcnbatch.backends.cpu import CpuOps
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.errors import GcnbatchError, InputError
from gcnbatch.model.gcn import Loss, uniform_weights
from gcnbatch.model.predict import predict_rows
from gcnbatch.train import checkpoint, metrics, run_files
from gcnbatch.train.checkpoint import Checkpoint
from gcnbatch.train.experiment import Experiment, Scaling
from gcnbatch.train.progress import Progress, open_progress
from gcnbatch.train.schedule import Plateau, learning_rate, rates_differ

LAST, BEST, HISTORY = "last.safetensors", "best.safetensors", "history.jsonl"

OTHER_RATES = "had other learning rates than this version gives for its schedule"


class Interrupted(GcnbatchError):
    """Training stopped on request (Ctrl-C) after writing a checkpoint."""

    exit_code = 130


@dataclass
class Position:
    """Progress of a run: all that a resumed run needs besides the arrays."""

    epoch: Annotated[int, Field(ge=0)] = 0
    step: Annotated[int, Field(ge=0)] = 0
    best_epoch: Annotated[int, Field(ge=-1)] = -1
    best_value: float | None = None
    waited: int = 0
    plateau: Plateau = field(default_factory=Plateau)
    seconds: float = 0.0
    finished: bool = False


_POSITION = TypeAdapter(Position)


@dataclass(frozen=True)
class Fitted:
    """Result of `Trainer.fit`: the runner with the best weights, the final position, and timings."""

    runner: Runner
    position: Position
    scaling: Scaling
    step_seconds: list[float]
    graphs: int
    train_seconds: float


class Trainer:
    """Trains one split and writes to one folder; resumes from the folder's last checkpoint if there is one.

    Parameters
    ----------
    experiment : Experiment
    split : Split
    runner, scaling
        From `experiment.task(split)` on an opened backend.
    folder : Path
        Receives history.jsonl, last.safetensors and best.safetensors.
    quiet : bool
        No progress.
    say : callable
        Called with each message for the user.
    """

    def __init__(
        self,
        experiment: Experiment,
        split: Split,
        runner: Runner,
        scaling: Scaling,
        folder: Path,
        quiet: bool = False,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.experiment, self.split, self.runner = experiment, split, runner
        self.scaling, self.folder, self.quiet, self._say = scaling, folder, quiet, say
        self.config, self.header = experiment.config.train, experiment.header
        self.monitor = experiment.monitor
        self.graphs = experiment.source.graphs_of(split.train)
        self.position = Position()
        self.best: dict[str, NDArray[Any]] = {}
        self.step_seconds: list[float] = []
        self._saved_at = time.monotonic()
        self._stop = False
        self._next_batches: list[Int64] | None = None  # of the next epoch

    def fit(self) -> Fitted:
        """Train to the end (or to the early stop), load the best weights, return them.

        Raises
        ------
        Interrupted
            After Ctrl-C; the checkpoint is written.
        GcnbatchError
            When the loss is not finite.
        """
        self._restore()
        started, resumed_seconds, seen = time.monotonic(), self.position.seconds, 0
        # `_check_finite` reports a loss that is not finite, once; NumPy would warn at every operation.
        with (
            np.errstate(over="ignore", invalid="ignore"),
            self._interruptible(),
            self._progress() as progress,
        ):
            while not self.position.finished and self.position.epoch < self.config.epochs:
                seen += self._epoch(progress, started, resumed_seconds)
        trained = time.monotonic() - started
        if not self.position.finished:
            self.position.finished = True
            self._save()
        self.runner.load_state(self.best)
        return Fitted(self.runner, self.position, self.scaling, self.step_seconds, seen, trained)

    # -------------------------------------------------------------------------------------------- an epoch

    @property
    def _steps(self) -> int:
        """Steps of an epoch."""
        return -(-len(self.graphs) // self.config.batch_size)

    def _progress(self) -> Progress:
        done = self.position.epoch * self._steps + self.position.step
        return open_progress(self.config.epochs, self._steps, done, self.quiet)

    def _batches(self, epoch: int) -> list[Int64]:
        return shuffled_batches(self.graphs, self.config.batch_size, self.experiment.config.seed, epoch)

    def _epoch(self, progress: Progress, started: float, resumed_seconds: float) -> int:
        """Run the rest of the current epoch and its validation; return the number of graphs trained on."""
        at, began = self.position, time.monotonic()
        batches, self._next_batches = self._next_batches or self._batches(at.epoch), None
        rate = learning_rate(self.config, at.epoch, at.plateau)
        self.runner.begin_epoch(at.epoch, batches, rate)
        seen = 0
        for index in range(at.step, len(batches)):
            clock = time.perf_counter()
            self.runner.step(index)
            self.step_seconds.append(time.perf_counter() - clock)
            seen += len(batches[index])
            at.step = index + 1
            at.seconds = resumed_seconds + time.monotonic() - started
            progress.step()
            if self._stop and at.step < len(batches):
                self._interrupt()
            if at.step < len(batches) and self._due():
                self._save()
        if at.epoch + 1 < self.config.epochs:
            self._next_batches = self._batches(at.epoch + 1)
            self.runner.expect(self._next_batches)  # overlaps with the last steps, which may still run on a device
        total, weight = self.runner.take_loss()
        loss = total / weight  # `weight` > 0: `Experiment` checks that every task has a training label
        self._check_finite(loss, at.epoch)
        valid_loss, value = self.validate()
        elapsed = time.monotonic() - began
        row = {
            "epoch": at.epoch + 1,
            "train_loss": loss,
            "valid_loss": valid_loss,
            **({} if self.monitor == "loss" else {f"valid_{self.monitor}": value}),
            "learning_rate": rate,
            "seconds": round(elapsed, 4),
            "graphs_per_second": round(seen / max(elapsed, 1e-9), 1),
        }
        at.seconds = resumed_seconds + time.monotonic() - started
        self._finish_epoch(row, valid_loss if self.monitor == "loss" else value)
        progress.end(row, at.best_epoch + 1)
        return seen

    def _finish_epoch(self, row: dict[str, Any], value: float | None) -> None:
        at = self.position
        improved = self._is_better(value)
        if improved:
            at.best_epoch, at.best_value = at.epoch, value
            self.best = {name: array for name, array in self.runner.state().items() if is_weight(name)}
        at.waited = 0 if improved else at.waited + 1
        at.plateau.observe(improved, self.config)
        at.epoch, at.step = at.epoch + 1, 0
        fileio.append_line(self.folder / HISTORY, json.dumps(row, allow_nan=False))
        if self.config.patience and at.waited >= self.config.patience:
            at.finished = True
        if self._stop:
            self._interrupt()
        if at.finished or self._due():
            self._save()

    def _is_better(self, value: float | None) -> bool:
        """Return whether this epoch is the best so far: any epoch is, as long as no epoch has a monitored value."""
        best = self.position.best_value
        if value is None or best is None:
            return best is None
        gain = value - best if metrics.higher_is_better(self.monitor) else best - value
        return gain > self.config.min_delta

    def _check_finite(self, loss: float, epoch: int) -> None:
        if not math.isfinite(loss):
            raise InputError(
                f"training loss in epoch {epoch + 1}",
                str(loss),
                "a finite number",
                "Lower train.learning_rate or set train.clip_norm, and start again.",
            )

    # -------------------------------------------------------------------------------------------- validation

    def outputs(self, rows: Int64) -> NDArray[np.float32]:
        """Return the model's outputs for these rows: probabilities, or values in the unit of the targets."""
        logits = predict_rows(self.runner, self.experiment.source, rows, self.config.eval_batch_size)
        return (
            self.scaling.undo(logits)
            if self.header.target == "regression"
            else metrics.activate(self.header.target, logits)
        )

    def validate(self) -> tuple[float | None, float | None]:
        """Return the loss of the validation rows (unweighted, standardised as in training) and the monitored metric."""
        rows = self.split.valid
        if not len(rows):
            return None, None
        logits = predict_rows(self.runner, self.experiment.source, rows, self.config.eval_batch_size)
        y = self.experiment.y[rows]
        regression = self.header.target == "regression"
        loss = Loss(self.header.target, uniform_weights(self.header))
        total, weight, _ = loss(CpuOps(), logits, self.scaling.apply(y) if regression else y, loss.weights)
        outputs = self.scaling.undo(logits) if regression else metrics.activate(self.header.target, logits)
        mean = total / weight if weight and math.isfinite(total) else None
        if self.monitor == "loss":
            return mean, mean
        return mean, metrics.score(self.monitor, self.header.target, y, outputs)

    # -------------------------------------------------------------------------------------------- checkpoints

    def _due(self) -> bool:
        return time.monotonic() - self._saved_at >= self.config.checkpoint_seconds

    def _save(self) -> None:
        arrays = {f"state/{name}": array for name, array in self.runner.state().items()}
        arrays |= {f"best/{name}": array for name, array in self.best.items()}
        about = {**self._about(), "position": asdict(self.position), "fingerprint": self.experiment.fingerprint}
        _sync(self.folder / HISTORY)
        if self.best:
            checkpoint.save(
                self.folder / BEST, Checkpoint(self.best, {**self._about(), "epoch": self.position.best_epoch + 1})
            )
        # LAST is written after BEST: a run killed in between resumes from the previous LAST and writes BEST again.
        checkpoint.save(self.folder / LAST, Checkpoint(arrays, about))
        self._saved_at = time.monotonic()

    def _about(self) -> dict[str, Any]:
        """Return what `infer` needs to use the weights: configuration of the model, header of the data, scaling."""
        return {
            "model": self.experiment.config.model.model_dump(mode="json"),
            "header": self.header.model_dump(mode="json"),
            "scaling": {"mean": self.scaling.mean.tolist(), "std": self.scaling.std.tolist()},
        }

    def _restore(self) -> None:
        path = self.folder / LAST
        if not path.exists():
            run_files.remove(self.folder / HISTORY)
            return
        found = checkpoint.load(path)
        if found.about.get("fingerprint") != self.experiment.fingerprint:
            raise InputError(
                str(path),
                "written for other data",
                f"the data of {self.experiment.dataset.path}",
                "Restore the data set.",
            )
        position = run_files.checked(str(path), found.about.get("position"), _POSITION, "a checkpoint to go on from")
        state, best = found.group("state"), found.group("best")
        for name, array in self.runner.state().items():
            needed = [state, *([best] if is_weight(name) and (best or position.finished) else [])]
            if any(name not in of or (of[name].shape, of[name].dtype) != (array.shape, array.dtype) for of in needed):
                raise InputError(str(path), f"a checkpoint of another model ({name})", "the model of config.toml")
        if position.epoch > self.config.epochs or position.step >= max(self._steps, 1):
            got = f"epoch {position.epoch}, step {position.step}"
            raise InputError(str(path), got, f"at most {self.config.epochs} epochs of {self._steps} steps")
        history = _trim(self.folder / HISTORY, position.epoch)
        if position.epoch < self.config.epochs and rates_differ(self.config, history):
            self._say(f"{self.folder} {OTHER_RATES}; it goes on with those of now")
        self.runner.load_state(state)
        self.best, self.position = best, position
        stopped_early = bool(self.config.patience) and position.waited >= self.config.patience
        if position.epoch < self.config.epochs and not stopped_early:
            position.finished = False  # the run was extended

    # -------------------------------------------------------------------------------------------- Ctrl-C

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Stop training after the current step at the first SIGINT, SIGTERM or SIGHUP, and at once at the second.

        An ignored signal stays ignored: a background command of a script must survive a Ctrl-C that is meant for the
        foreground command.
        """

        def request(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        handled = [
            n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN
        ]
        previous = {number: signal.signal(number, request) for number in handled}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _interrupt(self) -> None:
        self._save()
        raise Interrupted(f"stopped after {self.position.epoch} epochs and {self.position.step} steps", "all is saved")


def shuffled_batches(graphs: Int64, size: int, seed: int, epoch: int) -> list[Int64]:
    """Return an epoch's batches of `size` graphs (the last may be smaller), shuffled by seed and epoch."""
    order = philox.generator(seed, "shuffle", epoch).permutation(graphs)
    return [order[start : start + size] for start in range(0, len(order), size)]


def is_weight(name: str) -> bool:
    """Return whether `name` is a parameter or running statistic, not an optimiser moment (``adam.m/…``) or counter."""
    return "/" not in name and name not in ("updates", "loss")


def _sync(path: Path) -> None:
    if path.exists():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _trim(path: Path, epochs: int) -> list[dict[str, Any]]:
    """Keep and return the rows of the first `epochs` epochs.

    A killed run may have written more, and an incomplete last row.
    """
    rows = run_files.read_history(path, epochs)
    lines = run_files.read_text(path, "the history").splitlines(keepends=True)[:epochs] if path.exists() else []
    fileio.write_text(path, "".join(lines))
    return rows
