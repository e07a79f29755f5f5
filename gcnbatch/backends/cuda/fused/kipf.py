"""The fused step of Kipf's GCN with two layers on one graph: its launches, its plan of epochs, its engine.

``cuda_src/FUSED.md`` follows a step through its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.backends.cuda import geometry_fused, geometry_kipf
from gcnbatch.backends.cuda.fused.graph import Graph, Recorder
from gcnbatch.backends.cuda.fused.kipf_data import KipfGraph, Rows, count_products
from gcnbatch.backends.cuda.fused.step import NULL, ONLY_GRADIENTS, UPDATE, Call, Model, Optimizer
from gcnbatch.backends.cuda.memory import DeviceArray
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.sparse import MAX_ENTRIES

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.device import Device
    from gcnbatch.config import CudaConfig

STEPS_OF_A_GRAPH = (32, 8, 1)
PLANNED = 1024  # steps that a plan holds
MAX_PRODUCTS = 2**23  # of A X: above, `batched` needs fewer


@dataclass(frozen=True)
class TwoLayers:
    """The model: where its weights (F, P) and (P, K) start in the flat parameters, and its dropout.

    Parameters
    ----------
    x_dropout, z_dropout : str
        What the masks of features and of the hidden layer are keyed by; empty: none.
    rate : float
    """

    weight1: int
    weight2: int
    n_in: int
    hidden: int
    n_out: int
    x_dropout: str
    z_dropout: str
    rate: float

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the block that needs the most."""
        hidden, n_out = self.hidden, self.n_out
        return max(geometry_kipf.forward(1, 0, hidden, n_out).shared, geometry_kipf.backward(1, hidden, n_out).shared)


def refusal(
    source: BatchSource, layers: TwoLayers, clip_norm: float, capability: tuple[int, int], options: CudaConfig
) -> str:
    """Return what of a node-level set, a model and options these kernels cannot take, or nothing.

    Parameters
    ----------
    capability : (major, minor)
        Compute capability of the device.
    """
    header, prepared = source.header, source.prepared
    if options.precision != "fp32" or options.spmm != "auto" or options.resident == "off":
        return "another cuda.precision, cuda.spmm or cuda.resident than fp32, auto and auto or on"
    if source.n_graphs != 1 or header.n_channels != 1:
        return f"a node-level data set of {source.n_graphs:,} graphs and {header.n_channels} channels"
    if header.target != "multiclass" or header.n_outputs > geometry_kipf.MAX_OUTPUTS:
        return f"a node-level data set with {header.n_outputs} {header.target} outputs"
    if clip_norm:
        return "train.clip_norm on a node-level data set"
    limit = geometry_fused.shared_limit(capability)
    if layers.shared_bytes > limit:
        return f"layers that need {layers.shared_bytes // 1024} of {limit // 1024} KiB of shared memory"
    assert prepared is not None
    rows, edges = len(prepared.forward.row_length), len(prepared.forward.indices)
    elements = max(rows, header.n_features) * max(layers.hidden, header.n_outputs)
    if edges > MAX_PRODUCTS or elements > MAX_ENTRIES or count_products(prepared) > MAX_PRODUCTS:
        return f"a graph whose A X is a sum of more than {MAX_PRODUCTS:,} products"
    return ""


class Tick(NamedTuple):
    """One training step of a plan: what dropout and the optimiser need to know of it.

    Parameters
    ----------
    epoch, step : int
        Dropout's.
    steps : int
        Of the epoch.
    learning_rate : float
    update : int
        Number of the update, from 1 on.
    """

    epoch: int
    step: int
    steps: int
    learning_rate: float
    update: int

    def next(self) -> Tick:
        """Return the step behind it if the learning rate stays."""
        is_last = self.step + 1 >= self.steps
        epoch, step = (self.epoch + 1, 0) if is_last else (self.epoch, self.step + 1)
        return Tick(epoch, step, self.steps, self.learning_rate, self.update + 1)


