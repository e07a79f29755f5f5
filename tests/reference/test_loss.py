import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gcnbatch.data.weighted_targets import join
from gcnbatch.reference.loss import (
    mean_squared_error,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    softplus,
    weighted_loss,
)
from tests.reference.numerical import assert_gradient

NAN, LOG2, LOG3 = np.nan, np.log(2), np.log(3)


def quotient(loss, *rest):
    """Return the mean loss as a function of the logits."""
    return lambda logits: np.divide(*loss(logits, *rest)[:2])


def test_softplus_neither_overflows_nor_vanishes():
    assert_allclose(softplus(np.array([-1000.0, -40, 0, 40, 1000])), [0, np.exp(-40), LOG2, 40, 1000], rtol=1e-15)
    assert_array_equal(softplus(np.array([-100, 100], np.float32)), np.array([np.exp(-100), 100], np.float32))


def test_sigmoid_cross_entropy_by_hand():
    # Probabilities 1/2, 3/4 and 1/4; positive labels of the first task count twice.
    logits, y = np.array([[0, LOG3], [-LOG3, 5]]), np.array([[1, 0], [1, NAN]])
    total, number, dlogits = sigmoid_cross_entropy(logits, y, np.array([2.0, 7]))
    assert_allclose(total, 2 * LOG2 + 2 * LOG2 + 2 * 2 * LOG2)
    assert number == 3
    assert_allclose(dlogits, [[-1 / 3, 0.75 / 3], [-1.5 / 3, 0]])


