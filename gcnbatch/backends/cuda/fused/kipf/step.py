"""The launches of a fused step of Kipf's GCN on arrays with fixed addresses, and those of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from gcnbatch import philox
from gcnbatch.backends.cuda.fused.kipf import geometry
from gcnbatch.backends.cuda.fused.kipf.data import KipfGraph, Rows, adjacency_of
from gcnbatch.backends.cuda.fused.kipf.schedule import StepSchedule
from gcnbatch.backends.cuda.fused.shared.model import ONLY_GRADIENTS, UPDATE, DeviceModel, UpdateRule
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import Ops
from gcnbatch.data.batches import PreparedSet
from gcnbatch.data.sparse import Csr

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


@dataclass(frozen=True)
class TwoLayers:
    """The model: offsets of its weights (F, P) and (P, K) in the flat parameters, and its dropout.

    Parameters
    ----------
    x_dropout, z_dropout : str
        Philox purposes of dropout on the features and on the hidden layer; empty: no dropout.
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
        """Largest shared memory of a block."""
        hidden, n_out = self.hidden, self.n_out
        return max(geometry.forward(1, 0, hidden, n_out).shared, geometry.backward(1, hidden, n_out).shared)

    def sizes(self) -> dict[str, int]:
        """Return the size arguments of kernels that read the hidden layer and the logits."""
        bits = {"lane_bits": geometry.lane_bits(self.hidden), "out_bits": geometry.lane_bits(self.n_out)}
        return {"P": self.hidden, "K": self.n_out} | bits

    def output_sizes(self) -> dict[str, int]:
        """Return the size arguments of kernels that read the logits only."""
        return {"K": self.n_out, "out_bits": geometry.lane_bits(self.n_out)}


