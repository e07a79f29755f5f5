"""Terminal output of `bench spmm`: one line per problem and width, and ratios of every method to ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gcnbatch.lab.bench.spmm.methods import NAMES, SCIPY
from gcnbatch.lab.bench.spmm.records import Change
from gcnbatch.lab.bench.spmm.runs import Record, by_point
from gcnbatch.lab.statistics import geometric_mean
from gcnbatch.text import counted

OURS = "fastest"
WIDE = 64  # columns from which the papers compare kernels


class Shown(NamedTuple):
    """Header and rows of a table."""

    header: list[str]
    rows: list[list[Any]]


def caption(records: Sequence[Record]) -> str:
    """Return the caption of `times`: machine and conditions."""
    on = next((record for record in records if "copy_gb_per_s" in record), None)
    if on is None:
        return f"{records[0]['cpu']}: median microseconds"
    how = "operands in L2, no launch cost (SciPy: on the host)"
    return f"{on['gpu']}: median microseconds, {how}; copy {on['copy_gb_per_s']:,.0f} GB/s"


def times(records: Sequence[Record]) -> Shown:
    """Return microseconds per method (warm cache, CUDA graph; SciPy on the host) and the rates of our kernel."""
    present = [name for name in NAMES if any(record["method"] == name for record in records)]
    ours = OURS in present
    header = ["figure", "columns", *present, *(["GFLOPS", "GB/s", "kernel"] if ours else [])]
    rows = []
    for point, methods in by_point(records):
        row = [point["figure"], point["columns"], *(_field(methods.get(name), "us") for name in present)]
        if ours:
            row += [_field(methods.get(OURS), name) for name in ("gflops", "gb_per_s", "choice")]
        rows.append(row)
    return Shown(header, rows)


def ratios(records: Sequence[Record]) -> Shown:
    """Return the ratio of each method's time to ours: geometric mean, minimum and maximum, and their points."""
    rows = []
    for cache in ("warm", "cold"):
        points = list(by_point(records, cache))
        for name in NAMES:
            for least in (1, WIDE):
                found = [
                    (methods[name]["us"] / methods[OURS]["us"], f"{point['figure']}/{point['columns']}")
                    for point, methods in points
                    if name in methods and OURS in methods and name != OURS and point["columns"] >= least
                ]
                if found and not (name == SCIPY and cache == "cold"):
                    mean = geometric_mean([ratio for ratio, _ in found])
                    low, high = min(found), max(found)
                    where = [name, cache, least, len(found)]
                    rows.append([*where, round(mean, 2), round(low[0], 2), low[1], round(high[0], 2), high[1]])
    header = ["over ours", "cache", "columns from", "points", "geometric mean", "least", "at", "most", "at"]
    return Shown(header, rows)


def slower(changes: Sequence[Change]) -> Shown:
    """Return the measurements that became slower, the worst first."""
    rows = [
        [
            f"{change.new['figure']}/{change.new['columns']}",
            change.new["method"],
            change.new["cache"],
            change.new["launch"],
            change.old["us"],
            change.new["us"],
            round(change.ratio, 2),
        ]
        for change in changes
        if change.slower
    ]
    return Shown(["slower", "method", "cache", "launch", "us before", "us now", "ratio"], rows)


def changed(changes: Sequence[Change]) -> str:
    """Return the result of the comparison with an old run in one line."""
    mean = geometric_mean([change.ratio for change in changes])
    count = sum(change.slower for change in changes)
    return f"compared: {counted(len(changes), 'figure')}, {count} slower; new over old {mean:.2f} in the geometric mean"


def absent(reasons: Mapping[str, str]) -> list[str]:
    """Return one line per reason, with the methods that it leaves out."""
    grouped: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        grouped.setdefault(reason, []).append(name)
    return [f"{reason}; left out: {', '.join(names)}" for reason, names in grouped.items()]


def _field(record: Record | None, name: str) -> Any:
    return None if record is None else record[name]
