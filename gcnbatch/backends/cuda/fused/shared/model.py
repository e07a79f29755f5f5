"""What a fused engine is given of a model and its optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gcnbatch.backends.cuda.runtime.sources import declared

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray

# `mode` of the updates: all of it, or one part
UPDATE, ONLY_GRADIENTS, APPLY = declared("fused/shared/optimizer.cuh").enum("UpdateMode").values()


@dataclass(frozen=True)
class DeviceModel:
    """Where a model's arrays are: flat parameters, their moments and decay, running statistics, weights of the loss.

    Parameters
    ----------
    trainable, buffers : DeviceArray
    gradients : DeviceArray
    moments : tuple of DeviceArray
        m and v of Adam; the velocity of SGD.
    weight_decay, l2 : DeviceArray
    loss_weights : DeviceArray, (n_outputs,)
    totals : DeviceArray, (2,) float64
    packed : tuple of DeviceArray
        The weights and biases of each node layer once more, as kernels want them; for inference with batch norm folded
        into them.
    shifts : tuple of DeviceArray
        For inference: what is left of each node layer's batch norm, to be added to Y, (n_out,).
    """

    trainable: DeviceArray
    buffers: DeviceArray
    gradients: DeviceArray
    moments: tuple[DeviceArray, ...]
    weight_decay: DeviceArray
    l2: DeviceArray
    loss_weights: DeviceArray
    totals: DeviceArray
    packed: tuple[DeviceArray, ...]
    shifts: tuple[DeviceArray, ...] = ()

    def parameter(self, start: int, length: int) -> DeviceArray:
        """Return trainable values from `start` on."""
        return self.trainable.view(start, length)

    def buffer(self, start: int, length: int) -> DeviceArray:
        """Return running statistics from `start` on."""
        return self.buffers.view(start, length)


@dataclass(frozen=True)
class UpdateRule:
    """The rule of the update; `max_norm` 0 does not clip, without `decays` there is neither weight decay nor L2."""

    sgd: bool
    beta1: float
    beta2: float
    epsilon: float
    max_norm: float
    decays: bool = True
