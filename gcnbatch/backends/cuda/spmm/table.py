"""Tables of the fastest kernel of a batch's adjacency product, by measurement: ``cuda.spmm = "auto"``.

`gcnbatch bench tune` measures every candidate over rows per graph, entries per row, columns and graphs in a batch, and
writes the table into the user's cache folder. The package ships a table of an H200, which other devices use by default.

The choice among candidates changes speed alone: all add the entries of a row in the same order, so results are equal to
the bit. The general kernel may share a row among groups of threads, which changes the order. The sizes of the batch,
not measurements, decide where it runs.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import prod, sqrt
from pathlib import Path
from typing import Any

from gcnbatch import fileio, outputs
from gcnbatch.backends.cuda.runtime.cache import cache_folder
from gcnbatch.backends.cuda.spmm import geometry
from gcnbatch.fileio import Output
from gcnbatch.outputs import Kind, begins_with

AXES = ("rows", "per_row", "columns", "batch")
SHIPPED = Path(__file__).with_name("table.json")
FORMAT = 1
BEYOND = 4  # beyond this many times the largest measured rows and entries per row, the general kernel runs
TABLE = Kind("a table of kernels", begins_with(rb'\{\s*"format": [0-9]+,\s*"rows":'))
MANY_GROUPS = 4  # the general kernel also runs if it would share a row among this many groups: long rows, few columns


@dataclass(frozen=True, eq=False)
class SpmmTable:
    """The fastest candidate at every point of a grid.

    Parameters
    ----------
    axes : tuple of tuples
        Ascending points of rows per graph, entries per row, columns, and graphs in a batch.
    fastest : tuple of str
        Names of candidates, the last axis running fastest.
    measured : mapping
        Machine and version of the measurement: gpu, driver, cuda, commit.

    Raises
    ------
    ValueError
        When axes and candidates do not form a table.
    """

    axes: tuple[tuple[int, ...], ...]
    fastest: tuple[str, ...]
    measured: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.axes) != len(AXES) or not all(self.axes):
            raise ValueError(f"the axes are not {', '.join(AXES)}")
        if any(points[0] <= 0 or list(points) != sorted(set(points)) for points in self.axes):
            raise ValueError("the points of an axis are not ascending")
        if len(self.fastest) != prod(map(len, self.axes)):
            raise ValueError(f"{len(self.fastest)} choices for {prod(map(len, self.axes))} points")

    def nearest(self, point: Sequence[float]) -> str:
        """Return the fastest candidate at the nearest grid point, by ratio on every axis."""
        place = 0
        for borders, value in zip(self._borders, point, strict=True):
            place = place * (len(borders) + 1) + bisect(borders, value)
        return self.fastest[place]

    @cached_property
    def _borders(self) -> list[list[float]]:
        """Geometric means of neighbouring points, per axis: the borders between nearest points."""
        return [[sqrt(low * high) for low, high in pairwise(points)] for points in self.axes]

    def reaches(self, rows: float, per_row: float) -> bool:
        """Return whether rows per graph and entries per row are not far beyond the measured range."""
        return rows <= BEYOND * self.axes[0][-1] and per_row <= BEYOND * self.axes[1][-1]

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain values; `fastest` holds indices into the list of candidates."""
        names = sorted(set(self.fastest))
        return {
            "format": FORMAT,
            **dict(zip(AXES, map(list, self.axes), strict=True)),
            "candidates": names,
            "fastest": [names.index(name) for name in self.fastest],
            "measured": dict(self.measured),
        }

    @classmethod
    def from_json(cls, found: Any, known: Collection[str]) -> SpmmTable:
        """Return the table of the values that `to_json` returned.

        Raises
        ------
        ValueError
            When the values are not a table, or name a kernel that is not `known`.
        """
        try:
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}, not {FORMAT}")
            names = found["candidates"]
            if unknown := set(names).difference(known):
                raise ValueError(f"unknown kernel '{min(unknown)}'")
            axes = tuple(tuple(map(int, found[axis])) for axis in AXES)
            return cls(axes, tuple(names[number] for number in found["fastest"]), dict(found["measured"]))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"not a table of kernels ({error!r})") from error


def user_table(gpu: str) -> Path:
    """Return the path of the table for GPUs of this name, in the user's cache folder."""
    return cache_folder().parent / "spmm" / f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"


def output(path: Path | None, gpu: str = "") -> Output:
    """Return the file for a table: `path`, else that which "auto" reads for GPUs of this name.

    Raises
    ------
    InputError
        For a file that is there and holds something else.
    MachineError
        When it cannot be written.
    """
    if path is not None:
        return outputs.check(path, TABLE)
    own = user_table(gpu)
    with suppress(OSError):  # `save` reports the error
        own.parent.mkdir(parents=True, exist_ok=True)
    return Output(own)


def save(table: SpmmTable, path: Output) -> None:
    """Write a table. Processes that start afterwards use it.

    Raises
    ------
    MachineError
        When it cannot be written.
    """
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in table.to_json().items())
    fileio.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


@cache
def load(gpu: str, known: Collection[str]) -> SpmmTable:
    """Return the user's table for GPUs of this name, else the shipped one; read once per process.

    If the user's table cannot be used, a warning on stderr says so.
    """
    path = user_table(gpu)
    try:
        return SpmmTable.from_json(json.loads(path.read_text(encoding="utf-8")), known)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        print(
            f"warning: {path}: {error}; the shipped table is used. Run 'gcnbatch bench tune' again, or remove it.",
            file=sys.stderr,
        )
    return SpmmTable.from_json(json.loads(SHIPPED.read_text(encoding="utf-8")), known)


@lru_cache(maxsize=4096)
def choose(table: SpmmTable, n_rows: int, n_entries: int, width: int, n_graphs: int, vector: int) -> str | None:
    """Return the candidate for a batch of `n_graphs` with `n_rows` rows in total, or None for the general kernel.

    `vector` is the number of floats per load.
    """
    rows, per_row = n_rows / max(n_graphs, 1), n_entries / max(n_rows, 1)
    groups = 1 << geometry.sharing_bits(n_rows, n_entries, geometry.vector_bits(width, vector))
    if groups >= MANY_GROUPS or not table.reaches(rows, per_row):
        return None
    return table.nearest((rows, per_row, width, n_graphs))
