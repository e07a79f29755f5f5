import numpy as np
from numpy.testing import assert_allclose

from gcnbatch.reference.layer_norm import layer_norm, layer_norm_backward
from tests.reference.numerical import assert_gradient

# Means 5 and 10, biased variances 2 and 14; with epsilon 2 the divisors are 2 and 4.
X = np.array([[3.0, 5, 7, 5], [16, 6, 8, 10]])
GAMMA, BETA = np.array([2.0, 1, 2, 4]), np.array([1.0, 3, 0, 0])


def test_layer_norm_by_hand():
    assert_allclose(layer_norm(X, GAMMA, BETA, 2.0)[0], [[-1, 3, 2, 0], [4, 2, -1, 0]], rtol=1e-15)
    assert_allclose(layer_norm(X, GAMMA, BETA, 2.0, relu=True)[0], [[0, 3, 2, 0], [4, 2, 0, 0]], rtol=1e-15)


def test_layer_norm_gradients():
    rng = np.random.default_rng(0)
    x, dy, gamma, beta = (rng.normal(size=shape) for shape in ((6, 3), (6, 3), 3, 3))
    for relu in (False, True):
        dx, dgamma, dbeta = layer_norm_backward(dy, layer_norm(x, gamma, beta, 1e-5, relu)[1], gamma)
        assert_gradient(lambda x, relu=relu: layer_norm(x, gamma, beta, 1e-5, relu)[0], x, dy, dx)
        assert_gradient(lambda gamma, relu=relu: layer_norm(x, gamma, beta, 1e-5, relu)[0], gamma, dy, dgamma)
        assert_gradient(lambda beta, relu=relu: layer_norm(x, gamma, beta, 1e-5, relu)[0], beta, dy, dbeta)
