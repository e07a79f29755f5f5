import numpy as np
from numpy.testing import assert_array_equal

from gcnbatch.reference.relu import relu, relu_backward
from tests.reference.numerical import assert_gradient


def test_relu_by_hand():
    y = relu(np.array([[-1.0, 0, 2], [3, -0.5, 1e-300]]))
    assert_array_equal(y, [[0, 0, 2], [3, 0, 1e-300]])
    assert_array_equal(relu_backward(np.array([[5.0, 6, 7], [8, 9, 10]]), y), [[0, 0, 7], [8, 0, 10]])


def test_relu_gradient():
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    assert np.abs(x).min() > 1e-3  # no kink within a step
    assert_gradient(relu, x, dy, relu_backward(dy, relu(x)))
