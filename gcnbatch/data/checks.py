"""Checks of the data format's contents: header, layout, offsets, index ranges, numbers, labels, splits.

The reader and the writer run the same checks, so every written file can be read. A check raises InputError with the
array's path in the file and the first wrong position. Values are checked on parts of a set (whole graphs), so that a
file larger than memory can be checked. The numbers in brackets are the rules of ``datasets/FORMAT.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_tree import deeper
from gcnbatch.data import schema
from gcnbatch.data.graphs import GraphSet, Int64, Split
from gcnbatch.data.sparse import Csr, is_sparse
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath
from gcnbatch.text import counted, listed, quoted

if TYPE_CHECKING:
    import scipy.sparse as sp

_CONVERT_HINT = "Make one with 'gcnbatch data import' or 'gcnbatch data synth'."


class Described(Protocol):
    """Type and shape of an array, in memory or in a file."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""


def check_header(path: StrPath, header: schema.Header) -> None:
    """Check that names are printable, unique and not empty, and fit the target kind and the features [10, 11]."""
    place = f"{path}:/header"
    for key in ("task_names", "class_names", "feature_names", "graph_feature_names", "channel_names"):
        names = getattr(header, key)
        for name, times in Counter(names).items():
            if not name or not name.isprintable():
                raise InputError(place, f"{key}: {quoted(name)}", "names of printable characters")
            if times > 1:
                raise InputError(place, f"{key}: {quoted(name)} stands there {times} times", "each name once")
    for key, count, most in (
        ("task_names", len(header.task_names), schema.MAX_OUTPUTS),
        ("class_names", len(header.class_names), schema.MAX_OUTPUTS),
        ("n_features", header.n_features, schema.MAX_FEATURES),
        ("graph_feature_names", len(header.graph_feature_names), schema.MAX_FEATURES),
    ):
        if count > most:
            raise InputError(place, f"{key}: {count}", f"at most {most}", "A model has weights for each of them.")
    if deeper(header.featurizer, schema.MAX_FEATURIZER_DEPTH):
        raise InputError(place, "featurizer nested too deep", f"at most {schema.MAX_FEATURIZER_DEPTH} levels")
    for task, labels in header.label_names.items():
        if header.target != "binary" or task not in header.task_names:
            raise InputError(place, f"label_names of {quoted(task)}", "binary tasks of the set")
        if len(set(labels)) < 2 or not all(text and text.isprintable() for text in labels):
            raise InputError(place, f"label_names: ({listed(map(quoted, labels))})", "two different printable names")
    for task, unit in header.units.items():
        if header.target != "regression" or task not in header.task_names:
            raise InputError(place, f"units of {quoted(task)}", "regression tasks of the set")
        if not unit or not unit.isprintable():
            raise InputError(place, f"units: {quoted(unit)}", "printable characters")
    if not (header.name + header.group_kind).isprintable():
        raise InputError(place, "name or group_kind with control characters", "printable characters")
    if len(header.feature_names) not in (0, header.n_features):
        raise InputError(place, f"{len(header.feature_names)} feature_names", f"none or {header.n_features}")
    if header.graph_feature_counts > len(header.graph_feature_names):
        got = f"graph_feature_counts: {header.graph_feature_counts}"
        raise InputError(place, got, f"at most {len(header.graph_feature_names)}, the graph_feature_names")
    if header.target == "multiclass":
        if len(header.task_names) != 1:
            raise InputError(place, f"{len(header.task_names)} task_names", "1 for a multiclass target")
        if len(header.class_names) < 2:
            raise InputError(place, f"{len(header.class_names)} class_names", "at least 2 for a multiclass target")
    elif header.class_names:
        raise InputError(place, f"class_names with a {header.target} target", "none")


def check_layout(path: StrPath, header: schema.Header, arrays: Mapping[str, Described]) -> None:
    """Check that the arrays are those that the header asks for, with the right types and shapes [12-14]."""
    row = schema.row_folder(header.level)
    _check_presence(path, header, row, set(arrays))
    kinds = [np.dtype(kind) for kind in schema.TARGET_TYPES[header.target]]
    if (found := arrays[f"{row}/y"].dtype) not in kinds:
        raise InputError(f"{path}:/{row}/y", f"type {found}", f"{kinds[0]} for a {header.target} target")
    for name in ("graphs/node_ptr", "graphs/edge_ptr", "nodes/x_csr/indptr", schema.COUNTS[0]):
        if name in arrays and arrays[name].shape[0] < 1:
            raise InputError(f"{path}:/{name}", "no entry", "at least 1")
    known = _lengths(header, row, arrays)
    for name in filter(arrays.__contains__, schema.ARRAYS):
        expected = tuple(map(known.get, schema.ARRAYS[name][1], arrays[name].shape))
        if arrays[name].shape != expected:
            raise InputError(f"{path}:/{name}", f"shape {arrays[name].shape}", f"shape {expected}")


