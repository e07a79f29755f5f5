"""A model and its optimizer as a fused engine receives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gcnbatch.backends.cuda.runtime.sources import declared

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray

# `mode` of the update kernels: the whole update, or one half of it
UPDATE, ONLY_GRADIENTS, APPLY = declared("fused/shared/optimizer.cuh").enum("UpdateMode").values()


@dataclass(frozen=True)
class DeviceModel:
    """A model's device arrays: flat parameters, moments, decay, running statistics, weights of the loss.

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
        Each node layer's weights and biases in the layout that the kernels read. For inference, batch norm is folded
        into them.
    shifts : tuple of DeviceArray
        For inference: the part of each node layer's batch norm that is added to Y, (n_out,).
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
    """The optimizer: SGD or Adam; `max_norm` 0: no clipping; not `decays`: neither weight decay nor L2."""

    sgd: bool
    beta1: float
    beta2: float
    epsilon: float
    max_norm: float
    decays: bool = True
