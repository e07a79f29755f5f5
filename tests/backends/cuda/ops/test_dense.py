"""All dense operations together, without a GPU: shared workspaces, and batches without rows."""

from __future__ import annotations

from math import prod

from gcnbatch.backends.cuda.ops.dense import DenseOps
from tests.backends.cuda.ops.recorder import Recorder, of


def test_workspaces_have_room_for_all_partial_sums(device: Recorder) -> None:
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
