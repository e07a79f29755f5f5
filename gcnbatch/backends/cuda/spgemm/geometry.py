"""Geometry of the SpGEMM kernels, and the plan of a product: pure arithmetic, tested without a GPU.

The bound of a row is its number of products. Rows are grouped by bound: group g has bounds in 2^(g-1)+1 … 2^g; the rows
of group `LONG` are split. ``cuda_src/spgemm/hash.cu`` says how rows are summed and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import Literal, NamedTuple

from gcnbatch.backends.cuda.runtime.launch import WARP_BITS, Launch, ceil_div, log2, next_power_of_two
from gcnbatch.backends.cuda.runtime.sources import declared

_PLAN, _SORT, _HASH = (declared(f"spgemm/{name}.cu") for name in ("plan", "sort", "hash"))
SCAN_THREADS: int = _PLAN.constant("SCAN_THREADS")
PART_PRODUCTS: int = _PLAN.constant("PART_PRODUCTS")
TILE_COLUMNS: int = _PLAN.constant("TILE_COLUMNS")
LONG: int = _PLAN.constant("LONG")
INDPTR_ROWS: int = SCAN_THREADS * _PLAN.constant("INDPTR_ROWS_PER_THREAD")  # of a block
STAT = _PLAN.enum("Stat")
PLACE_BITS: int = _SORT.constant("PLACE_BITS")
SORT_THREADS: int = _SORT.constant("SORT_THREADS")

SHORT = 8  # the last group whose rows fit in the registers of a warp: 256 products, 8 per lane
SORT_COLUMNS = 1 << (32 - PLACE_BITS)  # a key is a column and the place of a product, in one word
SORT_BYTES_PER_LANE: int = 8 * _SORT.constant("KEYS_PER_LANE")  # a column and a product per key
EXPAND_BYTES_PER_2_PRODUCTS: int = _SORT.constant("EXPAND_BYTES_PER_2_PRODUCTS")
HASH_BYTES_PER_2_SLOTS: int = _HASH.constant("HASH_BYTES_PER_2_SLOTS")
HASH_WARPS: int = _HASH.constant("HASH_THREADS") // 32
SMALLEST_TABLE_BITS = 9
BLOCK_BYTES = HASH_WARPS * HASH_BYTES_PER_2_SLOTS << (SMALLEST_TABLE_BITS - 1)  # unless one table needs more
PART_BITS = log2(2 * PART_PRODUCTS)  # a part has less than 2 * PART_PRODUCTS products, or one entry
INCOMPRESSIBLE = 2.0  # below this many products per distinct column, products are sorted instead of hashed
BALANCED = 0.5  # the paper's limit of variance / mean of the bounds
WASTE = 2  # limit of shared memory with one table size for all rows / with a table size per group
MARGIN = 1.25  # columns that a guessed table has room for / expected columns
SAMPLED_ROWS = 256
WORTH_SAMPLING = 1 << 18  # the ratio is sampled if rows that are not short may have at least this many products


class Method(NamedTuple):
    """Method that sums the rows of a group, and its size.

    ``"sort"``: in registers; `bits` is log2 of the lanes per row. ``"expand"``: a block per row; `bits` is log2 of the
    products that fit. ``"hash"``: a warp per row; `bits` is log2 of the slots of its table.
    """

    name: Literal["sort", "expand", "hash"]
    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory per row."""
        if self.name == "sort":
            return SORT_BYTES_PER_LANE << self.bits
        if self.name == "expand":
            return EXPAND_BYTES_PER_2_PRODUCTS << (self.bits - 1)
        return HASH_BYTES_PER_2_SLOTS << (self.bits - 1)


class Run(NamedTuple):
    """Rows of one launch: `n_rows` from `first`, in the order of groups, or all rows.

    `guessed`: a row may overflow its table.
    """

    first: int
    n_rows: int
    method: Method
    guessed: bool = False


