"""The naive MatMul (`dense/matmul_naive.cu`): for readers, tests and `benchmarks/cuda_kernels.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gcnbatch.backends.cuda.runtime.launch import thread_per_output
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


class NaiveMatmul:
    """`matmul` and `matmul_backward` of `gcnbatch.backends.ops.Ops`, one thread per output; no backend uses it."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def matmul(self, x: DeviceArray, w: DeviceArray, graphs: Any = None) -> DeviceArray:
        (N, F), P = x.shape, w.shape[1]
        y = self.device.empty((N, P))
        self.device.launch("matmul_naive_forward", thread_per_output(N, P), y=y, x=x, w=w, N=N, F=F, P=P)
        return y

    def matmul_backward(
        self,
        dy: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        need_dx: bool = True,
        out: DeviceArray | None = None,
        graphs: Any = None,
    ) -> tuple[DeviceArray | None, DeviceArray]:
        (N, F), P = x.shape, w.shape[1]
        sizes = {"N": N, "F": F, "P": P}
        dx = self.device.empty((N, F)) if need_dx else None
        if dx is not None:
            self.device.launch("matmul_naive_dgrad", thread_per_output(N, F), dx=dx, dy=dy, w=w, **sizes)
        dw = self.device.empty((F, P)) if out is None else out
        self.device.launch("matmul_naive_wgrad", thread_per_output(F, P), dw=dw, x=x, dy=dy, **sizes)
        return dx, dw
