"""Parameters by name in one flat array, which an optimiser step updates in one operation."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox

ALIGN = 32  # elements: each parameter starts on a 128-byte boundary, so that kernels can use vector loads
LARGEST = 2.0**63  # of a trained value: the product of two is finite in float32


@dataclass(frozen=True)
class ParameterSpec:
    """Shape and initialisation of one array of a layer.

    Parameters
    ----------
    name : str
        Layer and array, such as ``"conv1.weight"``.
    shape : tuple of int
    init : {"glorot", "zeros", "ones"}
        glorot: uniform in ±sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010), with these `fans`.
    fans : (int, int)
        Fan in and fan out; for a weight of several channels, those of one channel.
    trainable : bool
        False for running statistics.
    decays : bool
        Whether weight decay and L2 apply (to weights, not to biases or norms).
    negative : bool
        Whether values below 0 are possible: not of variances and scales.
    """

    name: str
    shape: tuple[int, ...]
    init: Literal["glorot", "zeros", "ones"]
    fans: tuple[int, int] = (1, 1)
    trainable: bool = True
    decays: bool = False
    negative: bool = True


class Misfit(NamedTuple):
    """An array that no training gives: its name, what is in it, and what is possible."""

    name: str
    got: str
    expected: str


@dataclass(frozen=True)
class Slot:
    """Range of a parameter in its flat array."""

    spec: ParameterSpec
    start: int

    @property
    def stop(self) -> int:
        """End of the range."""
        return self.start + prod(self.spec.shape)


class ParameterLayout:
    """Assigns every parameter its range: trainable ones in one flat array, running statistics in another.

    Alignment gaps hold zeros, and every optimiser keeps them zero.
    """

    def __init__(self, specs: Iterable[ParameterSpec]) -> None:
        self.slots: dict[str, Slot] = {}
        sizes = {True: 0, False: 0}
        for spec in specs:
            assert spec.name not in self.slots, spec.name
            slot = Slot(spec, sizes[spec.trainable])
            self.slots[spec.name] = slot
            sizes[spec.trainable] = -(-slot.stop // ALIGN) * ALIGN
        self.n_trainable, self.n_buffers = sizes[True], sizes[False]

    def names(self, trainable: bool) -> list[str]:
        """Return the names in the array of trainable parameters, or in that of running statistics, in order."""
        return [name for name, slot in self.slots.items() if slot.spec.trainable == trainable]

    def count(self) -> int:
        """Return the number of trainable values, without alignment gaps."""
        return sum(prod(self.slots[name].spec.shape) for name in self.names(True))

    def views(self, flat: NDArray[np.float32], trainable: bool) -> dict[str, NDArray[np.float32]]:
        """Return each parameter as a view into its flat array."""
        return {
            name: flat[slot.start : slot.stop].reshape(slot.spec.shape)
            for name, slot in self.slots.items()
            if slot.spec.trainable == trainable
        }

    def initial(self, seed: int, known: Container[str] = ()) -> dict[str, NDArray[np.float32]]:
        """Return the initial value of every parameter but those whose value is known.

        It depends on (seed, name) only, so all backends start alike.
        """
        return {name: _initial(slot.spec, seed) for name, slot in self.slots.items() if name not in known}

    def misfit(self, arrays: Mapping[str, NDArray[np.float32]]) -> Misfit | None:
        """Return the first of these arrays with values that no training gives; None if there is none."""
        for name, values in arrays.items():
            spec = self.slots[name].spec
            if not np.isfinite(values).all():
                return Misfit(name, "numbers that are not finite", "finite numbers")
            if not spec.negative and values.min(initial=0) < 0:
                return Misfit(name, f"{values.min():g}", "no number below 0")
            if spec.trainable and (largest := max(values.max(initial=0), -values.min(initial=0))) > LARGEST:
                return Misfit(name, f"{largest:g}", f"numbers up to {LARGEST:g}")
        return None

    def fill(self, values: Mapping[str, float]) -> NDArray[np.float32]:
        """Return a flat (n_trainable,) array with one constant per named parameter, 0 elsewhere."""
        flat = np.zeros(self.n_trainable, dtype=np.float32)
        for name, value in values.items():
            flat[self.slots[name].start : self.slots[name].stop] = value
        return flat


def _initial(spec: ParameterSpec, seed: int) -> NDArray[np.float32]:
    if spec.init != "glorot":
        return np.full(spec.shape, 1.0 if spec.init == "ones" else 0.0, dtype=np.float32)
    limit = np.sqrt(6.0 / sum(spec.fans))
    return philox.generator(seed, spec.name).uniform(-limit, limit, spec.shape).astype(np.float32)
