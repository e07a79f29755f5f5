"""Intervals of differences: against SciPy's paired t and Tukey tests, and with the correction for shared rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gcnbatch.run_comparison.paired import differences, resampled


def scores(blocks: int, models: int, block_effect: float = 1.0, seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed)
    return draws.normal(size=(blocks, models)) * 0.1 + block_effect * draws.normal(size=(blocks, 1))


def test_two_models_without_overlap_are_a_paired_t_test() -> None:
    values = scores(8, 2)
    (found,) = differences(values, overlap=0.0)
    expected = stats.ttest_rel(values[:, 0], values[:, 1])
    interval = expected.confidence_interval(0.95)
    assert found.mean == pytest.approx((values[:, 0] - values[:, 1]).mean())
    for low, high in ((found.low, found.high), (found.joint_low, found.joint_high)):
        assert (low, high) == pytest.approx(tuple(interval), rel=1e-4)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-4)


def test_several_models_have_tukeys_range_with_the_error_of_blocks() -> None:
    values = scores(6, 4)
    found = differences(values, overlap=0.0)
    assert [(one.first, one.second) for one in found] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    residual = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
    error = np.sqrt((residual**2).sum() / 15 / 6)
    width = stats.studentized_range.ppf(0.95, 4, 15) * error
    for one in found:
        assert one.joint_high - one.mean == pytest.approx(width)
        assert one.joint_low <= one.mean <= one.joint_high


def test_effects_of_folds_cancel_and_a_constant_shift_is_shown() -> None:
    base = scores(5, 1, block_effect=10.0)
    values = np.hstack([base, base + 0.01 + scores(5, 1, 0.0, seed=1) * 0.01])
    (found,) = differences(values, overlap=0.25)
    assert found.shown
    assert found.mean == pytest.approx(-0.01, abs=0.005)


def test_shared_training_rows_widen_every_interval_by_the_known_factor() -> None:
    values = scores(5, 3)
    for plain, corrected in zip(differences(values, 0.0), differences(values, 0.25), strict=True):
        factor = np.sqrt((1 / 5 + 0.25) * 5)
        assert corrected.high - corrected.mean == pytest.approx(factor * (plain.high - plain.mean))
        assert corrected.joint_high - corrected.mean == pytest.approx(factor * (plain.joint_high - plain.mean))
        assert corrected.p is not None
        assert plain.p is not None
        assert corrected.p > plain.p


def test_equal_models_show_no_difference() -> None:
    (found,) = differences(np.repeat(scores(5, 1), 2, axis=1), 0.25)
    assert not found.shown
    assert (found.mean, found.p) == (0.0, 1.0)


def test_resampled_rows_show_a_clear_difference_and_not_a_small_one() -> None:
    draws = np.random.default_rng(0)
    y = draws.normal(size=(80, 1)).astype(np.float32)
    noise = [draws.normal(size=y.shape) for _ in range(3)]
    outputs = [(y + scale * of).astype(np.float32) for scale, of in zip((0.1, 0.1, 1.0), noise, strict=True)]
    close, far, _ = resampled("rmse", "regression", y, outputs, resamples=200)
    assert not close.shown
    assert far.shown
    assert far.joint_low < far.low < far.mean < far.high < far.joint_high
    assert far.p is None
    assert resampled("rmse", "regression", y, outputs, resamples=200)[1] == far