def _check_presence(path: StrPath, header: schema.Header, row: str, names: set[str]) -> None:
    sparse = any(name.startswith("nodes/x_csr/") for name in names)
    if sparse and "nodes/x" in names:
        raise InputError(f"{path}:/nodes", "both x and x_csr are present", "one of them")
    needed = ["graphs/node_ptr", "graphs/edge_ptr", "edges/src", "edges/dst", "edges/channel", f"{row}/y", f"{row}/id"]
    needed += [f"nodes/x_csr/{part}" for part in ("indptr", "indices", "data")] if sparse else ["nodes/x"]
    has_counts = any(name in names for name in schema.COUNTS)
    if has_counts and not header.graph_feature_counts:
        raise InputError(f"{path}:/graphs/counts", "present", "a header with graph_feature_counts")
    needed += schema.COUNTS if has_counts else []
    if len(header.graph_feature_names) > has_counts * header.graph_feature_counts:
        needed.append(schema.GRAPH_FEATURES)
    for name in names:
        folder = name.rpartition("/")[0]
        if folder.startswith("splits/"):
            needed += [f"{folder}/{part}" for part in schema.SPLIT_PARTS]
        if name in schema.SMILES:
            needed += schema.SMILES
    for name in needed:
        if name not in names:
            raise InputError(f"{path}:/{name}", "missing", "an array of this name", _CONVERT_HINT)
    other = "graphs" if row == "nodes" else "nodes"
    for name in (f"{other}/y", f"{other}/id", f"{other}/censored", f"{other}/sample_weight"):
        if name in names:
            raise InputError(
                f"{path}:/{name}", f"present in a {header.level}-level set", f"only /{row}/y and /{row}/id"
            )
    if f"{row}/censored" in names and header.target != "regression":
        raise InputError(f"{path}:/{row}/censored", f"present with a {header.target} target", "a regression target")
    of_graphs = dict.fromkeys((schema.GRAPH_FEATURES, *schema.COUNTS), "features of graphs")
    of_graphs["graphs/time"] = "times of graphs"
    of_graphs |= dict.fromkeys(schema.SMILES, "molecules, one per graph")
    for name, what in of_graphs.items():
        if row == "nodes" and name in names:
            raise InputError(f"{path}:/{name}", "present in a node-level set", what)


def _lengths(header: schema.Header, row: str, arrays: Mapping[str, Described]) -> dict[str, int]:
    """Return the lengths of `schema.ARRAYS` by name, but for those that only one array has."""
    graphs, has_counts = arrays["graphs/node_ptr"].shape[0] - 1, schema.COUNTS[0] in arrays  # older files: dense
    sparse = "nodes/x_csr/indptr" in arrays
    nodes = arrays["nodes/x_csr/indptr"].shape[0] - 1 if sparse else arrays["nodes/x"].shape[0]
    return {
        "graphs": graphs,
        "graphs + 1": graphs + 1,
        "nodes": nodes,
        "rows": nodes if row == "nodes" else graphs,
        "edges": arrays["edges/src"].shape[0],
        "entries": arrays["nodes/x_csr/data"].shape[0] if sparse else 0,
        "features": header.n_features,
        "measured features": len(header.graph_feature_names) - has_counts * header.graph_feature_counts,
        "counts": arrays[schema.COUNTS[2]].shape[0] if has_counts else 0,
        "outputs": 1 if header.target == "multiclass" else len(header.task_names),
    }


def check_pointers(path: StrPath, name: str, pointer: Int64, total: int, piece_at: int | None = None) -> None:
    """Check that offsets start at 0, never decrease and end at `total`, the number of rows they cover [15].

    With `piece_at`, `pointer` is the part of a longer pointer from that position on, and must stay within 0 … total.
    """
    place, offset, last = f"{path}:/{name}", piece_at or 0, len(pointer) - 1
    if pointer[0] != 0 if piece_at is None else pointer[0] < 0:
        raise InputError(f"{place}[{offset}]", str(pointer[0]), "0" if piece_at is None else "at least 0")
    falling = pointer[1:] < pointer[:-1]
    if falling.any():
        index = int(np.argmax(falling)) + 1
        raise InputError(
            f"{place}[{offset + index}]", f"{pointer[index]} after {pointer[index - 1]}", "offsets that never decrease"
        )
    if pointer[-1] != total if piece_at is None else pointer[-1] > total:
        limit = "" if piece_at is None else "at most "
        raise InputError(
            f"{place}[{offset + last}]", str(pointer[-1]), f"{limit}{total}, the number of rows that it covers"
        )


