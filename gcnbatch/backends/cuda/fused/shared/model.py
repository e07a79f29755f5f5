"""A model and its optimizer as a fused engine receives them."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.sources import declared

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray

VALUES = declared("fused/shared/fused.cuh").layout("MemberValues")
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
    shifts : DeviceArray, like `buffers`
        For inference: at the place of each running mean, the part of the batch norm that is added to Y.
    values : DeviceArray
        MemberValues (``cuda_src/fused/shared/fused.cuh``): the numbers that members of a cohort may differ in.
    """

    trainable: DeviceArray
    buffers: DeviceArray
    gradients: DeviceArray
    moments: tuple[DeviceArray, ...]
    weight_decay: DeviceArray
    l2: DeviceArray
    loss_weights: DeviceArray
    totals: DeviceArray
    shifts: DeviceArray
    values: DeviceArray

    def parameter(self, start: int, length: int) -> DeviceArray:
        """Return trainable values from `start` on."""
        return self.trainable.view(start, length)

    def buffer(self, start: int, length: int) -> DeviceArray:
        """Return running statistics from `start` on."""
        return self.buffers.view(start, length)


@dataclass(frozen=True)
class UpdateRule:
    """The optimizer: SGD or Adam, with or without clipping, and with weight decay or L2, or neither (`decays`)."""

    sgd: bool
    beta1: float
    beta2: float
    epsilon: float
    clips: bool
    decays: bool = True


def member_values(seed: int, dropout: float, max_norm: float) -> NDArray[np.uint8]:
    """Return the bytes of MemberValues, for a rate of dropout and the norm to clip gradients to."""
    fields = {"seed": seed, "threshold": floor(dropout * 2**32), "keep_scale": 1.0 / (1.0 - dropout)}
    return np.frombuffer(VALUES.pack(fields | {"max_norm": max_norm}), np.uint8)
