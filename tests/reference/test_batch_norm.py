import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gcnbatch.reference.batch_norm import batch_norm, batch_norm_backward
from tests.reference.numerical import assert_gradient

# Means 5 and 10, biased variances 2 and 14; with epsilon 2 the divisors are 2 and 4.
X = np.array([[3.0, 16], [5, 6], [7, 8], [5, 10]])
GAMMA, BETA = np.array([2.0, -4]), np.array([1.0, 3])
Y = [[-1, -3], [1, 7], [3, 5], [1, 3]]


def test_batch_norm_by_hand():
    running_mean, running_var = np.array([1.0, 2]), np.array([3.0, 4])
    y, _ = batch_norm(X, GAMMA, BETA, running_mean, running_var, epsilon=2, momentum=0.25, training=True)
    assert_allclose(y, Y, rtol=1e-15)
    assert_allclose(running_mean, [0.75 * 1 + 0.25 * 5, 0.75 * 2 + 0.25 * 10], rtol=1e-15)
    assert_allclose(running_var, [0.75 * 3 + 0.25 * 8 / 3, 0.75 * 4 + 0.25 * 56 / 3], rtol=1e-15)


def test_batch_norm_in_inference_by_hand():
    running_mean, running_var = np.array([5.0, 10]), np.array([2.0, 14])
    y, _ = batch_norm(X[:2], GAMMA, BETA, running_mean, running_var, epsilon=2, momentum=0.25, training=False)
    assert_allclose(y, Y[:2], rtol=1e-15)
    assert_array_equal(running_mean, [5, 10])
    assert_array_equal(running_var, [2, 14])


def test_batch_norm_backward_by_hand():
    _, saved = batch_norm(X, GAMMA, BETA, np.zeros(2), np.ones(2), epsilon=2, momentum=0.1, training=True)
    dx, dgamma, dbeta = batch_norm_backward(np.array([[1.0, 0], [0, 4], [0, 0], [0, 0]]), saved, GAMMA)
    assert_allclose(dx, [[0.5, -0.5], [-0.25, -2], [0, 1.5], [-0.25, 1]], rtol=1e-15)
    assert_allclose(dgamma, [-1, -4], rtol=1e-15)
    assert_allclose(dbeta, [1, 4], rtol=1e-15)


def test_batch_norm_gradients():
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
    gamma, beta = rng.normal(size=3), rng.normal(size=3)

    def run(x, gamma, beta):
        return batch_norm(x, gamma, beta, np.zeros(3), np.ones(3), epsilon=1e-5, momentum=0.1, training=True)

    dx, dgamma, dbeta = batch_norm_backward(dy, run(x, gamma, beta)[1], gamma)
    assert_gradient(lambda x: run(x, gamma, beta)[0], x, dy, dx)
    assert_gradient(lambda gamma: run(x, gamma, beta)[0], gamma, dy, dgamma)
    assert_gradient(lambda beta: run(x, gamma, beta)[0], beta, dy, dbeta)


def test_batch_norm_of_one_node():
    running_mean, running_var = np.zeros(1), np.ones(1)
    x, gamma, beta = np.array([[7.0]]), np.array([2.0]), np.array([5.0])
    y, saved = batch_norm(x, gamma, beta, running_mean, running_var, epsilon=1e-5, momentum=0.1, training=True)
    assert_array_equal(y, [[5]])
    assert_allclose(running_mean, [0.7])
    assert_allclose(running_var, [0.9])
    assert_array_equal(batch_norm_backward(np.ones((1, 1)), saved, gamma)[0], [[0]])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_nodes(training: bool):
    running_mean, running_var = np.array([1.0, 2]), np.array([3.0, 4])
    y, saved = batch_norm(np.zeros((0, 2)), GAMMA, BETA, running_mean, running_var, 1e-5, 0.1, training)
    dx, dgamma, dbeta = batch_norm_backward(np.zeros((0, 2)), saved, GAMMA)
    assert y.shape == dx.shape == (0, 2)
    assert_array_equal([dgamma, dbeta], np.zeros((2, 2)))
    assert_array_equal([running_mean, running_var], [[1, 2], [3, 4]])