class Plan:
    """The steps that the device is going to run, ahead of what was asked for: what is likely costs no upload.

    Step i of the plan runs on half i % 2 of what the device holds twice.
    """

    def __init__(self, device: Device, rule: Optimizer) -> None:
        self._device, self._rule = device, rule
        size = PLANNED + 2
        self._array = device.empty(4 + 6 * size, np.int32)
        self.progress = self._array.view(0, 4)
        self.keys = self._array.view(4, 2 * size)
        self.rates = self._array.view(4 + 2 * size, 4 * size).astype_view(np.float32)
        self._ticks: list[Tick] = []
        self._at = 0
        self._staged: tuple[int, int] | None = None  # epoch and step whose U the device holds for step `_at`

    def fits(self, ticks: Sequence[Tick]) -> bool:
        """Whether these steps come next, and their dropout is ready."""
        coming = self._ticks[self._at : self._at + len(ticks)]
        room = self._at + len(ticks) < len(self._ticks)
        return room and coming == list(ticks) and self._staged == ticks[0][:2]

    def replace(self, ticks: Sequence[Tick]) -> None:
        """Upload a plan that begins with these steps and stands before its first, whose dropout is to be staged."""
        size = PLANNED + 2
        self._at = self._at & 1
        self._ticks = [ticks[0]] * self._at + list(ticks)
        while len(self._ticks) < size:
            self._ticks.append(self._ticks[-1].next())
        keys = np.array([tick[:2] for tick in self._ticks], np.int32)
        updates = np.array([tick.update for tick in self._ticks], np.float64)
        rates = np.zeros((size, 4), np.float32)
        rates[:, 0] = [tick.learning_rate for tick in self._ticks]
        if not self._rule.sgd:
            rates[:, 1] = 1.0 / (1.0 - self._rule.beta1**updates)
            rates[:, 2] = 1.0 / (1.0 - self._rule.beta2**updates)
        before = np.full(4, self._at - 1, np.int32)
        packed = np.concatenate([before, keys.ravel(), rates.view(np.int32).ravel()])
        self._device.upload(packed, self._array)

    def staged(self) -> None:
        """Take note that the dropout of the plan's first step is staged: let the device begin with it."""
        self._device.upload(np.full(4, self._at, np.int32), self.progress)
        self._staged = self._ticks[self._at][:2]

    def advance(self, steps: int) -> None:
        """Take note that the device runs so many steps, the last of which stages the one behind it."""
        self._at += steps
        self._staged = self._ticks[self._at][:2]


class KipfEngine:
    """Runs training steps as replays of captured graphs, and everything else launch by launch.

    Parameters
    ----------
    device : Device
    layers : TwoLayers
    model : Model
        With a single array of moments where the rule is SGD.
    graph : KipfGraph
    label_weight : float
        Sum of the labelled rows' class weights.
    rule : Optimizer
        Without clipping.
    seed : int
        Of dropout.
    """

    def __init__(
        self,
        device: Device,
        layers: TwoLayers,
        model: Model,
        graph: KipfGraph,
        label_weight: float,
        rule: Optimizer,
        seed: int,
    ) -> None:
        self._device, self._plan, self._recorder = device, Plan(device, rule), Recorder(device)
        self._launches = Launches(device, layers, model, graph, label_weight, rule, seed, self._plan)
        self._graphs: dict[int, Graph] = {}
        self._waiting: list[Tick] = []

    def step(self, tick: Tick) -> None:
        """Run a training step; several are started together."""
        self._waiting.append(tick)
        if self._device.observer is not None or len(self._waiting) == STEPS_OF_A_GRAPH[0]:
            self.flush()

    def flush(self) -> None:
        """Start the steps that wait for company."""
        if not self._waiting:
            return
        self._prepare(self._waiting)
        left = len(self._waiting)
        self._plan.advance(left)
        self._waiting = []
        if self._device.observer is not None:  # of single launches
            for _ in range(left):
                self._run(self._launches.step())
            return
        for steps in STEPS_OF_A_GRAPH:
            while left >= steps:
                if steps not in self._graphs:
                    self._graphs[steps] = self._recorder.record(self._launches.step(), steps)
                self._graphs[steps].launch()
                left -= steps

    def _prepare(self, ticks: Sequence[Tick]) -> None:
        if not self._plan.fits(ticks):
            self._plan.replace(ticks)
            self._run(self._launches.stage())
            self._plan.staged()

    def gradients(self, totals: DeviceArray) -> None:
        """Write the gradients of step 0 of epoch 0 into the model's, and add its loss and weight to `totals`."""
        self.flush()
        self._prepare([Tick(0, 0, 1, 0.0, 1)])
        self._plan.advance(1)
        self._run(self._launches.gradients(totals))

    def predict(self) -> NDArray[np.float32]:
        """Return the logits of all nodes, (N, K)."""
        self.flush()
        self._run(self._launches.inference())
        return self._device.download(self._launches.logits)

    def _run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._device.launch(call.entry, call.launch, *call.arguments)

    def close(self) -> None:
        """Give back the captured graphs; what still waits is nobody's any more."""
        self._waiting = []
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()


