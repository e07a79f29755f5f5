import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from gcnbatch.reference.matmul import matmul, matmul_backward, matmul_dx, sparse_matmul, sparse_matmul_backward
from tests.ops.cases import build_csr
from tests.reference.numerical import assert_gradient


def test_matmul_by_hand():
    x = np.array([[1.0, 2], [3, 4], [5, 6]])
    w = np.array([[1.0, 0, -1], [2, 1, 0]])
    assert_array_equal(matmul(x, w), [[5, 2, -1], [11, 4, -3], [17, 6, -5]])


def test_matmul_backward_by_hand():
    x = np.array([[1.0, 2], [3, 4], [5, 6]])
    w = np.array([[1.0, 0, -1], [2, 1, 0]])
    dx, dw = matmul_backward(np.eye(3), x, w)
    assert_array_equal(dx, [[1, 2], [0, 1], [-1, 0]])
    assert_array_equal(matmul_dx(np.eye(3), w), dx)
    assert_array_equal(dw, [[1, 3, 5], [2, 4, 6]])


def test_matmul_gradients():
    rng = np.random.default_rng(0)
    x, w, dy = rng.normal(size=(4, 3)), rng.normal(size=(3, 5)), rng.normal(size=(4, 5))
    dx, dw = matmul_backward(dy, x, w)
    assert_gradient(lambda x: matmul(x, w), x, dy, dx)
    assert_gradient(lambda w: matmul(x, w), w, dy, dw)


def test_matmul_leaves_out_dx_on_request():
    dx, dw = matmul_backward(np.ones((2, 1)), np.ones((2, 3)), np.ones((3, 1)), need_dx=False)
    assert dx is None
    assert_array_equal(dw, [[2], [2], [2]])


def hand_matrix():
    """Return [[2, 0, -1], [0, 0, 0], [0, 3 + 1, 0]] with the repeated entry stored twice."""
    return build_csr(np.array([0, 0, 2, 2]), np.array([0, 2, 1, 1]), np.array([2.0, -1, 3, 1]), (3, 3))


def test_sparse_matmul_by_hand():
    w = np.array([[1.0, 2], [3, 4], [5, 6]])
    assert_array_equal(sparse_matmul(hand_matrix(), w), [[-3, -2], [0, 0], [12, 16]])


def test_sparse_matmul_backward_by_hand():
    dy = np.array([[1.0, 1], [9, 9], [2, -1]])
    assert_array_equal(sparse_matmul_backward(dy, hand_matrix()), [[2, 2], [8, -4], [-1, -1]])


def test_sparse_matmul_is_the_dense_product():
    rng = np.random.default_rng(1)
    rows, columns, values = rng.integers(0, 6, 20), rng.integers(0, 4, 20), rng.normal(size=20)
    dense = np.zeros((6, 4))
    np.add.at(dense, (rows, columns), values)
    x = build_csr(rows, columns, values, (6, 4))
    w, dy = rng.normal(size=(4, 3)), rng.normal(size=(6, 3))
    assert_allclose(sparse_matmul(x, w), dense @ w, rtol=1e-13)
    assert_allclose(sparse_matmul_backward(dy, x), dense.T @ dy, rtol=1e-13)
    assert_gradient(lambda w: sparse_matmul(x, w), w, dy, sparse_matmul_backward(dy, x))
