import numpy as np
from numpy.testing import assert_array_equal

from gcnbatch.reference.dropout import dropout
from gcnbatch.reference.relu_dropout import relu_dropout, relu_dropout_backward
from tests.reference.numerical import assert_gradient
from tests.reference.test_dropout import KEY


def test_relu_dropout_zeroes_negative_and_dropped_elements_and_doubles_the_others():
    x = np.array([[1.0, -2, 3], [-4, 5, 0], [7, 8, -9]])
    mask = dropout(x, 0.5, KEY)[1]
    y, kept = relu_dropout(x, 0.5, KEY)
    assert_array_equal(y, [[2 * x[i, j] if mask[i, j] and x[i, j] > 0 else 0 for j in range(3)] for i in range(3)])
    assert_array_equal(relu_dropout_backward(np.ones((3, 3)), kept), 2 * (mask & (x > 0)))


def test_relu_dropout_gradient():
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    kept = relu_dropout(x, 0.3, KEY)[1]
    assert_gradient(lambda x: relu_dropout(x, 0.3, KEY)[0], x, dy, relu_dropout_backward(dy, kept))


def test_relu_dropout_overwrites_out():
    x = np.array([[1.5, -2, 0.1]])
    y, kept = relu_dropout(x, 0.0, KEY, out=x)
    assert y is x
    assert_array_equal(x, [[1.5, 0, 0.1]])
    assert_array_equal(kept.mask, [[True, False, True]])
