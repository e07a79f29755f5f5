"""ReLU (dense/relu.cu)."""

from __future__ import annotations

from gcnbatch.backends.cuda.ops.common import KernelOps
from gcnbatch.backends.cuda.runtime.launch import elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray


class ReluOps(KernelOps):
    """`relu` of `gcnbatch.backends.ops.Ops` and its gradient."""

    def relu(self, x: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        y = self.or_empty(out, x.shape)
        self.device.launch("relu_forward", elementwise(x.size, per_thread=4), y=y, x=x, n=x.size)
        return y

    def relu_backward(self, dy: DeviceArray, y: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        dx = self.or_empty(out, dy.shape)
        self.device.launch("relu_backward", elementwise(dy.size, per_thread=4), dx=dx, dy=dy, y=y, n=dy.size)
        return dx
