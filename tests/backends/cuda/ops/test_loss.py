"""Losses: their launches and their geometry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcnbatch.backends.cuda.ops.loss import ENTRIES_OF_ONE_BLOCK, LossOps, loss_geometry
from tests.backends.cuda.ops.recorder import CHIPS, Recorder, of, quickly


@pytest.mark.parametrize(
    ("R", "K", "launches"), [(0, 12, 1), (50, 12, 1), (100, 100, 1), (2708, 7, 2), (233_000, 41, 2)]
)
def test_a_loss_of_a_batch_is_one_launch(device: Recorder, R: int, K: int, launches: int) -> None:
    ops = LossOps(device)
    logits, y, weights = of(device, (R, K), (R, K), (K,))
    classes = device.empty((R, 1), np.int32)
    of_tasks, of_classes = of(device, (R, 3 * K), (R, 3))
    for loss, arguments in (
        (ops.sigmoid_cross_entropy, (logits, y, weights)),
        (ops.softmax_cross_entropy, (logits, classes, weights)),
        (ops.mean_squared_error, (logits, y)),
        (ops.weighted_loss, (logits, of_tasks, "huber", weights)),
        (ops.weighted_loss, (logits, of_classes, "softmax", weights)),
    ):
        device.launched.clear()
        assert [result.shape for result in loss(*arguments)] == [(1,), (1,), (R, K)]
        assert len(device.launched) == launches


@quickly
@given(st.integers(0, 10**7), st.integers(0, 10**7), CHIPS)
def test_a_loss_runs_in_whole_warps(entries: int, threads: int, chips: int) -> None:
    launch = loss_geometry(entries, threads, chips)
    assert launch.block[0] % 32 == 0
    if entries <= ENTRIES_OF_ONE_BLOCK:
        assert launch.blocks == 1
        assert launch.threads >= min(threads, 1024)
    else:
        assert launch.blocks <= 8 * chips
