"""Products: the choice of tiles, the launches of gradients, and the coverage of every element."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ops.matmul import (
    BLOCKS_AT_ONCE,
    GROUP_PARTS,
    LONG_PART,
    PARTS_SIDE_BY_SIDE,
    ROWS_AT_ONCE,
    TILES,
    UNGROUPED_PARTS,
    WGRAD_TILES,
    MatmulOps,
    Tile,
    backward_geometry,
    product_geometry,
    wgrad_geometry,
)
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.errors import InputError
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.ops.recorder import CHIPS, H200, NARROW, ROWS, Recorder, covers, of, quickly
from tests.ops.test_dropout import KEY
from tests.ops.test_linear import SIZES

ALL_TILES = [tile for tiles in TILES.values() for tile in tiles]
PRECISIONS = st.sampled_from(["fp32", "tf32"])


def tile_named(name: str) -> Tile:
    return next(tile for tile in ALL_TILES if tile.name == name)


def counters_of(parts: int) -> int:
    """Return the number of a tile's counters: one, and one for each group."""
    return 1 + (-(-parts // GROUP_PARTS) if parts > UNGROUPED_PARTS else 0)


def test_a_small_product_and_all_its_gradients_are_two_launches(device: Recorder) -> None:
    ops = MatmulOps(device)
    x, w, b, dy, dw, db = of(device, (950, 75), (75, 64), (64,), (950, 64), (75, 64), (64,))
    assert ops.linear(x, w, b).shape == (950, 64)
    dx, *got = ops.linear_backward(dy, x, w, out=(dw, db))
    assert dx is not None
    assert dx.shape == x.shape
    assert got == [dw, db]
    assert device.entries == ["matmul_16x32_forward", "matmul_32x32_backward"]
    forward, backward = (arguments for _, _, arguments in device.launched)
    assert forward["bias"] is b
    assert [backward[name] for name in ("dx", "dw", "db")] == [dx, dw, db]
    nothing, *own = ops.linear_backward(dy, x, w, need_dx=False)
    assert nothing is None
    assert [gradient.shape for gradient in own] == [w.shape, b.shape]
    assert device.launched[-1][2]["dx"] is None
    assert len(device.launched) == 3


def test_a_product_without_bias_passes_a_null_pointer(device: Recorder) -> None:
    ops = MatmulOps(device)
    x, w, dy, dw = of(device, (950, 75), (75, 64), (950, 64), (75, 64))
    ops.matmul(x, w)
    assert ops.matmul_backward(dy, x, w, out=dw)[1] is dw
    forward, backward = (arguments for _, _, arguments in device.launched)
    assert forward["bias"] is backward["db"] is None


def test_each_gradient_of_a_large_product_is_one_launch(device: Recorder) -> None:
    ops = MatmulOps(device)
    x, w, dy = of(device, (1850, 512), (512, 512), (1850, 512))
    ops.linear_backward(dy, x, w)
    assert device.entries == ["matmul_128x64_dgrad", "matmul_128x64_wgrad", "bias_add_backward"]


def test_the_product_of_one_graph_and_channel_uses_strides_without_a_copy(device: Recorder) -> None:
    """Use the second graph (rows 3 to 6) and the second of two channels of 5 columns."""
    h, x, w = of(device, (9, 10), (9, 8), (8, 10))
    MatmulOps(device).multiply(h.view(3 * 10 + 5, ()), x.view(3 * 8, (4, 8)), w.view(5, ()), (4, 8, 5), (10, 8, 10))
    _, launch, arguments = device.launched[0]
    assert launch.blocks == 1
    assert arguments["y"].ptr == h.ptr + 4 * 35
    assert [arguments[name] for name in ("ldy", "ldx", "ldw", "N", "F", "P")] == [10, 8, 10, 4, 8, 5]


def test_tf32_launches_tensor_core_kernels(device: Recorder) -> None:
    ops = MatmulOps(device, "tf32")
    x, w = of(device, (1850, 512), (512, 512))
    ops.matmul(x, w)
    ops.matmul_backward(x, x, w)
    assert device.entries == ["matmul_tf32_128x64_forward", "matmul_tf32_128x64_dgrad", "matmul_tf32_128x64_wgrad"]


def test_tf32_is_refused_below_compute_capability_8() -> None:
    with pytest.raises(InputError) as refused:
        MatmulOps(Recorder(compute_capability=(7, 5), name="Tesla T4"), "tf32")
    assert str(refused.value) == (
        "precision: 'tf32' on Tesla T4 (compute capability 7.5); expected a GPU of compute capability 8.0 or newer. "
        "Set precision = 'fp32'."
    )


@pytest.mark.parametrize("tile", ALL_TILES, ids=lambda tile: tile.name)
def test_kernels_of_a_tile_have_its_threads(tile: Tile) -> None:
    source = Sources(cuda_sources())["dense/matmul.cu"]
    products = ["forward", "dgrad"] + ["wgrad"] * any(tile in tiles for tiles in WGRAD_TILES.values())
    for name in products:
        threads = f"Tile{tile.name.replace('tf32_', 'Tf32')}::THREADS"
        found = re.search(rf"KERNEL\(matmul_{tile.name}_{name}, \w+, \({threads}, \w+\)", source.text)
        assert found is not None, name
    assert tile.name.removeprefix("tf32_") == f"{tile.rows}x{tile.columns}"


@quickly
@given(ROWS, NARROW, NARROW, CHIPS, PRECISIONS)
def test_tiles_cover_the_product(N: int, F: int, P: int, chips: int, precision: str) -> None:
    name, launch = product_geometry(N, P, F, chips, precision)
    tile = tile_named(name)
    assert tile in TILES[precision]
    assert launch.block == (tile.threads, 1, 1)
    assert covers(launch.grid[0], tile.rows, N)
    assert covers(launch.grid[1], tile.columns, P)


def test_a_small_product_is_spread_and_a_wide_one_uses_large_tiles() -> None:
    small = product_geometry(950, 64, 64, H200).launch
    assert 100 <= small.blocks <= H200
    wide = product_geometry(1850, 512, 512, H200)
    assert (wide.tile, wide.launch.blocks) == ("128x64", 120)
    assert product_geometry(3800, 64, 64, H200).tile == "32x32"
    assert product_geometry(100_000, 64, 64, H200).tile == "128x64"


@quickly
@given(ROWS, NARROW, NARROW, CHIPS, PRECISIONS)
def test_parts_of_a_weight_gradient_cover_every_row_once(N: int, F: int, P: int, chips: int, precision: str) -> None:
    plan = wgrad_geometry(N, F, P, chips, precision)
    tile = tile_named(plan.tile)
    rows, columns, parts = plan.launch.grid
    assert tile in WGRAD_TILES[precision]
    assert plan.launch.block == (tile.threads, 1, 1)
    assert covers(rows, tile.rows, F)
    assert covers(columns, tile.columns, P)
    assert covers(parts, plan.rows_per_part, N) or (N == 0 and parts == 1)  # without rows it writes zeros
    assert plan.rows_per_part % tile.depth == 0
    assert plan.counters_bytes == 4 * rows * columns * counters_of(parts)
    assert plan.partials_bytes == (4 * plan.launch.blocks * tile.rows * tile.columns if parts > 1 else 0)
    assert parts == 1 or plan.launch.blocks <= chips * (PARTS_SIDE_BY_SIDE if plan.rows_per_part >= LONG_PART else 1)


def test_a_weight_gradient_keeps_the_device_busy() -> None:
    assert wgrad_geometry(950, 64, 64, H200).launch.blocks == 60
    assert wgrad_geometry(1850, 512, 512, H200)[:3] == ("128x64", Launch((4, 8, 4), (256, 1, 1)), 464)
    assert wgrad_geometry(540_000, 128, 128, H200).launch.blocks == H200
    assert wgrad_geometry(2_449_029, 128, 128, H200).launch.blocks == 2 * H200


def test_partial_sums_in_groups_and_without_are_tested_in_both_precisions() -> None:
    plans = [(precision, wgrad_geometry(*size, H200, precision)) for size in SIZES for precision in TILES]
    reached = {(precision, plan.launch.grid[2] > UNGROUPED_PARTS) for precision, plan in plans}
    assert reached == {(precision, grouped) for precision in TILES for grouped in (False, True)}


@quickly
@given(ROWS, NARROW, NARROW, CHIPS, st.booleans())
def test_the_fused_backward_launch_has_blocks_for_every_gradient(
    N: int, F: int, P: int, chips: int, need_dx: bool
) -> None:
    plan = backward_geometry(N, F, P, chips, need_dx)
    tile = tile_named("32x32")
    dx_tiles = -(-N // 32) * -(-F // 32) if need_dx else 0
    dw_tiles = -(-(F + 1) // 32) * -(-P // 32)  # a row of dW more: the gradient by the bias
    if plan is None:
        shares = max(chips // dw_tiles, 1)
        assert dx_tiles + dw_tiles * shares > BLOCKS_AT_ONCE * chips or ROWS_AT_ONCE * shares / 2 < N
        return
    assert plan.rows_per_part <= ROWS_AT_ONCE
    assert plan.launch.block == (tile.threads, 1, 1)
    assert plan.launch.blocks == plan.dw_blocks + dx_tiles <= BLOCKS_AT_ONCE * chips
    parts, rest = divmod(plan.dw_blocks, dw_tiles)
    assert rest == 0
    assert covers(parts, plan.rows_per_part, N) or (N == 0 and parts == 1)
    assert plan.rows_per_part % tile.depth == 0
    assert plan.counters_bytes == 4 * dw_tiles * counters_of(parts)
    assert plan.partials_bytes == (4 * plan.dw_blocks * 32 * 32 if parts > 1 else 0)


def test_large_and_tensor_core_products_launch_each_gradient_separately() -> None:
    assert backward_geometry(1850, 512, 512, H200, need_dx=True) is None
    assert backward_geometry(950, 64, 64, H200, need_dx=True, precision="tf32") is None


BEFORE_RELU = [(950, 64, 64), (257, 31, 40), (4100, 31, 33), (3000, 100, 64), (5000, 129, 70), (16_800, 125, 127)]


def test_gradients_before_relu_and_dropout_are_tested_in_every_tile() -> None:
    reached = {product_geometry(*size, H200, precision).tile for size in BEFORE_RELU for precision in ("fp32", "tf32")}
    assert reached == {tile.name for tile in ALL_TILES}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize(("N", "F", "P"), BEFORE_RELU)
def test_a_gradient_before_relu_and_dropout_has_the_bits_of_two_operations(precision, N, F, P) -> None:
    from gcnbatch.backends.registry import open_backend

    device: Any = open_backend("batched").device
    ops, rng = BatchedOps(device, precision, "auto"), np.random.default_rng(0)
    x, dy, w = (device.upload(rng.normal(size=shape).astype(np.float32)) for shape in ((N, F), (N, P), (F, P)))
    for first in (0, 13):
        _, kept = ops.relu_dropout(x, 0.5, KEY._replace(first=first))
        expected = ops.relu_dropout_backward(ops.matmul_dx(dy, w), kept)
        np.testing.assert_array_equal(device.download(ops.matmul_dx(dy, w, None, kept)), device.download(expected))
