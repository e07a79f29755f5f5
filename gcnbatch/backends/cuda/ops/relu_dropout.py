"""ReLU and dropout in one launch (dense/relu_dropout.cu)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gcnbatch import philox
from gcnbatch.backends.cuda.ops.common import KernelOps
from gcnbatch.backends.cuda.runtime.launch import PHILOX_ELEMENTS, ceil_div, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import DropoutKey, Reader


class Kept(NamedTuple):
    """Which elements' gradients pass ReLU and dropout: a bit each, from bit `first` on, and the scale of these."""

    bits: DeviceArray
    first: int
    scale: float

    def from_element(self, element: int) -> dict[str, Any]:
        """Return the fields of `Kept` in common/kept.cuh, for a part that begins with this element."""
        return {"bits": self.bits, "first": self.first + element, "scale": self.scale}


ALL_KEPT = MappingProxyType({"bits": None, "first": 0, "scale": 1.0})


def drawing(rate: float, key: DropoutKey) -> dict[str, Any]:
    """Return the arguments of kernels that draw a dropout mask."""
    return {
        "first": key.first,
        "seed": key.seed,
        "purpose": philox.purpose_key(key.purpose),
        "epoch": key.epoch,
        "step": key.step,
        "threshold": int(rate * 2**32),
        "scale": 1 / (1 - rate),
    }


class ReluDropoutOps(KernelOps):
    """`relu_dropout` of `gcnbatch.backends.ops.Ops` and its gradient."""

    def relu_dropout(
        self,
        x: DeviceArray,
        rate: float,
        key: DropoutKey,
        out: DeviceArray | None = None,
        reader: Reader | None = None,
    ) -> tuple[Any, Kept]:
        y, kept = self.or_empty(out, x.shape), self.kept_of(x, rate, key)
        self.relu_dropout_of(y, kept.bits, x, rate, key)
        return y, kept

    def relu_dropout_of(self, y: DeviceArray, bits: DeviceArray, x: DeviceArray, rate: float, key: DropoutKey) -> None:
        """Write Y, and the bits of its elements, the first of which has the number `key.first`."""
        n = x.size + key.first % PHILOX_ELEMENTS if x.size else 0
        arguments = {"y": y, "kept": bits, "x": x, "n": x.size, **drawing(rate, key)}
        self.device.launch("relu_dropout_forward", elementwise(n, per_thread=PHILOX_ELEMENTS), **arguments)

    def kept_of(self, x: DeviceArray, rate: float, key: DropoutKey) -> Kept:
        """Return `Kept` for these elements, with bits that are not set yet."""
        skipped = key.first % PHILOX_ELEMENTS
        nbytes = ceil_div(x.size + skipped, PHILOX_ELEMENTS) if x.size else 0
        return Kept(self.device.empty((nbytes,), np.uint8), skipped, 1 / (1 - rate))

    def relu_dropout_backward(self, dy: DeviceArray, kept: Kept, out: DeviceArray | None = None) -> DeviceArray:
        dx = self.or_empty(out, dy.shape)
        launch = elementwise(dy.size, per_thread=4)
        bits = {"kept": kept.bits, "kept_first": kept.first, "scale": kept.scale}
        self.device.launch("relu_dropout_backward", launch, dx=dx, dy=dy, n=dy.size, **bits)
        return dx
