"""The files of a fit in its run folder: history, the checkpoint to resume from, best weights, TensorBoard's events.

A fit that was killed at any moment continues from its last checkpoint.

A record of TensorBoard's event file is one epoch, with a scalar for each figure of ``history.jsonl`` under the same
name. The last record has the metrics as ``train/…``, ``valid/…`` and ``test/…``, at the best epoch. The time axis shows
training time: pauses between a stop and its resumption are left out.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from gcnbatch import fileio
from gcnbatch.errors import InputError, MachineError
from gcnbatch.model.parameters import Misfit, ParameterLayout
from gcnbatch.text import counted
from gcnbatch.training import checkpoint, run_files
from gcnbatch.training.checkpoint import Arrays, Checkpoint
from gcnbatch.training.position import Position

EVENTS = "events.out.tfevents.gcnbatch"  # TensorBoard looks for "tfevents" in names of files
_VERSION = "brain.Event:2"


class EventFile:
    """The event file in a fit's folder.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    MachineError
        As `tensorboard`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS
        self._event, self._checksum = tensorboard()
        self._began = 0.0

    def begin(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Write the file anew with the rows that a resumed fit keeps."""
        rows = list(history)
        self._began = time.time() - sum(row["seconds"] or 0.0 for row in rows)
        run_files.remove(self._path)
        self._write(self._event(wall_time=self._began, file_version=_VERSION))
        wall_time = self._began
        for row in rows:
            wall_time += row["seconds"] or 0.0
            self._add(row, wall_time)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add an epoch."""
        self._add(row, time.time())

    def end(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of the finished fit."""
        parts = {part: metrics[part] for part in ("train", "valid", "test") if part in metrics}
        figures = {f"{part}/{name}": value for part, found in parts.items() for name, value in found.items()}
        self._scalars(figures, metrics["best_epoch"], time.time())

    def _add(self, row: Mapping[str, Any], wall_time: float) -> None:
        self._scalars({name: value for name, value in row.items() if name != "epoch"}, row["epoch"], wall_time)

    def _scalars(self, figures: Mapping[str, Any], step: int, wall_time: float) -> None:
        event = self._event(wall_time=wall_time, step=step)
        for name, value in figures.items():
            if isinstance(value, float):
                event.summary.value.add(tag=name, simple_value=value)
        self._write(event)

    def _write(self, event: Any) -> None:
        """Append a TFRecord: length, checksum of the length, data, checksum of the data."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", self._checksum(part)) for part in (length, data))
        with closing(fileio.AppendedFile(self._path)) as file:
            file.append(length + next(sums) + data + next(sums))


def tensorboard() -> tuple[Any, Any]:
    """Return the class of events and the function for checksums.

    Raises
    ------
    MachineError
        When tensorboardX is not installed.
    """
    try:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c
    except ImportError as error:
        hint = "Install it: pip install 'gcnbatch[tensorboard]'."
        raise MachineError("train.tensorboard", "tensorboardX is not installed", hint=hint) from error
    return Event, masked_crc32c


LAST, BEST, HISTORY = "last.safetensors", "best.safetensors", "history.jsonl"
SCALING = "scaling"  # the group of BEST with the transforms of targets


class Restored(NamedTuple):
    """Contents of a checkpoint: the runner's state, the best weights so far, and the position; the history until it."""

    state: Arrays
    best: Arrays
    position: Position
    history: list[dict[str, Any]]


