"""Scaling of regression targets: the model sees (y - mean) / std in float32, everything else y in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.moments import moments

Float64 = NDArray[np.float64]
_MOST = 22  # decimal places: 10 to this power is exact in float64


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of regression targets, (K,) float64: outputs are ``logits * std + mean``.

    Outputs are rounded to a decimal place between 1e-8 and 1e-7 of the deviation, if that place is between 1e-22 and
    1e22: float32 logits resolve no more, and their text is short.
    """

    mean: Float64
    std: Float64

    @classmethod
    def identity(cls, outputs: int) -> Scaling:
        """Return the scaling that changes nothing."""
        return cls(np.zeros(outputs), np.ones(outputs))

    @classmethod
    def of(cls, y: NDArray[Any]) -> Scaling:
        """Return the scaling that gives the labelled entries of each column of `y` mean 0 and standard deviation 1.

        Of equal labels, the unit is their absolute value.
        """
        mean, std = moments(y)
        return cls(mean, np.where(std > 0, std, np.where(mean != 0, np.abs(mean), 1.0)))

    def apply(self, y: NDArray[Any]) -> NDArray[np.float32]:
        """Return `y` in the model's scale; infinite beyond the range of float32."""
        with np.errstate(over="ignore"):
            half = y / 2 - self.mean / 2  # a difference of large numbers of different signs can overflow
            return (half / self.std * 2).astype(np.float32)

    def undo(self, logits: NDArray[np.float32]) -> Float64:
        """Return outputs in the unit of the targets."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._rounded(logits.astype(np.float64) * self.std + self.mean)

    def _rounded(self, values: Float64) -> Float64:
        up, down, is_rounded = self._factors
        found = np.rint(values * up / down) / up * down  # one of the factors is 1
        return np.where(np.isfinite(found) & is_rounded, found, values)

    @cached_property
    def _factors(self) -> tuple[Float64, Float64, NDArray[np.bool_]]:
        """Powers of ten, (K,), and which outputs they round: not those of an identity."""
        places = 7 - np.floor(np.log10(self.std))
        is_rounded = (np.abs(places) <= _MOST) & ((self.mean != 0) | (self.std != 1))
        places = np.where(is_rounded, places, 0)
        return 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0), is_rounded
