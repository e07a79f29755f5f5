"""Fitting one split: epochs, validation, the best weights, checkpoints from which a killed run goes on to the bit."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator
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
from gcnbatch.train.progress import Bar
from gcnbatch.train.schedule import Plateau, learning_rate

LAST, BEST, HISTORY = "last.safetensors", "best.safetensors", "history.jsonl"


class Interrupted(GcnbatchError):
    """Training stopped on request (Ctrl-C); its checkpoint is written."""

    exit_code = 130


@dataclass
class Position:
    """Where a run stands, beside the arrays: everything a resumed run needs to go on as if it had not stopped."""

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
    """What fitting gives: the runner holding the best weights, and how it went."""

    runner: Runner
    position: Position
    scaling: Scaling
    step_seconds: list[float]
    graphs: int
    train_seconds: float


class Trainer:
    """Fits one split into one folder; picks up the folder's last checkpoint when there is one.

    Parameters
    ----------
    experiment : Experiment
    split : Split
    runner, scaling
        From `experiment.task(split)` on an opened backend.
    folder : Path
        Receives history.jsonl, last.safetensors and best.safetensors.
    quiet : bool
        No progress bar.
    """

    def __init__(
        self, experiment: Experiment, split: Split, runner: Runner, scaling: Scaling, folder: Path, quiet: bool = False
    ) -> None:
        self.experiment, self.split, self.runner = experiment, split, runner
        self.scaling, self.folder, self.quiet = scaling, folder, quiet
        self.config, self.header = experiment.config.train, experiment.header
        self.monitor = experiment.monitor
        self.graphs = experiment.source.graphs_of(split.train)
        self.position = Position()
        self.best: dict[str, NDArray[Any]] = {}
        self.step_seconds: list[float] = []
        self._saved_at = time.monotonic()
        self._stop = False
        self._coming: list[Int64] | None = None  # the next epoch's batches

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
        # A loss that is not finite is reported once, by `_check_finite`, not by NumPy's warnings.
        with (
            np.errstate(over="ignore", invalid="ignore"),
            self._interruptible(),
            Bar(self.config.epochs, self.position.epoch, self.quiet) as bar,
        ):
            while not self.position.finished and self.position.epoch < self.config.epochs:
                seen += self._epoch(bar, started, resumed_seconds)
        trained = time.monotonic() - started
        if not self.position.finished:
            self.position.finished = True
            self._save()
        self.runner.load_state(self.best)
        return Fitted(self.runner, self.position, self.scaling, self.step_seconds, seen, trained)

    # -------------------------------------------------------------------------------------------- an epoch

    def _batches(self, epoch: int) -> list[Int64]:
        return shuffled_batches(self.graphs, self.config.batch_size, self.experiment.config.seed, epoch)

    def _epoch(self, bar: Bar, started: float, resumed_seconds: float) -> int:
        """Run the rest of the current epoch and its validation; return the number of graphs it trained on."""
        at, began = self.position, time.monotonic()
        batches, self._coming = self._coming or self._batches(at.epoch), None
        rate = learning_rate(self.config, at.epoch, at.plateau)
        self.runner.begin_epoch(at.epoch, batches, rate)
        bar.begin(at.epoch, len(batches), at.step)
        seen = 0
        for index in range(at.step, len(batches)):
            clock = time.perf_counter()
            self.runner.step(index)
            self.step_seconds.append(time.perf_counter() - clock)
            seen += len(batches[index])
            at.step = index + 1
            at.seconds = resumed_seconds + time.monotonic() - started
            bar.step(len(batches[index]))
            if self._stop and at.step < len(batches):
                self._interrupt()
            if at.step < len(batches) and self._due():
                self._save()
        if at.epoch + 1 < self.config.epochs:
            self._coming = self._batches(at.epoch + 1)
            self.runner.expect(self._coming)  # while a device is at the last steps
        total, weight = self.runner.take_loss()
        loss = total / weight  # every task has a label in the training rows
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
        bar.end(row, at.best_epoch + 1)
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
        with open(self.folder / HISTORY, "a", encoding="utf-8", opener=_no_link) as stream:
            stream.write(json.dumps(row, allow_nan=False) + "\n")
        if self.config.patience and at.waited >= self.config.patience:
            at.finished = True
        if self._stop:
            self._interrupt()
        if at.finished or self._due():
            self._save()

    def _is_better(self, value: float | None) -> bool:
        """Whether this epoch is the best so far; while validation has given no figure at all, the latest one is."""
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
        """Return the model's outputs for these rows: probabilities, or values in the targets' unit."""
        logits = predict_rows(self.runner, self.experiment.source, rows, self.config.eval_batch_size)
        return (
            self.scaling.undo(logits)
            if self.header.target == "regression"
            else metrics.activate(self.header.target, logits)
        )

    def validate(self) -> tuple[float | None, float | None]:
        """Return the loss (unweighted, in the scale of training) and the monitored figure of the validation rows."""
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
        # Last comes last: a run killed between the two goes back one checkpoint, and writes the best weights again.
        checkpoint.save(self.folder / LAST, Checkpoint(arrays, about))
        self._saved_at = time.monotonic()

    def _about(self) -> dict[str, Any]:
        """What makes the weights usable elsewhere: the model's configuration and what its inputs and outputs mean."""
        return {
            "model": self.experiment.config.model.model_dump(mode="json"),
            "header": self.header.model_dump(mode="json"),
            "scaling": {"mean": self.scaling.mean.tolist(), "std": self.scaling.std.tolist()},
        }

    def _restore(self) -> None:
        path = self.folder / LAST
        if not path.exists():
            if (self.folder / HISTORY).exists():
                fileio.open_regular(self.folder / HISTORY, "the history of a run", follow=False).close()
                (self.folder / HISTORY).unlink()
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
        batches = -(-len(self.graphs) // self.config.batch_size)
        if position.epoch > self.config.epochs or position.step >= max(batches, 1):
            got = f"epoch {position.epoch}, step {position.step}"
            raise InputError(str(path), got, f"at most {self.config.epochs} epochs of {batches} steps")
        _trim(self.folder / HISTORY, position.epoch)
        self.runner.load_state(state)
        self.best, self.position = best, position

    # -------------------------------------------------------------------------------------------- Ctrl-C

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let SIGINT, SIGTERM and SIGHUP stop training at the next step; a second one stops at once.

        An ignored signal stays ignored: a command in the background of a script must survive the Ctrl-C that is meant
        for the command in the foreground.
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
    """Return an epoch's batches of `size` graphs, the last one perhaps smaller; the order follows seed and epoch."""
    order = philox.generator(seed, "shuffle", epoch).permutation(graphs)
    return [order[start : start + size] for start in range(0, len(order), size)]


def is_weight(name: str) -> bool:
    """Parameters and running statistics, as opposed to the optimiser's moments (``adam.m/…``) and counters."""
    return "/" not in name and name not in ("updates", "loss")


def _sync(path: Path) -> None:
    if path.exists():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _trim(path: Path, epochs: int) -> None:
    """Keep the rows of the first `epochs` epochs; a killed run may have written more, the last one cut short."""
    run_files.read_history(path, epochs)
    lines = run_files.read_text(path, "the history").splitlines(keepends=True)[:epochs] if path.exists() else []
    fileio.write_text(path, "".join(lines))


def _no_link(path: str, flags: int) -> int:
    """Open a file of the run folder; a symbolic link could lead outside."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
