"""Plans of epochs in tiles of rows: which graph goes to which tile, each tile with whole graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gcnbatch.backends.cuda.batches.batch import Int32, Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.fp16.geometry import TILE_ROWS
from gcnbatch.backends.cuda.runtime.launch import ceil_div

AIMED_ROWS = 128  # of a tile, on average, while there are tiles
SINGLE_ROUNDS = 1  # of the smallest graphs, each of which goes to the emptiest tile


@dataclass(frozen=True)
class TiledPlan(EpochPlan):
    """The batches of an epoch, graphs in the order of their tiles.

    Worked example, one batch of graphs with 100, 90, 40 and 30 nodes in two tiles, the first with graphs 0 and 2::

        graphs = [0, 2, 1, 3]     pointers["nodes"] = [0, 100, 144, 234, 260]     tile_starts = [[0, 2, 4]]

    `pointers["nodes"]` has each graph's first row, with 144 rows to a tile, and then the batch's number of nodes.

    Parameters
    ----------
    tile_starts : int32, (n, tiles + 1)
        First graph of every tile of a batch; of those that it does not use, its number of graphs.
    tile_counts : int32, (n,)
        Tiles of a batch.
    """

    tile_starts: Int32
    tile_counts: Int32

    @property
    def tables(self) -> dict[str, Int32]:
        return {"tile_starts": self.tile_starts.ravel(), "tile_counts": self.tile_counts}

    def in_tiles(self, tiles: int) -> TiledPlan:
        """Return the same plan for arrays of more tiles."""
        more = ((0, 0), (0, tiles + 1 - self.tile_starts.shape[1]))
        return replace(self, tile_starts=np.pad(self.tile_starts, more, mode="edge"))


def tiles_of(nodes: int, limit: int) -> int:
    """Return the number of tiles for batches of up to so many nodes.

    >>> tiles_of(1600, 15), tiles_of(2130, 15), tiles_of(0, 15)
    (13, 15, 1)
    """
    return max(min(ceil_div(nodes, AIMED_ROWS), limit), 1)


def plan_tiles(batches: Sequence[Int64], sizes: Mapping[str, Int64], tiles: int) -> TiledPlan | None:
    """Return the plan of these batches in at most `tiles` tiles each, or None if a batch does not fit.

    Graphs are dealt largest first, in rounds that alternate in direction; the last ones go to the emptiest tile. So
    tiles have similar numbers of rows and graphs. A batch that overflows a tile is dealt again, each graph to the first
    tile with room.

    Parameters
    ----------
    sizes : dict of int64, (G + 1,)
        Numbers of nodes, edges and the like of each graph of the set, and 0 at the end; each graph fits a tile.
    """
    counts = np.array([len(graphs) for graphs in batches])
    n, most = len(batches), int(counts.max())
    is_there = np.arange(most) < counts[:, None]
    padding = len(sizes["nodes"]) - 1
    graphs = np.full((n, most), padding)
    graphs[is_there] = np.concatenate(batches)
    nodes = sizes["nodes"][graphs]
    fullest = int(nodes.sum(axis=1).max())
    if fullest > tiles * TILE_ROWS:
        return None
    rows = np.arange(n)[:, None]
    order = _sorted(TILE_ROWS - nodes)  # padding comes last
    graphs, nodes = graphs.ravel()[order], nodes.ravel()[order]
    at_least_one = np.maximum(nodes, is_there)  # so a tile has at most as many graphs as rows
    tile = _dealt(at_least_one, tiles_of(fullest, tiles), tiles)
    if tile is None:
        return None
    order = _sorted(np.where(is_there, tile, tiles))
    graphs, own = graphs.ravel()[order], (tile + tiles * rows).ravel()[order]
    starts = np.zeros((n, tiles + 1), np.int64)
    np.cumsum(np.bincount(own[is_there], minlength=tiles * n).reshape(n, tiles), axis=1, out=starts[:, 1:])
    ends = {name: _sums(size[graphs]) for name, size in sizes.items()}
    of_tile = TILE_ROWS * np.arange(tiles) - ends["nodes"].ravel()[starts[:, :-1] + (most + 1) * rows]
    ends["nodes"][:, :-1] += np.where(is_there, of_tile.ravel()[own], 0)
    with_total = np.arange(most + 1) <= counts[:, None]
    pointers = {name: pointer[with_total].astype(np.int32) for name, pointer in ends.items()}
    batch_ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    used = np.where(is_there, tile, 0).max(axis=1) + 1
    tables = (starts.astype(np.int32), used.astype(np.int32))
    return TiledPlan(graphs[is_there].astype(np.int32), batch_ptr, pointers, *tables)


def _sorted(keys: Int64) -> Int64:
    """Return the flat indices that sort each row of keys, all below 256; stable."""
    found = np.argsort(keys.astype(np.uint8), axis=1, kind="stable")
    found += keys.shape[1] * np.arange(len(keys))[:, None]
    return found


def _sums(sizes: Int64) -> Int64:
    """Return the exclusive prefix sums of each row, and its total at the end."""
    found = np.zeros((sizes.shape[0], sizes.shape[1] + 1), np.int64)
    np.cumsum(sizes, axis=1, out=found[:, 1:])
    return found


def _dealt(sizes: Int64, aimed: int, tiles: int) -> Int64 | None:
    """Return the tile of each graph of each batch, (batches, graphs), or None if a tile must overflow.

    Parameters
    ----------
    sizes : (batches, graphs)
        Nodes, largest first.
    aimed, tiles : int
        Tiles of a batch: as few as this, if they suffice, and the most there may be.
    """
    found, loads = _dealt_evenly(sizes, aimed)
    over = np.flatnonzero(loads.max(axis=1, initial=0) > TILE_ROWS)
    if len(over):
        found[over], loads = _dealt_tightly(sizes[over], tiles)
        if loads.max() > TILE_ROWS:
            return None
    return found


def _dealt_evenly(sizes: Int64, tiles: int) -> tuple[Int64, Int64]:
    """Return the tile of each graph and the nodes of each tile: round after round, largest graphs first."""
    n, most = sizes.shape
    rounds = max(most // tiles - SINGLE_ROUNDS, 0)
    there_and_back = np.concatenate([np.arange(tiles), np.arange(tiles)[::-1]])
    found = np.empty((n, most), np.int64)
    found[:, : rounds * tiles] = np.resize(there_and_back, rounds * tiles)
    dealt = sizes[:, : rounds * tiles].reshape(n, rounds, tiles)
    loads = dealt[:, ::2].sum(axis=1) + dealt[:, 1::2, ::-1].sum(axis=1)
    flat, first = loads.ravel(), tiles * np.arange(n)
    for place in range(rounds * tiles, most):
        found[:, place] = loads.argmin(axis=1)
        flat[first + found[:, place]] += sizes[:, place]
    return found, loads


def _dealt_tightly(sizes: Int64, tiles: int) -> tuple[Int64, Int64]:
    """Return the same, each graph in the first tile with room; where there is none, the first tile overflows."""
    n, most = sizes.shape
    found, loads = np.empty((n, most), np.int64), np.zeros((n, tiles), np.int64)
    flat, first = loads.ravel(), tiles * np.arange(n)
    for place in range(most):
        size = sizes[:, place, None]
        found[:, place] = (loads <= TILE_ROWS - size).argmax(axis=1)
        flat[first + found[:, place]] += size[:, 0]
    return found, loads
