"""Products of very many rows with narrow weights: their selection, their launches, and on a GPU their results."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.backends.cuda.ops import matmul_tall as tall
from gcnbatch.backends.cuda.ops.matmul_tall import TallDenseOps, padded_width, wgrad
from tests.backends.cuda.ops.recorder import Recorder, of
from tests.ops.adapters import open_adapter
from tests.ops.parity import Problem, assert_parity

SHAPES = [(1, 65, 1), (33, 64, 16), (257, 602, 16), (1_000, 75, 31), (129, 130, 32), (3_000, 1_500, 7)]


@pytest.mark.parametrize(
    ("sizes", "strides", "precision", "width"),
    [
        ((232_965, 602, 16), (16, 602, 16), "fp32", 16),
        ((232_965, 602, 17), (17, 602, 17), "fp32", 32),
        ((232_965, 602, 33), (33, 602, 33), "fp32", None),
        ((232_965, 602, 16), (16, 602, 16), "tf32", None),
        ((232_965, 602, 16), (64, 602, 64), "fp32", None),
        ((2_708, 602, 16), (16, 602, 16), "fp32", None),
        ((232_965, 16, 16), (16, 16, 16), "fp32", None),
    ],
)
def test_only_tall_products_without_gaps_use_the_tall_kernels(sizes, strides, precision, width):
    assert padded_width(sizes, strides, precision) == width


@pytest.mark.parametrize("sizes", [*SHAPES, (232_965, 602, 16), (10**7, 100, 32), (40_000, 5_000, 1)])
@pytest.mark.parametrize("multiprocessors", [16, 132])
def test_parts_cover_the_rows_and_threads_the_columns(sizes, multiprocessors):
    N, F, P = sizes
    plan = wgrad(sizes, multiprocessors)
    assert (plan.parts - 1) * plan.rows_per_part < N <= plan.parts * plan.rows_per_part
    assert plan.launch.grid[1] == plan.parts <= max(2 * multiprocessors, 1)
    assert plan.launch.grid[0] * plan.launch.threads * 2 >= F
    assert plan.reduction.grid[0] * plan.reduction.threads >= F * P


def test_a_tall_product_launches_the_tall_kernels_and_adds_its_bias(device: Recorder) -> None:
    ops = TallDenseOps(device)
    x, w, b, dy = of(device, (100_000, 602), (602, 16), (16,), (100_000, 16))
    ops.linear(x, w, b)
    ops.linear_backward(dy, x, w, need_dx=False)
    assert device.entries[:2] == ["matmul_tall_16_forward", "bias_add_forward"]
    assert device.entries[2:] == ["matmul_tall_16_wgrad", "matmul_tall_reduce", "bias_add_backward"]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tall_products_agree_with_the_reference(monkeypatch, shape):
    monkeypatch.setattr(tall, "TALL_ROWS", 1)
    backend = open_adapter("batched")
    N, F, P = shape
    rng = np.random.default_rng(N)
    x, w, dy = (rng.normal(size=size).astype(np.float32) for size in ((N, F), (F, P), (N, P)))

    def run(ops, x, w, dy):
        _, dw = ops.matmul_backward(dy, x, w, need_dx=False)
        return {"y": ops.matmul(x, w), "dw": dw}

    assert_parity(backend, Problem(run, {"x": x, "w": w, "dy": dy}))


@pytest.mark.gpu
def test_tall_products_repeat_to_the_bit(monkeypatch):
    monkeypatch.setattr(tall, "TALL_ROWS", 1)
    backend = open_adapter("batched")
    rng = np.random.default_rng(0)
    x, dy = (backend.upload(rng.normal(size=size).astype(np.float32)) for size in ((50_000, 100), (50_000, 16)))
    w = backend.upload(rng.normal(size=(100, 16)).astype(np.float32))
    for call in (lambda: backend.ops.matmul(x, w), lambda: backend.ops.matmul_backward(dy, x, w, need_dx=False)[1]):
        assert np.array_equal(backend.download(call()), backend.download(call()))
