"""The narrow form. It supports every GPU, and every model whose layers fit a block's shared memory."""

from __future__ import annotations

from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.fused.narrow.step import NarrowWorkspace, packed_weights
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.shared.geometry import columns_of_u
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray


class Narrow(Form):
    """Form whose blocks hold a layer's weights in registers."""

    name = "narrow"

    @classmethod
    def trains(cls, setting: Setting) -> bool:
        return setting.precision == "fp32"

    @classmethod
    def predicts(cls, capability: tuple[int, int], precision: str) -> bool:
        return True

    @classmethod
    def launches(cls, stack: Stack) -> list[Launch]:
        forward = [geometry.forward(1, layer.n_in, layer.n_out, layer.k) for layer in stack.nodes]
        sizes = [(layer.n_in, layer.channels, layer.n_out, layer.k) for layer in stack.nodes]
        return [*forward, *(geometry.backward(1, 1, *size) for size in sizes)]

    @classmethod
    def columns(cls, n_in: int, channels: int) -> int:
        return columns_of_u(n_in, channels)

    def _packed_weights(self) -> tuple[DeviceArray, ...]:
        return packed_weights(self._device, self._stack)

    def workspace(self, capacity: Capacity, steps: int, graphs: int) -> NarrowWorkspace:
        plan = StagedEpoch(self._device, steps, graphs)
        on = (self._device, self._stack, self.model, self._data, capacity, plan, self._seed)
        return NarrowWorkspace(*on, self.training)
