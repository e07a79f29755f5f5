"""Backend ``fused``: the operations of ``batched``, and engines that run whole training steps in a few kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.fused import forms
from gcnbatch.backends.cuda.fused.engine import FusedEngine
from gcnbatch.backends.cuda.fused.shared.data import FusedSet
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel, UpdateRule
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.config_sections import CudaConfig, TrainConfig
from gcnbatch.data.batches import BatchSource


class FusedBackend(CudaBackend):
    """`CudaBackend` with the engine for graph-level data sets."""

    def graphs_refusal(
        self, stack: Stack, source: BatchSource, targets: NDArray[Any], train: TrainConfig
    ) -> str | None:
        """Return why the engine cannot train this model on this data set, or None if it can."""
        return forms.refusal(source, targets, stack, train, *self.limits()) or None

    def graphs_engine(
        self,
        stack: Stack,
        model: DeviceModel,
        rule: UpdateRule,
        source: BatchSource,
        targets: NDArray[Any],
        label_weights: NDArray[np.float64],
        seed: int,
    ) -> FusedEngine:
        """Return the engine of a model on a data set for which `graphs_refusal` returned None."""
        on = self.device.compute_capability, self.options.precision
        training = forms.training_forms(forms.setting_of(stack, source, *on))
        held = FusedSet(self.device, source, targets, label_weights, training)
        return FusedEngine(self.device, stack, model, held, rule, seed, training, forms.prediction_form(*on))

    def limits(self) -> tuple[int, tuple[int, int], CudaConfig]:
        """Return the bytes of device memory for a data set, the device's compute capability, and the options."""
        return self.resident_budget, self.device.compute_capability, self.options
