"""Inverted dropout with a counter-based mask.

Source: Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov: "Dropout: a simple way to prevent neural networks from
overfitting", JMLR 15 (2014). Training scales the kept elements up, so inference skips the operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.reference.arrays import Float

if TYPE_CHECKING:
    from gcnbatch.backends.ops import DropoutKey


def dropout(x: Float, rate: float, key: DropoutKey) -> tuple[Float, NDArray[np.bool_]]:
    """Zero each element with probability `rate` (0 <= rate < 1) and scale the others by 1 / (1 - rate).

    Element e of x, counted row by row from `key.first`, is kept when value e of ``philox.bits`` is at least
    floor(rate * 2^32). So the mask depends on `key` and e only, not on the values, the dtype or the number of elements.

    Returns
    -------
    y : as x
    mask : bool, as x
        True where kept.
    """
    values = philox.bits(key.seed, key.purpose, key.epoch, key.step, x.size, key.first)
    mask = (values >= int(rate * 2**32)).reshape(x.shape)
    return _scale_kept(x, mask, rate), mask


def dropout_backward(dy: Float, mask: NDArray[np.bool_], rate: float) -> Float:
    """Gradient of `dropout`: dY / (1 - rate) where kept, else 0."""
    return _scale_kept(dy, mask, rate)


def _scale_kept(x: Float, mask: NDArray[np.bool_], rate: float) -> Float:
    return np.where(mask, x * (1 / (1 - rate)), np.zeros_like(x))
