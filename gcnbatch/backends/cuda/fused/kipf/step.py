"""The launches of a fused step of Kipf's GCN over arrays that never move, the plan of steps, and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gcnbatch import philox
from gcnbatch.backends.base import Ops
from gcnbatch.backends.cuda.fused.kipf import geometry as geometry_kipf
from gcnbatch.backends.cuda.fused.kipf.data import KipfGraph, Rows, adjacency_of
from gcnbatch.backends.cuda.fused.shared.model import ONLY_GRADIENTS, UPDATE, Model, Optimizer
from gcnbatch.backends.cuda.runtime.graph import NULL, Call
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.data.batches import PreparedSet
from gcnbatch.data.sparse import Csr

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

PLANNED = 1024  # steps that a plan holds


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

    def later(self, steps: int) -> Tick:
        """Return the step that comes so many steps behind it if the learning rate stays."""
        epochs, step = divmod(self.step + steps, self.steps)
        return Tick(self.epoch + epochs, step, self.steps, self.learning_rate, self.update + steps)


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
        self._known: list[Tick] = []  # how the plan begins; the rest is what is likely behind
        self._at = 0
        self._staged: tuple[int, int] | None = None  # epoch and step whose U the device holds for step `_at`

    def _tick(self, step: int) -> Tick:
        beyond = step - len(self._known) + 1
        return self._known[-1].later(beyond) if beyond > 0 else self._known[step]

    def fits(self, ticks: Sequence[Tick]) -> bool:
        """Whether these steps come next, and their dropout is ready."""
        if self._staged != ticks[0][:2] or self._at + len(ticks) > PLANNED:
            return False
        return all(self._tick(self._at + i) == tick for i, tick in enumerate(ticks))

    def replace(self, ticks: Sequence[Tick]) -> None:
        """Upload a plan that begins with these steps and stands before its first, whose dropout is to be staged."""
        self._at = self._at & 1
        self._known = [ticks[0]] * self._at + list(ticks)
        last, size = self._known[-1], PLANNED + 2
        beyond = np.arange(1, size - len(self._known) + 1)
        epochs, steps = np.divmod(last.step + beyond, last.steps)
        same = np.ones(len(beyond))
        likely = (last.epoch + epochs, steps, last.steps * same, last.learning_rate * same, last.update + beyond)
        table = np.concatenate([np.array(self._known, np.float64), np.column_stack(likely)])  # columns as in Tick
        keys, updates = table[:, :2].astype(np.int32), table[:, 4]
        rates = np.zeros((size, 4), np.float32)
        rates[:, 0] = table[:, 3]
        if not self._rule.sgd:
            rates[:, 1] = 1.0 / (1.0 - self._rule.beta1**updates)
            rates[:, 2] = 1.0 / (1.0 - self._rule.beta2**updates)
        before = np.full(4, self._at - 1, np.int32)
        packed = np.concatenate([before, keys.ravel(), rates.view(np.int32).ravel()])
        self._device.upload(packed, self._array)

    def staged(self) -> None:
        """Take note that the dropout of the plan's first step is staged: let the device begin with it."""
        self._device.upload(np.full(4, self._at, np.int32), self.progress)
        self._staged = self._tick(self._at)[:2]

    def advance(self, steps: int) -> None:
        """Take note that the device runs so many steps, the last of which stages the one behind it."""
        self._at += steps
        self._staged = self._tick(self._at)[:2]


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
        self._device, self.layers, self._model, self._graph = device, layers, model, graph
        self._label_weight, self._rule, self._seed, self._plan = label_weight, rule, seed, plan
        hidden, n_out = layers.hidden, layers.n_out
        w1 = model.parameter(layers.weight1, layers.n_in * hidden).reshape(layers.n_in, hidden)
        self.weights = w1, model.parameter(layers.weight2, hidden * n_out)
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

    def _upload(self, graph: KipfGraph) -> None:
        upload = self._device.upload
        matrices = (graph.a, graph.b, graph.u, graph.u_by_columns)
        self._a, self._b, self._u, self._t_u = (upload_rows(self._device, matrix) for matrix in matrices)
        self._labels, self._n_drawn = upload(graph.labels), len(graph.drawn)
        self._drawn, self._kept = upload(graph.drawn), self._device.zeros(2 * self._n_drawn, np.uint8)
        self._kept_first: Any = upload(graph.kept_first) if self.layers.z_dropout else NULL
        self._n_staged = len(graph.place) if self.layers.x_dropout else 0
        self._row_order, self._order = graph.row_order, upload(graph.row_order.tasks)
        self._task_order, self._t_order = graph.task_order, upload(graph.task_order.tasks)
        self._paths: tuple[Any, ...] = (NULL,) * 4
        if self._n_staged:
            arrays = (graph.path_ptr, graph.paths, graph.long_entries, graph.place)
            self._paths = tuple(map(upload, arrays))
            # Twice, in the place of the values with everything kept.
            self._u = (*self._u[:2], self._device.empty(2 * self._n_staged))
            self._t_u = (*self._t_u[:2], self._device.empty(2 * self._n_staged))

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
        layers, plan = self.layers, self._plan
        results = (self._z, self._t, self._kept, plan.progress, plan.keys)
        inputs = (self._order, *self._u, self._kept_first, *self.weights, self._drawn)
        random = (*self._random, self._keep_scale)
        n_long, blocks = (self._row_order.n_long, self._row_order.blocks) if rows else (0, 0)
        sizes = (self._n_staged, n_long, rows, self._n_drawn, self._graph.n_drawn_x, layers.hidden, layers.n_out)
        launch = geometry_kipf.forward(blocks, self._n_drawn, layers.hidden, layers.n_out)
        return Call("kipf_forward", launch, (*results, *inputs, *random, *sizes, *self._bits))

    def _loss(self, labels: int) -> Call:
        results = (self._dlogits, self._losses, self._u[2], self._t_u[2], self._plan.progress)
        inputs = (self._t, *self._a, self._labels, self._model.loss_weights, self._kept, *self._paths)
        n_long = len(self._graph.long_entries) if self._n_staged else 0
        sizes = (labels, n_long, self._n_staged, self._n_drawn, self.layers.n_out, self._bits[1])
        launch = geometry_kipf.loss(labels, n_long, self._n_staged)
        return Call("kipf_loss", launch, (*results, *inputs, self._label_weight, *sizes))

    def _backward(self) -> Call:
        rows, hidden, n_out = len(self._graph.rows), self.layers.hidden, self.layers.n_out
        arrays = (self._dt, self._dz, self._z, self._dlogits, *self._b, self.weights[1])
        numbers = (self._keep_scale, rows, hidden, n_out, self._bits[1])
        return Call("kipf_backward", geometry_kipf.backward(rows, hidden, n_out), (*arrays, *numbers))

    def _update(self, mode: int, totals: DeviceArray) -> Call:
        layers, of, plan, rule = self.layers, self._model, self._plan, self._rule
        flat = (of.trainable, of.moments[0], of.moments[-1], of.gradients, totals, plan.progress, self._losses)
        inputs = (of.weight_decay, of.l2, plan.rates, self._t_order, *self._t_u, self._dz, self._z, self._dt)
        starts = (self._label_weight, layers.weight1, layers.weight2, self._n_staged, self._task_order.n_long)
        sizes = (len(self._graph.rows), len(self._graph.labels), layers.n_in, layers.hidden, layers.n_out, *self._bits)
        betas = (rule.beta1, 1.0 - rule.beta1, rule.beta2, 1.0 - rule.beta2, rule.epsilon)
        launch = geometry_kipf.update(self._task_order.blocks, layers.hidden)
        return Call("kipf_update", launch, (*flat, *inputs, *starts, *sizes, mode, int(rule.sgd), *betas))


