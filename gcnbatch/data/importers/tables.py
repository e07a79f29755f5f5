"""CSV tables (RFC 4180, optionally gzipped) with one clear error for whatever is wrong in them."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.schema import Target
from gcnbatch.errors import InputError

MISSING = frozenset({"", "nan"})


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file or a gzipped one; damage, other encodings and a missing file become InputError.

    Raises
    ------
    InputError
        Also for what goes wrong while the caller reads inside the block.
    """
    if not path.is_file():
        raise InputError(str(path), "is a folder" if path.is_dir() else "no such file", "a readable file")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield stream
    except UnicodeDecodeError as error:
        raise InputError(
            str(path), f"byte 0x{error.object[error.start]:02x} is not UTF-8", "UTF-8 text", "Save the file as UTF-8."
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(str(path), f"damaged gzip file ({error})", hint="Copy the file again.") from error
    except PermissionError as error:
        raise InputError(str(path), "not readable", hint="Change its permissions.") from error


@dataclass(frozen=True)
class Table:
    """A CSV file that is being read: its column names and its rows one after the other.

    `rows` yields every record as a list of ``len(names)`` texts with surrounding blanks removed. Row numbers in
    messages count records from 1, the header and empty lines left out.
    """

    path: Path
    names: tuple[str, ...]
    rows: Iterator[list[str]]


@contextmanager
def open_table(path: Path) -> Iterator[Table]:
    """Open a CSV file with a header line; rows are read as they are asked for.

    Raises
    ------
    InputError
        For an empty file, a column without a name or named twice, a row of another length, bad quoting.
    """
    with open_text(path) as stream:
        reader = csv.reader(stream, strict=True)
        try:
            names = tuple(name.strip() for name in next(reader, []))
            if not names:
                raise InputError(str(path), "empty file", "a CSV table with a header line")
            for position, name in enumerate(names):
                if not name:
                    raise InputError(str(path), f"column {position + 1} has no name", "a name in the first line")
                if name in names[:position]:
                    raise InputError(str(path), f"two columns are named '{name}'", "different names")
            yield Table(path, names, _records(reader, path, len(names)))
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}", str(error), "CSV with RFC 4180 quoting") from error


def read_columns(path: Path) -> dict[str, list[str]]:
    """Return a whole CSV file as its columns by name; see `open_table` for what is refused."""
    with open_table(path) as table:
        columns: dict[str, list[str]] = {name: [] for name in table.names}
        for record in table.rows:
            for values, text in zip(columns.values(), record, strict=True):
                values.append(text)
    return columns


def _records(reader: Iterator[list[str]], path: Path, width: int) -> Iterator[list[str]]:
    number = 0
    for record in reader:
        if not record:
            continue
        number += 1
        if len(record) != width:
            raise InputError(f"{path}, row {number}", f"{len(record)} fields", f"{width}, as in the header line")
        yield [field.strip() for field in record]


def split_names(option: str) -> list[str]:
    """Split a comma-separated list of column names; a name that holds a comma stands in double quotes."""
    fields = next(csv.reader([option], skipinitialspace=True), []) if option else []
    return [field.strip() for field in fields if field.strip()]


def parse_number(text: str) -> float:
    """Return a finite number, or NaN for a missing one (blank or ``nan``).

    Raises
    ------
    ValueError
        For any other text, infinities included.
    """
    if text.lower() in MISSING:
        return float("nan")
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(text)
    return value


def is_numeric(column: Sequence[str]) -> bool:
    """Whether every text is a number or missing, and at least one is a number."""
    try:
        return not np.isnan([parse_number(text) for text in set(column)]).all()
    except ValueError:
        return False


def numbers(path: Path, name: str, column: Sequence[str]) -> NDArray[np.float64]:
    """Return a column as float64 with NaN where missing; a text that is no number is named with its row."""
    known: dict[str, float] = {}
    for row, text in enumerate(column):
        if text not in known:
            try:
                known[text] = parse_number(text)
            except ValueError:
                raise InputError(
                    f"{path}, row {row + 1}, column '{name}'", repr(text), "a finite number, or blank where missing"
                ) from None
    return np.array([known[text] for text in column], dtype=np.float64)


@dataclass(frozen=True)
class Targets:
    """Targets as the format stores them: ``y (R, K)`` (see GraphSet), their kind, task and class names."""

    y: NDArray[np.float32] | NDArray[np.int32]
    kind: Target
    task_names: tuple[str, ...]
    class_names: tuple[str, ...] = ()


def make_targets(path: Path, columns: dict[str, list[str]], kind: Target | None) -> Targets:
    """Turn text columns into targets; `kind` None means binary if every value is 0, 1 or missing, else regression.

    Raises
    ------
    InputError
        For a column without any value, a text that is no number, a binary value other than 0 and 1, or classes in more
        than one column.
    """
    for name, column in columns.items():
        if all(text.lower() in MISSING for text in column):
            raise InputError(f"{path}, column '{name}'", "no value in any row", "a target with values")
    if kind == "multiclass":
        return _classes(path, columns)
    y = np.stack([numbers(path, name, column) for name, column in columns.items()], axis=1)
    return number_targets(path, list(columns), y, kind)


def number_targets(path: Path, names: list[str], y: NDArray[np.float64], kind: Target | None) -> Targets:
    """Turn numbers `y (R, K)`, NaN where missing, into binary or regression targets as `make_targets` does."""
    other = ~(np.isnan(y) | (y == 0.0) | (y == 1.0))
    if kind == "binary" and other.any():
        row, task = (int(i) for i in np.argwhere(other)[0])
        place = f"{path}, row {row + 1}, column '{names[task]}'"
        raise InputError(place, f"{y[row, task]:g}", "0, 1 or blank", "Use --task regression.")
    limit = float(np.finfo(np.float32).max)
    if (np.abs(y) > limit).any():
        row, task = (int(i) for i in np.argwhere(np.abs(y) > limit)[0])
        place = f"{path}, row {row + 1}, column '{names[task]}'"
        raise InputError(place, f"{y[row, task]:g}", "a 32-bit floating-point number")
    found: Target = kind or ("regression" if other.any() else "binary")
    return Targets(y.astype(np.float32), found, tuple(names))


def _classes(path: Path, columns: dict[str, list[str]]) -> Targets:
    if len(columns) != 1:
        raise InputError(
            str(path),
            f"{len(columns)} target columns for --task multiclass",
            "one column of classes",
            "Name it with --target-columns.",
        )
    ((name, column),) = columns.items()
    names = sorted_labels({text for text in column if text.lower() not in MISSING})
    if len(names) < 2:
        raise InputError(f"{path}, column '{name}'", f"only class '{names[0]}'", "at least 2 classes")
    number = {text: position for position, text in enumerate(names)}
    y = np.array([[number.get(text, -1)] for text in column], dtype=np.int32)
    return Targets(y, "multiclass", (name,), tuple(names))


def sorted_labels(labels: set[str]) -> list[str]:
    """Sort texts by value if all are numbers, else as texts."""
    try:
        return sorted(labels, key=lambda text: (float(text), text))
    except ValueError:
        return sorted(labels)
