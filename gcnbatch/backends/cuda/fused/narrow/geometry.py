"""Launch geometry of the narrow kernels (``cuda_src/fused/narrow``): pure arithmetic, tested without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.shared import geometry as shared
from gcnbatch.backends.cuda.fused.shared.geometry import GROUP, THREADS, TILE, UPDATE_THREADS, columns_of
from gcnbatch.backends.cuda.runtime.launch import FLOAT_BYTES, Launch, ceil_div
from gcnbatch.backends.cuda.runtime.sources import declared

PARTIAL_FLOATS, LANES = (declared("fused/narrow/tile.cuh").constant(name) for name in ("PARTIAL_FLOATS", "LANES"))
WARPS = THREADS // 32
FORWARD_CHUNK = declared("fused/narrow/forward.cuh").constant("FORWARD_CHUNK")
MOST_OUTPUTS = declared("fused/narrow/readout.cuh").constant("MOST_OUTPUTS")
_HIDDEN = declared("fused/narrow/readout_hidden.cuh")
HIDDEN_COLUMNS, HIDDEN_FLOATS = (_HIDDEN.constant(name) for name in ("HIDDEN_COLUMNS", "HIDDEN_FLOATS"))
_OF_WARPS = declared("fused/narrow/warps_dw.cuh")  # and of fused/narrow/warps.cuh
COLUMNS_OF_WARPS, TRANSPOSED_STRIDE, U_STRIDE = (
    _OF_WARPS.constant(name) for name in ("COLUMNS_OF_WARPS", "TRANSPOSED_STRIDE", "U_STRIDE")
)
ENTRIES_OF_WARPS, DW_FLOATS, SCRATCH_FLOATS, SPLIT_FLOATS = (
    _OF_WARPS.constant(name) for name in ("ENTRIES_OF_WARPS", "DW_FLOATS", "SCRATCH_FLOATS", "SPLIT_FLOATS")
)
_CHANNELS = declared("fused/narrow/channels_weights.cuh")  # and of fused/narrow/channels.cuh
CHANNEL_COLUMNS, CHANNEL_ROWS, CHANNEL_SPLITS, ROW_FLOATS, MOST_CHANNELS = (
    _CHANNELS.constant(name)
    for name in ("CHANNEL_COLUMNS", "CHANNEL_ROWS", "CHANNEL_SPLITS", "ROW_FLOATS", "MOST_CHANNELS")
)
SLAB_FLOATS, TILE_FLOATS, ENTRY_FLOATS = (
    _CHANNELS.constant(name) for name in ("SLAB_FLOATS", "TILE_FLOATS", "ENTRY_FLOATS")
)
FLOATS_OF_PAIRS = {  # by the blocks that share the columns of a tile
    CHANNEL_SPLITS: _CHANNELS.constant("SPLIT_FLOATS_OF_PAIRS"),
    1: _CHANNELS.constant("WHOLE_FLOATS_OF_PAIRS"),
}
CHANNELS_BLOCKS = _CHANNELS.constant("CHANNELS_BLOCKS")
MOST_OF_WARPS = _OF_WARPS.constant("MOST_OF_WARPS")
OF_GRAPHS = 0  # `unit` of a Job with one partial sum per graph instead of one per tile of rows
SPECIALISED_COLUMNS = 64  # columns of the layers with specialised kernels
FEW_BLOCKS = 8  # of a member that share its tiles at least: more waves of blocks, but all end at nearly the same time
DW_SHARE = 0.4  # of a member's blocks that compute the gradient of the weights: a tile takes them about half the time
MOST_SPLITS = 4  # blocks that share the columns of a sum of a weight gradient
MANY_MEMBERS = 4  # from so many on, a thread of the update has four elements
MANY_PARAMETERS = 32_768  # … and from so many on, for any number of members: fewer waves of blocks
PASSES = 2  # of a block of the update over its elements, in a cohort of models with many parameters
WAVES_OF_SUMS = 3  # of blocks that add ranges of the sums of a weight gradient: these take very different times
SHARED_UNIT = 128  # bytes in which shared memory is allocated
MANY_SUMS = 4  # from so many members on, a block adds partial sums of weight gradients as the update would
MANY_GRAPHS = 5  # from so many members on, a warp has a whole graph in the readout
BRANCHES = 4  # groups of members that have launches of their own, from so many members on
MANY_NUMBERS = 2048  # of a graph to stage on average, from which it has a block in cohorts, too
MANY_TILES = 4  # from so many members on, few warps have a whole tile (cuda_src/fused/narrow/warps.cuh)


class Dealt(NamedTuple):
    """How the tiles of a batch are dealt to partial sums, and these to blocks.

    Partial sums decide the bits of results: they depend on the batch alone. Blocks do not: they follow from how many
    members share the device.

    Parameters
    ----------
    parts : int
        Partial sums of columns: one per tile, at most one per multiprocessor.
    dw_sums : int
        Partial sums of a weight gradient: as many, or LANES, in which a block adds what the update would add.
    """

    parts: int
    dw_sums: int

    def forward_blocks(self, members: int, multiprocessors: int) -> int:
        """Return the blocks of a member in the forward pass."""
        at_once = multiprocessors // members
        return (
            min(self.parts, FEW_BLOCKS) if at_once < FEW_BLOCKS else shared.blocks(self.parts, members, multiprocessors)
        )

    def backward_blocks(self, is_first: bool, members: int, multiprocessors: int) -> tuple[int, int]:
        """Return the blocks of a member for the gradient of the previous layer, and for that of the weights."""
        if members == 1:
            return (0 if is_first else self.parts), self.dw_sums
        at_once = max(multiprocessors // members, FEW_BLOCKS)
        if is_first:
            return 0, min(self.dw_sums, at_once)
        dw = min(self.dw_sums, max(1, int(DW_SHARE * at_once)))
        return min(self.parts, at_once - dw), dw

    def blocks_of_warps(self, members: int, multiprocessors: int) -> int:
        """Return the blocks of a member in which few warps have a tile: one wave."""
        return min(self.parts, max(1, multiprocessors // members))

    def backward_blocks_of_warps(self, is_first: bool, members: int, multiprocessors: int) -> tuple[int, int]:
        """Return the same for the gradient of the previous layer, and for that of the weights: a wave, or one each.

        Up to MOST_SPLITS blocks share the columns of a sum of the weights' gradient.
        """
        at_once = self.blocks_of_warps(members, multiprocessors)
        for splits in (MOST_SPLITS, 2, 1):
            dw = splits * self.dw_sums
            if at_once >= (dw if is_first else 2 * dw):
                return (0 if is_first else at_once - dw), dw
        return (0 if is_first else at_once), min(self.dw_sums, at_once)


def dealt(rows: int, members: int, multiprocessors: int) -> Dealt:
    """Return how the tiles of up to `rows` rows are dealt for a cohort of `members`."""
    parts = max(1, min(ceil_div(rows, TILE), multiprocessors))
    return Dealt(parts, parts if members < MANY_SUMS else min(LANES, parts))


def forward(blocks: int, n_in: int, n_out: int, k: int) -> Launch:
    """Return the launch of `fused_narrow_forward`."""
    floats = TILE * (k + 4) + PARTIAL_FLOATS + 2 * columns_of(n_out) + 4 * columns_of(n_in)
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def backward(dx_blocks: int, dw_blocks: int, n_in: int, channels: int, n_out: int, k: int) -> Launch:
    """Return the launch of `fused_narrow_backward`; the first layer has `dx_blocks` 0 and `n_in` 0."""
    fixed = PARTIAL_FLOATS + 6 * columns_of(n_out) + 6 * columns_of(n_in)
    dx = TILE * (channels * columns_of(n_out) + 4) if dx_blocks else 0
    dw = TILE * (k + 4 + columns_of(n_out) + 4)
    return Launch((dx_blocks + dw_blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * (fixed + max(dx, dw)))


def channel_splits(channels: int, members: int, limit: int) -> int:
    """Return how many blocks share the columns of a tile: none in cohorts, if the weights fit `limit` bytes.

    >>> [channel_splits(9, members, 227 * 1024) for members in (1, 4)], channel_splits(12, 4, 227 * 1024)
    ([4, 1], 4)
    """
    needed = max(launch(1, channels, 1).shared for launch in CHANNEL_LAUNCHES.values())
    return 1 if members >= MANY_TILES and needed <= limit else CHANNEL_SPLITS


def channel_blocks(rows: int, splits: int, members: int, multiprocessors: int) -> int:
    """Return the blocks of a member in kernels of layers with channels: one wave.

    >>> [channel_blocks(1133, 4, 1, 132), *(channel_blocks(1133, 1, members, 132) for members in (4, 16, 64))]
    [144, 18, 8, 2]
    """
    tiles, slots = max(1, ceil_div(rows, CHANNEL_ROWS)), multiprocessors * (CHANNELS_BLOCKS if splits > 1 else 1)
    return splits * shared.blocks(tiles, splits * members, slots)


def spread(launch: Launch, members: int, multiprocessors: int, limit: int) -> Launch:
    """Return the launch with shared memory for one block a multiprocessor, if there are as many multiprocessors.

    Blocks start while those of the previous kernel run: else two may share a multiprocessor while others become idle.

    >>> [spread(channels_weights(13), members, 132, 227 * 1024).shared for members in (1, 2)]
    [115840, 99392]
    """
    if launch.blocks * members > multiprocessors:
        return launch
    return replace(launch, shared=max(launch.shared, (limit - shared.RESERVED) // 2 + SHARED_UNIT))


def channels_first(blocks: int, k: int) -> Launch:
    """Return the launch of `fused_narrow_channels_first`; `blocks` are those with tiles, and those with features."""
    floats = max(k * CHANNEL_COLUMNS + TILE * (k + 4) + PARTIAL_FLOATS, shared.JOIN_FLOATS)
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def channels_first_blocks(rows: int, members: int, multiprocessors: int) -> int:
    """Return its blocks of a member that have tiles.

    >>> [channels_first_blocks(1133, members, 132) for members in (1, 16, 64)]
    [71, 15, 4]
    """
    return shared.blocks(max(1, ceil_div(rows, TILE)), members, CHANNELS_BLOCKS * multiprocessors)


def channels_forward(blocks: int, channels: int, splits: int) -> Launch:
    """Return the launch of `fused_narrow_channels_forward`, or `…_whole` where one block has all columns of a tile."""
    weights = channels * (CHANNEL_COLUMNS + 1) * CHANNEL_COLUMNS // splits
    entries = ENTRY_FLOATS + 2 * CHANNEL_ROWS * channels + 1  # with starts, and row sums
    floats = weights + 4 * CHANNEL_COLUMNS + TILE_FLOATS + FLOATS_OF_PAIRS[splits] + entries
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def channels_backward(blocks: int, channels: int, splits: int) -> Launch:
    """Return the launch of `fused_narrow_channels_backward`, or `…_whole`."""
    weights = channels * CHANNEL_COLUMNS // splits * ROW_FLOATS
    entries = ENTRY_FLOATS + CHANNEL_ROWS * channels + 1
    floats = weights + 10 * CHANNEL_COLUMNS + TILE_FLOATS + FLOATS_OF_PAIRS[splits] + entries
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


CHANNEL_LAUNCHES = {"forward": channels_forward, "backward": channels_backward}
SHARES = {CHANNEL_SPLITS: "", 1: "_whole"}  # suffixes of these kernels, by the blocks that share a tile


def channels_weights(slabs: int, of_block: int = 1) -> Launch:
    """Return the launch of `fused_narrow_channels_weights`, in which a block has `of_block` ranges of nodes."""
    return Launch((LANES // of_block * slabs, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * SLAB_FLOATS)


def ranges_of_block(slabs: int, members: int, multiprocessors: int) -> int:
    """Return how many ranges of nodes a block of this launch has: two where these are WAVES_OF_SUMS waves of blocks.

    >>> [ranges_of_block(13, members, 132) for members in (1, 4, 16, 64)]
    [1, 1, 2, 2]
    """
    return 2 if LANES // 2 * slabs * members >= WAVES_OF_SUMS * CHANNELS_BLOCKS * multiprocessors else 1


def residual(blocks: int, n_out: int) -> Launch:
    """Return the launch of `fused_narrow_residual_forward` or `…_backward`."""
    floats = shared.REDUCTION_FLOATS + 8 * columns_of(n_out)
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def branches(members: int) -> int:
    """Return in how many groups members have launches of their own: one group fills what another leaves idle.

    >>> [branches(members) for members in (1, 3, 4, 64)]
    [1, 1, 4, 4]
    """
    return BRANCHES if members >= BRANCHES else 1


def warps_of_tile(tiles: int, blocks: int) -> int:
    """Return the warps of the largest teams of which `blocks` blocks have one for each of their tiles.

    >>> [warps_of_tile(60, blocks) for blocks in (33, 8, 2)]
    [4, 2, 1]
    """
    of_block = ceil_div(tiles, blocks)
    return 4 if of_block <= WARPS // 4 else 2 if of_block <= WARPS // 2 else 1


def sums_of_block(sums: int, blocks: int) -> int:
    """Return how many groups of warps a block has for its share of the sums of a weight gradient: 1, 2 or 4."""
    of_block = ceil_div(sums, blocks)
    return of_block if of_block <= 2 else 4


def forward_of_warps(blocks: int, k: int, warps: int) -> Launch:
    """Return the launch of `fused_narrow_forward_64x1_warps…`, or that of the first layer."""
    floats = k * GROUP + COLUMNS_OF_WARPS + WARPS // warps * TILE * U_STRIDE + ENTRIES_OF_WARPS
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def backward_of_warps(dx_blocks: int, dw_blocks: int, warps: int, dw_sums: int) -> Launch:
    """Return the launch of `fused_narrow_backward_64x1_warps…`; that of the first layer has `dx_blocks` 0."""
    dx = GROUP * TRANSPOSED_STRIDE + COLUMNS_OF_WARPS + WARPS // warps * TILE * (GROUP + 4) + ENTRIES_OF_WARPS
    dw = 6 * GROUP + DW_FLOATS + (SPLIT_FLOATS if dw_blocks > dw_sums else SCRATCH_FLOATS)
    floats = max(dx, dw) if dx_blocks else dw
    return Launch((dx_blocks + dw_blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def specialised_readout(blocks: int) -> Launch:
    """Return the launch of `fused_narrow_readout_64x1`; its shared memory is static."""
    return Launch((blocks, 1, 1), (THREADS, 1, 1))


def readout_of_warps(graphs: int, members: int, multiprocessors: int) -> Launch:
    """Return the launch of `fused_narrow_readout_64x1_warps`, in which a warp has a graph: one wave.

    The second block of a multiprocessor is of use only to members with more graphs than warps.

    >>> [readout_of_warps(50, members, 132).blocks for members in (8, 16, 64)]
    [16, 8, 4]
    """
    at_once = multiprocessors // members
    more = min(shared.READOUT_BLOCKS * multiprocessors // members, ceil_div(graphs, WARPS))
    return specialised_readout(min(graphs, max(1, at_once, more)))


def chunks(
    jobs: Sequence[Mapping[str, Any]], widest: int, shares_launches: bool = False, is_large: bool = False
) -> NDArray[Any]:
    """Return an UpdateChunk (fused/narrow/update.cuh) for each block of the update: (chunks,).

    A thread has up to `widest` neighbouring elements, 1 or 4: 4 where all elements of a job are in groups of four. In a
    cohort (`shares_launches`), or with many parameters (`is_large`), it also adds their partial sums alone, where there
    are at most LANES. With many parameters it adds the products of all graphs alone: that order decides bits, so the
    members may not; and in a cohort a block has PASSES times as many elements as its threads have at once.
    """
    found = list[dict[str, int]]()
    for number, job in enumerate(jobs):
        is_even = all(job[name] % 4 == 0 for name in ("start", "count", "P", "columns", "packed_columns"))
        width = widest if is_even and job["step"] == 1 and job["right_stride"] % 4 == 0 else 1
        is_short = (shares_launches or is_large) and job["parts"] <= LANES and job["unit"] != OF_GRAPHS
        lanes = 1 if width == 4 and (is_short or (is_large and job["left"] is not None)) else LANES
        passes = PASSES if shares_launches and is_large and lanes == 1 else 1
        firsts = range(0, job["count"], UPDATE_THREADS // lanes * width * passes)
        chunk = {"job": number, "width": width, "lanes": lanes, "passes": passes}
        found += [chunk | {"first": first} for first in firsts]
    found.sort(key=lambda chunk: chunk["lanes"] > 1 or jobs[chunk["job"]]["left"] is None)  # those that need not wait
    return declared("fused/narrow/update.cuh").layout("UpdateChunk").pack_many(found)
