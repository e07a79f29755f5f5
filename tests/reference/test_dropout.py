import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gcnbatch import philox
from gcnbatch.backends.ops import DropoutKey
from gcnbatch.reference.dropout import dropout, dropout_backward
from tests.reference.numerical import assert_gradient

KEY = DropoutKey(seed=7, purpose="conv1.dropout", epoch=2, step=5)


def test_dropout_keeps_half_by_the_top_bit():
    x = np.arange(1.0, 13).reshape(4, 3)
    y, mask = dropout(x, 0.5, KEY)
    kept = philox.bits(*KEY[:4], 12).reshape(4, 3) >> 31 == 1
    assert_array_equal(mask, kept)
    assert_array_equal(y, [[2 * x[i, j] if kept[i, j] else 0 for j in range(3)] for i in range(4)])


def test_dropout_keeps_an_element_whose_bits_are_the_threshold():
    drawn = philox.bits(*KEY[:4], 1)[0]
    assert dropout(np.ones(1), float(drawn) / 2**32, KEY)[1][0]
    assert not dropout(np.ones(1), float(drawn + 1) / 2**32, KEY)[1][0]


def test_dropout_backward_by_hand():
    dy = np.array([[1.0, 2, 3], [4, 5, 6]])
    mask = np.array([[True, False, True], [False, False, True]])
    assert_array_equal(dropout_backward(dy, mask, 0.75), [[4, 0, 12], [0, 0, 24]])


def test_dropout_gradient():
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    mask = dropout(x, 0.3, KEY)[1]
    assert 0 < mask.sum() < mask.size
    assert_gradient(lambda x: dropout(x, 0.3, KEY)[0], x, dy, dropout_backward(dy, mask, 0.3))


def test_dropout_of_rate_0_is_the_identity():
    x = np.array([[1.5, -2, 0.1]])
    assert_array_equal(dropout(x, 0.0, KEY)[0], x)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_rate_and_mean(rate: float):
    count, deviations = 100_000, 5
    y, mask = dropout(np.ones(count), rate, KEY)
    assert abs(mask.mean() - (1 - rate)) < deviations * np.sqrt(rate * (1 - rate) / count)
    assert abs(y.mean() - 1) < deviations * np.sqrt(rate / (1 - rate) / count)


def test_dropout_mask_of_an_element_does_not_depend_on_those_after_it():
    long, short = dropout(np.ones((7, 3)), 0.5, KEY)[1], dropout(np.ones((4, 3)), 0.5, KEY)[1]
    assert_array_equal(long[:4], short)


def test_dropout_takes_an_empty_input():
    y, mask = dropout(np.zeros((0, 3)), 0.5, KEY)
    assert y.shape == mask.shape == (0, 3)