class FitFiles:
    """The files of one fit.

    Parameters
    ----------
    folder : Path
    data, fingerprint : str
        The data set's path and digest. A resumed fit must use the same data.
    about : dict
        Description that `infer` needs to use the weights; see `Fit.write_to`.
    arrays : dict of arrays
        Arrays that it needs beside them.
    events : EventFile or None
        TensorBoard's file, if the run writes one.
    """

    def __init__(
        self,
        folder: Path,
        data: str,
        fingerprint: str,
        about: dict[str, Any],
        arrays: Arrays,
        events: EventFile | None = None,
    ) -> None:
        self.folder, self._events = folder, events
        self._data, self._fingerprint, self._about, self._arrays = data, fingerprint, about, arrays
        self._history = fileio.AppendedFile(folder / HISTORY)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write an epoch's row to the history, which stays open until `close`."""
        self._history.append(f"{json.dumps(row, allow_nan=False)}\n".encode())
        if self._events:
            self._events.append(row)

    def close(self) -> None:
        """Close the history."""
        self._history.close()

    def end(self, metrics: Mapping[str, Any]) -> None:
        """Note the metrics of the finished fit."""
        if self._events:
            self._events.end(metrics)

    def save(self, state: Arrays, best: Arrays, position: Position) -> None:
        """Write the checkpoint and the best weights."""
        arrays = {f"state/{name}": array for name, array in state.items()}
        arrays |= {f"best/{name}": array for name, array in best.items()}
        about = {**self._about, "position": asdict(position), "fingerprint": self._fingerprint}
        _sync(self.folder / HISTORY)
        if best:
            described = {**self._about, "epoch": position.best_epoch + 1}
            checkpoint.save(self.folder / BEST, Checkpoint(best | self._arrays, described))
        # LAST is written after BEST: a run killed in between resumes from the previous LAST and writes BEST again.
        checkpoint.save(self.folder / LAST, Checkpoint(arrays, about))

    def restore(self, layout: ParameterLayout, like: Arrays, epochs: int, steps: int) -> Restored | None:
        """Return the last checkpoint and cut the history to its epochs; None and no history if there is none.

        Parameters
        ----------
        layout : ParameterLayout
        like : dict of arrays
            The state of the model at its start: names, shapes and types that the checkpoint must have.
        epochs, steps : int
            Epochs of the fit, and steps of an epoch.

        Raises
        ------
        InputError
            When the checkpoint is damaged, of other data or another model, or has values that no training gives.
        """
        path = self.folder / LAST
        if not path.exists():
            run_files.remove(self.folder / HISTORY)
            self._begin_events([])
            return None
        found = checkpoint.load(path)
        if found.about.get("fingerprint") != self._fingerprint:
            expected = f"the data of {self._data}"
            raise InputError(str(path), "written for other data", expected, "Restore the data set.")
        position = run_files.checked(str(path), found.about.get("position"), Position, "a checkpoint to go on from")
        state, best = found.group("state"), found.group("best")
        for name, array in like.items():
            needed = [state, *([best] if is_weight(name) and (best or position.finished) else [])]
            if any(name not in of or (of[name].shape, of[name].dtype) != (array.shape, array.dtype) for of in needed):
                raise InputError(str(path), f"a checkpoint of another model ({name})", "the model of config.toml")
        for group in ("state", "best"):
            checkpoint.check_weights(path, layout, found.arrays, f"{group}/")
        _check_moments(path, state, epochs * steps)
        if position.epoch > epochs or position.step > steps:
            got = f"epoch {position.epoch}, step {position.step}"
            raise InputError(str(path), got, f"at most {counted(epochs, 'epoch')} of {counted(steps, 'step')}")
        history = _trim(self.folder / HISTORY, position.epoch)
        self._begin_events(history)
        return Restored(state, best, position, history)

    def _begin_events(self, history: list[dict[str, Any]]) -> None:
        if self._events:
            self._events.begin(history)


def is_weight(name: str) -> bool:
    """Return whether `name` is a parameter or running statistic, not an optimiser moment (``adam.m/…``) or counter."""
    return "/" not in name and name not in ("updates", "loss")


def _check_moments(path: Path, state: Arrays, most: int) -> None:
    """Refuse Adam's second moments below 0, and a number of updates that no run of `most` steps makes."""
    for name, values in state.items():
        if name.startswith("adam.v/") and values.min(initial=0) < 0:
            raise checkpoint.refused(path, Misfit(f"state/{name}", f"{values.min():g}", "no number below 0"))
    updates = state["updates"]
    if not 0 <= updates.min(initial=0) <= updates.max(initial=0) <= most:
        raise checkpoint.refused(path, Misfit("state/updates", str(updates.tolist()), f"0 to {most}"))


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