class Launches:
    """The launches of a step on arrays with fixed addresses.

    Parameters
    ----------
    device : Device
    layers : TwoLayers
    model : DeviceModel
    graph : KipfGraph
    label_weight : float
        Sum of the labelled rows' class weights.
    rule : UpdateRule
    seed : int
        Seed of dropout.
    schedule : StepSchedule
    """

    def __init__(
        self,
        device: Device,
        layers: TwoLayers,
        model: DeviceModel,
        graph: KipfGraph,
        label_weight: float,
        rule: UpdateRule,
        seed: int,
        schedule: StepSchedule,
    ) -> None:
        self._device, self.layers, self._model, self._graph = device, layers, model, graph
        self._label_weight, self._rule, self._seed, self._schedule = label_weight, rule, seed, schedule
        hidden, n_out = layers.hidden, layers.n_out
        w1 = model.parameter(layers.weight1, layers.n_in * hidden).reshape(layers.n_in, hidden)
        self.weights = w1, model.parameter(layers.weight2, hidden * n_out)
        self._keep_scale = 1.0 / (1.0 - layers.rate) if layers.z_dropout else 1.0
        self._upload(graph)
        n_rows, n_labels, n_out4 = len(graph.rows), len(graph.labels), geometry.padded(n_out)
        self._z, self._t = device.empty((n_rows, hidden)), device.empty((n_rows, n_out4))
        self._dt = device.empty((n_rows, n_out4))
        self._dz = device.empty((n_rows, geometry.padded(hidden)))
        self._dlogits, self._losses = device.empty((n_labels, n_out4)), device.empty(n_labels, np.float64)

    def _upload(self, graph: KipfGraph) -> None:
        device, upload = self._device, self._device.upload
        self._a, self._b = upload_rows(device, graph.a), upload_rows(device, graph.b)
        self._u, self._u_by_columns = upload_rows(device, graph.u), upload_rows(device, graph.u_by_columns)
        self._labels, self._n_drawn = upload(graph.labels), len(graph.drawn)
        self._drawn, self._kept = upload(graph.drawn), device.zeros(2 * self._n_drawn, np.uint8)
        self._kept_first = upload(graph.kept_first) if self.layers.z_dropout else None
        self._row_order, self._task_order = upload(graph.row_order.tasks), upload(graph.task_order.tasks)
        self._n_staged = len(graph.place) if self.layers.x_dropout else 0  # entries of U that every step recomputes
        names = ("product_ptr", "products", "long_entries", "place")
        self._staging: dict[str, DeviceArray | None] = dict.fromkeys(names)
        if self._n_staged:
            self._staging = {name: upload(getattr(graph, name)) for name in names}
            for matrix in (self._u, self._u_by_columns):
                matrix["values"] = device.empty(2 * self._n_staged)  # a double buffer instead of constant values

    def step(self) -> list[Call]:
        """Return the launches of a training step."""
        return [*self._before_update(), self._update(UPDATE, self._model.totals)]

    def gradients(self, totals: DeviceArray) -> list[Call]:
        """Return the launches of a training step that writes the model's gradients instead of updating it."""
        return [*self._before_update(), self._update(ONLY_GRADIENTS, totals)]

    def stage(self) -> list[Call]:
        """Return the launches that compute U of the step after the device's progress, and nothing else."""
        return [self._forward(is_staging=True), self._loss(is_staging=True)]

    def _before_update(self) -> list[Call]:
        return [self._forward(), self._loss(), self._backward()]

    def _forward(self, is_staging: bool = False) -> Call:
        layers, schedule, order = self.layers, self._schedule, self._graph.row_order
        rows, n_long, blocks = (0, 0, 0) if is_staging else (len(order.tasks), order.n_long, order.blocks)
        dropout = {
            "drawn": self._drawn,
            "seed": self._seed,
            "purpose_x": philox.purpose_key(layers.x_dropout),
            "purpose_z": philox.purpose_key(layers.z_dropout),
            "threshold": floor(layers.rate * 2**32),
            "keep_scale": self._keep_scale,
        }
        params = {
            "z": self._z,
            "t": self._t,
            "kept": self._kept,
            "progress": schedule.progress,
            "keys": schedule.keys,
            "order": self._row_order,
            "u": self._u,
            "kept_first": self._kept_first,
            "w1": self.weights[0],
            "w2": self.weights[1],
            "dropout": dropout,
            "u_stride": self._n_staged,
            "n_long": n_long,
            "n_rows": rows,
            "n_drawn": self._n_drawn,
            "n_drawn_x": self._graph.n_drawn_x,
        }
        launch = geometry.forward(blocks, self._n_drawn, layers.hidden, layers.n_out)
        return Call("kipf_forward", launch, params | layers.sizes())

    def _loss(self, is_staging: bool = False) -> Call:
        labels = 0 if is_staging else len(self._graph.labels)
        n_long = len(self._graph.long_entries) if self._n_staged else 0
        params = {
            "dlogits": self._dlogits,
            "losses": self._losses,
            "u_values": self._u["values"],
            "t_values": self._u_by_columns["values"],
            "progress": self._schedule.progress,
            "t": self._t,
            "a": self._a,
            "labels": self._labels,
            "class_weight": self._model.loss_weights,
            "kept": self._kept,
            "label_weight": self._label_weight,
            "n_labels": labels,
            "n_long": n_long,
            "n_entries": self._n_staged,
            "n_drawn": self._n_drawn,
        }
        launch = geometry.loss(labels, n_long, self._n_staged)
        return Call("kipf_loss", launch, params | self._staging | self.layers.output_sizes())

    def _backward(self) -> Call:
        rows, hidden, n_out = len(self._graph.rows), self.layers.hidden, self.layers.n_out
        params = {
            "dt": self._dt,
            "dz": self._dz,
            "z": self._z,
            "dlogits": self._dlogits,
            "b": self._b,
            "w2": self.weights[1],
            "keep_scale": self._keep_scale,
            "n_rows": rows,
            "P": hidden,
        }
        launch = geometry.backward(rows, hidden, n_out)
        return Call("kipf_backward", launch, params | self.layers.output_sizes())

    def _update(self, mode: int, totals: DeviceArray) -> Call:
        layers, model, schedule, rule = self.layers, self._model, self._schedule, self._rule
        order = self._graph.task_order
        params = {
            "parameters": model.trainable,
            "m": model.moments[0],
            "v": model.moments[-1],
            "gradients": model.gradients,
            "totals": totals,
            "progress": schedule.progress,
            "losses": self._losses,
            "weight_decay": model.weight_decay,
            "l2": model.l2,
            "rates": schedule.rates,
            "order": self._task_order,
            "u_by_columns": self._u_by_columns,
            "dz": self._dz,
            "z": self._z,
            "dt": self._dt,
            "label_weight": self._label_weight,
            "start1": layers.weight1,
            "start2": layers.weight2,
            "t_stride": self._n_staged,
            "n_long": order.n_long,
            "n_rows": len(self._graph.rows),
            "n_labels": len(self._graph.labels),
            "F": layers.n_in,
            "mode": mode,
            "rule": {
                "sgd": rule.sgd,
                "beta1": rule.beta1,
                "rest1": 1.0 - rule.beta1,
                "beta2": rule.beta2,
                "rest2": 1.0 - rule.beta2,
                "epsilon": rule.epsilon,
            },
        }
        launch = geometry.update(order.blocks, layers.hidden)
        return Call("kipf_update", launch, params | layers.sizes())


