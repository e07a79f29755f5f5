"""Graphs with a known cause: a label that is 1 where a motif is planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet
from tests.builders import build_graphset

KINDS = 6
MOTIF = (0, 1, 2)  # kinds of three nodes in a row; the others have all kinds, too


def planted(count: int, seed: int = 0) -> tuple[GraphSet, NDArray[np.bool_]]:
    """Return random trees of 9 to 15 nodes, and which nodes belong to a motif.

    Every other tree has the motif, a row of nodes of the kinds 0-1-2; then its label is 1. No other tree has one, but
    each has nodes of these kinds.
    """
    rng = np.random.default_rng(seed)
    trees = [_tree(rng, int(rng.integers(9, 16)), number % 2 == 0) for number in range(count)]
    sizes = np.array([len(kinds) for kinds, _ in trees])
    node_ptr = np.concatenate([[0], np.cumsum(sizes)])
    edges = [
        np.concatenate([ends, ends[::-1], np.tile(np.arange(len(kinds)), (2, 1))], axis=1) for kinds, ends in trees
    ]
    src, dst = np.concatenate(edges, axis=1).astype(np.int32)
    counts = [own.shape[1] for own in edges]
    empty = build_graphset(count, n_tasks=1, n_channels=2, n_features=KINDS)
    graphs = replace(
        empty,
        node_ptr=node_ptr,
        edge_ptr=np.concatenate([[0], np.cumsum(counts)]),
        src=src,
        dst=dst,
        channel=(src == dst).astype(np.uint8),
        x=np.eye(KINDS, dtype=np.uint8)[np.concatenate([kinds for kinds, _ in trees])],
        y=(np.arange(count) % 2 == 0).astype(np.float32)[:, None],
    )
    first_three = np.arange(node_ptr[-1]) - np.repeat(node_ptr[:-1], sizes) < len(MOTIF)
    return graphs, first_three & (np.repeat(np.arange(count), sizes) % 2 == 0)


def _tree(rng: np.random.Generator, size: int, with_motif: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the kinds of a tree's nodes, and its edges (2, size - 1); a motif is its first three nodes."""
    while True:
        kinds = rng.integers(0, KINDS, size)
        parents = np.array([rng.integers(0, child) for child in range(1, size)])
        if with_motif:
            kinds[:3], parents[:2] = MOTIF, (0, 1)
        if _motifs(kinds, parents) == with_motif:
            return kinds, np.stack([parents, np.arange(1, size)])


def _motifs(kinds: NDArray[np.int64], parents: NDArray[np.int64]) -> int:
    """Return the number of nodes of the middle kind with neighbours of both other kinds, counting every pair."""
    near = np.zeros((len(kinds), KINDS), dtype=int)
    for child, parent in enumerate(parents, 1):
        near[child, kinds[parent]] += 1
        near[parent, kinds[child]] += 1
    left, middle, right = MOTIF
    return int((near[:, left] * near[:, right])[kinds == middle].sum())