class Stats(NamedTuple):
    """Results of `spgemm_bound`.

    Parameters
    ----------
    short_products : int
        Products of the rows that are not long.
    squares : int
        Sum of the squared bounds of those rows.
    largest : int
        Products of the largest long row.
    long_products : int
        Products of the long rows.
    parts : int
        Upper limit of the parts of the long rows.
    rows_of_group : tuple of int
        Number of rows per group.
    """

    short_products: int
    squares: int
    largest: int
    long_products: int
    parts: int
    rows_of_group: tuple[int, ...]

    @property
    def products(self) -> int:
        """Products of all rows."""
        return self.short_products + self.long_products

    @property
    def long_rows(self) -> int:
        """Number of rows that are split."""
        return self.rows_of_group[LONG]

    @property
    def sampled(self) -> tuple[int, int, int]:
        """First row and number of rows to sample, in the order of groups, and log2 of the largest bound.

        These rows are not short. If the two smallest such groups have rows, only they are sampled, because a sample
        takes as long as its longest row.
        """
        rows = self.rows_of_group
        last = SHORT + 2 if any(rows[SHORT + 1 : SHORT + 3]) else LONG - 1
        return sum(rows[: SHORT + 1]), sum(rows[SHORT + 1 : last + 1]), last


def read_stats(words: Sequence[int]) -> Stats:
    """Return the words that `spgemm_bound` wrote as `Stats`."""
    found = {name: int(words[place]) for name, place in STAT.items()}
    return Stats(
        short_products=found["SHORT_PRODUCTS"],
        squares=found["SQUARES"],
        largest=found["LARGEST"],
        long_products=found["LONG_PRODUCTS"],
        parts=found["PARTS"],
        rows_of_group=tuple(map(int, words[STAT["ROWS_OF_GROUP"] :])),
    )


def overflow_table_bits(capability: tuple[int, int]) -> int:
    """Return log2 of the slots of the overflow table: 8192, or 4096 if a block has at most 64 KiB of shared memory.

    >>> overflow_table_bits((9, 0)), overflow_table_bits((7, 5))
    (13, 12)
    """
    return 12 if capability == (7, 5) else 13  # 7.0 has 96 KiB a block, all newer ones 99 and more


def long_limit(table_bits: int) -> int:
    """Return the largest bound that a table of this size always has room for."""
    return 1 << (table_bits - 1)


@lru_cache(maxsize=256)
def bound(n_rows: int, n_entries: int) -> tuple[Launch, int]:
    """Return the launch of `spgemm_bound` and its lane_bits: about two entries per lane of a row."""
    wanted = next_power_of_two(ceil_div(n_entries, 2 * max(n_rows, 1)))
    return rows_of_scan(n_rows), min(log2(wanted), WARP_BITS)


@lru_cache(maxsize=256)
def rows_of_scan(n_rows: int) -> Launch:
    """Return the launch with a thread per row, as for `spgemm_group`."""
    return Launch((ceil_div(n_rows, SCAN_THREADS), 1, 1), (SCAN_THREADS, 1, 1))


@lru_cache(maxsize=256)
def blocks(n: int) -> Launch:
    """Return the launch with a block per row or block of columns: `spgemm_split` and `spgemm_merge`."""
    return Launch((n, 1, 1), (SCAN_THREADS, 1, 1))


@lru_cache(maxsize=256)
def indptr(n_rows: int) -> Launch:
    """Return the launch of `spgemm_indptr`."""
    return Launch((ceil_div(n_rows, INDPTR_ROWS), 1, 1), (SCAN_THREADS, 1, 1))


@lru_cache(maxsize=256)
def sort_rows(n_rows: int, lane_bits: int) -> Launch:
    """Return the launch of `spgemm_sort`.

    >>> sort_rows(500_000, 3).grid
    (15625, 1, 1)
    """
    return Launch((ceil_div(n_rows, SORT_THREADS >> lane_bits), 1, 1), (SORT_THREADS, 1, 1))


