"""Targets and outputs of any magnitude, in the model's scale and back."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.training.targets import Scaling

EXTREME = {
    "tiny": 1e-30 * (1 + np.arange(60) / 60),
    "tinier": 1e-310 * (1 + np.arange(60) / 60),
    "large": 1e19 * (1 + np.arange(60) / 60),
    "huge": 1e300 * (1 + np.arange(60) / 60),
    "both ends": 1.7e308 * np.linspace(-1, 1, 60),
    "offset": 298150000 + np.arange(60) / 100,
}


@pytest.mark.parametrize("name", EXTREME)
def test_the_model_sees_standard_scores_and_the_outputs_are_within_a_ten_millionth_of_the_deviation(name: str) -> None:
    y = EXTREME[name][:, None]
    scaling = Scaling.of(y)
    scores = scaling.apply(y)
    assert scores.dtype == np.float32
    assert (scores.mean(), scores.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1, rel=1e-6))
    back = scaling.undo(scores)
    assert back.dtype == np.float64
    error = np.abs(back / scaling.std - y / scaling.std)
    # A score below 2 is rounded by up to 2^-23 / 2, the output by half of its decimal place, y itself to float64.
    assert error.max() <= 2**-24 * np.abs(scores).max() + 5e-8 + 2**-51 * np.abs(y / scaling.std).max()


def test_outputs_have_short_texts() -> None:
    scaling = Scaling(np.array([298150000.25]), np.array([0.2]))
    assert repr(float(scaling.undo(np.array([[1 / 3]], np.float32))[0, 0])) == "298150000.31666666"
    assert repr(float(Scaling.of(np.array([[1.0], [2.0]])).undo(np.array([[1 / 3]], np.float32))[0, 0])) == "1.66666667"


def test_equal_targets_are_kept_whatever_their_magnitude() -> None:
    for value in (0.0, 5e-12, -3e200):
        scaling = Scaling.of(np.full((4, 1), value))
        assert scaling.undo(scaling.apply(np.full((1, 1), value))).tolist() == [[value]]


def test_a_target_far_outside_of_the_training_rows_is_infinite_without_a_warning() -> None:
    assert Scaling.of(np.array([[0.0], [1e-30]])).apply(np.array([[1e300]])).tolist() == [[np.inf]]
