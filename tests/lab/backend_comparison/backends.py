"""Backends for tests: correct ones with another order of summation, wrong ones, and one like a device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gcnbatch.backends.base import Launched
from gcnbatch.backends.cpu import CpuBackend, CpuOps, HostMeter
from gcnbatch.reference.composed import ComposedOps


class Another(CpuBackend):
    """A second backend on the host, with the given operations."""

    def __init__(self, name: str, ops: CpuOps | None = None) -> None:
        self.name, self.ops = name, ops or CpuOps()


class Backwards(CpuOps):
    """Products that sum their terms from the last to the first: correct, in another order."""

    def matmul(self, x, w, *others, **keywords):
        total = np.zeros((len(x), w.shape[1]), np.float32)
        for term in range(len(w) - 1, -1, -1):
            total += x[:, term, None] * w[term]
        return total


class RoundedInputs(CpuOps):
    """Products whose inputs are rounded to 11 significant bits, as tensor cores do in TF32."""

    def matmul(self, x, w, *others, **keywords):
        return super().matmul(_eleven_bits(x), _eleven_bits(w), *others, **keywords)

    def matmul_backward(self, dy, x, w, *others, **keywords):
        return super().matmul_backward(_eleven_bits(dy), _eleven_bits(x), _eleven_bits(w), *others, **keywords)


def _eleven_bits(values):
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2048) / 2048, exponent).astype(np.float32)


class WrongBias(CpuOps):
    """A bias gradient that is a thousandth too large."""

    def bias_add_backward(self, *arguments, **keywords):
        gradient = super().bias_add_backward(*arguments, **keywords)
        gradient *= np.float32(1.001)
        return gradient


class OneWrongElement(CpuOps):
    """One weight's gradient is off by a hundredth of the largest."""

    def matmul_backward(self, *arguments, **keywords):
        dx, dw = super().matmul_backward(*arguments, **keywords)
        dw[0, 0] += np.float32(0.01) * np.abs(dw).max()
        return dx, dw


class WrongStatistics(CpuOps):
    """Running statistics that move with a slightly wrong momentum, which no gradient shows."""

    def batch_norm(self, x, gamma, beta, mean, var, epsilon, momentum, training, relu):
        return super().batch_norm(x, gamma, beta, mean, var, epsilon, momentum * 1.01, training, relu)


class WrongUpdate(CpuOps):
    """Adam that counts its steps from 2."""

    def adam_step(self, parameters, gradients, m, v, step, *others):
        super().adam_step(parameters, gradients, m, v, step + 1, *others)


class NotANumber(CpuOps):
    """An SpMM whose backward returns NaN."""

    def spmm_backward(self, *arguments):
        return super().spmm_backward(*arguments) * np.float32("nan")


class CountingMeter(HostMeter):
    """A meter like that of a device: every operation counts as two launches."""

    clock = "device"

    def __init__(self) -> None:
        self.launches = 0
        self.trace: list[Launched] | None = None

    def about(self) -> dict[str, str]:
        return {"GPU": "made up <for tests>"}

    def launch(self, name: str) -> None:
        for part in (1, 2):
            start = time.perf_counter()
            self.launches += 1
            if self.trace is not None:
                self.trace.append(Launched(f"{name}_{part}", start, time.perf_counter()))

    @contextmanager
    def traced(self) -> Iterator[list[Launched]]:
        self.trace = []
        try:
            yield self.trace
        finally:
            self.trace = None


class LaunchingOps(ComposedOps):
    """`CpuOps` that count their launches on a meter."""

    def __init__(self, meter: CountingMeter) -> None:
        self._meter, self._ops = meter, CpuOps()

    def __getattr__(self, name):
        operation = getattr(self._ops, name)

        def call(*arguments, **keywords):
            self._meter.launch(name)
            return operation(*arguments, **keywords)

        return call


class DeviceLike(CpuBackend):
    """A host backend that looks like a device to compare-backends."""

    def __init__(self, name: str = "batched") -> None:
        self.name, self.meter = name, CountingMeter()
        self.ops = LaunchingOps(self.meter)


class FusedLike(DeviceLike):
    """A device whose steps consist of kernels, not of operations."""

    def __init__(self) -> None:
        super().__init__("fused")
