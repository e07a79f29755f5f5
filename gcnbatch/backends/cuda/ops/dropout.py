"""Dropout; seed, purpose, epoch and step determine the mask (dense/dropout.cu)."""

from __future__ import annotations

import numpy as np

from gcnbatch.backends.cuda.ops.common import KernelOps
from gcnbatch.backends.cuda.ops.relu_dropout import drawing
from gcnbatch.backends.cuda.runtime.launch import elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import DropoutKey


class DropoutOps(KernelOps):
    """`dropout` of `gcnbatch.backends.ops.Ops` and its gradient."""

    def dropout(self, x: DeviceArray, rate: float, key: DropoutKey) -> tuple[DeviceArray, DeviceArray]:
        y, mask = self.device.empty(x.shape), self.device.empty(x.shape, np.uint8)
        self.device.launch(
            "dropout_forward",
            elementwise(x.size + key.first % 8 if x.size else 0, per_thread=8),
            y=y,
            mask=mask,
            x=x,
            n=x.size,
            **drawing(rate, key),
        )
        return y, mask

    def dropout_backward(self, dy: DeviceArray, mask: DeviceArray, rate: float) -> DeviceArray:
        dx = self.device.empty(dy.shape)
        launch = elementwise(dy.size, per_thread=4)
        self.device.launch("dropout_backward", launch, dx=dx, dy=dy, mask=mask, n=dy.size, scale=1 / (1 - rate))
        return dx
