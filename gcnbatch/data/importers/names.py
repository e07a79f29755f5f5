"""Compact storage of node names, and the lookup of a node by its name.

Names are arbitrary texts. If all are plain whole numbers (``0``, ``17``, not ``017`` or ``+17``), they are stored as
integers, else as NumPy's texts of any length, which take 16 bytes and, if longer than 15 bytes, their UTF-8 more. A
Python dictionary would take about 150 bytes per name.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64
from gcnbatch.data.tables.table import Column, whole_numbers

_DENSE = 4  # most entries per node of a lookup table over all whole numbers up to the largest
_BLOCK = 1 << 16


Names = NDArray[Any]  # int64, or texts of any length (np.dtypes.StringDType)


def _as_list(column: Column) -> list[str]:
    return column if isinstance(column, list) else list(map(str, column.tolist()))


def _as_array(texts: list[str]) -> Names:
    return np.array(texts, np.dtypes.StringDType())


def _are_texts(names: Names) -> bool:
    return names.dtype.kind == "T"


class NameList:
    """List of names, filled block by block."""

    def __init__(self) -> None:
        self._numbers: list[Int64] = []
        self._texts: list[Names] = []

    def append(self, column: Column) -> None:
        """Append names."""
        numbers = None
        if not self._texts:
            numbers = whole_numbers(column) if isinstance(column, list) else column
        if numbers is not None:
            self._numbers.append(numbers)
            return
        self._texts += [_as_array(_as_list(block)) for block in self._numbers]
        self._numbers.clear()
        self._texts.append(_as_array(_as_list(column)))

    def names(self, order: NDArray[np.integer[Any]]) -> Names:
        """Return names ``order[0], order[1], …``; the list is empty afterwards."""
        found = np.concatenate(self._texts or self._numbers)
        self._texts.clear()
        self._numbers.clear()
        return found if (np.diff(order) == 1).all() else found[order]


def number_type(count: int) -> type[np.signedinteger[Any]]:
    """Return the smallest of int32 and int64 that can number `count` items."""
    return np.int32 if count < 2**31 else np.int64


class Finder(Protocol):
    """Lookup of nodes by graph and name."""

    def find(self, graph: Int64, column: Column) -> Int64:
        """Return the first node of each name in its graph, -1 if there is none; `graph` and `column` are (n,)."""

    def repeated(self) -> int | None:
        """Return the first node whose name repeats that of an earlier node of its graph, or None."""


def finder(names: Names, node_ptr: Int64) -> Finder:
    """Return the lookup for `names` (N,); those of graph g are at ``node_ptr[g] … node_ptr[g+1]-1``."""
    if not _are_texts(names) and (len(node_ptr) - 1) * (int(names.max()) + 1) <= _DENSE * len(names):
        return _TableFinder(names, node_ptr)
    return _HashFinder(names, node_ptr)


class _TableFinder:
    """Finder for whole numbers: a table with an entry for every possible name of every graph."""

    def __init__(self, names: Int64, node_ptr: Int64) -> None:
        self._span = int(names.max()) + 1
        node = np.arange(len(names), dtype=number_type(len(names)))
        self._nodes = np.full((len(node_ptr) - 1) * self._span, -1, dtype=node.dtype)
        key = np.repeat(np.arange(len(node_ptr) - 1) * self._span, np.diff(node_ptr))
        key += names
        self._nodes[key[::-1]] = node[::-1]  # the first of a name is written last
        later = np.flatnonzero(self._nodes[key] != node)
        self._repeated = int(later[0]) if len(later) else None

    def find(self, graph: Int64, column: Column) -> Int64:
        numbers = _numbers(column)
        known = (numbers >= 0) & (numbers < self._span)
        return np.where(known, self._nodes[np.where(known, graph * self._span + numbers, 0)], -1)

    def repeated(self) -> int | None:
        return self._repeated


class _HashFinder:
    """Finder for any names: sorted hashes of graph and name give candidates, whose names are compared.

    NumPy compares texts up to a NUL; beyond, their hashes alone tell names apart.
    """

    def __init__(self, names: Names, node_ptr: Int64) -> None:
        self._names, self._node_ptr = names, node_ptr
        self._code_bits = np.uint64(63 - len(node_ptr).bit_length())
        key = np.empty(len(names), dtype=np.uint64)
        for first in range(0, len(names), _BLOCK):
            node = np.arange(first, min(first + _BLOCK, len(names)))
            key[node] = self._key(self._graph(node), self._encoded(_column(names, node))[1])
        self._order = np.argsort(key, kind="stable").astype(number_type(len(names)))
        key.sort()
        self._sorted = key

    def find(self, graph: Int64, column: Column) -> Int64:
        query, code = self._encoded(column)
        key = self._key(graph, code)
        found = np.full(len(query), -1, dtype=np.int64)
        order, place = np.argsort(key), np.empty(len(key), np.int64)
        place[order] = np.searchsorted(self._sorted, key[order])  # rising keys stay in the cache
        left = np.arange(len(query))
        while len(left):  # more than one iteration only if different names share a hash
            left = left[place[left] < len(self._sorted)]
            left = left[self._sorted[place[left]] == key[left]]
            node = self._order[place[left]]
            right = self._names[node] == (query if len(left) == len(query) else query[left])
            right &= self._graph(node) == graph[left]
            found[left[right]] = node[right]
            left = left[~right]
            place[left] += 1
        return found

    def repeated(self) -> int | None:
        suspects = np.sort(self._order[1:][self._sorted[1:] == self._sorted[:-1]])
        first = self.find(self._graph(suspects), _column(self._names, suspects))
        later = suspects[first != suspects]
        return int(later[0]) if len(later) else None

    def _graph(self, node: Int64) -> Int64:
        return np.searchsorted(self._node_ptr, node, side="right") - 1

    def _encoded(self, column: Column) -> tuple[Names, Int64]:
        """Return names in this finder's own form, and a number for each: the name itself or its hash."""
        if not _are_texts(self._names):
            numbers = _numbers(column)
            return numbers, numbers
        texts = _as_list(column)
        return _as_array(texts), np.fromiter(map(hash, texts), np.int64, len(texts))

    def _key(self, graph: Int64, code: Int64) -> NDArray[np.uint64]:
        """Return graph and name as one number; nearby graphs get nearby keys, which speeds up the search."""
        low = code.view(np.uint64) & ((np.uint64(1) << self._code_bits) - np.uint64(1))
        return graph.astype(np.uint64) << self._code_bits | low


def _numbers(column: Column) -> Int64:
    """Return names as whole numbers, -1 for any other text."""
    if not isinstance(column, list):
        return column
    numbers = whole_numbers(column)
    if numbers is not None:
        return numbers
    single = [whole_numbers([text]) for text in column]
    return np.array([-1 if number is None else int(number[0]) for number in single])


def _column(names: Names, picked: NDArray[np.integer[Any]]) -> Column:
    some = names[picked]
    return some.tolist() if _are_texts(some) else some
