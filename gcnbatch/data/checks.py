"""The rules of the data format that concern values: offsets, index ranges, numbers, labels, splits.

Each check raises InputError with the array's path inside the file and the first offending position. They work on a part of
a set (whole graphs) so that a file larger than memory is checked in pieces.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64, Split
from gcnbatch.errors import InputError

Path = str | os.PathLike[str]


def check_pointers(
    path: Path, name: str, pointer: Int64, total: int, whole: bool = True, offset: int = 0
) -> None:
    """Offsets start at 0, never decrease and end at `total`; a part (`whole=False`) only has to stay within it."""
    place = f"{path}:/{name}"
    if whole and pointer[0] != 0:
        raise InputError(f"{place}[0]", str(pointer[0]), "0")
    if not whole and pointer[0] < 0:
        raise InputError(f"{place}[{offset}]", str(pointer[0]), "at least 0")
    falling = np.flatnonzero(pointer[1:] < pointer[:-1])
    if len(falling):
        at = int(falling[0])
        raise InputError(
            f"{place}[{offset + at + 1}]", f"{pointer[at + 1]} after {pointer[at]}", "offsets that never decrease"
        )
    if pointer[-1] > total or (whole and pointer[-1] != total):
        raise InputError(f"{place}[{offset + len(pointer) - 1}]", str(pointer[-1]), f"{total}, the number of rows it covers")


def check_part(path: Path, part: GraphSet, node0: int, edge0: int, graph0: int) -> None:
    """Check edges, features, targets and ids of whole graphs whose first node, edge and graph are node0, edge0, graph0."""
    _check_edges(path, part, edge0, graph0)
    if sp.issparse(part.x):
        _check_sparse(path, part)
    else:
        _check_finite(path, "nodes/x", part.x, node0)
    row = "nodes" if part.header.level == "node" else "graphs"
    _check_targets(path, part, f"{row}/y", node0 if row == "nodes" else graph0)


def _check_edges(path: Path, part: GraphSet, edge0: int, graph0: int) -> None:
    sizes = np.diff(part.node_ptr)
    graph = np.repeat(np.arange(part.n_graphs), np.diff(part.edge_ptr))
    limit = sizes[graph]
    for name in ("src", "dst"):
        values = getattr(part, name)
        wrong = np.flatnonzero((values < 0) | (values >= limit))
        if len(wrong):
            at = int(wrong[0])
            raise InputError(
                f"{path}:/edges/{name}[{edge0 + at}]",
                f"node {values[at]} in graph {graph0 + int(graph[at])}",
                f"0 to {int(limit[at]) - 1}" if limit[at] else "no edge, the graph has no node",
            )
    wrong = np.flatnonzero(part.channel >= part.header.n_channels)
    if len(wrong):
        at = int(wrong[0])
        raise InputError(
            f"{path}:/edges/channel[{edge0 + at}]", str(part.channel[at]), f"0 to {part.header.n_channels - 1}"
        )
    if part.weight is not None:
        _check_finite(path, "edges/weight", part.weight, edge0)


def _check_finite(path: Path, name: str, values: NDArray[Any], offset: int) -> None:
    if values.dtype.kind != "f":
        return
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        at = [int(i) for i in wrong[0]]
        shown = ", ".join(str(i + (offset if axis == 0 else 0)) for axis, i in enumerate(at))
        raise InputError(f"{path}:/{name}[{shown}]", str(values[tuple(at)]), "finite numbers")


def _check_sparse(path: Path, part: GraphSet) -> None:
    x = part.x
    wrong = np.flatnonzero((x.indices < 0) | (x.indices >= part.n_features))
    if len(wrong):
        at = int(wrong[0])
        raise InputError(
            f"{path}:/nodes/x_csr/indices", f"column {x.indices[at]}", f"0 to {part.n_features - 1}"
        )
    _check_finite(path, "nodes/x_csr/data", x.data, 0)


def _check_targets(path: Path, part: GraphSet, name: str, row0: int) -> None:
    y = part.y
    if part.header.target == "multiclass":
        classes = len(part.header.class_names)
        wrong, expected = (y < -1) | (y >= classes), f"-1 (missing) or a class 0 to {classes - 1}"
    elif part.header.target == "binary":
        wrong, expected = ~((y == 0) | (y == 1) | np.isnan(y)), "0, 1 or NaN (missing)"
    else:
        wrong, expected = np.isinf(y), "finite numbers or NaN (missing)"
    offences = np.argwhere(wrong)
    if len(offences):
        row, column = (int(i) for i in offences[0])
        raise InputError(f"{path}:/{name}[{row0 + row}, {column}]", str(y[row, column]), expected)


def check_splits(path: Path, splits: dict[str, Split], rows: int) -> None:
    """Rows of a split lie in range and stand in one part only, once."""
    for name, split in splits.items():
        owner = np.full(rows, -1, dtype=np.int8)
        for number, (part, values) in enumerate(split.parts().items()):
            place = f"{path}:/splits/{name}/{part}"
            outside = np.flatnonzero((values < 0) | (values >= rows))
            if len(outside):
                at = int(outside[0])
                raise InputError(f"{place}[{at}]", str(values[at]), f"0 to {rows - 1}")
            taken = np.flatnonzero(owner[values] >= 0)
            unique = np.unique(values)
            if len(taken) or len(unique) != len(values):
                row = int(values[taken[0]]) if len(taken) else int(_first_repeat(values))
                raise InputError(place, f"row {row} stands in the split twice", "disjoint parts without repeats")
            owner[values] = number


def _first_repeat(values: Int64) -> int:
    order = np.sort(values)
    return int(order[np.flatnonzero(np.diff(order) == 0)[0]])
