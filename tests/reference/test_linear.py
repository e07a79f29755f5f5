import numpy as np
from numpy.testing import assert_array_equal

from gcnbatch.reference.linear import linear, linear_backward
from tests.reference.numerical import assert_gradient


def test_linear_by_hand():
    x, w = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([[1.0, 0, -1], [2, 1, 0]])
    assert_array_equal(linear(x, w, np.array([10.0, 0, 1])), [[15, 2, 0], [21, 4, -2], [27, 6, -4]])


def test_linear_gradients():
    rng = np.random.default_rng(0)
    x, w, b, dy = rng.normal(size=(4, 3)), rng.normal(size=(3, 5)), rng.normal(size=5), rng.normal(size=(4, 5))
    dx, dw, db = linear_backward(dy, x, w)
    assert_gradient(lambda x: linear(x, w, b), x, dy, dx)
    assert_gradient(lambda w: linear(x, w, b), w, dy, dw)
    assert_gradient(lambda b: linear(x, w, b), b, dy, db)


def test_linear_leaves_out_dx_on_request_and_writes_to_out():
    dw, db = np.full((3, 1), np.nan), np.full(1, np.nan)
    dx, *got = linear_backward(np.ones((2, 1)), np.ones((2, 3)), np.ones((3, 1)), need_dx=False, out=(dw, db))
    assert dx is None
    assert got[0] is dw
    assert got[1] is db
    assert_array_equal(dw, [[2], [2], [2]])
    assert_array_equal(db, [2])
