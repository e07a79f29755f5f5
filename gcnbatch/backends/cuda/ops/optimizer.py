"""The update rules Adam and SGD, and clipping of gradients (dense/optimizer.cu)."""

from __future__ import annotations

from gcnbatch.backends.cuda.ops.common import COUNTER_BYTES, DOUBLE_BYTES, KernelOps
from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS, Launch, ceil_div, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

MAX_NORM_BLOCKS = BLOCK_THREADS  # the last block of `clip_norm_factor` adds the blocks' sums, one per thread


def norm_geometry(n: int) -> Launch:
    """Return the launch of `clip_norm_factor` over `n` gradients; n = 0: one block, which writes the factor 1."""
    return Launch((min(max(ceil_div(n, 4 * BLOCK_THREADS), 1), MAX_NORM_BLOCKS), 1, 1), (BLOCK_THREADS, 1, 1))


class OptimizerOps(KernelOps):
    """`adam_step`, `sgd_step` and `clip_norm` of `gcnbatch.backends.ops.Ops`."""

    def clip_norm(self, gradients: DeviceArray, max_norm: float) -> None:
        launch, factor = norm_geometry(gradients.size), self.device.empty((1,))
        partials, counter = self.workspaces(launch.blocks * DOUBLE_BYTES, COUNTER_BYTES)
        both = {"factor": factor, "gradients": gradients, "n": gradients.size}
        self.device.launch("clip_norm_factor", launch, partials=partials, counter=counter, max_norm=max_norm, **both)
        self.device.launch("clip_norm_scale", elementwise(gradients.size), **both)

    def adam_step(
        self,
        parameters: DeviceArray,
        gradients: DeviceArray,
        m: DeviceArray,
        v: DeviceArray,
        step: int,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: DeviceArray,
        l2: DeviceArray,
    ) -> None:
        self.device.launch(
            "adam_step",
            elementwise(parameters.size),
            parameters=parameters,
            m=m,
            v=v,
            gradients=gradients,
            weight_decay=weight_decay,
            l2=l2,
            n=parameters.size,
            learning_rate=learning_rate,
            beta1=beta1,
            rest1=1 - beta1,
            beta2=beta2,
            rest2=1 - beta2,
            correction1=1 / (1 - beta1**step),
            correction2=1 / (1 - beta2**step),
            epsilon=epsilon,
        )

    def sgd_step(
        self,
        parameters: DeviceArray,
        gradients: DeviceArray,
        velocity: DeviceArray,
        learning_rate: float,
        momentum: float,
        weight_decay: DeviceArray,
        l2: DeviceArray,
    ) -> None:
        self.device.launch(
            "sgd_step",
            elementwise(parameters.size),
            parameters=parameters,
            velocity=velocity,
            gradients=gradients,
            weight_decay=weight_decay,
            l2=l2,
            n=parameters.size,
            learning_rate=learning_rate,
            momentum=momentum,
        )
