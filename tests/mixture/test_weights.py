from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from gcnbatch.mixture.weights import find_weights, least

RNG = np.random.default_rng(0)
Y = RNG.normal(size=(500, 2, 1))


def noisy(*deviations: float, rows: int = 500) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.stack([Y[:rows] + deviation * rng.normal(size=(rows, 2, 1)) for deviation in deviations])


@given(st.integers(1, 5), st.integers(0, 100), st.floats(0.01, 10))
def test_weights_are_the_least_of_a_search(members: int, seed: int, pull: float) -> None:
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(members, members + 2))
    product, prior = factor @ factor.T, np.full(members, 1 / members)

    def value(w: np.ndarray) -> float:
        return float(w @ product @ w + pull * ((w - prior) ** 2).sum())

    found = least(product, prior, pull)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    limits, total = [(0, 1)] * members, {"type": "eq", "fun": lambda w: w.sum() - 1}
    searched = minimize(value, prior, bounds=limits, constraints=total, method="SLSQP", tol=1e-12)
    assert value(found) <= searched.fun + 1e-6


def test_weights_of_every_task_have_the_sum_1() -> None:
    weights = find_weights(Y, noisy(0.2, 0.4, 0.3))
    assert weights.shape == (3, 2)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    assert (weights[0] > weights[2]).all()
    assert (weights[2] > weights[1]).all()


def test_equal_members_have_equal_weights() -> None:
    one = noisy(0.3)[0]
    np.testing.assert_allclose(find_weights(Y, np.stack([one, one])), 0.5)


def test_a_member_that_does_not_help_is_left_out() -> None:
    weights = find_weights(Y, noisy(0.2, 3.0, 0.2))
    assert np.array_equal(weights[1], [0, 0])


def test_a_task_with_few_rows_follows_the_shared_weights() -> None:
    outputs = noisy(0.2, 0.4)
    outputs[0, :, 1], outputs[1, :, 1] = outputs[1, :, 1].copy(), outputs[0, :, 1].copy()  # the second one is better
    assert np.argmax(find_weights(Y, outputs), axis=0).tolist() == [0, 1]
    few = Y.copy()
    few[10:, 1] = np.nan
    assert np.argmax(find_weights(few, outputs), axis=0).tolist() == [0, 0]


def test_a_task_without_labels_has_the_shared_weights() -> None:
    y = Y.copy()
    y[:, 1] = np.nan
    weights = find_weights(y, noisy(0.2, 0.4))
    np.testing.assert_allclose(weights[:, 0], weights[:, 1], atol=0.1)
