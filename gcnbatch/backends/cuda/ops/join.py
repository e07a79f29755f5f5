"""Join: scaled features of whole graphs beside the readout (graph/join.cu)."""

from __future__ import annotations

from gcnbatch.backends.cuda.ops.common import KernelOps
from gcnbatch.backends.cuda.runtime.launch import thread_per_output
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import GraphFeatures


class JoinOps(KernelOps):
    """`join` of `gcnbatch.backends.ops.Ops` and its gradient."""

    def join(
        self, r: DeviceArray, features: GraphFeatures, mean: DeviceArray, scale: DeviceArray, limit: float
    ) -> DeviceArray:
        (B, P), D = r.shape, mean.size
        y = self.device.empty((B, P + D))
        self.device.launch(
            "join_forward",
            thread_per_output(B, P + D),
            y=y,
            r=r,
            values=features.values,
            rows=features.rows,
            mean=mean,
            scale=scale,
            limit=limit,
            B=B,
            P=P,
            D=D,
        )
        return y

    def join_backward(self, dy: DeviceArray, width: int) -> DeviceArray:
        B, columns = dy.shape
        dr = self.device.empty((B, width))
        launch = thread_per_output(B, width)
        self.device.launch("join_backward", launch, dr=dr, dy=dy, B=B, P=width, D=columns - width)
        return dr
