"""Means and deviations of numbers of any magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.moments import moments, root_mean_square, unit_of

VALUES = np.array([1.0, 2.0, 4.0, 9.0])


@pytest.mark.parametrize("unit", [1e-300, 1e-30, 1.0, 1e19, 1e300])
def test_moments_scale_with_the_unit(unit: float) -> None:
    y = np.stack([unit * VALUES, np.where(VALUES == 4, np.nan, unit * VALUES)], axis=1)
    mean, std = moments(y)
    rest = VALUES[VALUES != 4]
    np.testing.assert_allclose(mean / unit, [VALUES.mean(), rest.mean()], rtol=1e-14)
    np.testing.assert_allclose(std / unit, [VALUES.std(), rest.std()], rtol=1e-14)
    assert root_mean_square(unit * VALUES) / unit == pytest.approx(np.sqrt(np.mean(VALUES**2)), rel=1e-14)


def test_the_deviation_from_a_large_offset_is_that_of_the_stored_numbers() -> None:
    y = 298150000 + np.arange(60) / 100
    mean, std = moments(y[:, None])
    exact = y - 298150000  # exact, as the bits of the offset cancel
    assert mean[0] - 298150000 == pytest.approx(exact.mean(), abs=np.spacing(y[0]))
    assert std[0] == pytest.approx(exact.std(), rel=1e-12)


def test_equal_numbers_have_no_deviation_and_an_empty_column_has_zeros() -> None:
    y = np.array([[0.1, np.nan, -7.0], [0.1, np.nan, np.nan], [0.1, np.nan, -7.0]])
    mean, std = moments(y)
    np.testing.assert_allclose(mean, [0.1, 0, -7], rtol=1e-15)
    assert std.tolist() == [0, 0, 0]
    assert moments(np.zeros((0, 2)))[1].tolist() == [0, 0]


def test_the_unit_is_above_every_finite_value() -> None:
    assert unit_of(np.array([np.nan, np.inf, 0.75])) == 0
    assert unit_of(np.zeros(2), np.zeros(0)) == 0