class Prediction:
    """The launches from parameters to the logits of all nodes: X W1 as an operation, then these kernels."""

    def __init__(
        self, device: Device, layers: TwoLayers, weights: tuple[DeviceArray, DeviceArray], prepared: PreparedSet
    ) -> None:
        x: Any = prepared.stored_x
        self._layers, (self._w1, self._w2) = layers, weights
        self._sparse: bool = sp.issparse(x)
        if self._sparse:
            self._x: Any = Csr(*upload_rows(device, Rows.of(x)), layers.n_in)
        else:
            self._x = device.upload(np.ascontiguousarray(x, dtype=np.float32))
        adjacency = Rows.of(adjacency_of(prepared))
        self._order = geometry_kipf.longest_first(np.diff(adjacency.indptr), layers.hidden)
        self._a, self._tasks = upload_rows(device, adjacency), device.upload(self._order.tasks)
        nodes = len(self._order.tasks)
        self._t = device.empty((nodes, geometry_kipf.padded(layers.n_out)))
        self._logits = device.empty((nodes, layers.n_out))

    def calls(self, ops: Ops) -> tuple[DeviceArray, list[Call]]:
        """Start X W1; return where the logits will be and the launches that are left."""
        h = ops.sparse_matmul(self._x, self._w1) if self._sparse else ops.matmul(self._x, self._w1)
        hidden, n_out, nodes = self._layers.hidden, self._layers.n_out, len(self._order.tasks)
        bits = (geometry_kipf.lane_bits(hidden), geometry_kipf.lane_bits(n_out))
        arrays = (NULL, self._t, NULL, NULL, NULL, self._tasks, *self._a, NULL, h, self._w2, NULL)
        nothing_drawn = (0, 0, 0, 0, 1.0)
        sizes = (0, self._order.n_long, nodes, 0, 0, hidden, n_out, *bits)
        forward = geometry_kipf.forward(self._order.blocks, 0, hidden, n_out)
        last = (self._logits, self._t, *self._a, nodes, n_out, bits[1])
        return self._logits, [
            Call("kipf_forward", forward, (*arrays, *nothing_drawn, *sizes)),
            Call("kipf_logits", geometry_kipf.logits(nodes), last),
        ]


def upload_rows(device: Device, matrix: Rows) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return a matrix on the device: indptr, indices, data."""
    return device.upload(matrix.indptr), device.upload(matrix.indices), device.upload(matrix.data)
