"""TensorBoard's event file of a fit: the rows of its history, then its metrics.

A record is one epoch, with a scalar for each figure of ``history.jsonl`` under the same name. The last record has the
metrics as ``train/…``, ``valid/…`` and ``test/…``, at the best epoch. The time axis shows training time: pauses between
a stop and its resumption are left out.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from gcnbatch import fileio
from gcnbatch.errors import MachineError
from gcnbatch.training import run_files

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
        When tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS
        self._event, self._checksum = _library()
        self._began = 0.0

    def begin(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Write the file anew with the rows that a resumed fit keeps."""
        rows = list(history)
        self._began = time.time() - sum(row["seconds"] or 0.0 for row in rows)
        run_files.remove(self._path)
        self._write(self._event(wall_time=self._began, file_version=_VERSION))
        at = self._began
        for row in rows:
            at += row["seconds"] or 0.0
            self._add(row, at)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add an epoch."""
        self._add(row, time.time())

    def end(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of the finished fit."""
        parts = {part: metrics[part] for part in ("train", "valid", "test") if part in metrics}
        figures = {f"{part}/{name}": value for part, found in parts.items() for name, value in found.items()}
        self._scalars(figures, metrics["best_epoch"], time.time())

    def _add(self, row: Mapping[str, Any], at: float) -> None:
        self._scalars({name: value for name, value in row.items() if name != "epoch"}, row["epoch"], at)

    def _scalars(self, figures: Mapping[str, Any], step: int, at: float) -> None:
        event = self._event(wall_time=at, step=step)
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


def check() -> None:
    """Refuse a run that asks for event files where they cannot be written.

    Raises
    ------
    MachineError
        When tensorboardX is not installed.
    """
    _library()


def _library() -> tuple[Any, Any]:
    """Return the class of events and the function for checksums."""
    try:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c
    except ImportError as error:
        hint = "Install it: pip install 'gcnbatch[tensorboard]'."
        raise MachineError("train.tensorboard", "tensorboardX is not installed", hint=hint) from error
    return Event, masked_crc32c
