import numpy as np
from numpy.testing import assert_array_equal

from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.reference.join import join, join_backward
from tests.reference.numerical import assert_gradient

VALUES = np.array([[1.0, 10, np.nan], [3, -90, 2], [5, 20, 0]])
ROWS = np.array([2, 1])
MEAN, SCALE = np.array([3.0, 10, 1]), np.array([0.5, 0.1, 2])


def test_join_by_hand():
    r = np.array([[7.0, 8], [9, 6]])
    got = join(r, GraphFeatures(VALUES, ROWS), MEAN, SCALE, 4.0)
    assert_array_equal(got, [[7, 8, 1, 1, -2], [9, 6, 0, -4, 2]])
    assert join(r[:1], GraphFeatures(VALUES, ROWS[:1] * 0), MEAN, SCALE, 4.0).tolist() == [[7, 8, -1, 0, 0]]


def test_join_gradient():
    rng = np.random.default_rng(0)
    r, dy = rng.normal(size=(2, 3)), rng.normal(size=(2, 6))
    features = GraphFeatures(VALUES, ROWS)
    assert_gradient(lambda r: join(r, features, MEAN, SCALE, 4.0), r, dy, join_backward(dy, 3))
