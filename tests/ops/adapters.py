"""How the operation tests reach a backend: its operations, and the way of arrays to it and back.

A backend joins every operation test by a line in `BACKENDS` (and ``marks=pytest.mark.gpu`` if it needs one).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends.base import Array, Ops
from gcnbatch.backends.registry import open_backend
from gcnbatch.reference import ReferenceOps


@dataclass(frozen=True)
class Adapter:
    """A backend's operations; `upload` copies a NumPy array to it, `download` an array or a scalar result back."""

    ops: Ops
    upload: Callable[[NDArray[Any]], Array]
    download: Callable[[Array], NDArray[Any]]


def _cpu() -> Adapter:
    return Adapter(open_backend("cpu").ops, np.array, np.array)


REFERENCE = Adapter(ReferenceOps(), np.array, np.array)
_OPENERS = {"cpu": _cpu}
BACKENDS = [pytest.param("cpu")]


@cache
def open_adapter(name: str) -> Adapter:
    """Open a backend once for all tests."""
    return _OPENERS[name]()