def check_graph_sizes(path: StrPath, node_ptr: Int64) -> None:
    """Check that int32 can count the nodes of each graph [15]."""
    large = np.flatnonzero(np.diff(node_ptr) > schema.MAX_GRAPH_NODES)
    if len(large):
        index = int(large[0])
        raise InputError(
            f"{path}:/graphs/node_ptr[{index + 1}]",
            f"{counted(node_ptr[index + 1] - node_ptr[index], 'node')} in graph {index}",
            f"at most {schema.MAX_GRAPH_NODES}",
        )


def check_part(
    path: StrPath, part: GraphSet, node0: int, edge0: int, graph0: int, entry0: int = 0, count0: int = 0
) -> None:
    """Check edges and features of whole graphs [16-18, 22].

    `node0`, `edge0`, `graph0`, `entry0` and `count0` are the numbers of their first node, edge, graph, sparse entry and
    count.
    """
    _check_edges(path, part, edge0, graph0)
    if is_sparse(part.x):
        _check_rising(path, "nodes/x_csr/indices", part.x, part.x.shape[1], node0, entry0)
        _check_finite(path, "nodes/x_csr/data", part.x.data, entry0)
    else:
        _check_finite(path, "nodes/x", part.x, node0)
    if part.graph_features is not None:
        measured, counts = part.graph_features.measured, part.graph_features.counts
        _check_finite(path, schema.GRAPH_FEATURES, measured, graph0, missing=True)
        _check_rising(path, schema.COUNTS[1], counts, counts.n_cols, graph0, count0)
        if counts.data.dtype.kind == "f":  # of a dense array
            _check_whole(path, counts, measured.shape[1], graph0)


def _check_edges(path: StrPath, part: GraphSet, edge0: int, graph0: int) -> None:
    limit = np.repeat(np.diff(part.node_ptr).astype(np.int32), np.diff(part.edge_ptr))
    for name in ("src", "dst"):
        values = getattr(part, name)
        wrong = (values < 0) | (values >= limit)
        if wrong.any():
            index = int(np.argmax(wrong))
            graph = graph0 + int(np.searchsorted(part.edge_ptr, index, side="right")) - 1
            raise InputError(
                f"{path}:/edges/{name}[{edge0 + index}]",
                f"node {values[index]} in graph {graph}",
                f"0 to {limit[index] - 1}" if limit[index] else "no edge, the graph has no node",
            )
    top = part.header.n_channels - 1
    _refuse(path, "edges/channel", part.channel, part.channel > top, f"0 to {top}", edge0)
    if part.weight is not None:
        _check_finite(path, "edges/weight", part.weight, edge0)


