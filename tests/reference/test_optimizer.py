import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from gcnbatch.reference.optimizer import adam_step, clip_norm, sgd_step


def test_clip_norm_by_hand():
    gradients = np.array([3.0, 0, 4])
    clip_norm(gradients, 5)
    assert_array_equal(gradients, [3, 0, 4])
    clip_norm(gradients, 1)
    assert_allclose(gradients, [0.6, 0, 0.8], rtol=1e-15)


def test_clip_norm_of_no_gradient():
    gradients = np.zeros(3)
    clip_norm(gradients, 1)
    assert_array_equal(gradients, [0, 0, 0])


def test_two_steps_of_adam_by_hand():
    """The first parameter is left alone, the second has weight decay 0.5, the third L2 0.25.

    All see g = 2, then g = 5. With beta1 = 0.5, beta2 = 0.75, epsilon = 1:
    step 1: m = 1, v = 1, m̂ = 2, v̂ = 4, m̂ / (sqrt(v̂) + 1) = 2/3; step 2: m = 3, v = 7, m̂ = 4, v̂ = 16, 4/5.
    """
    p, m, v = np.array([1.0, 1, 4]), np.zeros(3), np.zeros(3)
    rest = (0.3, 0.5, 0.75, 1.0, np.array([0, 0.5, 0]), np.array([0, 0, 0.25]))
    adam_step(p, np.array([2, 2, 2 - 0.25 * 4]), m, v, 1, *rest)
    assert_allclose(p, [0.8, 0.8 - 0.3 * 0.5, 3.8])
    assert_allclose([m, v], np.ones((2, 3)))
    adam_step(p, np.array([5, 5, 5 - 0.25 * 3.8]), m, v, 2, *rest)
    assert_allclose(p, [0.56, 0.65 - 0.3 * (0.8 + 0.5 * 0.65), 3.56])
    assert_allclose([m, v], [[3, 3, 3], [7, 7, 7]])


def test_adam_is_the_ratio_of_weighted_means():
    """m̂ and v̂ are averages of all gradients so far with weights beta^(t-i), which sum to (1 - beta^t) / (1 - beta)."""
    gradients = np.random.default_rng(0).normal(size=(5, 4))
    p, m, v, zeros = np.ones(4), np.zeros(4), np.zeros(4), np.zeros(4)
    want = np.ones(4)
    for t in range(1, 6):
        adam_step(p, gradients[t - 1], m, v, t, 0.01, 0.9, 0.999, 1e-8, zeros, zeros)
        age = np.arange(t)[::-1]
        mean = np.average(gradients[:t], axis=0, weights=0.9**age)
        square = np.average(gradients[:t] ** 2, axis=0, weights=0.999**age)
        want -= 0.01 * mean / (np.sqrt(square) + 1e-8)
        assert_allclose(p, want, rtol=1e-13)


def test_two_steps_of_sgd_by_hand():
    """The first parameter is left alone, the second has weight decay 0.5, the third L2 0.5.

    Learning rate and momentum are 0.5; the velocity is 2, 1, 2, then 2, -0.5, 2.
    """
    p, velocity = np.array([1.0, 2, 2]), np.zeros(3)
    rest = (0.5, 0.5, np.array([0, 0.5, 0]), np.array([0, 0, 0.5]))
    sgd_step(p, np.array([2.0, 1, 1]), velocity, *rest)
    assert_array_equal(p, [0, 1, 1])
    assert_array_equal(velocity, [2, 1, 2])
    sgd_step(p, np.array([1.0, -1, 0.5]), velocity, *rest)
    assert_array_equal(p, [-1, 1, 0])
    assert_array_equal(velocity, [2, -0.5, 2])


def test_sgd_moves_by_the_gradients_so_far():
    gradients = np.random.default_rng(0).normal(size=(5, 4))
    p, velocity, zeros = np.ones(4), np.zeros(4), np.zeros(4)
    for gradient in gradients:
        sgd_step(p, gradient, velocity, 0.1, 0.9, zeros, zeros)
    # Gradient i has moved the parameters 5 - i times, each time 0.9 times the last.
    reach = (1 - 0.9 ** np.arange(5, 0, -1)) / (1 - 0.9)
    assert_allclose(p, 1 - 0.1 * reach @ gradients, rtol=1e-13)
