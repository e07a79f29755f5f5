"""Calibration of probabilities: maps recover known distortions and are chosen without test rows."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.isotonic import IsotonicRegression

from gcnbatch.uncertainty import calibration
from gcnbatch.uncertainty.calibration import Isotonic, Temperature


def labels_of(p: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(p.shape) < p


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


Z = np.random.default_rng(1).normal(size=20_000) * 2


def test_temperature_finds_scale_and_shift_of_distorted_logits() -> None:
    found = calibration.fit_temperature(labels_of(sigmoid(Z)), sigmoid(3 * Z + 1).astype(np.float32))
    assert found.scale == pytest.approx(1 / 3, rel=0.05)
    assert found.shift == pytest.approx(-1 / 3, rel=0.15)
    np.testing.assert_allclose(found.apply(sigmoid(3 * Z + 1)), sigmoid(Z), atol=0.03)


def test_temperature_of_separable_labels_stays_finite() -> None:
    p = np.concatenate([np.full(30, 1e-3), np.full(30, 0.999)])
    found = calibration.fit_temperature(p > 0.5, p)
    assert np.isfinite([found.scale, found.shift]).all()
    calibrated = found.apply(p)
    assert (calibrated[30:] > 0.9).all()
    # 30 rows of a class show no probability nearer to 0 or 1 than theirs; other molecules are not much nearer.
    np.testing.assert_allclose(calibrated, np.where(p > 0.5, 31 / 32, 1 / 32), rtol=1e-3)
    assert found.apply(np.array([1e-6]))[0] > 1e-3


def test_isotonic_map_is_scikit_learns_but_off_0_and_1() -> None:
    p = np.round(sigmoid(Z[:400]), 2)
    y = labels_of(p**2)
    x = np.linspace(0, 1, 101)
    expected = IsotonicRegression(out_of_bounds="clip").fit(p, y).predict(x)
    np.testing.assert_allclose(
        calibration.fit_isotonic(y, p).apply(x), np.clip(expected, 1 / 402, 401 / 402), atol=1e-12
    )


def test_the_kind_that_fits_is_chosen() -> None:
    p = sigmoid(Z[:4000])
    steps = np.where(p < 0.3, 0.45, np.where(p < 0.7, 0.5, 0.55))
    kinds = {"temperature": sigmoid(0.5 * Z[:4000] - 1), "isotonic": steps}
    for kind, truth in kinds.items():
        found = calibration.fit_binary(labels_of(truth), p, np.random.default_rng(0))
        assert found.kind == kind
    again = calibration.fit_binary(labels_of(steps), p, np.random.default_rng(0))
    assert again == found


def test_what_is_calibrated_stays_nearly_as_it_is() -> None:
    p = sigmoid(Z[:4000])
    found = [calibration.fit_binary(labels_of(p, seed), p, np.random.default_rng(0)) for seed in range(5)]
    assert "identity" in {one.kind for one in found}
    for one in found:
        np.testing.assert_allclose(one.apply(p), p, atol=0.06)


def test_temperature_of_classes_recovers_a_known_scale() -> None:
    draws = np.random.default_rng(0)
    z = draws.normal(size=(20_000, 3)) * 2
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > draws.random((len(p), 1))).argmax(axis=1)
    sharp = np.exp(2 * z) / np.exp(2 * z).sum(axis=1, keepdims=True)
    found = calibration.fit_classes(y, sharp)
    assert found.scale == pytest.approx(0.5, rel=0.05)
    np.testing.assert_allclose(found.apply(sharp), p, atol=0.02)


@pytest.mark.parametrize(
    ("rows", "positives", "reason"),
    [
        (49, 20, "49 validation rows; 50 are needed"),
        (60, 9, "9 validation rows of the rarer class; 10 are needed"),
        (60, 51, "9 validation rows of the rarer class; 10 are needed"),
        (60, 10, ""),
    ],
)
def test_too_few_rows_are_told_with_their_number(rows: int, positives: int, reason: str) -> None:
    assert calibration.too_few(np.arange(rows) < positives) == reason


def test_maps_that_fall_or_are_not_finite_are_refused() -> None:
    for x, y in (([0.0, 1.0], [1.0, 0.0]), ([1.0, 0.0], [0.0, 1.0]), ([0.0], [0.0, 1.0]), ([0.0], [float("nan")])):
        with pytest.raises(ValidationError):
            Isotonic(x=x, y=y)
    with pytest.raises(ValidationError):
        Temperature(scale=float("inf"))
