"""Backend ``fused``: the operations of ``batched``, and engines that run whole training steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.fused import forms
from gcnbatch.backends.cuda.fused.engine import FusedEngine
from gcnbatch.backends.cuda.fused.kipf import data as kipf_data
from gcnbatch.backends.cuda.fused.kipf import engine as kipf
from gcnbatch.backends.cuda.fused.kipf.engine import KipfEngine
from gcnbatch.backends.cuda.fused.kipf.step import TwoLayers
from gcnbatch.backends.cuda.fused.shared.data import FusedSet
from gcnbatch.backends.cuda.fused.shared.model import Model, Optimizer
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.config_sections import CudaConfig, TrainConfig
from gcnbatch.data.batches import BatchSource


class FusedBackend(CudaBackend):
    """`CudaBackend` with two engines: for sets of graphs, and for Kipf's GCN on one graph."""

    def graphs_refusal(
        self, stack: Stack, source: BatchSource, targets: NDArray[Any], train: TrainConfig
    ) -> str | None:
        """Return what the engine for graphs does not take, or None."""
        return forms.refusal(source, targets, stack, train, *self._limits()) or None

    def graphs_engine(
        self,
        stack: Stack,
        model: Model,
        rule: Optimizer,
        source: BatchSource,
        targets: NDArray[Any],
        label_weights: NDArray[np.float64],
        seed: int,
    ) -> FusedEngine:
        """Return the engine of a model on a set of graphs that `graphs_refusal` has nothing against."""
        on = self.device.compute_capability, self.options.precision
        training = forms.training_forms(forms.setting_of(stack, source, *on))
        held = FusedSet(self.device, source, targets, label_weights, training)
        return FusedEngine(self.device, stack, model, held, rule, seed, training, forms.prediction_form(*on))

    def kipf_refusal(
        self, layers: TwoLayers, source: BatchSource, targets: NDArray[Any], clip_norm: float
    ) -> str | None:
        """Return what the engine for one graph does not take, or None."""
        return kipf.refusal(source, targets, layers, clip_norm, *self._limits()) or None

    def kipf_engine(
        self,
        layers: TwoLayers,
        model: Model,
        rule: Optimizer,
        source: BatchSource,
        targets: NDArray[np.int32],
        class_weights: NDArray[np.float32],
        seed: int,
    ) -> KipfEngine:
        """Return the engine of Kipf's GCN on a graph that `kipf_refusal` has nothing against."""
        assert source.prepared is not None
        rates = (layers.rate if key else 0.0 for key in (layers.x_dropout, layers.z_dropout))
        graph = kipf_data.KipfGraph(source.prepared, targets[:, 0], layers.hidden, layers.n_out, *rates)
        weight = float(class_weights[graph.labels].sum(dtype=np.float64))
        on = (self.device, self.ops, source.prepared)
        return KipfEngine(*on, layers, model, graph, weight, rule, seed)

    def _limits(self) -> tuple[int, tuple[int, int], CudaConfig]:
        """Return the bytes that a data set may take, the device's compute capability and the options."""
        return self.resident_budget, self.device.compute_capability, self.options
