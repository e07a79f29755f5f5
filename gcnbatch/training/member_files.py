"""The files of a fit in its run folder: history, the checkpoint to resume from, and the best weights.

A fit that was killed at any moment continues from its last checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from gcnbatch import fileio
from gcnbatch.errors import InputError
from gcnbatch.model.parameters import Misfit, ParameterLayout
from gcnbatch.text import counted
from gcnbatch.training import checkpoint, run_files
from gcnbatch.training.checkpoint import Arrays, Checkpoint
from gcnbatch.training.event_file import EventFile
from gcnbatch.training.position import Position

LAST, BEST, HISTORY = "last.safetensors", "best.safetensors", "history.jsonl"
_POSITION = TypeAdapter(Position)


class Restored(NamedTuple):
    """Contents of a checkpoint: the runner's state, the best weights so far, and the position; the history until it."""

    state: Arrays
    best: Arrays
    position: Position
    history: list[dict[str, Any]]


class MemberFiles:
    """The files of one fit.

    Parameters
    ----------
    folder : Path
    data, fingerprint : str
        The data set's path and digest. A resumed fit must use the same data.
    about : dict
        Description that `infer` needs to use the weights; see `Member.write_to`.
    events : EventFile or None
        TensorBoard's file, if the run writes one.
    """

    def __init__(
        self, folder: Path, data: str, fingerprint: str, about: dict[str, Any], events: EventFile | None = None
    ) -> None:
        self.folder, self._events = folder, events
        self._data, self._fingerprint, self._about = data, fingerprint, about
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
            checkpoint.save(self.folder / BEST, Checkpoint(best, {**self._about, "epoch": position.best_epoch + 1}))
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
        position = run_files.checked(str(path), found.about.get("position"), _POSITION, "a checkpoint to go on from")
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
