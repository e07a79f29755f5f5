"""The narrow form. It supports every GPU, and every model whose layers fit a block's shared memory."""

from __future__ import annotations

from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.fused.narrow.step import NarrowWorkspace
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.shared.geometry import columns_of_u
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.runtime.launch import Launch


class Narrow(Form):
    """Form whose blocks hold a layer's weights in registers."""

    name, shares_launches = "narrow", True

    @classmethod
    def trains(cls, setting: Setting) -> bool:
        return setting.precision == "fp32"

    @classmethod
    def predicts(cls, stack: Stack, capability: tuple[int, int], precision: str) -> bool:
        return True

    @classmethod
    def launches(cls, stack: Stack) -> list[Launch]:
        forward = [geometry.forward(1, layer.n_in, layer.n_out, layer.k) for layer in stack.nodes]
        sizes = [(layer.n_in, layer.channels, layer.n_out, layer.k) for layer in stack.nodes]
        residual = [geometry.residual(1, layer.n_out) for layer in stack.nodes if layer.residual]
        return [*forward, *residual, *(geometry.backward(1, 1, *size) for size in sizes)]

    @classmethod
    def columns(cls, n_in: int, channels: int) -> int:
        return columns_of_u(n_in, channels)

    @classmethod
    def drops_columns(cls, k: int) -> bool:
        return k > geometry.FORWARD_CHUNK

    def _made(self, memory: Memory, capacity: Capacity, steps: int, graphs: int) -> NarrowWorkspace:
        return NarrowWorkspace(self._cohort, memory, capacity, StagedEpoch(memory, steps, graphs), self.training)
