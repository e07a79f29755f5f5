"""Update rules and clipping: their launches and geometry."""

from __future__ import annotations

import pytest

from gcnbatch.backends.cuda.ops.optimizer import MAX_NORM_BLOCKS, OptimizerOps, norm_geometry
from tests.backends.cuda.ops.recorder import Recorder, of


def test_adams_bias_corrections_follow_the_step(device: Recorder) -> None:
    arrays = of(device, *[(10,)] * 6)
    parameters, gradients, m, v, weight_decay, l2 = arrays
    OptimizerOps(device).adam_step(parameters, gradients, m, v, 3, 1e-3, 0.9, 0.999, 1e-8, weight_decay, l2)
    arguments = device.launched[0][2]
    assert arguments["correction1"] == pytest.approx(1 / (1 - 0.9**3), rel=1e-15)
    assert arguments["correction2"] == pytest.approx(1 / (1 - 0.999**3), rel=1e-15)
    assert (arguments["gradients"], arguments["l2"]) == (gradients, l2)


def test_clipping_is_two_launches_and_reads_nothing_back(device: Recorder) -> None:
    OptimizerOps(device).clip_norm(device.empty((10_000,)), 1.0)
    assert device.entries == ["clip_norm_factor", "clip_norm_scale"]


@pytest.mark.parametrize("n", [0, 1, 1024, 1025, 10**8])
def test_a_norm_has_at_least_one_block_and_at_most_one_partial_sum_per_thread(n: int) -> None:
    launch = norm_geometry(n)
    assert 1 <= launch.blocks <= MAX_NORM_BLOCKS <= launch.threads
