"""Geometry of the sparse kernels and of the batch gather: pure arithmetic, tested without a GPU.

Dimensions: B graphs in a batch, P columns of the dense operand (the papers' nB). A matrix of the block-diagonal batch
has N rows forward and N*C transposed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gcnbatch.backends.cuda.runtime.launch import (
    BLOCK_THREADS,
    MAX_GRID_X,
    MAX_GRID_YZ,
    WARP_BITS,
    Launch,
    ceil_div,
    elementwise,
    log2,
    next_power_of_two,
)
from gcnbatch.backends.cuda.runtime.sources import declared

WARP = 1 << WARP_BITS
NEIGHBOURS: int = declared("common/graph_view.cuh").constant("NEIGHBOURS")  # entries that a thread has in flight
MAX_PASSES = 16
BLOCKS_PER_MULTIPROCESSOR = 48  # a larger grid is replaced by blocks that work on several groups of rows
CHUNKED_BLOCKS = 8  # with more blocks than this per multiprocessor, a thread works on several blocks of columns
COLUMN_THREADS: int = declared("dense/sparse_matmul.cu").constant("COLUMN_THREADS")

SWA_SHARED_BYTES = 32 * 1024
SWA_COO_THREADS: int = declared("spmm/coo.cu").constant("SWA_COO_THREADS")


class RowsGeometry(NamedTuple):
    """Geometry of `sparse_rows_product`: 2^lane_bits threads over columns, 2^group_bits over entries.

    A thread works on `passes` rows, and on `chunks` blocks of columns of each.
    """

    launch: Launch
    lane_bits: int
    group_bits: int
    passes: int
    chunks: int

    def shares(self) -> dict[str, int]:
        """Return the kernel's arguments."""
        return {
            "lane_bits": self.lane_bits,
            "group_bits": self.group_bits,
            "passes": self.passes,
            "chunks": self.chunks,
        }


class SwaCooGeometry(NamedTuple):
    """Geometry of SWA SpMM for SparseTensor. `case` as in the paper; case 3 has no shared memory and no partitions."""

    case: int
    launch: Launch
    column_block: int
    partition_bits: int
    sub_bits: int


class SwaCsrGeometry(NamedTuple):
    """Geometry of SWA SpMM for CSR."""

    launch: Launch
    column_block: int
    sub_bits: int
    blocks_per_graph: int


def vector_bits(width: int, vector: int) -> int:
    """Return log2 of the threads that share a row's columns: one per vector of `vector` floats, at most a warp."""
    return min(log2(next_power_of_two(ceil_div(width, vector))), WARP_BITS)


def sharing_bits(n_rows: int, n_entries: int, lane_bits: int) -> int:
    """Return log2 of the groups of a warp that share a row's entries in `sparse_rows`; 0 if rows have few entries."""
    shares = n_entries // (max(n_rows, 1) * NEIGHBOURS)
    return min(WARP_BITS - lane_bits, max(shares.bit_length() - 1, 0))


