"""ReLU, then dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.reference.arrays import Float, into
from gcnbatch.reference.dropout import dropout, dropout_backward
from gcnbatch.reference.relu import relu

if TYPE_CHECKING:
    from gcnbatch.backends.ops import DropoutKey


class Kept(NamedTuple):
    """Which elements' gradients pass: those that dropout of this rate kept and that are positive."""

    mask: NDArray[np.bool_]
    rate: float


def relu_dropout(
    x: Float, rate: float, key: DropoutKey, out: Float | None = None, reader: object = None
) -> tuple[Float, Kept]:
    """Dropout of max(x, 0), of any shape: (y, kept)."""
    positive = relu(x)
    y, mask = dropout(positive, rate, key)
    return into(out, y), Kept(mask & (positive > 0), rate)


def relu_dropout_backward(dy: Float, kept: Kept, out: Float | None = None) -> Float:
    """Gradient of `relu_dropout`: dY / (1 - rate) where kept and x > 0, else 0."""
    return into(out, dropout_backward(dy, *kept))
