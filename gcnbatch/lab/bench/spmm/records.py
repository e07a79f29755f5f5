"""Records of `bench spmm` as JSON lines, and the comparison of two files of records.

A line without a time has the common values of the lines after it: machine, problem, columns. Each of those is a method,
with [median, 20th percentile, 80th percentile] of its microseconds per state: {"warm graph": [1.9, 1.9, 1.9], …}.
Complete records, as `--json` prints them, can be read too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, PositiveFloat

from gcnbatch import fileio
from gcnbatch.errors import InputError
from gcnbatch.lab.bench.clock import rates
from gcnbatch.lab.bench.spmm.methods import SCIPY
from gcnbatch.lab.bench.spmm.runs import Record, point_of
from gcnbatch.training import run_files

SLOWER = 1.1  # slower: a median above this multiple of the old one, with spreads that do not overlap
SLOWER_HOST = 1.5  # if the time includes the host, whose speed varies from run to run
_TIMES = ("us", "us_p20", "us_p80")
_METHOD = ("method", "choice", "error")
_STATE = ("cache", "launch", *_TIMES, "gflops", "gb_per_s")


class _Shared(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    bench: Literal["spmm"]


class _Record(_Shared):
    figure: str
    columns: int
    method: str
    cache: str
    launch: str
    us: PositiveFloat
    us_p20: PositiveFloat
    us_p80: PositiveFloat


_EXPECTED = f"JSON with {', '.join(_Record.model_fields)}"


class Change(NamedTuple):
    """A measurement in both files: ratio of the new median to the old one, and whether it counts as slower."""

    old: Record
    new: Record
    ratio: float
    slower: bool


def write(path: Path, records: Sequence[Record]) -> None:
    """Write one line per method, after a line with the values that these methods share."""
    lines: list[Record] = []
    shared: Record = {}
    for record in records:
        others = {key: value for key, value in record.items() if key not in (*_METHOD, *_STATE)}
        method = {key: record[key] for key in _METHOD}
        state = f"{record['cache']} {record['launch']}"
        if others != shared:
            lines.append(others)
            shared = others
        if state in lines[-1].get("us", {state}) or {**lines[-1], **method} != lines[-1]:
            lines.append({**method, "us": {}})
        lines[-1]["us"][state] = [record[key] for key in _TIMES]
    fileio.write_text(path, "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in lines))


def read(path: Path) -> list[Record]:
    """Read the records of a file.

    Raises
    ------
    InputError
        When it cannot be read, or a line is not a record of `bench spmm`.
    """
    lines = run_files.read_text(path, "rows.jsonl of an earlier 'bench spmm'", follow=True).splitlines()
    found: list[Record] = []
    shared: Record = {}
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text or "null")
            if line is not None and "us" in line:
                found += _rows(shared, line)
            elif line is not None:
                shared = _Shared.model_validate(line).model_dump()
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"{path}, line {number}", "no record of 'bench spmm'", _EXPECTED) from error
    if not found:
        raise InputError(str(path), "no record of 'bench spmm'", _EXPECTED)
    return found


def _rows(shared: Record, line: Record) -> list[Record]:
    """Return the records of a line; ValidationError, KeyError … if it is not a line of records."""
    if not isinstance(line["us"], dict):
        return [_Record.model_validate(line).model_dump()]
    rows = []
    for state, times in line["us"].items():
        row = {**shared, **line, **dict(zip(_STATE[:5], (*state.split(" "), *times), strict=True))}
        rows.append({**_Record.model_validate(row).model_dump(), **rates(row["flops"], row["bytes"], row["us"])})
    return rows


def compare(old: Sequence[Record], new: Sequence[Record]) -> list[Change]:
    """Return the measurements in both, the largest slowdown first.

    Raises
    ------
    InputError
        When the two come from different machines, or have no measurement in common.
    """
    known = {_key(record): record for record in old}
    changes = []
    for record in new:
        before = known.get(_key(record))
        if before is None:
            continue
        _same("cpu" if record["method"] == SCIPY else "gpu", before, record)
        ratio = record["us"] / before["us"]
        limit = SLOWER if record["launch"] == "graph" else SLOWER_HOST
        slower = ratio > limit and record["us_p20"] > before["us_p80"]
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
