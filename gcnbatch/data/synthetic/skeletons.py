"""Random molecule-like skeletons: trees with a few rings, at most four bonds per atom, valid bond orders.

A chunk of G graphs grows in padded tables of shape (G, max size): the loops run over node positions and ring attempts,
never over graphs. All random numbers come from one generator, so the seed determines the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64
from gcnbatch.data.sparse import row_pointer

SINGLE, DOUBLE, TRIPLE, AROMATIC = range(4)
MAX_DEGREE = 4
_WINDOW = 8  # a new atom binds to one of this many latest atoms, which makes molecules elongated
_ACCEPT = np.array([1.0, 1.0, 0.45, 0.12, 0.0])  # probability that an atom with this many bonds accepts another
_RINGS_PER_NODE = 0.6  # attempts; about one in four succeeds
_AROMATIC_SHARE = 0.75  # of six-rings
_DOUBLE_SHARE = 0.2  # of bonds outside aromatic rings
_TRIPLE_SHARE = 0.15  # of the double bonds whose atoms have a free valence


@dataclass(frozen=True)
class Skeletons:
    """G graphs without atom types.

    Parameters
    ----------
    node_ptr : int64, (G+1,)
    u, v : int64, (M,)
        Ends of each bond as node rows of the chunk (not of the graph), every bond once.
    kind : uint8, (M,)
        SINGLE, DOUBLE, TRIPLE or AROMATIC.
    slots : int64, (G, S)
        Node rows of the inserted atoms, in the order of `grow`; S = 0 without insertions.
    """

    node_ptr: Int64
    u: Int64
    v: Int64
    kind: NDArray[np.uint8]
    slots: Int64

    @property
    def n_nodes(self) -> int:
        """Number of nodes of all graphs."""
        return int(self.node_ptr[-1])

    def degree(self) -> Int64:
        """Bonds of each node, (N,)."""
        return np.bincount(np.concatenate([self.u, self.v]), minlength=self.n_nodes)


def grow(rng: np.random.Generator, sizes: Int64, insertions: tuple[int, ...] = ()) -> Skeletons:
    """Grow one skeleton per entry of `sizes`.

    Parameters
    ----------
    rng : Generator
    sizes : int64, (G,)
        Nodes of each graph, including inserted ones; at least ``sum(insertions) + len(insertions) + 1``.
    insertions : tuple of int
        Each entry k inserts a chain of k atoms into a bond of its own. Inserted atoms have two single bonds and are in
        no ring, so they differ only in their neighbours. They fill `Skeletons.slots` chain by chain.
    """
    base = sizes - sum(insertions)
    table = _Table(len(sizes), int(sizes.max(initial=1)))
    table.trees(rng, base)
    slots = table.insert(rng, base, insertions)
    table.rings(rng, base)
    return _flatten(rng, table, sizes, slots)


class _Table:
    """Padded tables of G growing graphs; column i of a row is node i, -1 means no partner."""

    def __init__(self, graphs: int, width: int) -> None:
        self.rows = np.arange(graphs)
        self.parent = np.full((graphs, width), -1, dtype=np.int64)
        self.ring = np.full((graphs, width), -1, dtype=np.int64)
        self.degree = np.zeros((graphs, width), dtype=np.int64)
        self.inserted = np.zeros((graphs, width), dtype=bool)
        self.aromatic = np.zeros((graphs, width), dtype=bool)  # the bond to the parent
        self.aromatic_ring = np.zeros((graphs, width), dtype=bool)  # the bond to the ring partner

    def trees(self, rng: np.random.Generator, sizes: Int64) -> None:
        """Bind each node to a recent one with a free bond, else to the newest one, which always has a free bond."""
        for node in range(1, int(sizes.max(initial=1))):
            back = (rng.random(len(sizes)) * min(node, _WINDOW)).astype(np.int64)
            target = node - 1 - back
            refused = rng.random(len(sizes)) >= _ACCEPT[self.degree[self.rows, target]]
            target[refused] = node - 1
            grown = self.rows[sizes > node]
            self.parent[grown, node] = target[grown]
            self.degree[grown, node] += 1
            self.degree[grown, target[grown]] += 1

    def insert(self, rng: np.random.Generator, base: Int64, insertions: tuple[int, ...]) -> Int64:
        """Insert chains into distinct random bonds to a parent; return the columns of the new nodes, (G, S)."""
        slots = np.empty((len(base), sum(insertions)), dtype=np.int64)
        if not insertions:
            return slots
        order = rng.random(self.parent.shape)
        order[self.parent < 0] = 2.0
        chosen = np.argsort(order, axis=1)[:, : len(insertions)]
        column = 0
        for place, length in enumerate(insertions):
            child = chosen[:, place]
            above = self.parent[self.rows, child]
            for _ in range(length):
                node = base + column
                self.parent[self.rows, node] = above
                self.degree[self.rows, node] = 2
                self.inserted[self.rows, node] = True
                slots[:, column] = above = node
                column += 1
            self.parent[self.rows, child] = above
        return slots

    def rings(self, rng: np.random.Generator, base: Int64) -> None:
        """Close rings of five or six atoms along paths to an ancestor, if both ends have a free bond."""
        wanted = rng.poisson(_RINGS_PER_NODE * base)
        for attempt in range(int(wanted.max(initial=0))):
            rows = self.rows[(wanted > attempt) & (base > 4)]
            start = (rng.random(len(rows)) * base[rows]).astype(np.int64)
            six = rng.random(len(rows)) < 0.7
            path = [start]
            for _ in range(5):
                path.append(np.where(path[-1] >= 0, self.parent[rows, path[-1]], -1))
            end = np.where(six, path[5], path[4])
            on_path = np.stack([*path[:5], np.where(six, path[5], path[4])])
            free = (self.degree[rows, start] < MAX_DEGREE - 1) & (self.degree[rows, end] < MAX_DEGREE - 1)
            good = (end >= 0) & (self.ring[rows, start] < 0) & free & ~self.inserted[rows, on_path].any(axis=0)
            aromatic = good & six & (rng.random(len(rows)) < _AROMATIC_SHARE)
            self.ring[rows[good], start[good]] = end[good]
            self.degree[rows[good], start[good]] += 1
            self.degree[rows[good], end[good]] += 1
            self.aromatic_ring[rows[aromatic], start[aromatic]] = True
            for step in path[:5]:
                self.aromatic[rows[aromatic], step[aromatic]] = True


def _flatten(rng: np.random.Generator, table: _Table, sizes: Int64, slots: Int64) -> Skeletons:
    """Convert the padded tables into flat arrays, with the nodes of each graph in random order."""
    node_ptr = row_pointer(sizes)
    graph = np.repeat(np.arange(len(sizes)), sizes)
    row = np.empty(node_ptr[-1], dtype=np.int64)
    row[np.argsort(graph + rng.random(len(graph)))] = np.arange(len(graph))  # old flat number -> new node row

    def partners(partner: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        g, i = np.nonzero(partner >= 0)
        return row[node_ptr[g] + i], row[node_ptr[g] + partner[g, i]], g, i

    u, v, g, i = partners(table.parent)
    ring_u, ring_v, ring_g, ring_i = partners(table.ring)
    kind = np.where(table.aromatic[g, i], AROMATIC, SINGLE).astype(np.uint8)
    ring_kind = np.where(table.aromatic_ring[ring_g, ring_i], AROMATIC, SINGLE).astype(np.uint8)
    inserted = np.zeros(node_ptr[-1], dtype=bool)
    new_slots = row[node_ptr[:-1, None] + slots]
    inserted[new_slots] = True
    skeletons = Skeletons(
        node_ptr,
        np.concatenate([u, ring_u]),
        np.concatenate([v, ring_v]),
        np.concatenate([kind, ring_kind]),
        new_slots,
    )
    _raise_orders(rng, skeletons, inserted)
    return skeletons


def _raise_orders(rng: np.random.Generator, skeletons: Skeletons, inserted: NDArray[np.bool_]) -> None:
    """Make some single bonds double or triple: at most one per atom, none at aromatic, inserted or crowded atoms."""
    u, v, kind = skeletons.u, skeletons.v, skeletons.kind
    degree = skeletons.degree()
    closed = inserted | (degree >= MAX_DEGREE)
    closed[u[kind == AROMATIC]] = True
    closed[v[kind == AROMATIC]] = True
    draw = rng.random(len(u))
    wanted = np.flatnonzero((draw < _DOUBLE_SHARE) & ~closed[u] & ~closed[v])
    first = np.full(skeletons.n_nodes, len(u))
    np.minimum.at(first, u[wanted], wanted)
    np.minimum.at(first, v[wanted], wanted)
    wanted = wanted[(first[u[wanted]] == wanted) & (first[v[wanted]] == wanted)]
    kind[wanted] = DOUBLE
    room = (degree[u[wanted]] <= 2) & (degree[v[wanted]] <= 2) & (draw[wanted] < _DOUBLE_SHARE * _TRIPLE_SHARE)
    kind[wanted[room]] = TRIPLE
