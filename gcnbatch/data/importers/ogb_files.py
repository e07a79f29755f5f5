"""Files that graph-level and node-level folders of the Open Graph Benchmark share: counts, labels, splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.importers.targets import Targets, number_targets
from gcnbatch.data.schema import MAX_GRAPH_NODES, SPLIT_PARTS, Target
from gcnbatch.data.tables.numbers import load_numbers
from gcnbatch.errors import InputError
from gcnbatch.text import counted


def counts(path: Path) -> Int64:
    """Return the number of nodes or edges of each graph."""
    values = load_numbers(path, np.int64)
    if values.shape[1] != 1 or (values < 0).any():
        raise InputError(str(path), "more than one number in a row, or a negative one", "one count per graph")
    if values.max() > MAX_GRAPH_NODES:
        raise InputError(str(path), f"a count of {values.max()}", f"at most {MAX_GRAPH_NODES}")
    return values[:, 0]


def label_targets(path: Path, y: NDArray[np.float64], task: Target | None) -> Targets:
    """Return labels `y (R, K)`, NaN where missing, as targets; one column of 0, 1, … C-1 is classes."""
    if np.isinf(y).any():
        raise InputError(f"{path}, row {np.argwhere(np.isinf(y))[0][0] + 1}", "an infinite label", "a finite number")
    names = [f"task{column}" for column in range(y.shape[1])]
    values = np.unique(y[~np.isnan(y)])
    classes = y.shape[1] == 1 and len(values) > 2 and np.array_equal(values, np.arange(len(values)))
    if task != "multiclass" and not (task is None and classes):
        return number_targets(path, names, y, task)
    if y.shape[1] != 1 or len(values) < 2:
        raise InputError(
            str(path),
            f"{counted(y.shape[1], 'column')}, {counted(len(values), 'value')}",
            "one column of at least 2 classes",
        )
    numbers = np.where(np.isnan(y), -1, np.searchsorted(values, y)).astype(np.int32)
    return Targets(numbers, "multiclass", ("class",), tuple(f"{value:g}" for value in values))


def stored_splits(folder: Path, rows_of_set: int, what: str) -> tuple[dict[str, Split], list[Path]]:
    """Return the splits of a folder by name, and their files; `what` names a row."""
    splits, files = {}, []
    for kind in sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else ():
        rows = {}
        for part in SPLIT_PARTS:
            file = kind / f"{part}.csv.gz"
            rows[part] = load_numbers(file, np.int64).reshape(-1)
            files.append(file)
        every = np.concatenate(list(rows.values()))
        if (every < 0).any() or (every >= rows_of_set).any() or len(np.unique(every)) != len(every):
            raise InputError(
                str(kind), f"a {what} twice or out of range", f"{what}s 0 to {rows_of_set - 1}, each at most once"
            )
        splits[kind.name] = Split(**rows)
    return splits, files
