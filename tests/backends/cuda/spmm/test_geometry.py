"""Geometry of the sparse kernels: threads cover every row, column and entry; the papers' rules hold."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.backends.cuda.batches.batch import DeviceCsr, GraphLayout
from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS, Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm import geometry
from gcnbatch.backends.cuda.spmm.kernels import KERNELS, Blocks, SpmmOperands, spmm_kernel
from gcnbatch.errors import InputError

H200 = 132
WIDTHS = st.one_of(st.sampled_from([1, 2, 3, 4, 16, 17, 31, 32, 33, 64, 75, 130, 512, 4096]), st.integers(1, 700))
ROWS = st.one_of(st.sampled_from([0, 1, 33, 257, 5000, 500_000, 232_965]), st.integers(0, 3000))
CHIPS = st.sampled_from([1, 16, 82, H200])
quickly = settings(max_examples=80)


# ---- rows


@quickly
@given(ROWS, st.integers(0, 3000), WIDTHS, CHIPS, st.booleans())
def test_rows_and_columns_are_covered(n_rows: int, mean: int, width: int, chips: int, wide: bool) -> None:
    vector = 4 if wide and width % 4 == 0 else 1
    launch, lane_bits, group_bits, passes, chunks = geometry.sparse_rows(n_rows, n_rows * mean, width, vector, chips)
    rows = (launch.block[0] >> (lane_bits + group_bits)) * passes
    assert launch.block[0] % 32 == 0
    assert lane_bits + group_bits <= 5
    assert n_rows <= launch.grid[0] * rows < n_rows + rows
    columns = (vector << lane_bits) * chunks
    assert width <= launch.grid[1] * columns < width + columns


@quickly
@given(st.integers(0, 10_000), WIDTHS, st.booleans())
def test_sampled_products_have_lanes_for_every_entry(entries: int, width: int, wide: bool) -> None:
    launch, lane_bits = geometry.sampled_products(entries, width, 4 if wide and width % 4 == 0 else 1)
    of_block = launch.block[0] >> lane_bits
    assert lane_bits <= 5
    assert entries <= launch.grid[0] * of_block < entries + of_block


def test_groups_share_the_entries_of_long_rows_at_narrow_widths() -> None:
    groups = [geometry.sparse_rows(1000, 1000 * mean, 16, 4, H200).group_bits for mean in (3, 7, 8, 16, 32, 500)]
    assert groups == [0, 0, 1, 2, 3, 3]
    assert geometry.sparse_rows(1000, 500_000, 128, 4, H200).group_bits == 0


@quickly
@given(ROWS, WIDTHS, st.sampled_from([1, 2, 4]), st.sampled_from([(8, 256), (32, 128)]), st.booleans())
def test_short_rows_are_covered(n_rows: int, width: int, vectors: int, at_most: tuple[int, int], wide: bool) -> None:
    vector = 4 if wide and width % 4 == 0 else 1
    lanes, threads = at_most
    found = geometry.short_rows(n_rows, width, vector, vectors, lanes, threads)
    if found is None:
        assert vectors > 1, "one vector serves every width"
        return
    launch, lane_bits = found
    rows = threads >> lane_bits
    assert 1 << lane_bits <= lanes
    assert launch.block == (threads, 1, 1)
    assert n_rows <= launch.grid[0] * rows < n_rows + rows
    columns = vectors * (vector << lane_bits)
    assert width <= launch.grid[1] * columns < width + columns
    assert vectors == 1 or width % columns == 0, "vectors are not masked one by one"


def test_only_large_grids_give_a_block_several_passes() -> None:
    assert geometry.sparse_rows(5000, 15_000, 512, 4, H200).passes == 1
    assert geometry.sparse_rows(500_000, 1_500_000, 64, 4, H200).passes == 4
    assert geometry.sparse_rows(10**8, 10**8, 64, 4, H200).passes == geometry.MAX_PASSES
    assert geometry.sparse_rows(10**8, 10**8, 256, 4, H200).passes == 1


def test_large_grids_give_a_thread_several_column_blocks() -> None:
    assert [geometry.sparse_rows(rows, 3 * rows, 1024, 4, H200).chunks for rows in (100, 2500, 5000, 10_000)] == [
        1,
        2,
        4,
        8,
    ]
    assert geometry.sparse_rows(10_000, 30_000, 64, 4, H200).chunks == 1


@quickly
@given(st.integers(0, 5000), WIDTHS)
def test_every_feature_has_a_block(n_features: int, width: int) -> None:
    vector = 4 if width % 4 == 0 else 1
    launch, lane_bits = geometry.sparse_columns(n_features, width, vector)
    assert launch.grid[0] == n_features
    assert (launch.grid[1] - 1) * (vector << lane_bits) < width <= launch.grid[1] * (vector << lane_bits)


# ---- SWA SpMM as published


@pytest.mark.parametrize(
    ("width", "threads"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (16, 16), (17, 32), (64, 32), (512, 32)]
)
def test_sub_warp_sizes_are_those_of_the_paper(width: int, threads: int) -> None:
    assert 1 << geometry.sub_warp_bits(width) == threads


@pytest.mark.parametrize(
    ("max_rows", "width", "case", "partitions"),
    [
        (50, 64, 1, 1),
        (128, 64, 1, 1),  # 32 KB to the byte
        (129, 64, 2, 2),
        (50, 512, 2, 4),  # two partitions would take 51,200 bytes
        (256, 64, 2, 2),
        (8192, 1, 1, 1),
        (8192, 3, 2, 4),  # a power of two: the fourth partition is idle
        (8193, 1, 3, 1),
        (0, 64, 1, 1),
    ],
)
def test_swa_coo_cases(max_rows: int, width: int, case: int, partitions: int) -> None:
    found = geometry.swa_coo(100, max_rows, 15_000, width)
    assert (found.case, 1 << found.partition_bits) == (case, partitions)
    if case != 3:
        assert found.launch.grid == (100 * partitions, 1, 1)
        assert found.launch.shared == max_rows * found.column_block * 4 <= 32 * 1024


@quickly
@given(st.integers(1, 200), st.integers(0, 9000), st.integers(0, 10**6), WIDTHS)
def test_swa_coo_covers_every_element(n_graphs: int, max_rows: int, n_entries: int, width: int) -> None:
    found = geometry.swa_coo(n_graphs, max_rows, n_entries, width)
    if found.case == 3:
        assert max_rows > 8192
        assert found.launch.shared == 0
        assert found.launch.blocks * BLOCK_THREADS >= n_entries << found.sub_bits
        return
    partitions = 1 << found.partition_bits
    assert found.column_block * partitions >= width
    halved = max_rows * -(-width // max(partitions // 2, 1)) * 4
    assert partitions == 1 or halved > geometry.SWA_SHARED_BYTES, "no more partitions than needed"


def test_swa_csr_as_published() -> None:
    narrow = geometry.swa_csr(100, 50, 64)
    assert narrow.launch.grid == (7 * 100, 1, 1)  # 50 rows of 32 threads: 6.25 blocks of 256
    assert narrow.launch.shared == 8 * 64 * 4
    one_column_each = geometry.swa_csr(100, 50, 16)
    assert one_column_each.launch.grid == (4 * 100, 1, 1)
    assert one_column_each.launch.shared == 0
    assert geometry.swa_csr(3, 50, 1024).launch.grid[1] == 1
    split = geometry.swa_csr(3, 50, 1025)
    assert (split.launch.grid[1], split.column_block) == (2, 513)


@quickly
@given(st.integers(0, 200), st.integers(0, 9000), WIDTHS)
def test_swa_csr_covers_every_element(n_graphs: int, max_rows: int, width: int) -> None:
    launch, column_block, sub_bits, blocks_per_graph = geometry.swa_csr(n_graphs, max_rows, width)
    assert launch.shared <= geometry.SWA_SHARED_BYTES
    assert launch.grid[0] == blocks_per_graph * n_graphs
    assert blocks_per_graph * (BLOCK_THREADS >> sub_bits) >= max_rows
    assert launch.grid[1] * column_block >= width
    assert launch.shared or column_block <= 1 << sub_bits


class Noting:
    """A device that records launches."""

    multiprocessors = H200

    def __init__(self) -> None:
        self.launched: list[str] = []

    def launch(self, entry: str, launch: Any, **given: Any) -> None:
        self.launched.append(entry)


@pytest.mark.parametrize(
    ("name", "n_rows", "n_entries", "expected"),
    [
        ("swa_csr", 2**27, 2**27, ["spmm_swa_csr_batched", "spmm_swa_csr_graph"]),
        ("swa_csr", 2**27 + 1, 2**27, ["spmm_csr_float4", "spmm_csr_float4"]),
        ("swa_coo", 2**27, 2**27, ["spmm_zero", "spmm_swa_coo_global"] * 2),
        ("tf", 2**20, 2**33 - 4, ["spmm_zero", "spmm_tf"] * 2),
        ("tf", 2**20, 2**33 - 3, ["spmm_csr_float4", "spmm_csr_float4"]),
    ],
)
def test_a_graph_too_large_for_a_published_kernel_runs_the_general_one(
    name: str, n_rows: int, n_entries: int, expected: list[str]
) -> None:
    array = DeviceArray(0, (0,), np.dtype(np.float32))
    matrix = DeviceCsr(array, array, array, n_rows, array)
    asked = SpmmOperands(array, array, matrix, 0, 0, 64, 64, 0, 0, n_entries, n_rows, 64, 0)
    device: Any = Noting()
    spmm_kernel(name).batched(device, asked, Blocks(array, GraphLayout(np.array([0, n_rows])), 1))
    spmm_kernel(name).graph(device, asked)
    assert device.launched == expected


# ---- threads per element, and the gather


@quickly
@given(st.integers(0, 10**6), WIDTHS)
def test_elements_are_covered(n: int, width: int) -> None:
    assert 0 <= geometry.entries_by_columns(n, width).blocks * 256 - n * width < 256
    assert 0 <= geometry.entry_rows(n).blocks * 256 - 8 * n < 256


@quickly
@given(st.integers(0, 3000), st.integers(0, 10**9), CHIPS, st.sampled_from([1, 2]))
def test_a_gather_has_blocks_for_every_graph(n_graphs: int, n_elements: int, chips: int, matrices: int) -> None:
    launch = geometry.gather(n_graphs, n_elements, chips, matrices)
    assert launch.grid[::2] == (n_graphs, matrices)
    assert 1 <= launch.grid[1] <= max(1, 8 * chips)


@pytest.mark.parametrize("width", [1, 75, 4096])
def test_an_empty_batch_launches_nothing(width: int) -> None:
    launches: list[Launch] = [
        geometry.sparse_rows(0, 0, width, 1, H200).launch,
        geometry.swa_coo(0, 0, 0, width).launch,
        geometry.swa_csr(0, 0, width).launch,
        geometry.entries_by_columns(0, width),
        geometry.entry_rows(0),
        geometry.gather(0, 0, H200),
    ]
    assert [launch.blocks for launch in launches] == [0] * len(launches)


def test_swa_coo_avoids_too_much_shared_memory_by_its_cases() -> None:
    shared = [geometry.swa_coo(1, rows, 10, width).launch.shared for rows, width in product([8192, 8193], [1, 4096])]
    assert max(shared) <= geometry.SWA_SHARED_BYTES


# ---- names


def test_an_unknown_kernel_is_refused_with_the_nearest_name() -> None:
    assert {name for name in KERNELS if spmm_kernel(name).coo} == {"swa_coo", "tf"}
    with pytest.raises(InputError) as caught:
        spmm_kernel("swacoo")
    expected = "spmm kernel: 'swacoo'; expected auto, csr, naive, swa_csr, swa_coo, tf. Did you mean 'swa_coo'?"
    assert str(caught.value) == expected
    with pytest.raises(InputError, match=r"'zzz'; expected auto, csr, naive, swa_csr, swa_coo, tf$"):
        spmm_kernel("zzz")