def test_sigmoid_cross_entropy_is_the_log_likelihood():
    rng = np.random.default_rng(0)
    logits, pos_weight = rng.normal(size=(5, 3)), np.array([0.5, 1, 9])
    y = rng.integers(0, 2, (5, 3)).astype(float)
    y[1, 2] = y[4] = NAN
    p = 1 / (1 + np.exp(-logits))
    total, number, dlogits = sigmoid_cross_entropy(logits, y, pos_weight)
    assert_allclose(total, -np.nansum(pos_weight * y * np.log(p) + (1 - y) * np.log(1 - p)))
    assert number == 11
    assert_gradient(quotient(sigmoid_cross_entropy, y, pos_weight), logits, 1.0, dlogits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_cross_entropy_of_huge_logits(dtype: type):
    logits, y = np.array([[1000, -1000], [1000, -1000]], dtype), np.array([[1, 1], [0, 0]], dtype)
    total, number, dlogits = sigmoid_cross_entropy(logits, y, np.ones(2, dtype))
    assert (total, number) == (2000, 4)
    assert_array_equal(dlogits, [[0, -0.25], [0.25, 0]])


def test_softmax_cross_entropy_by_hand():
    # Probabilities (1/2, 1/2) and (3/4, 1/4); rows of class 1 count twice; the third has no label.
    logits, y = np.array([[0, 0], [LOG3, 0], [5, 5]]), np.array([[0], [1], [-1]], np.int32)
    total, weight, dlogits = softmax_cross_entropy(logits, y, np.array([1.0, 2]))
    assert_allclose(total, LOG2 + 2 * 2 * LOG2)
    assert weight == 3
    assert_allclose(dlogits, [[-1 / 6, 1 / 6], [0.5, -0.5], [0, 0]])


def test_softmax_cross_entropy_is_the_log_likelihood():
    rng = np.random.default_rng(0)
    logits, class_weight = rng.normal(size=(5, 3)), np.array([0.5, 1, 4])
    y = np.array([[0], [2], [-1], [1], [2]], np.int32)
    rows = [0, 1, 3, 4]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    total, weight, dlogits = softmax_cross_entropy(logits, y, class_weight)
    assert_allclose(total, -(class_weight[y[rows, 0]] * np.log(p[rows, y[rows, 0]])).sum())
    assert weight == 0.5 + 4 + 1 + 4
    assert_gradient(quotient(softmax_cross_entropy, y, class_weight), logits, 1.0, dlogits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_cross_entropy_of_huge_logits(dtype: type):
    logits, y = np.array([[1000, 0], [1000, 0]], dtype), np.array([[0], [1]], np.int32)
    total, weight, dlogits = softmax_cross_entropy(logits, y, np.ones(2, dtype))
    assert (total, weight) == (1000, 2)
    assert_array_equal(dlogits, [[0, 0], [0.5, -0.5]])


def test_softmax_cross_entropy_of_rows_without_weight():
    total, weight, dlogits = softmax_cross_entropy(np.array([[1.0, 2]]), np.array([[0]]), np.array([0.0, 1]))
    assert (total, weight) == (0, 0)
    assert_array_equal(dlogits, [[0, 0]])


def test_mean_squared_error_by_hand():
    logits, y = np.array([[1.0, 2], [3, 4]]), np.array([[0, NAN], [5, 4]])
    total, number, dlogits = mean_squared_error(logits, y)
    assert (total, number) == (1 + 4 + 0, 3)
    assert_allclose(dlogits, [[2 / 3, 0], [-4 / 3, 0]])


def test_mean_squared_error_gradient():
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    y[0, 1] = y[3] = NAN
    assert_gradient(quotient(mean_squared_error, y), logits, 1.0, mean_squared_error(logits, y)[2])


@pytest.mark.parametrize(
    ("kind", "costs", "slopes"),
    [
        ("squared", [0.25, 9, 4], [1, -6, 4]),
        ("absolute", [0.5, 3, 2], [1, -1, 1]),
        ("huber", [0.125, 2.5, 1.5], [0.5, -1, 1]),
    ],
)
def test_weighted_losses_of_regressions_by_hand(kind, costs, slopes):
    logits, values = np.array([[1.5], [-2.0], [4.0], [9.0]]), np.array([[1.0], [1.0], [2.0], [NAN]])
    y = join(values, np.array([[2.0], [1], [0.5], [7]]), 0)
    total, weight, dlogits = weighted_loss(logits, y, kind, np.ones(1))
    assert_allclose(total, np.dot([2, 1, 0.5], costs))
    assert weight == 3.5
    assert_allclose(dlogits[:, 0], [*np.multiply([2, 1, 0.5], slopes) / 3.5, 0])


@pytest.mark.parametrize("kind", ["squared", "absolute", "huber"])
def test_a_prediction_that_a_bound_allows_costs_nothing_and_counts(kind):
    logits, bounds = np.array([[3.0], [3.0], [1.0], [1.0]]), np.array([[1], [-1], [1], [-1]])
    y = join(np.full((4, 1), 2.0), 1, bounds)
    total, weight, dlogits = weighted_loss(logits, y, kind, np.ones(1))
    plain = weighted_loss(logits, join(np.full((4, 1), 2.0), 1, 0), kind, np.ones(1))
    assert weight == 4
    assert total == plain[0] / 2
    assert_array_equal(dlogits, plain[2] * [[0], [1], [1], [0]])


KINDS = ["sigmoid", "softmax", "squared", "absolute", "huber"]


def weighted_problem(kind):
    """Return logits, values, weights, bounds and parameters of 6 rows and 3 outputs, some labels missing."""
    rng = np.random.default_rng(1)
    shape = (6, 1 if kind == "softmax" else 3)
    values = rng.integers(0, 2, shape).astype(float) if kind in KINDS[:2] else rng.normal(size=shape)
    values[1] = NAN
    bounds = rng.integers(-1, 2, shape)
    return rng.normal(size=(6, 3)), values, rng.uniform(0.5, 2, shape), bounds, rng.uniform(0.5, 2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_loss_gradient(kind):
    logits, values, weights, bounds, parameters = weighted_problem(kind)
    y = join(values, weights, bounds)
    dlogits = weighted_loss(logits, y, kind, parameters)[2]
    assert_gradient(quotient(weighted_loss, y, kind, parameters), logits, 1.0, dlogits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_weight_two_counts_as_two_rows(kind):
    logits, values, _, bounds, parameters = weighted_problem(kind)
    twice = [0, 1, 2, 2, 3, 4, 5, 5]
    weights = np.bincount(twice)[:, None]
    one = weighted_loss(logits, join(values, weights, bounds), kind, parameters)
    other = weighted_loss(logits[twice], join(values[twice], 1, bounds[twice]), kind, parameters)
    assert_allclose(one[:2], other[:2])
    assert_allclose(one[2], weights * other[2][np.unique(twice, return_index=True)[1]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_common_factor_of_all_weights_changes_no_gradient(kind):
    logits, values, weights, bounds, parameters = weighted_problem(kind)
    one, other = (weighted_loss(logits, join(values, w, bounds), kind, parameters) for w in (weights, 8 * weights))
    assert_array_equal(other[0], 8 * one[0])
    assert_array_equal(other[2], one[2])


@pytest.mark.parametrize(
    ("kind", "plain"),
    [("sigmoid", sigmoid_cross_entropy), ("softmax", softmax_cross_entropy), ("squared", mean_squared_error)],
)
def test_equal_weights_without_bounds_are_the_plain_losses(kind, plain):
    logits, values, _, _, parameters = weighted_problem(kind)
    y = np.where(np.isnan(values), -1, values).astype(np.int32) if kind == "softmax" else values
    expected = plain(logits, y) if kind == "squared" else plain(logits, y, parameters)
    found = weighted_loss(logits, join(values.astype(np.float32), 1, 0).astype(float), kind, parameters)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [0.0, NAN])
def test_weighted_losses_without_weight_are_zero(kind, weight):
    values = np.full((3, 1 if kind == "softmax" else 2), weight)  # 0 is a label of weight 0, NaN none
    total, found, dlogits = weighted_loss(np.full((3, 2), 4.0), join(values, 0, 0), kind, np.ones(2))
    assert (total, found) == (0, 0)
    assert_array_equal(dlogits, np.zeros((3, 2)))


@pytest.mark.parametrize("n_rows", [0, 3])
@pytest.mark.parametrize(
    ("loss", "missing", "rest"),
    [
        (sigmoid_cross_entropy, lambda n: np.full((n, 2), NAN), (np.ones(2),)),
        (softmax_cross_entropy, lambda n: np.full((n, 1), -1, np.int32), (np.ones(2),)),
        (mean_squared_error, lambda n: np.full((n, 2), NAN), ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_losses_without_any_label(loss, missing, rest, n_rows: int):
    total, weight, dlogits = loss(np.full((n_rows, 2), 4.0), missing(n_rows), *rest)
    assert (total, weight) == (0, 0)
    assert_array_equal(dlogits, np.zeros((n_rows, 2)))
