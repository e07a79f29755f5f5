"""Gradient clipping and update rules over all parameters of a model as one flat array, in place.

Both rules shrink parameters in two ways, each with a factor per parameter that is 0 where it must not shrink. `l2` adds
the gradient of l2 p² / 2, which then passes through momentum and scaling. `weight_decay` is decoupled from both
(Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019).
"""

from __future__ import annotations

import numpy as np

from gcnbatch.reference.arrays import Float


def clip_norm(gradients: Float, max_norm: float) -> None:
    """Scale the gradients g (P,) in place by max_norm / |g| if their Euclidean norm |g| exceeds `max_norm`.

    Source: Pascanu, Mikolov, Bengio: "On the difficulty of training recurrent neural networks", ICML 2013.
    """
    norm = np.sqrt((gradients**2).sum())
    if norm > max_norm:
        gradients *= max_norm / norm


def adam_step(
    parameters: Float,
    gradients: Float,
    m: Float,
    v: Float,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: Float,
    l2: Float,
) -> None:
    """Run one step of Adam (Kingma, Ba: "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1).

    g = gradient + l2 p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g²;
    m̂ = m / (1 - beta1^step); v̂ = v / (1 - beta2^step);
    p = p - learning_rate (m̂ / (sqrt(v̂) + epsilon) + weight_decay p).

    Parameters
    ----------
    parameters, m, v : (P,)
        Changed in place; m and v start as zeros.
    gradients, weight_decay, l2 : (P,)
    step : int
        Number of this step, from 1.
    learning_rate, beta1, beta2, epsilon : float
    """
    g = gradients + l2 * parameters
    m[:] = beta1 * m + (1 - beta1) * g
    v[:] = beta2 * v + (1 - beta2) * g**2
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    parameters -= learning_rate * (m_hat / (np.sqrt(v_hat) + epsilon) + weight_decay * parameters)


def sgd_step(
    parameters: Float,
    gradients: Float,
    velocity: Float,
    learning_rate: float,
    momentum: float,
    weight_decay: Float,
    l2: Float,
) -> None:
    """Run one step of gradient descent with momentum (Polyak's heavy ball).

    g = gradient + l2 p; velocity = momentum velocity + g; p = p - learning_rate (velocity + weight_decay p).

    Parameters
    ----------
    parameters, velocity : (P,)
        Changed in place; velocity starts as zeros.
    gradients, weight_decay, l2 : (P,)
    learning_rate, momentum : float
    """
    g = gradients + l2 * parameters
    velocity[:] = momentum * velocity + g
    parameters -= learning_rate * (velocity + weight_decay * parameters)