@lru_cache(maxsize=4096)
def sparse_rows(n_rows: int, n_entries: int, width: int, vector: int, multiprocessors: int) -> RowsGeometry:
    """Return the geometry of `spmm_csr_*` and `sparse_matmul_forward_*`.

    At narrow widths, several groups of threads share the entries of a row, if each gets at least `NEIGHBOURS` of them.
    In large grids, a block works on several consecutive rows, whose neighbours it finds in L1.

    >>> sparse_rows(5000, 15000, 64, 4, 132).launch.grid
    (313, 1, 1)
    """
    lane_bits = vector_bits(width, vector)
    group_bits = sharing_bits(n_rows, n_entries, lane_bits)
    rows_per_pass = BLOCK_THREADS >> (lane_bits + group_bits)
    column_blocks = ceil_div(width, vector << lane_bits)
    row_blocks = ceil_div(n_rows, rows_per_pass)
    chunks = min(max(row_blocks * column_blocks // (CHUNKED_BLOCKS * multiprocessors), 1), column_blocks)
    chunks = ceil_div(column_blocks, ceil_div(column_blocks, chunks))  # the same number for every block
    column_blocks = ceil_div(column_blocks, chunks)
    blocks = row_blocks * column_blocks
    narrow = column_blocks * chunks == 1
    passes = min(max(blocks // (BLOCKS_PER_MULTIPROCESSOR * multiprocessors), 1), MAX_PASSES if narrow else 1)
    launch = Launch((ceil_div(n_rows, rows_per_pass * passes), column_blocks, 1), (BLOCK_THREADS, 1, 1))
    return RowsGeometry(launch, lane_bits, group_bits, passes, chunks)


@lru_cache(maxsize=4096)
def short_rows(
    n_rows: int, width: int, vector: int, vectors: int, lanes: int, threads: int
) -> tuple[Launch, int] | None:
    """Return the launch of `spmm_rows_*` and its lane_bits, or None if these kernels do not support the size.

    Parameters
    ----------
    vector : {1, 4}
        Floats per vector.
    vectors : int
        Vectors per thread; if more than one, they must divide the row evenly among at least 4 lanes.
    lanes : int
        Largest number of threads per row; a power of two.
    threads : int
        Threads per block.

    >>> short_rows(5000, 64, 4, 2, 32, 256)
    (Launch(grid=(157, 1, 1), block=(256, 1, 1), shared=0), 3)
    """
    in_row = ceil_div(width, vector)
    whole = next_power_of_two(in_row) if vectors == 1 else (in_row & -in_row) // vectors
    lane_bits = min(whole, lanes).bit_length() - 1
    if vectors > 1 and lane_bits < 2:
        return None
    columns = ceil_div(in_row, vectors << lane_bits)
    if columns > MAX_GRID_YZ or n_rows << lane_bits > 2**32 - threads:
        return None
    return Launch((ceil_div(n_rows << lane_bits, threads), columns, 1), (threads, 1, 1)), lane_bits


def sparse_columns(n_columns: int, width: int, vector: int) -> tuple[Launch, int]:
    """Return the launch of `sparse_matmul_backward_*`, a block per column of X, and its lane_bits."""
    lane_bits = vector_bits(width, vector)
    return Launch((n_columns, ceil_div(width, vector << lane_bits), 1), (COLUMN_THREADS, 1, 1)), lane_bits


def sampled_products(n_entries: int, width: int, vector: int) -> tuple[Launch, int]:
    """Return the launch of `sddmm_*`, a group of lanes per entry, and its lane_bits.

    >>> sampled_products(2000, 64, 4)
    (Launch(grid=(125, 1, 1), block=(256, 1, 1), shared=0), 4)
    """
    lane_bits = vector_bits(width, vector)
    return Launch((ceil_div(n_entries, BLOCK_THREADS >> lane_bits), 1, 1), (BLOCK_THREADS, 1, 1)), lane_bits


def sub_warp_bits(width: int) -> int:
    """Return log2 of the papers' sub-warp: 32 threads for width > 16, else the smallest power of two that holds it."""
    return WARP_BITS if width > 16 else log2(next_power_of_two(width))


@lru_cache(maxsize=4096)
def swa_coo(n_graphs: int, max_rows: int, n_entries: int, width: int) -> SwaCooGeometry:
    """Return the geometry of SWA SpMM for SparseTensor, chosen as in the paper for the whole batch.

    Case 1: the largest output, max_rows * width * 4 bytes, fits in 32 KB; one block per matrix. Case 2: the columns are
    split into 2^partition_bits parts that fit; one block per matrix and part. Case 3: not even one column fits (more
    than 8,192 rows); one sub-warp per entry on global memory.

    >>> swa_coo(100, 50, 15000, 64)[0::2], swa_coo(100, 256, 77000, 64).launch.grid
    ((1, 64, 5), (200, 1, 1))
    """
    sub_bits = sub_warp_bits(width)
    if max_rows * 4 > SWA_SHARED_BYTES:
        blocks = ceil_div(n_entries << sub_bits, BLOCK_THREADS)
        return SwaCooGeometry(3, Launch((blocks, 1, 1), (BLOCK_THREADS, 1, 1)), width, 0, sub_bits)
    partition_bits = 0
    while max_rows * ceil_div(width, 1 << partition_bits) * 4 > SWA_SHARED_BYTES:
        partition_bits += 1
    column_block = ceil_div(width, 1 << partition_bits)
    launch = Launch((n_graphs << partition_bits, 1, 1), (SWA_COO_THREADS, 1, 1), max_rows * column_block * 4)
    return SwaCooGeometry(2 if partition_bits else 1, launch, column_block, partition_bits, sub_bits)


@lru_cache(maxsize=4096)
def swa_csr(n_graphs: int, max_rows: int, width: int) -> SwaCsrGeometry:
    """Return the geometry of SWA SpMM for CSR: max_rows * sub-warp * n_graphs * partitions threads.

    If a lane has more than one column, shared memory holds a row of sums per sub-warp. If these exceed 32 KB, the
    columns are split into parts; their number is a power of two.
    """
    sub_bits = sub_warp_bits(width)
    sub_warps = BLOCK_THREADS >> sub_bits
    partitions = 1
    while width > 1 << sub_bits and sub_warps * ceil_div(width, partitions) * 4 > SWA_SHARED_BYTES:
        partitions *= 2
    column_block = ceil_div(width, partitions)
    shared = sub_warps * column_block * 4 if column_block > 1 << sub_bits else 0
    blocks_per_graph = ceil_div(max_rows, sub_warps)
    launch = Launch((blocks_per_graph * n_graphs, partitions, 1), (BLOCK_THREADS, 1, 1), shared)
    return SwaCsrGeometry(launch, column_block, sub_bits, blocks_per_graph)


def swa_csr_reaches(n_graphs: int, max_rows: int, width: int) -> bool:
    """Return whether the grid of `swa_csr` is valid and the threads of a graph fit in 32 bits, as its kernels assume.

    >>> swa_csr_reaches(1, 10**8, 64), swa_csr_reaches(1, 2 * 10**8, 64), swa_csr_reaches(10**6, 10**5, 64)
    (True, False, False)
    """
    blocks_per_graph = ceil_div(max_rows << sub_warp_bits(width), BLOCK_THREADS)
    return blocks_per_graph * BLOCK_THREADS <= 2**32 and blocks_per_graph * n_graphs <= MAX_GRID_X


def tf_reaches(n_entries: int, width: int) -> bool:
    """Return whether the grid of `spmm_tf` is valid."""
    return ceil_div(n_entries * width, BLOCK_THREADS) <= MAX_GRID_X


def entries_by_columns(n_entries: int, width: int) -> Launch:
    """Return the launch of `spmm_tf`, or of `spmm_zero` with rows instead of entries: a thread per element."""
    return elementwise(n_entries * width)


def entry_rows(n_rows: int) -> Launch:
    """Return the launch of `csr_entry_rows`: 8 threads per row."""
    return elementwise(8 * n_rows)


def gather(n_graphs: int, n_elements: int, multiprocessors: int, matrices: int = 1) -> Launch:
    """Return the launch of a gather of `n_elements` in total: a block per graph, or several if graphs are large.

    >>> gather(50, 950 * 75, 132).grid, gather(1, 10**9, 132).grid, gather(0, 0, 132).grid
    ((50, 2, 1), (1, 1056, 1), (0, 1, 1))
    """
    wanted = ceil_div(n_elements, max(n_graphs, 1) * 4 * BLOCK_THREADS)
    affordable = ceil_div(8 * multiprocessors, max(n_graphs, 1))
    return Launch((n_graphs, max(min(wanted, affordable), 1), matrices), (BLOCK_THREADS, 1, 1))
