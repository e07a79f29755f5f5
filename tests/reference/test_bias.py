import numpy as np
from numpy.testing import assert_array_equal

from gcnbatch.reference.bias import bias_add, bias_add_backward
from tests.reference.numerical import assert_gradient


def test_bias_add_by_hand():
    y = np.array([[1.0, 2], [3, 4], [5, 6]])
    assert_array_equal(bias_add(y, np.array([10.0, -1])), [[11, 1], [13, 3], [15, 5]])


def test_bias_add_backward_by_hand():
    assert_array_equal(bias_add_backward(np.array([[1.0, 2], [3, 4], [5, 6]])), [9, 12])


def test_bias_add_gradient():
    rng = np.random.default_rng(0)
    y, b, dy = rng.normal(size=(4, 3)), rng.normal(size=3), rng.normal(size=(4, 3))
    assert_gradient(lambda b: bias_add(y, b), b, dy, bias_add_backward(dy))


def test_bias_add_backward_without_nodes():
    assert_array_equal(bias_add_backward(np.zeros((0, 2))), [0, 0])
