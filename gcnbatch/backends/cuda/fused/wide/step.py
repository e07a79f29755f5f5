"""The launches of a step with wide layers: products on tensor cores, and kernels for all between them.

`cuda_src/fused/FUSED.md` follows the step; `cuda_src/fused/wide/layers.cu` has the layers' kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gcnbatch import philox
from gcnbatch.backends.cuda.fused.shared import geometry as shared
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.fused.shared.cohort import Cohort
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.stack import NodeLayer
from gcnbatch.backends.cuda.fused.shared.step import READOUTS, LayerArrays, Workspace, csr_fields
from gcnbatch.backends.cuda.fused.wide import geometry
from gcnbatch.backends.cuda.fused.wide.jobs import chunk_table, job, vector_shape
from gcnbatch.backends.cuda.ops.loss import LOSSES
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared


@dataclass(frozen=True)
class PartialSums:
    """The partial sums of columns that batch norm's gradient needs.

    Parameters
    ----------
    stride : int
        Columns between them.
    number : int
        How many there are at most.
    graphs : int
        Graphs of each; 0: 128 rows each.
    """

    stride: int
    number: int
    graphs: int


class WideWorkspace(Workspace):
    """As `Workspace`; matrices between kernels are panels (cuda_src/fused/wide/gemm.cuh).

    Parameters
    ----------
    products : {"tf32", "3xtf32"}
        Precision of the products; 3xTF32 has float32's accuracy.
    """

    update_entry, may_skip_decay = "fused_wide_update", True

    def __init__(
        self,
        cohort: Cohort,
        memory: Memory,
        capacity: Capacity,
        plan: StagedEpoch,
        training: bool,
        products: str,
    ) -> None:
        self._products = products
        self._keep_scale = 1.0 / (1.0 - cohort.stack.dropout) if training else 1.0
        super().__init__(cohort, memory, capacity, plan, training)

    # -------------------------------------------------------------------------------------------- arrays

    @property
    def _clustered(self) -> bool:
        """Whether the model is read out by clusters: one dense layer on graphs, which fits shared memory, a plain loss.

        Predictions by a last layer of fewer than WIDE_ENOUGH weights are read out by a warp per graph.
        """
        last, graphs = self._stack.nodes[-1], self._stack.graphs
        if not self._training and last.k * last.n_out < geometry.WIDE_ENOUGH:
            return False
        launch = geometry.readout(self.capacity.graphs, last.n_out, self._stack.n_outputs)
        is_plain = len(graphs) == len(self._stack.readouts) == 1 and not self._stack.joined
        is_plain &= not (self._training and self._stack.weighted)
        return is_plain and launch.shared <= shared.shared_limit(self._device.compute_capability)

    @property
    def _round(self) -> int:
        """Whether the writer of a panel rounds to TF32."""
        return int(self._products == "tf32")

    def _allocate_batch(self) -> None:
        super()._allocate_batch()
        nodes = self._stack.nodes
        self.panel_rows = geometry.panels(self.capacity.rows, 1)[0]
        if self._clustered:
            self._graph_parts = geometry.CLUSTER * ceil_div(self.capacity.graphs, geometry.CLUSTER)
        widest = max(width for layer in nodes for width in (layer.n_in, layer.n_out))
        self._partials = self._memory.empty((geometry.tiles(self.capacity.rows), widest, 2))
        self._counters = self._memory.zeros(ceil_div(widest, geometry.TILE_COLUMNS), np.uint32)
        if self._training:
            self._g = self._memory.empty((self.capacity.rows, max(layer.n_out for layer in nodes)))
            self._dy_t = self._memory.zeros(2 * self.panel_rows * max(layer.n_out for layer in nodes))
            self._v = self._panels(max(geometry.v_columns(layer.channels, layer.n_out) for layer in nodes))
        elif len(nodes) > 1:
            self._u = self._panels(max(layer.k for layer in nodes[1:]))

    def _allocate_x(self) -> DeviceArray:
        return self._panels(self._data.k)

    def _packed_weights(self) -> tuple[DeviceArray, ...]:
        """Allocate each layer's weights as panels, forward and then, for training, backward."""
        plans = (
            geometry.weight_panels(layer.n_in, layer.channels, layer.n_out, self._columns_of_u(number))
            for number, layer in enumerate(self._stack.nodes)
        )
        return tuple(self._memory.zeros(plan.forward_floats + self._training * plan.backward_floats) for plan in plans)

    def _panels(self, columns: int) -> DeviceArray:
        return self._memory.zeros(geometry.panels(self.capacity.rows, columns)[1])

    def _layer_arrays(self, layer: NodeLayer) -> LayerArrays:
        memory, rows, width = self._memory, self.capacity.rows, layer.n_out
        y = memory.empty((rows, width))
        is_first = layer is self._stack.nodes[0]
        if not self._training:
            return LayerArrays(y, u=self._x if is_first else self._u)
        sums = self._partial_sums(layer)
        return LayerArrays(
            y,
            stats=memory.empty((2, width)) if layer.norm else None,
            u=self._x if is_first else self._panels(layer.k),
            g=self._g,
            kept=memory.empty(4 * ceil_div(rows * width, 32), np.uint8) if layer.dropout else None,
            sums=memory.empty((sums.number, sums.stride, 2)) if layer.norm else None,
            partials=memory.empty((self._dw(layer).splits, layer.k, width)),
            totals=memory.zeros((2, width)) if layer.norm else None,
        )

    def _partial_sums(self, layer: NodeLayer) -> PartialSums:
        """Return the partial sums of a layer: by graphs from a readout, by tiles of rows from a product."""
        if layer is not self._stack.nodes[-1]:
            return PartialSums(layer.n_out, geometry.tiles(self.capacity.rows), 0)
        if self._clustered:
            return PartialSums(layer.n_out, ceil_div(self.capacity.graphs, geometry.CLUSTER), geometry.CLUSTER)
        return PartialSums(shared.columns_of(layer.n_out), self._graph_parts, 1)

    def _dw(self, layer: NodeLayer) -> geometry.ProductDwGeometry:
        rows = self._data.capacity(self.capacity.graphs).rows  # not this epoch's: results depend on the splits
        return geometry.product_dw(rows, layer.k, layer.n_out, self._device.multiprocessors, self._products)

    def _weight_panels(self, number: int) -> tuple[DeviceArray, DeviceArray | None]:
        """Return a layer's weights, forward and, for training, backward."""
        layer, packed = self._stack.nodes[number], self._packed[number]
        plan = geometry.weight_panels(layer.n_in, layer.channels, layer.n_out, self._columns_of_u(number))
        backward = packed.view(plan.forward_floats, plan.backward_floats) if self._training else None
        return packed.view(0, plan.forward_floats), backward

    def pack(self) -> list[Call]:
        calls = []
        for number, layer in enumerate(self._stack.nodes):
            shape, k = (layer.n_in, layer.channels, layer.n_out), self._columns_of_u(number)
            (forward, backward), (weight, bias) = self._weight_panels(number), self._weights_of(layer)
            fields = self._folding(number) | {"forward": forward, "backward": backward, "weight": weight, "bias": bias}
            fields |= dict(zip("FCP", shape, strict=True)) | {"K": k, "round": self._round}
            fields |= {"columns": self._data.columns if number == 0 and self._data.places is not None else None}
            calls.append(self._call("fused_wide_weights", geometry.weight_panels(*shape, k).launch, fields))
        return calls

    # -------------------------------------------------------------------------------------------- forward

    def forward(self) -> list[Call]:
        calls = [self._product_call(0), *self._join_calls(), *self._dropout_calls()]
        for number in range(1, len(self._layers)):
            calls += [self._propagate_call(number), self._product_call(number)]
        return [*calls, self._readout_call()]

    def _readout_call(self) -> Call:
        if not self._clustered:
            return super()._readout_call()
        stack, training, arrays, (head,) = self._stack, self._training, self._layers[-1], self._stack.graphs
        normed, (weight, bias) = self._normed(len(self._layers) - 1), self._weights_of(head)
        fields: dict[str, Any] = {"logits": None if training else self.logits, "g": arrays.g, "sums": arrays.sums}
        fields |= {"losses": self._losses, "input": self._head_inputs[0], "gradient": self._head_gradients[0]}
        fields |= {
            "progress": self.plan.progress if training else None,
            "rates": self.plan.rates.astype_view(np.float32),
        }
        fields |= {"size": self._size, "node_ptr": self._node_ptr, "y": arrays.y, "kept": arrays.kept}
        fields |= {"stats": normed.stats, "gamma": normed.gamma, "beta": normed.beta}
        fields |= {"targets": self._targets.astype_view(np.float32), "loss_weight": self._model.loss_weights}
        fields |= {"weight": weight, "bias": bias, "keep_scale": self._keep_scale, "P": head.n_in, "K": head.n_out}
        fields |= {
            "kind": READOUTS.index(stack.readouts[0]),
            "loss": LOSSES[stack.loss],
            "training": int(training),
        }
        return self._call("fused_wide_readout", geometry.readout(self.capacity.graphs, head.n_in, head.n_out), fields)

    def _dropout_calls(self) -> list[Call]:
        """Return the launch that draws the bits of dropout; it follows the first product, which waits for the batch."""
        drawn = [
            {"kept": arrays.kept, "purpose": philox.purpose_key(layer.dropout), "columns": layer.n_out}
            for layer, arrays in zip(self._stack.nodes, self._layers, strict=True)
            if arrays.kept is not None
        ]
        if not drawn:
            return []
        self._drawn = self._device.upload(declared("fused/wide/step.cu").layout("DropoutLayer").pack_many(drawn))
        launch = geometry.dropout(self.capacity.rows, max(layer.n_out for layer in self._stack.nodes), len(drawn))
        fields = {"layers": self._drawn, "size": self._size, "of_dropout": self._model.values}
        return [Call("fused_wide_dropout", launch, fields)]

    def _propagate_call(self, number: int) -> Call:
        layer, before, normed = self._stack.nodes[number], self._layers[number - 1], self._normed(number - 1)
        fields: dict[str, Any] = {"u": self._layers[number].u, "y": before.y, "kept": before.kept}
        fields |= {"stats": normed.stats, "gamma": normed.gamma, "beta": normed.beta, "size": self._size}
        fields |= csr_fields(self._rows) | {"keep_scale": self._keep_scale, "F": layer.n_in, "C": layer.channels}
        fields |= {"K": layer.k, "capacity": self.panel_rows, "identity": int(layer.is_dense), "round": self._round}
        launch = geometry.propagate(self.capacity.rows, layer.n_in, layer.channels)
        return self._call("fused_wide_propagate", launch, fields)

    def _product_call(self, number: int) -> Call:
        layer, arrays, normed = self._stack.nodes[number], self._layers[number], self._normed(number)
        epsilon, momentum, _ = self._norm_numbers(number)
        fields: dict[str, Any] = {"y": arrays.y, "u": arrays.u, "weight": self._weight_panels(number)[0]}
        fields |= {"stats": normed.stats, "running_mean": normed.running_mean, "running_var": normed.running_var}
        fields |= {"partials": self._partials, "counters": self._counters, "size": self._size}
        fields |= {"epsilon": epsilon, "momentum": momentum, "P": layer.n_out, "K": self._columns_of_u(number)}
        fields |= {"capacity": self.panel_rows, "fresh": int(number == 0)}
        launch = geometry.product(self.capacity.rows, layer.n_out, self._products)
        return self._call(f"fused_wide_product_{self._products}", launch, fields)

    # -------------------------------------------------------------------------------------------- backward

    def backward(self) -> list[Call]:
        calls = []
        for number in range(len(self._layers) - 1, -1, -1):
            calls.append(self._propagate_backward_call(number))
            if number > 0:
                calls.append(self._product_dx_call(number))
            calls.append(self._product_dw_call(number))
        return calls

    def _propagate_backward_call(self, number: int) -> Call:
        layer, arrays, normed = self._stack.nodes[number], self._layers[number], self._normed(number)
        sums = self._partial_sums(layer)
        fields: dict[str, Any] = {"dy_t": self._dy_t, "v": self._v if number > 0 else None, "sums": arrays.totals}
        fields |= {"g": arrays.g, "y": arrays.y, "stats": normed.stats, "gamma": normed.gamma}
        fields |= {"partials": arrays.sums, "partial_stride": sums.stride, "max_partials": sums.number}
        fields |= {"graphs_per_partial": sums.graphs, "size": self._size, "C": layer.channels, "P": layer.n_out}
        fields |= csr_fields(self._t_rows, "t_") | {"capacity": self.panel_rows}
        fields |= {"identity": int(layer.is_dense), "round": self._round}
        launch = geometry.propagate_backward(self.capacity.rows, layer.n_out)
        return Call("fused_wide_propagate_backward", launch, fields)

    def _product_dx_call(self, number: int) -> Call:
        layer, before, normed = self._stack.nodes[number], self._layers[number - 1], self._normed(number - 1)
        fields: dict[str, Any] = {"g_prev": before.g, "sums_prev": before.sums, "y_prev": before.y}
        fields |= {"stats_prev": normed.stats, "gamma_prev": normed.gamma, "beta_prev": normed.beta}
        fields |= {"v": self._v, "weight": self._weight_panels(number)[1], "kept": before.kept, "size": self._size}
        fields |= {"keep_scale": self._keep_scale, "F": layer.n_in, "C": layer.channels, "P": layer.n_out}
        launch = geometry.product_dx(self.capacity.rows, layer.n_in, self._products)
        return Call(f"fused_wide_product_dx_{self._products}", launch, fields | {"capacity": self.panel_rows})

    def _product_dw_call(self, number: int) -> Call:
        layer, arrays = self._stack.nodes[number], self._layers[number]
        fields: dict[str, Any] = {"partials": arrays.partials, "u": arrays.u, "dy_t": self._dy_t, "size": self._size}
        fields |= {"K": layer.k, "P": layer.n_out, "capacity": self.panel_rows, "early": int(number > 0)}
        return Call(f"fused_wide_product_dw_{self._products}", self._dw(layer).launch, fields)

    # -------------------------------------------------------------------------------------------- update

    def _job_tables(self) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Upload a WideJob (fused/wide/update.cuh) for each matrix W' and vector, and a WideChunk for each block."""
        jobs = self._all_jobs()
        shapes = [(one["C"] * one["F"] + one["C"], one["P"]) for one in jobs]
        chunks = chunk_table(shapes, geometry.PANEL, geometry.PANEL)
        table = declared("fused/wide/update.cuh").layout("WideJob").pack_many(jobs)
        upload = self._device.upload
        return upload(table), upload(chunks), self._device.zeros(len(chunks), np.float64)

    def _all_jobs(self) -> list[dict[str, Any]]:
        """Return all jobs in the order of their chunks."""
        layers = [one for number in range(len(self._layers)) for one in self._jobs_of(number)]
        return [*self._head_jobs(), *layers]  # the first take longest

    def _head_jobs(self) -> list[dict[str, Any]]:
        heads = zip(self._stack.graphs, self._head_inputs, self._head_gradients, strict=True)
        return [
            job((layer.n_in, 1, layer.n_out), (layer.weight, layer.bias), gradient, left=given)
            for layer, given, gradient in heads
        ]

    def _jobs_of(self, number: int) -> list[dict[str, Any]]:
        """Return the jobs of W' and of batch norm's gamma and beta."""
        layer, arrays = self._stack.nodes[number], self._layers[number]
        assert arrays.partials is not None
        shape, starts, panels = (
            (layer.n_in, layer.channels, layer.n_out),
            (layer.weight, layer.bias),
            self._weight_panels(number),
        )
        own = job(shape, starts, arrays.partials, arrays.partials.shape[0], panels, self._round)
        if layer.norm is None:
            return [own]
        assert arrays.totals is not None
        width = layer.n_out
        dbeta, dgamma = arrays.totals.view(0, width), arrays.totals.view(width, width)
        norm = [(layer.norm.gamma, dgamma), (layer.norm.beta, dbeta)]
        rows, columns = vector_shape(width)
        return [own, *(job((0, rows, columns), (0, start), sums) for start, sums in norm)]
