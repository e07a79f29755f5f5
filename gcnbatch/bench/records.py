"""Records of `bench spmm` as JSON lines, and what became slower between two of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gcnbatch import fileio
from gcnbatch.bench.methods import SCIPY
from gcnbatch.bench.spmm import Record, point_of
from gcnbatch.errors import InputError

SLOWER = 1.1  # a median this many times the old one, and beyond both spreads, is slower
_NEEDED = ("bench", "figure", "columns", "method", "cache", "launch", "us", "us_p20", "us_p80")


class Change(NamedTuple):
    """A figure that is in both: new over old median, and whether it counts as slower."""

    old: Record
    new: Record
    ratio: float
    slower: bool


def write(path: Path, records: Sequence[Record]) -> None:
    """Write a record per line."""
    fileio.write_text(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))


def read(path: Path) -> list[Record]:
    """Return the records of a file.

    Raises
    ------
    InputError
        When it cannot be read, or a line is no record of `bench spmm`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"cannot be read ({error})", "rows.jsonl of an earlier 'bench spmm'") from error
    return [_record(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _record(path: Path, number: int, line: str) -> Record:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("bench") != "spmm" or any(name not in found for name in _NEEDED):
        raise InputError(f"{path}, line {number}", "no record of 'bench spmm'", f"JSON with {', '.join(_NEEDED)}")
    return found


def compare(old: Sequence[Record], new: Sequence[Record]) -> list[Change]:
    """Return what both have, the most slowed down first.

    Raises
    ------
    InputError
        When the two were measured on different machines, or have nothing in common.
    """
    known = {_key(record): record for record in old}
    changes = []
    for record in new:
        before = known.get(_key(record))
        if before is None:
            continue
        _same("cpu" if record["method"] == SCIPY else "gpu", before, record)
        ratio = record["us"] / before["us"]
        slower = ratio > SLOWER and record["us_p20"] > before["us_p80"]
        changes.append(Change(before, record, ratio, slower))
    if not changes:
        raise InputError("--compare", "no figure of the old record was measured now", "the same figures and columns")
    return sorted(changes, key=lambda change: -change.ratio)


def _same(what: str, old: Record, new: Record) -> None:
    if old.get(what) != new.get(what):
        raise InputError(
            "--compare", f"measured on {old.get(what)}", str(new.get(what)), "Times of two machines say nothing."
        )


def _key(record: Record) -> tuple[str, ...]:
    return (*point_of(record), record["method"], record["cache"], record["launch"])
