"""ReLU and dropout in one launch (dense/relu_dropout.cu)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gcnbatch import philox
from gcnbatch.backends.cuda.ops.common import KernelOps
from gcnbatch.backends.cuda.runtime.launch import ceil_div, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import DropoutKey

PHILOX_ELEMENTS = 8  # of one block of random bits, which share a byte of `Kept`


class Kept(NamedTuple):
    """Which elements' gradients pass ReLU and dropout: a bit each, from bit `first` on, and the scale of these."""

    bits: DeviceArray
    first: int
    scale: float

    def from_element(self, element: int) -> dict[str, Any]:
        """Return the fields of `Kept` in common/kept.cuh, for a part that begins with this element."""
        return {"bits": self.bits, "first": self.first + element, "scale": self.scale}


ALL_KEPT = MappingProxyType({"bits": None, "first": 0, "scale": 1.0})


class ReluDropoutOps(KernelOps):
    """`relu_dropout` of `gcnbatch.backends.ops.Ops` and its gradient."""

    def relu_dropout(
        self, x: DeviceArray, rate: float, key: DropoutKey, out: DeviceArray | None = None
    ) -> tuple[DeviceArray, Kept]:
        y, skipped, scale = self.or_empty(out, x.shape), key.first % PHILOX_ELEMENTS, 1 / (1 - rate)
        kept = self.device.empty((ceil_div(x.size + skipped, PHILOX_ELEMENTS) if x.size else 0,), np.uint8)
        self.device.launch(
            "relu_dropout_forward",
            elementwise(x.size + skipped if x.size else 0, per_thread=PHILOX_ELEMENTS),
            y=y,
            kept=kept,
            x=x,
            n=x.size,
            first=key.first,
            seed=key.seed,
            purpose=philox.purpose_key(key.purpose),
            epoch=key.epoch,
            step=key.step,
            threshold=int(rate * 2**32),
            scale=scale,
        )
        return y, Kept(kept, skipped, scale)

    def relu_dropout_backward(self, dy: DeviceArray, kept: Kept, out: DeviceArray | None = None) -> DeviceArray:
        dx = self.or_empty(out, dy.shape)
        launch = elementwise(dy.size, per_thread=4)
        bits = {"kept": kept.bits, "kept_first": kept.first, "scale": kept.scale}
        self.device.launch("relu_dropout_backward", launch, dx=dx, dy=dy, n=dy.size, **bits)
        return dx
