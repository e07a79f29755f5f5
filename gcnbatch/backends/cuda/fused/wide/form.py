"""The wide form: products on tensor cores, in TF32 or in 3xTF32, which has float32's accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.shared.geometry import columns_of_u
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.wide import geometry
from gcnbatch.backends.cuda.fused.wide.step import WideWorkspace
from gcnbatch.backends.cuda.runtime.launch import ceil_div


class Wide(Form):
    """Kernels for layers with many weights, on the devices that the products are compiled for."""

    name = "wide"
    most_rows = geometry.MOST_ROWS
    condition = f"layers of {geometry.WIDE_ENOUGH:,} weights and more on compute capability 9.0"
    products: ClassVar[str] = "3xtf32"
    precision: ClassVar[str] = "fp32"

    @classmethod
    def trains(cls, setting: Setting) -> bool:
        is_ours = setting.precision == cls.precision and setting.capability in geometry.CAPABILITIES
        return is_ours and cls.prefers(setting.stack) and not has_residuals(setting.stack)

    @classmethod
    def prefers(cls, stack: Stack) -> bool:
        """Return whether these kernels take a model that narrow ones train, too."""
        has_few_columns = max(layer.n_out for layer in stack.nodes) <= geometry.FEW_COLUMNS
        enough = geometry.WIDE_ENOUGH_IN_FEW_COLUMNS if has_few_columns else geometry.WIDE_ENOUGH
        return mean_weights(stack) >= enough

    @classmethod
    def predicts(cls, stack: Stack, capability: tuple[int, int], precision: str) -> bool:
        """Return whether products run on the device: batches are large, throughput counts, not latency."""
        return precision == cls.precision and capability in geometry.CAPABILITIES and not has_residuals(stack)

    @classmethod
    def columns(cls, n_in: int, channels: int) -> int:
        return geometry.PANEL * ceil_div(columns_of_u(n_in, channels), geometry.PANEL)

    def capacity(self, plans: Sequence[EpochPlan], graphs: int) -> Capacity:
        """Return the need of the epoch's largest batch; results do not depend on it."""
        (plan,) = plans
        return self._data.capacity_of(plan, graphs)

    def _made(self, memory: Memory, capacity: Capacity, steps: int, graphs: int) -> WideWorkspace:
        plan = StagedEpoch(memory, steps, graphs)
        return WideWorkspace(self._cohort, memory, capacity, plan, self.training, self.products)


class WideTf32(Wide):
    """The same with products in TF32."""

    name = "wide (TF32)"
    products, precision = "tf32", "tf32"
    rounds_to_tf32 = True

    @classmethod
    def prefers(cls, stack: Stack) -> bool:
        """Return whether the model is not too narrow; no other form trains in TF32."""
        return mean_weights(stack) >= geometry.WIDE_ENOUGH


def mean_weights(stack: Stack) -> float:
    """Return the mean number of weights of a node layer."""
    return sum(layer.k * layer.n_out for layer in stack.nodes) / len(stack.nodes)


def has_residuals(stack: Stack) -> bool:
    """Return whether a layer has a residual connection, which these kernels do not take."""
    return any(layer.residual for layer in stack.nodes)


def to_tf32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the nearest numbers of 11 bits, ties to even; NaN and infinities pass.

    >>> to_tf32(np.array([1 + 2**-11, 1 + 3 * 2**-11, np.inf], np.float32)) - 1
    array([0.        , 0.00195312,        inf], dtype=float32)
    """
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)
