from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import QuantileTransformer

from gcnbatch.mixture.normal_scores import NormalScores
from gcnbatch.mixture.transforms import KINDS, Transform, Transforms

SKEWED = np.exp(np.random.default_rng(0).normal(size=300))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("y", [SKEWED, np.append(SKEWED, 0), SKEWED - 3], ids=["positive", "zero", "negative"])
def test_transforms_keep_order_and_invert(kind: str, y: np.ndarray) -> None:
    transform = Transform.fit(kind, np.append(y, np.nan))
    z = transform.apply(y)
    assert np.array_equal(np.argsort(z), np.argsort(y))
    np.testing.assert_allclose(transform.invert(z), y, rtol=1e-12, atol=1e-12)
    between = np.linspace(z.min(), z.max(), 50)
    np.testing.assert_allclose(transform.apply(transform.invert(between)), between, rtol=1e-9, atol=1e-9)


def test_a_logarithm_needs_targets_that_are_not_negative() -> None:
    assert Transform.fit("log", SKEWED).kind == "log"
    assert Transform.fit("log", SKEWED - 3).kind == "none"
    assert Transform.fit("log", np.array([0.0, 2.0, 8.0])).shift == 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("y", [[np.nan, np.nan], [5.0, 5.0]], ids=["none", "equal"])
def test_targets_without_two_values_are_not_transformed(kind: str, y: list[float]) -> None:
    transform = Transform.fit(kind, np.array(y))
    assert transform.kind == "none"
    assert np.array_equal(transform.invert(transform.apply(np.array([2.5]))), [2.5])


@pytest.mark.parametrize(("kind", "most"), [("log", 100 * SKEWED.max()), ("quantile", SKEWED.max())])
def test_predictions_far_outside_stay_finite(kind: str, most: float) -> None:
    transform = Transform.fit(kind, SKEWED)
    found = transform.invert(np.array([-1e6, 1e6]))
    assert np.all(found >= 0)
    np.testing.assert_allclose(found[1], most)


def test_normal_scores_agree_with_scikit_learn() -> None:
    x = np.random.default_rng(1).normal(size=(1000, 1)) ** 3
    own = NormalScores.fit(x, knots=1000).apply(x)
    its = QuantileTransformer(n_quantiles=1000, output_distribution="normal").fit_transform(x)
    middle = np.abs(its) < 2
    np.testing.assert_allclose(own[middle], its[middle], atol=0.02)


def test_normal_scores_of_ties_missing_values_and_few_knots() -> None:
    x = np.array([[1.0, np.nan], [1, 7], [2, 7], [np.nan, 7]])
    scores = NormalScores.fit(x, knots=10)
    found = scores.apply(x)
    assert np.array_equal(np.isnan(found), np.isnan(x))
    assert np.array_equal(found[1:3, 1], [0, 0])
    assert np.array_equal(scores.varied, [0])
    few = NormalScores.fit(np.arange(1000.0)[:, None], knots=50)
    assert len(few.values) == 50
    exact = NormalScores.fit(np.arange(1000.0)[:, None], knots=1000)
    np.testing.assert_allclose(few.scores, exact.apply(few.values[:, None])[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_bends_unless_it_only_changes_the_unit(kind: str) -> None:
    normal = np.random.default_rng(4).normal(7, 1, 2000)  # such as pKi
    gaps = np.append(np.exp(normal), np.nan)
    assert not Transform.fit(kind, normal).bends(normal)
    assert Transform.fit(kind, gaps).bends(gaps) == (kind != "none")
    assert not Transform.fit(kind, np.full(3, 2.0)).bends(np.full(3, 2.0))


def test_transforms_of_several_targets_survive_their_arrays() -> None:
    y = np.stack([SKEWED, SKEWED, SKEWED - 3], axis=1)
    transforms = Transforms.fit(("quantile", "log", "none"), y)
    again = Transforms.from_arrays(transforms.arrays())
    assert again.kinds == ("quantile", "log", "none")
    assert np.array_equal(again.apply(y), transforms.apply(y))
    assert np.array_equal(again.invert(y), transforms.invert(y))


@pytest.mark.parametrize("knots", [2, 3, 256])
def test_normal_scores_interpolate_each_row_alone_as_numpy_does_a_column(knots: int) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 6)) * 10.0 ** np.arange(-6, 6, 2)
    x[:, 1], x[:, 2], x[random.random(x.shape) < 0.1] = 3.0, np.round(x[:, 2]), np.nan
    x[:, 5] = np.nan
    fitted = NormalScores.fit(x, knots)
    new = np.concatenate([x[:50], 2 * x[50:100], np.full((1, 6), np.inf), np.full((1, 6), -np.inf)])
    found = fitted.apply(new)
    assert np.array_equal(found, np.concatenate([fitted.apply(row[None]) for row in new]), equal_nan=True)
    for column, (first, end) in enumerate(zip(fitted.starts, fitted.starts[1:], strict=False)):
        expected = np.interp(new[:, column], fitted.values[first:end], fitted.scores[first:end])
        expected[np.isnan(new[:, column])] = np.nan
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-14, atol=1e-15)
    assert fitted.apply(new[:0]).shape == (0, 6)