class Prediction:
    """The launches of a prediction of all nodes: X W1 as an operation of `batched`, then kernels of the step."""

    def __init__(
        self, device: Device, layers: TwoLayers, weights: tuple[DeviceArray, DeviceArray], prepared: PreparedSet
    ) -> None:
        x: Any = prepared.stored_x
        self._layers, (self._w1, self._w2) = layers, weights
        self._sparse: bool = sp.issparse(x)
        if self._sparse:
            rows = upload_rows(device, Rows.of(x))
            self._x: Any = Csr(rows["indptr"], rows["indices"], rows["values"], layers.n_in)
        else:
            self._x = device.upload(np.ascontiguousarray(x, dtype=np.float32))
        adjacency = Rows.of(adjacency_of(prepared))
        self._order = geometry.longest_first(np.diff(adjacency.indptr), layers.hidden)
        self._a, self._tasks = upload_rows(device, adjacency), device.upload(self._order.tasks)
        nodes = len(self._order.tasks)
        self._t = device.empty((nodes, geometry.padded(layers.n_out)))
        self._logits = device.empty((nodes, layers.n_out))

    def calls(self, ops: Ops) -> tuple[DeviceArray, list[Call]]:
        """Launch X W1; return the array for the logits and the remaining launches.

        `kipf_forward` computes relu(A (X W1)) W2 with A in place of U and X W1 in place of W1.
        """
        h = ops.sparse_matmul(self._x, self._w1) if self._sparse else ops.matmul(self._x, self._w1)
        layers, nodes = self._layers, len(self._order.tasks)
        no_dropout = {"drawn": None, "seed": 0, "purpose_x": 0, "purpose_z": 0, "threshold": 0, "keep_scale": 1.0}
        forward = {
            **dict.fromkeys(("z", "kept", "progress", "keys", "kept_first")),
            "t": self._t,
            "order": self._tasks,
            "u": self._a,
            "w1": h,
            "w2": self._w2,
            "dropout": no_dropout,
            **dict.fromkeys(("u_stride", "n_drawn", "n_drawn_x"), 0),
            "n_long": self._order.n_long,
            "n_rows": nodes,
            **layers.sizes(),
        }
        logits = {"logits": self._logits, "t": self._t, "a": self._a, "n_rows": nodes, **layers.output_sizes()}
        launch = geometry.forward(self._order.blocks, 0, layers.hidden, layers.n_out)
        return self._logits, [
            Call("kipf_forward", launch, forward),
            Call("kipf_logits", geometry.logits(nodes), logits),
        ]


def upload_rows(device: Device, matrix: Rows) -> dict[str, DeviceArray]:
    """Upload a matrix; return its arrays by the field names of `Csr` in ``cuda_src/fused/kipf/phases.cuh``."""
    upload = device.upload
    return {
        "indptr": upload(matrix.indptr),
        "indices": upload(matrix.indices),
        "values": upload(matrix.data),
    }
