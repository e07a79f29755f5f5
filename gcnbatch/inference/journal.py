"""Outputs that a killed prediction leaves behind so that ``--resume`` goes on: ``OUT.partial`` and a journal beside it.

Rows are appended to ``OUT.partial`` part by part. After each part the file is synced, and the journal
``OUT.partial.json`` then says how many rows of the input and bytes of the file are done. A resumed prediction cuts the
file to these bytes, so that no row is lost or written twice. When all is done, ``OUT.partial`` becomes ``OUT``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from gcnbatch import fileio, outputs
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.fileio import Output
from gcnbatch.outputs import Kind, begins_with
from gcnbatch.predictions import TEXT_ENDINGS, Sink, check_rows, text_sink
from gcnbatch.text import counted

_JOURNAL_BYTES = 1 << 20
_RECORD = Kind("the journal of a prediction", begins_with(rb'\{\s*"rows": [0-9]+,\s*"bytes":'))


@dataclass
class Journal:
    """An open output.

    Parameters
    ----------
    sink : Sink
        Takes the rows.
    rows : int
        Rows of the input that are done.
    """

    sink: Sink
    rows: int = 0

    def append(self, made: Sequence[Any], rows: int) -> None:
        """Write what the sink's `encode` returned for tables that stand for the next `rows` rows of the input."""
        self.sink.write(made)
        self.rows += rows


@dataclass
class _Resumable(Journal):
    """An output that can be continued: its stream, the file that records what is done, and what decides the rows."""

    stream: IO[str] = field(kw_only=True)
    record: Path = field(kw_only=True)
    task: dict[str, Any] = field(kw_only=True)

    def append(self, made: Sequence[Any], rows: int) -> None:
        super().append(made, rows)
        self.sync()
        size = os.fstat(self.stream.fileno()).st_size
        fileio.write_json(self.record, {"rows": self.rows, "bytes": size, "task": self.task})

    def sync(self) -> None:
        self.stream.flush()
        os.fsync(self.stream.fileno())


def can_resume(out: str) -> bool:
    """Whether an output of this name can be continued."""
    return Path(out).suffix.lower() in TEXT_ENDINGS


@contextmanager
def open_resumable(
    out: Output,
    header: Header,
    task: dict[str, Any],
    resume: bool,
    spreadsheet: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> Iterator[Journal]:
    """Open a CSV or JSON Lines file that can be continued; it appears under its name when the block ends.

    Parameters
    ----------
    out : Output
    header : Header
        Of the models.
    task : dict
        What decides the rows, see `task_of`; a resumed prediction must have the same.
    resume : bool
        Go on with what a killed prediction has left; without it, start again.
    spreadsheet : bool
        See `gcnbatch.predictions.open_sink`.
    say : callable
        Called with a message about rows that are there and not gone on with.

    Raises
    ------
    InputError
        When another process writes the file, the rows that are there are those of another task, or something else is
        there under the names that the rows need.
    MachineError
        When the folder cannot be written or the disk is full.
    """
    target = Path(os.path.realpath(out))
    partial, record = (target.with_name(f"{target.name}.partial{ending}") for ending in ("", ".json"))
    check_rows(partial, header)
    outputs.check_beside(record, _RECORD)
    with (
        fileio.write_errors(target),
        fileio.open_append_only(partial, out) as file,
        TextIOWrapper(file, "utf-8", newline="") as stream,
    ):
        left = os.fstat(stream.fileno()).st_size
        rows, size = _done(record, task) if resume and left else (0, 0)
        if left < size:
            raise InputError(
                str(partial), f"fewer than {counted(size, 'byte')}", "the file that was left", "Start again."
            )
        if not resume and left:
            say(f"{partial}, left by a prediction that was stopped, is overwritten; --resume would go on with it")
        if rows == 0:
            record.unlink(missing_ok=True)
        stream.truncate(size)
        sink = text_sink(target.suffix.lower(), stream, spreadsheet, begun=size > 0)
        journal = _Resumable(sink, rows, stream=stream, record=record, task=task)
        try:
            yield journal
        except BaseException as error:
            if journal.rows == 0 or isinstance(error, InputError):  # another input cannot go on
                partial.unlink(missing_ok=True)
                record.unlink(missing_ok=True)
            raise
        journal.sync()
        record.unlink(missing_ok=True)  # first: once the name is free, a journal may be that of the next process
        os.replace(partial, target)


def task_of(data: Path, models: Sequence[Path], options: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the rows of a prediction: data, files of models, and options, as JSON reads them back."""
    files = sorted(data.iterdir()) if data.is_dir() else [data] if data.exists() else []
    stats = ((file.name, file.stat()) for file in files)
    found = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    about = {"files": found, "models": [fileio.sha256(path) for path in models], "options": options}
    read_back: dict[str, Any] = json.loads(json.dumps(about))
    return read_back


def _done(record: Path, task: dict[str, Any]) -> tuple[int, int]:
    """Return the rows and bytes that a journal records, zeros if there is none."""
    if not record.exists():
        return 0, 0
    try:
        with fileio.open_regular(record, follow=False) as stream:
            found = json.loads(stream.read(_JOURNAL_BYTES) or b"")
        rows, size, before = int(found["rows"]), int(found["bytes"]), found["task"]
        if min(rows, size) < 0 or not isinstance(before, dict):
            raise ValueError("other values")
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise InputError(str(record), "not a journal of a prediction", hint="Start again without --resume.") from error
    for key, value in task.items():
        if before.get(key) != value:
            raise InputError(
                f"--resume: {record}",
                f"begun with other {key}",
                "the same data, models and options",
                "Start again without --resume.",
            )
    return rows, size
