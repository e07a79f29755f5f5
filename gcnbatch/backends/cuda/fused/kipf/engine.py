"""The engine of the fused step of Kipf's two-layer GCN on one graph, and the models that it supports.

``cuda_src/fused/FUSED.md`` explains the kernels. `data` has the arrays of the graph, `step` the launches, `schedule`
the numbers of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.resident import resident_bytes
from gcnbatch.backends.cuda.fused.kipf import geometry
from gcnbatch.backends.cuda.fused.kipf.data import (
    KipfGraph,
    adjacency_of,
    count_products,
    seen_rows,
)
from gcnbatch.backends.cuda.fused.kipf.schedule import StepSchedule, TrainingStep
from gcnbatch.backends.cuda.fused.kipf.step import Launches, Prediction, TwoLayers
from gcnbatch.backends.cuda.fused.shared import geometry as geometry_fused
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel, UpdateRule
from gcnbatch.backends.cuda.runtime.graph import Call, Graph, Recorder
from gcnbatch.backends.cuda.runtime.launch import PHILOX_ELEMENTS, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import Ops
from gcnbatch.data.batches import BatchSource, PreparedSet
from gcnbatch.data.graphs import Int64
from gcnbatch.data.sparse import MAX_ENTRIES
from gcnbatch.text import counted

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.config_sections import CudaConfig

STEPS_OF_A_GRAPH = (32, 8, 1)
MAX_COST = 2**26  # largest cost of an epoch, in units of 1.4 ps on an H200: above it `batched` is as fast


def refusal(
    source: BatchSource,
    targets: NDArray[Any],
    layers: TwoLayers,
    clip_norm: float,
    budget: int,
    capability: tuple[int, int],
    options: CudaConfig,
) -> str:
    """Return the property of a node-level set, a model or options that these kernels do not support, or "".

    Parameters
    ----------
    budget : int
        Bytes of device memory for the set.
    capability : (major, minor)
        Compute capability of the device.
    """
    header, prepared = source.header, source.prepared
    assert prepared is not None
    if options.precision != "fp32" or options.spmm != "auto" or options.resident == "off":
        return "cuda.precision other than fp32, cuda.spmm other than auto, or cuda.resident off"
    if source.n_graphs != 1 or header.n_channels != 1:
        return (
            f"a node-level data set of {counted(source.n_graphs, 'graph')} and {counted(header.n_channels, 'channel')}"
        )
    if header.target != "multiclass" or header.n_outputs > geometry.MAX_OUTPUTS:
        return f"a node-level data set with {header.n_outputs} {header.target} outputs"
    if targets.shape[1] > 1:
        return "weights of labels on a node-level data set"
    if clip_norm:
        return "train.clip_norm on a node-level data set"
    limit = geometry_fused.shared_limit(capability)
    if layers.shared_bytes > limit:
        return f"layers that need {layers.shared_bytes // 1024} of {limit // 1024} KiB of shared memory"
    size = resident_bytes(prepared, targets)
    if size > budget:
        return f"a data set of {size / 2**20:,.0f} MiB with {budget / 2**20:,.0f} MiB of device memory for it"
    nodes = len(prepared.forward.row_length)
    if most_elements(nodes, prepared.stored_x, layers.hidden, header.n_outputs) > MAX_ENTRIES:
        return "more nodes or features than 32-bit indices can address"
    return _cost_refusal(prepared, np.flatnonzero(targets[:, 0] >= 0), layers)


def most_elements(nodes: int, x: Any, hidden: int, outputs: int) -> int:
    """Return the length of the longest array that the kernels address by 32 bits.

    These are node matrices, whose rows are padded to whole vectors of four columns; the parameters; and the elements
    that dropout draws bits for, in whole blocks.
    """
    widest = 4 * ceil_div(max(hidden, outputs), 4)
    stored = math.prod(x.shape) if isinstance(x, np.ndarray) else x.nnz
    parameters = (x.shape[1] + hidden + 1) * widest
    return int(max(nodes * widest, parameters, stored + nodes * hidden + 2 * PHILOX_ELEMENTS))


def _cost_refusal(prepared: PreparedSet, labelled: Int64, layers: TwoLayers) -> str:
    """Return how much of the graph the labelled rows read, if that is so much that `batched` is as fast; else ""."""
    edges = int(prepared.forward.row_length[labelled].sum(dtype=np.int64))
    if edges > MAX_COST // 16:
        return f"labels with so many neighbours: {edges:,} edges"
    adjacency = adjacency_of(prepared)
    rows = seen_rows(adjacency, labelled)
    products = count_products(prepared, adjacency, rows)
    entries = min(products, len(rows) * layers.n_in)  # upper bound for U
    if entries * (48 + layers.hidden) + 16 * products > MAX_COST:
        return f"labels with so many neighbours: A X of {len(rows):,} nodes, {products:,} products"
    return ""


class KipfEngine:
    """Runs training steps as replays of captured graphs, and everything else launch by launch.

    Parameters
    ----------
    device : Device
    ops : Ops
        The operations of the device.
    prepared : PreparedSet
        A data set with one graph.
    layers : TwoLayers
    model : DeviceModel
        The model; with SGD it has one array of moments.
    graph : KipfGraph
    label_weight : float
        Sum of the labelled rows' class weights.
    rule : UpdateRule
        The optimizer, without clipping.
    seed : int
        Seed of dropout.
    """

    def __init__(
        self,
        device: Device,
        ops: Ops,
        prepared: PreparedSet,
        layers: TwoLayers,
        model: DeviceModel,
        graph: KipfGraph,
        label_weight: float,
        rule: UpdateRule,
        seed: int,
    ) -> None:
        self._ops, self._prepared = ops, prepared
        self._prediction: Prediction | None = None
        self._device, self._schedule, self._recorder = device, StepSchedule(device, rule), Recorder(device)
        self._launches = Launches(device, layers, model, graph, label_weight, rule, seed, self._schedule)
        self._graphs: dict[int, Graph] = {}
        self._queued: list[TrainingStep] = []

    def step(self, step: TrainingStep) -> None:
        """Queue a training step; several steps are launched as one graph."""
        self._queued.append(step)
        if self._device.observer is not None or len(self._queued) == STEPS_OF_A_GRAPH[0]:
            self.flush()

    def flush(self) -> None:
        """Launch all queued steps."""
        if not self._queued:
            return
        self._prepare(self._queued)
        left = len(self._queued)
        self._schedule.advance(left)
        self._queued = []
        if self._device.observer is not None:  # it observes single launches
            for _ in range(left):
                self._run(self._launches.step())
            return
        for steps in STEPS_OF_A_GRAPH:
            while left >= steps:
                if steps not in self._graphs:
                    self._graphs[steps] = self._recorder.record([self._launches.step()], steps)
                self._graphs[steps].launch()
                left -= steps

    def _prepare(self, steps: Sequence[TrainingStep]) -> None:
        if not self._schedule.fits(steps):
            self._schedule.replace(steps)
            self._run(self._launches.stage())
            self._schedule.mark_staged()

    def gradients(self, totals: DeviceArray) -> None:
        """Write the gradients of step 0 of epoch 0 to the model, and add its loss and label weight to `totals`."""
        self.flush()
        self._prepare([TrainingStep(0, 0, 1, 0.0, 1)])
        self._schedule.advance(1)
        self._run(self._launches.gradients(totals))

    def predict(self) -> NDArray[np.float32]:
        """Return the logits of all nodes, (N, K)."""
        self.flush()
        if self._prediction is None:
            self._prediction = Prediction(self._device, self._launches.layers, self._launches.weights, self._prepared)
        logits, calls = self._prediction.calls(self._ops)
        self._run(calls)
        return self._device.download(logits)

    def _run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.start(self._device)

    def close(self) -> None:
        """Destroy the captured graphs and drop the queued steps."""
        self._queued = []
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()


def make_engine(
    device: Device,
    ops: Ops,
    layers: TwoLayers,
    model: DeviceModel,
    rule: UpdateRule,
    source: BatchSource,
    targets: NDArray[np.int32],
    class_weights: NDArray[np.float32],
    seed: int,
) -> KipfEngine:
    """Return the engine for a graph that `refusal` accepts; parameters as `KipfEngine`."""
    assert source.prepared is not None
    rates = (layers.rate if key else 0.0 for key in (layers.x_dropout, layers.z_dropout))
    graph = KipfGraph(source.prepared, targets[:, 0], layers.hidden, layers.n_out, *rates)
    weight = float(class_weights[graph.labels].sum(dtype=np.float64))
    return KipfEngine(device, ops, source.prepared, layers, model, graph, weight, rule, seed)
