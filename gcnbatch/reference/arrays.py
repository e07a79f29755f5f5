"""The array type of the reference: any float type in, the same out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.floating[Any]]


def into(out: Float | None, values: Float) -> Float:
    """Return `values`, written to `out` when one is given."""
    if out is None:
        return values
    out[...] = values
    return out