def _check_finite(path: StrPath, name: str, values: NDArray[Any], offset: int, missing: bool = False) -> None:
    """Refuse infinite values and, unless they may be `missing`, NaN."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    wrong = np.isinf(values) if missing else ~np.isfinite(values)
    _refuse(path, name, values, wrong, "finite numbers or NaN (missing)" if missing else "finite numbers", offset)


def _refuse(
    path: StrPath, name: str, values: NDArray[Any], wrong: NDArray[np.bool_], expected: str, offset: int = 0
) -> None:
    """Refuse the first of the values that are `wrong`; `offset` is the number of their first row."""
    if wrong.any():
        index = np.argwhere(wrong)[0]
        place = ", ".join(map(str, [index[0] + offset, *index[1:]]))
        raise InputError(f"{path}:/{name}[{place}]", str(values[tuple(index)]), expected)


def _check_rising(path: StrPath, name: str, x: Csr | sp.csr_array, n_cols: int, row0: int, entry0: int) -> None:
    """Refuse columns of sparse rows that are out of range or do not rise."""
    place = f"{path}:/{name}"
    wrong = (x.indices < 0) | (x.indices >= n_cols)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InputError(f"{place}[{entry0 + index}]", f"column {x.indices[index]}", f"0 to {n_cols - 1}")
    falling = np.zeros(len(x.indices) + 1, dtype=bool)
    falling[1:-1] = x.indices[1:] <= x.indices[:-1]
    falling[x.indptr] = False  # the first entry of a row follows nothing
    if falling.any():
        index = int(np.argmax(falling))
        row = row0 + int(np.searchsorted(x.indptr, index, side="right")) - 1
        raise InputError(
            f"{place}[{entry0 + index}]",
            f"column {x.indices[index]} after {x.indices[index - 1]} in row {row}",
            "rising columns, each once",
        )


def _check_whole(path: StrPath, counts: Csr, before: int, graph0: int) -> None:
    """Refuse counts of a dense array, in the columns from `before` on, that are no whole numbers."""
    wrong = ~((counts.data >= 0) & (counts.data < 2**32) & (counts.data == np.rint(counts.data)))
    if wrong.any():
        index = int(np.argmax(wrong))
        row = graph0 + int(np.searchsorted(counts.indptr, index, side="right")) - 1
        place = f"{path}:/{schema.GRAPH_FEATURES}[{row}, {before + counts.indices[index]}]"
        raise InputError(place, str(counts.data[index]), "a count: a whole number below 2^32")


def check_ids(place: str, encoded: NDArray[np.bytes_]) -> None:
    """Check that no id holds a NUL: it pads ids, so other readers would cut the id there [19]."""
    width = encoded.dtype.itemsize
    blank = np.ascontiguousarray(encoded).view(np.uint8).reshape(len(encoded), width) == 0
    inside = (blank[:, :-1] & ~blank[:, 1:]).any(axis=1)
    if inside.any():
        raise InputError(f"{place}[{int(np.argmax(inside))}]", "an id with a NUL inside", "text without NUL")


def check_targets(
    path: StrPath,
    header: schema.Header,
    y: NDArray[Any],
    censored: NDArray[np.int8] | None = None,
    sample_weight: NDArray[np.float32] | None = None,
) -> None:
    """Check that labels are in range; only NaN (or -1 for classes) means missing [19].

    Check directions of bounds [23] and weights of rows [24], where the set stores them.
    """
    row = schema.row_folder(header.level)
    if sample_weight is not None:
        wrong = ~(np.isfinite(sample_weight) & (sample_weight >= 0))
        _refuse(path, f"{row}/sample_weight", sample_weight, wrong, "a finite number that is not negative")
    if header.target == "multiclass":
        classes = len(header.class_names)
        wrong, expected = (y < -1) | (y >= classes), f"-1 (missing) or a class 0 to {classes - 1}"
    elif header.target == "binary":
        wrong, expected = ~((y == 0) | (y == 1) | np.isnan(y)), "0, 1 or NaN (missing)"
    else:
        wrong, expected = np.isinf(y), "finite numbers or NaN (missing)"
    _refuse(path, f"{row}/y", y, wrong, expected)
    if censored is not None:
        wrong = (np.abs(censored.astype(np.int16)) > 1) | ((censored != 0) & np.isnan(y))
        _refuse(path, f"{row}/censored", censored, wrong, "-1, 0 or 1, 0 without a target")


def check_groups(path: StrPath, groups: NDArray[np.int32] | None) -> None:
    """Check that group numbers are not negative [20]."""
    if groups is not None:
        _refuse(path, "graphs/group", groups, groups < 0, "0 or more")


def check_times(path: StrPath, times: NDArray[np.float64] | None) -> None:
    """Check that times are finite or NaN [25]."""
    if times is not None:
        _refuse(path, "graphs/time", times, np.isinf(times), "a finite number, or NaN where missing")


def check_splits(path: StrPath, splits: Mapping[str, Split], rows: int) -> None:
    """Check the names of splits, that their rows are in range, and that no row is there twice [21]."""
    for name, split in splits.items():
        if not schema.SPLIT_NAME.fullmatch(name):
            raise InputError(
                f"{path}:/splits", f"a split named {quoted(name)}", "letters, digits, '.', '_' and '-', at most 80"
            )
        for part, values in split.parts().items():
            expected = f"0 to {rows - 1}" if rows else "no entry, the set has no row"
            _refuse(path, f"splits/{name}/{part}", values, (values < 0) | (values >= rows), expected)
        times = np.bincount(np.concatenate(list(split.parts().values())), minlength=rows)
        if (times > 1).any():
            row = int(np.argmax(times > 1))
            raise InputError(
                f"{path}:/splits/{name}", f"row {row} stands in the split twice", "disjoint parts without repeats"
            )
