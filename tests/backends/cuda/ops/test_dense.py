"""What the dense operations launch, without a GPU: kernels that exist, arguments that fit, no launch too many."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.base import DropoutKey
from gcnbatch.backends.cuda.ops.dense import DenseOps
from gcnbatch.backends.cuda.ops.tall import TallDenseOps
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.errors import InputError
from gcnbatch.resources import cuda_sources

SOURCES = Sources(cuda_sources())


@dataclass
class Recorder:
    """A device that only writes down what it is asked to run, after holding it to the kernel's declaration."""

    multiprocessors: int = 132
    compute_capability: tuple[int, int] = (9, 0)
    name: str = "recorder"
    top: int = 256
    launched: list[tuple[str, Launch, dict[str, Any]]] = field(default_factory=list)

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float32) -> DeviceArray:
        array = DeviceArray(self.top, shape, np.dtype(dtype))
        self.top += -(-array.nbytes // 256) * 256 + 256
        return array

    def workspace(self, name: str, nbytes: int) -> DeviceArray:
        return self.empty((nbytes,), np.uint8)

    def launch(self, entry: str, launch: Launch, **arguments: Any) -> None:
        if launch.blocks:
            SOURCES.entries[entry].pack(arguments)
            self.launched.append((entry, launch, arguments))

    @property
    def entries(self) -> list[str]:
        return [entry for entry, *_ in self.launched]


@pytest.fixture
def device() -> Recorder:
    return Recorder()


def of(device: Recorder, *shapes: tuple[int, ...]) -> list[DeviceArray]:
    return [device.empty(shape) for shape in shapes]


def test_a_small_product_and_all_its_gradients_are_two_launches(device: Recorder) -> None:
    ops = DenseOps(device)
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


def test_without_bias_a_null_pointer_takes_its_place(device: Recorder) -> None:
    ops = DenseOps(device)
    x, w, dy, dw = of(device, (950, 75), (75, 64), (950, 64), (75, 64))
    ops.matmul(x, w)
    assert ops.matmul_backward(dy, x, w, out=dw)[1] is dw
    forward, backward = (arguments for _, _, arguments in device.launched)
    assert forward["bias"] is backward["db"] is None


def test_gradients_of_a_large_product_are_a_launch_each(device: Recorder) -> None:
    ops = DenseOps(device)
    x, w, dy = of(device, (1850, 512), (512, 512), (1850, 512))
    ops.linear_backward(dy, x, w)
    assert device.entries == ["matmul_128x64_dgrad", "matmul_128x64_wgrad", "bias_add_backward"]


def test_a_tall_product_has_kernels_of_its_own_and_its_bias_added(device: Recorder) -> None:
    ops = TallDenseOps(device)
    x, w, b, dy = of(device, (100_000, 602), (602, 16), (16,), (100_000, 16))
    ops.linear(x, w, b)
    ops.linear_backward(dy, x, w, need_dx=False)
    assert device.entries[:2] == ["matmul_tall_16_forward", "bias_add_forward"]
    assert device.entries[2:] == ["matmul_tall_16_wgrad", "matmul_tall_fold", "bias_add_backward"]


def test_a_graph_and_channel_alone_are_multiplied_in_place(device: Recorder) -> None:
    """The second graph, rows 3 to 6, and the second of two channels of 5 columns."""
    h, x, w = of(device, (9, 10), (9, 8), (8, 10))
    DenseOps(device).multiply(h.view(3 * 10 + 5, ()), x.view(3 * 8, (4, 8)), w.view(5, ()), (4, 8, 5), (10, 8, 10))
    _, launch, arguments = device.launched[0]
    assert launch.blocks == 1
    assert arguments["y"].ptr == h.ptr + 4 * 35
    assert [arguments[name] for name in ("ldy", "ldx", "ldw", "N", "F", "P")] == [10, 8, 10, 4, 8, 5]


def test_workspaces_hold_every_part(device: Recorder) -> None:
    ops = DenseOps(device)
    x, dy = of(device, (950, 64), (950, 64))
    ops.multiply_wgrad(x, x, dy, (950, 64, 64), (64, 64, 64), accumulate=True)
    _, launch, arguments = device.launched[-1]
    assert arguments["partials"].nbytes == 4 * launch.blocks * 32 * 32
    assert arguments["counters"].nbytes == 4 * prod(launch.grid[:2])
    assert arguments["accumulate"] == 1
    DenseOps(device).bias_add_backward(dy)
    _, launch, arguments = device.launched[-1]
    assert arguments["partials"].nbytes == 4 * launch.grid[0] * 64
    assert arguments["counters"].nbytes == 4 * launch.grid[1]


def test_batch_norm_takes_two_launches_forward_and_two_back(device: Recorder) -> None:
    ops = DenseOps(device)
    x, gamma, beta, mean, var, dgamma, dbeta = of(device, (950, 64), *[(64,)] * 6)
    y, saved = ops.batch_norm(x, gamma, beta, mean, var, 1e-5, 0.1, training=True)
    dx, *gradients = ops.batch_norm_backward(y, saved, gamma, out=(dgamma, dbeta))
    assert dx.shape == x.shape
    assert gradients == [dgamma, dbeta]
    assert len(device.launched) == 4
    _, nothing = ops.batch_norm(x, gamma, beta, mean, var, 1e-5, 0.1, training=False)
    assert nothing is None
    assert device.entries[4:] == ["batch_norm_evaluate"]


def test_without_rows_running_statistics_stay_and_gradients_are_written(device: Recorder) -> None:
    ops = DenseOps(device)
    x, w, gamma, beta, mean, var = of(device, (0, 8), (8, 4), *[(8,)] * 4)
    y, saved = ops.batch_norm(x, gamma, beta, mean, var, 1e-5, 0.1, training=True)
    assert ops.matmul(x, w).shape == (0, 4)
    assert ops.relu(x).shape == (0, 8)
    assert device.launched == []
    ops.batch_norm_backward(y, saved, gamma)
    ops.linear_backward(device.empty((0, 4)), x, w)
    ops.bias_add_backward(x)
    assert device.entries == ["batch_norm_backward_sums", "matmul_32x32_backward", "bias_add_backward"]


@pytest.mark.parametrize(
    ("R", "K", "launches"), [(0, 12, 1), (50, 12, 1), (100, 100, 1), (2708, 7, 2), (233_000, 41, 2)]
)
def test_a_loss_of_a_batch_is_one_launch(device: Recorder, R: int, K: int, launches: int) -> None:
    ops = DenseOps(device)
    logits, y, weights = of(device, (R, K), (R, K), (K,))
    classes = device.empty((R, 1), np.int32)
    for loss, arguments in (
        (ops.sigmoid_cross_entropy, (logits, y, weights)),
        (ops.softmax_cross_entropy, (logits, classes, weights)),
        (ops.mean_squared_error, (logits, y)),
    ):
        device.launched.clear()
        assert [result.shape for result in loss(*arguments)] == [(1,), (1,), (R, K)]
        assert len(device.launched) == launches


def test_a_dropout_mask_is_keyed_by_its_place_in_training(device: Recorder) -> None:
    ops, (x,) = DenseOps(device), of(device, (3, 7))
    y, mask = ops.dropout(x, 0.5, DropoutKey(2**63 - 1, "123456789", 3, 41))
    assert (y.shape, mask.shape, mask.dtype) == (x.shape, x.shape, np.uint8)
    _, launch, arguments = device.launched[0]
    assert launch.blocks == 1
    keys = ("n", "seed", "purpose", "epoch", "step", "threshold", "scale")
    assert [arguments[name] for name in keys] == [21, 2**63 - 1, 0xCBF43926, 3, 41, 2**31, 2.0]
    assert ops.dropout_backward(y, mask, 0.5).shape == x.shape


def test_the_corrections_of_adam_are_those_of_the_step(device: Recorder) -> None:
    arrays = of(device, *[(10,)] * 6)
    parameters, gradients, m, v, weight_decay, l2 = arrays
    DenseOps(device).adam_step(parameters, gradients, m, v, 3, 1e-3, 0.9, 0.999, 1e-8, weight_decay, l2)
    arguments = device.launched[0][2]
    assert arguments["correction1"] == pytest.approx(1 / (1 - 0.9**3), rel=1e-15)
    assert arguments["correction2"] == pytest.approx(1 / (1 - 0.999**3), rel=1e-15)
    assert (arguments["gradients"], arguments["l2"]) == (gradients, l2)


def test_readout_keeps_the_winners_of_a_maximum(device: Recorder) -> None:
    ops, (h,) = DenseOps(device), of(device, (9, 5))
    node_ptr = device.empty((4,), np.int32)
    for kind in ("sum", "mean", "max"):
        r, saved = ops.readout(h, node_ptr, kind)
        assert r.shape == (3, 5)
        assert (saved.argmax is not None) == (kind == "max")
        assert ops.readout_backward(r, node_ptr, kind, saved).shape == h.shape
    assert len(device.launched) == 6


def test_tf32_takes_the_tensor_cores(device: Recorder) -> None:
    ops = DenseOps(device, "tf32")
    x, w = of(device, (1850, 512), (512, 512))
    ops.matmul(x, w)
    ops.matmul_backward(x, x, w)
    assert device.entries == ["matmul_tf32_128x64_forward", "matmul_tf32_128x64_dgrad", "matmul_tf32_128x64_wgrad"]


def test_tf32_is_refused_where_there_is_none() -> None:
    with pytest.raises(InputError) as refused:
        DenseOps(Recorder(compute_capability=(7, 5), name="Tesla T4"), "tf32")
    assert str(refused.value) == (
        "precision: 'tf32' on Tesla T4 (compute capability 7.5); expected a GPU of compute capability 8.0 or newer. "
        "Set precision = 'fp32'."
    )


def test_clipping_is_two_launches_and_reads_nothing_back(device: Recorder) -> None:
    DenseOps(device).clip_norm(device.empty((10_000,)), 1.0)
    assert device.entries == ["clip_norm_factor", "clip_norm_scale"]