class Launches:
    """The launches of a step over arrays that never move."""

    def __init__(
        self,
        device: Device,
        layers: TwoLayers,
        model: Model,
        graph: KipfGraph,
        label_weight: float,
        rule: Optimizer,
        seed: int,
        plan: Plan,
    ) -> None:
        self._device, self._layers, self._model, self._graph = device, layers, model, graph
        self._label_weight, self._rule, self._seed, self._plan = label_weight, rule, seed, plan
        hidden, n_out = layers.hidden, layers.n_out
        self._w1 = model.parameter(layers.weight1, layers.n_in * hidden)
        self._w2 = model.parameter(layers.weight2, hidden * n_out)
        self._bits = (geometry_kipf.lane_bits(hidden), geometry_kipf.lane_bits(n_out))
        purposes = (philox.purpose_key(layers.x_dropout), philox.purpose_key(layers.z_dropout))
        self._random = (seed, *purposes, floor(layers.rate * 2**32))
        self._keep_scale = 1.0 / (1.0 - layers.rate) if layers.z_dropout else 1.0
        self._upload(graph)
        n_rows, n_labels, n_out4 = len(graph.rows), len(graph.labels), geometry_kipf.padded(n_out)
        self._z, self._t = device.empty((n_rows, hidden)), device.empty((n_rows, n_out4))
        self._dt = device.empty((n_rows, n_out4))
        self._dz = device.empty((n_rows, geometry_kipf.padded(hidden)))
        self._dlogits, self._losses = device.empty((n_labels, n_out4)), device.empty(n_labels, np.float64)
        self._inference: list[Call] | None = None

    def _upload(self, graph: KipfGraph) -> None:
        upload = self._device.upload
        self._a, self._b, self._u, self._t_u = map(self._rows, (graph.a, graph.b, graph.u, graph.u_by_columns))
        self._labels, self._n_drawn = upload(graph.labels), len(graph.drawn)
        self._drawn, self._kept = upload(graph.drawn), self._device.zeros(2 * self._n_drawn, np.uint8)
        self._kept_first: Any = upload(graph.kept_first) if self._layers.z_dropout else NULL
        self._n_staged = len(graph.place) if self._layers.x_dropout else 0
        self._row_order, self._order = graph.row_order, upload(graph.row_order.tasks)
        self._task_order, self._t_order = graph.task_order, upload(graph.task_order.tasks)
        self._paths: tuple[Any, ...] = (NULL,) * 4
        if self._n_staged:
            arrays = (graph.path_ptr, graph.paths, graph.long_entries, graph.place)
            self._paths = tuple(map(upload, arrays))
            # Twice, in the place of the values with everything kept.
            self._u = (*self._u[:2], self._device.empty(2 * self._n_staged))
            self._t_u = (*self._t_u[:2], self._device.empty(2 * self._n_staged))

    def _rows(self, matrix: Rows) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        upload = self._device.upload
        return upload(matrix.indptr), upload(matrix.indices), upload(matrix.data)

    def step(self) -> list[Call]:
        """Return the launches of a training step."""
        rows, labels = len(self._graph.rows), len(self._graph.labels)
        return [*self._before_update(rows, labels), self._update(UPDATE, self._model.totals)]

    def gradients(self, totals: DeviceArray) -> list[Call]:
        """Return the launches of a training pass that ends in the model's gradients."""
        rows, labels = len(self._graph.rows), len(self._graph.labels)
        return [*self._before_update(rows, labels), self._update(ONLY_GRADIENTS, totals)]

    def stage(self) -> list[Call]:
        """Return the launches that make U of the step behind the plan's progress, and nothing else."""
        return [self._forward(0), self._loss(0)]

    def _before_update(self, rows: int, labels: int) -> list[Call]:
        return [self._forward(rows), self._loss(labels), self._backward()]

    def _forward(self, rows: int) -> Call:
        layers, plan = self._layers, self._plan
        results = (self._z, self._t, self._kept, plan.progress, plan.keys)
        inputs = (
            self._order,
            *self._u,
            self._kept_first,
            self._w1,
            self._w2,
            self._drawn,
            *self._random,
            self._keep_scale,
        )
        n_long, blocks = (self._row_order.n_long, self._row_order.blocks) if rows else (0, 0)
        sizes = (self._n_staged, n_long, rows, self._n_drawn, self._graph.n_drawn_x, layers.hidden, layers.n_out)
        launch = geometry_kipf.forward(blocks, self._n_drawn, layers.hidden, layers.n_out)
        return Call("kipf_forward", launch, (*results, *inputs, *sizes, *self._bits))

    def _loss(self, labels: int) -> Call:
        results = (self._dlogits, self._losses, self._u[2], self._t_u[2], self._plan.progress)
        inputs = (self._t, *self._a, self._labels, self._model.loss_weights, self._kept, *self._paths)
        n_long = len(self._graph.long_entries) if self._n_staged else 0
        sizes = (labels, n_long, self._n_staged, self._n_drawn, self._layers.n_out, self._bits[1])
        launch = geometry_kipf.loss(labels, n_long, self._n_staged)
        return Call("kipf_loss", launch, (*results, *inputs, self._label_weight, *sizes))

    def _backward(self) -> Call:
        rows, hidden, n_out = len(self._graph.rows), self._layers.hidden, self._layers.n_out
        arrays = (self._dt, self._dz, self._z, self._dlogits, *self._b, self._w2)
        numbers = (self._keep_scale, rows, hidden, n_out, self._bits[1])
        return Call("kipf_backward", geometry_kipf.backward(rows, hidden, n_out), (*arrays, *numbers))

    def _update(self, mode: int, totals: DeviceArray) -> Call:
        layers, of, plan, rule = self._layers, self._model, self._plan, self._rule
        flat = (of.trainable, of.moments[0], of.moments[-1], of.gradients, totals, plan.progress, self._losses)
        inputs = (of.weight_decay, of.l2, plan.rates, self._t_order, *self._t_u, self._dz, self._z, self._dt)
        starts = (self._label_weight, layers.weight1, layers.weight2, self._n_staged, self._task_order.n_long)
        sizes = (len(self._graph.rows), len(self._graph.labels), layers.n_in, layers.hidden, layers.n_out, *self._bits)
        betas = (rule.beta1, 1.0 - rule.beta1, rule.beta2, 1.0 - rule.beta2, rule.epsilon)
        launch = geometry_kipf.update(self._task_order.blocks, layers.hidden)
        return Call("kipf_update", launch, (*flat, *inputs, *starts, *sizes, mode, int(rule.sgd), *betas))

    def inference(self) -> list[Call]:
        """Return the launches from parameters to the logits of all nodes."""
        if self._inference is None:
            hidden, n_out, device = self._layers.hidden, self._layers.n_out, self._device
            a, u = map(self._rows, self._graph.everything)
            rows = a[0].size - 1
            t, self.logits = device.empty((rows, geometry_kipf.padded(n_out))), device.empty((rows, n_out))
            order = geometry_kipf.longest_first(np.diff(self._graph.everything[1].indptr), hidden)
            inputs = (device.upload(order.tasks), *u, NULL, self._w1, self._w2, NULL, *self._random, 1.0)
            sizes = (0, order.n_long, rows, 0, 0, hidden, n_out, *self._bits)
            first = (NULL, t, NULL, NULL, NULL, *inputs, *sizes)
            forward = Call("kipf_forward", geometry_kipf.forward(order.blocks, 0, hidden, n_out), first)
            last = (self.logits, t, *a, rows, n_out, self._bits[1])
            self._inference = [forward, Call("kipf_logits", geometry_kipf.logits(rows), last)]
        return self._inference