@lru_cache(maxsize=256)
def hash_rows(n_rows: int, table_bits: int, most_blocks: int = 0) -> Launch:
    """Return the launch of `spgemm_hash`; `most_blocks` limits the grid if only the device knows the number of rows.

    >>> hash_rows(262_144, 9).grid, hash_rows(262_144, 9).shared
    ((32768, 1, 1), 43008)
    """
    table = Method("hash", table_bits).nbytes
    per_block = max(BLOCK_BYTES // table, 1)
    wanted = ceil_div(n_rows, per_block)
    return Launch(
        (min(wanted, most_blocks) if most_blocks else wanted, 1, 1), (32 * per_block, 1, 1), per_block * table
    )


@lru_cache(maxsize=256)
def expand_rows(n_rows: int, product_bits: int) -> Launch:
    """Return the launch of `spgemm_expand`."""
    return Launch((n_rows, 1, 1), (SCAN_THREADS, 1, 1), Method("expand", product_bits).nbytes)


@lru_cache(maxsize=256)
def sample(n_rows: int, table_bits: int) -> Launch:
    """Return the launch of `spgemm_sample`, which samples from `n_rows` rows."""
    return Launch((min(n_rows, SAMPLED_ROWS), 1, 1), (32, 1, 1), Method("hash", table_bits).nbytes)


def merge_tiles(n_columns: int) -> int:
    """Return the number of column tiles of a merged row."""
    return ceil_div(n_columns, TILE_COLUMNS)


@lru_cache(maxsize=256)
def compact(n_rows: int, n_results: int) -> tuple[Launch, int]:
    """Return the launch of `spgemm_compact` and its lane_bits: about four results per lane of a row."""
    lane_bits = min(log2(next_power_of_two(ceil_div(n_results, 4 * max(n_rows, 1)))), WARP_BITS)
    return Launch((ceil_div(n_rows, SCAN_THREADS >> lane_bits), 1, 1), (SCAN_THREADS, 1, 1)), lane_bits


def method_of(group: int, ratio: float, n_columns: int) -> Method:
    """Return the method for the rows of a group with `ratio` products per distinct column.

    A table has two slots per expected column of the group's largest bound: bound / ratio times `MARGIN`, or the bound
    if that is less.

    >>> [method_of(group, 5.9, 1000).name for group in (0, 8, 9)], method_of(10, 5.9, 1000).bits
    (['sort', 'sort', 'hash'], 9)
    >>> method_of(5, 1.0, 1000), method_of(10, 1.0, 1000)
    (Method(name='sort', bits=2), Method(name='expand', bits=10))
    """
    if group <= SHORT and n_columns <= SORT_COLUMNS:
        return Method("sort", max(group - 3, 2))
    if ratio < INCOMPRESSIBLE:
        return Method("expand", max(group, SMALLEST_TABLE_BITS))
    expected = next_power_of_two(ceil(MARGIN * 2**group / ratio))
    return Method("hash", max(min(group, log2(expected)) + 1, SMALLEST_TABLE_BITS))


@lru_cache(maxsize=256)
def methods_of(ratio: float, n_columns: int) -> tuple[Method, ...]:
    """Return the method of each group that is not long."""
    return tuple(method_of(group, ratio, n_columns) for group in range(LONG))


def is_balanced(stats: Stats, n_rows: int, methods: Sequence[Method]) -> bool:
    """Return whether all rows run in one launch, in their own order, by the method of the largest rows.

    They do by the paper's rule, variance / mean of the bounds at most 0.5, or if this needs at most twice the shared
    memory of a method per group. They never do if there are long rows.
    """
    counts = stats.rows_of_group
    if counts[LONG]:
        return False
    mean = stats.products / n_rows
    if stats.squares / n_rows - mean**2 <= BALANCED * mean:
        return True
    filled = [group for group in range(LONG) if counts[group]]
    each = sum(counts[group] * methods[group].nbytes for group in filled)
    return n_rows * methods[filled[-1]].nbytes <= WASTE * each


def plan(stats: Stats, n_rows: int, n_columns: int, multiprocessors: int, ratio: float = 1.0) -> tuple[Run, ...]:
    """Return the launches for the rows that are not long, largest rows first.

    Groups of the same method share a launch. A group that has no more rows than the device can run at once joins the
    next larger group, because a launch costs more than the larger tables.
    """
    counts = stats.rows_of_group
    groups = [group for group in range(LONG) if counts[group]]
    if not groups:
        return ()
    methods = methods_of(ratio, n_columns)
    if is_balanced(stats, n_rows, methods):
        return (Run(0, n_rows, methods[groups[-1]], _is_guess(groups[-1], methods[groups[-1]])),)
    runs: list[Run] = []
    for group in reversed(groups):
        first, count = sum(counts[:group]), counts[group]
        above = runs[-1] if runs else None
        if above and (above.method == methods[group] or count <= _at_once(above.method, multiprocessors)):
            runs[-1] = above._replace(first=first, n_rows=above.n_rows + count)
        else:
            runs.append(Run(first, count, methods[group], _is_guess(group, methods[group])))
    return tuple(runs)


def _is_guess(group: int, method: Method) -> bool:
    return method.name == "hash" and group >= method.bits


def _at_once(method: Method, multiprocessors: int) -> int:
    """Return the number of rows that the device runs at once, with four blocks per multiprocessor."""
    per_block = 1 if method.name == "expand" else max(BLOCK_BYTES // method.nbytes, 1)
    return 4 * multiprocessors * min(per_block, SORT_THREADS // 4)
