"""The launches of a step with wide layers: products on tensor cores, everything between them in kernels of its own.

`cuda_src/fused/FUSED.md` follows the step; `cuda_src/fused/wide/layers.cu` has the layers' kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.backends.cuda.fused.shared import geometry as shared
from gcnbatch.backends.cuda.fused.shared.stack import NodeLayer, Stack
from gcnbatch.backends.cuda.fused.shared.step import LOSSES, READOUTS, LayerArrays, Workspace
from gcnbatch.backends.cuda.fused.wide import geometry
from gcnbatch.backends.cuda.runtime.graph import NULL, Call
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


def packed_weights(device: Device, stack: Stack, training: bool = True) -> tuple[DeviceArray, ...]:
    """Return arrays for each layer's weights as panels, forward and then, for training, backward."""
    plans = (geometry.weight_panels(layer.n_in, layer.channels, layer.n_out) for layer in stack.nodes)
    return tuple(device.zeros(plan.forward_floats + training * plan.backward_floats) for plan in plans)


class Parts(NamedTuple):
    """Of sums of columns: columns from part to part, how many there may be, graphs of each (0: 128 rows)."""

    stride: int
    number: int
    graphs: int


@dataclass(frozen=True)
class WideJob:
    """What fused/wide/update.cuh does with the parameters of one layer; fields as there."""

    weight: int
    bias: int
    F: int
    C: int
    P: int
    right: DeviceArray
    left: DeviceArray | None = None
    parts: int = 1
    panels: tuple[DeviceArray, DeviceArray | None] | None = None
    round: int = 0

    def fields(self) -> NDArray[np.int64]:
        """Return the struct, 8 bytes an entry: pointers, then pairs of 4-byte numbers."""
        arrays = (self.left, self.right, *(self.panels or (None, None)))
        pointers = [array.ptr if array is not None else NULL for array in arrays]
        stride = self.right.size // self.parts if self.left is None else 0
        numbers = [self.weight, self.bias, self.F, self.C, self.P, self.parts, stride, self.round]
        return np.concatenate([np.array(pointers, np.int64), np.array(numbers, np.int32).view(np.int64)])


class WideWorkspace(Workspace):
    """As `Workspace`; matrices between kernels are panels (cuda_src/fused/wide/gemm.cuh).

    The products are those of `model.products`: ``"tf32"``, or ``"3xtf32"`` for float32's accuracy.
    """

    update_entry, may_skip_decay = "fused_wide_update", True

    # -------------------------------------------------------------------------------------------- arrays

    @property
    def _clustered(self) -> bool:
        """Whether the readout's own kernel takes the model: it has one dense layer on graphs, which fits.

        Predictions by a last layer of fewer than WIDE_ENOUGH weights are read out by a warp per graph.
        """
        last, graphs = self._stack.nodes[-1], self._stack.graphs
        if not self._training and last.k * last.n_out < geometry.WIDE_ENOUGH:
            return False
        launch = geometry.readout(self.capacity.graphs, last.n_out, self._stack.n_outputs)
        return len(graphs) == 1 and launch.shared <= shared.shared_limit(self._device.compute_capability)

    @property
    def _round(self) -> int:
        """Whether what the products read is rounded beforehand."""
        return int(self._model.products == "tf32")

    def _allocate_batch(self) -> None:
        super()._allocate_batch()
        nodes = self._stack.nodes
        self.panel_rows = geometry.panels(self.capacity.rows, 1)[0]
        if self._clustered:
            self._graph_blocks = geometry.CLUSTER * ceil_div(self.capacity.graphs, geometry.CLUSTER)
        widest = max(width for layer in nodes for width in (layer.n_in, layer.n_out))
        self._partials = self._device.empty((geometry.tiles(self.capacity.rows), widest, 2))
        self._counters = self._device.zeros(ceil_div(widest, geometry.TILE_COLUMNS), np.uint32)
        if self._training:
            self._g = self._device.empty((self.capacity.rows, max(layer.n_out for layer in nodes)))
            self._dy_t = self._device.zeros(2 * self.panel_rows * max(layer.n_out for layer in nodes))
            self._v = self._panels(max(geometry.v_columns(layer.channels, layer.n_out) for layer in nodes))
        elif len(nodes) > 1:
            self._u = self._panels(max(layer.k for layer in nodes[1:]))

    def _allocate_x(self) -> DeviceArray:
        return self._panels(self._data.k)

    def _panels(self, columns: int) -> DeviceArray:
        return self._device.zeros(geometry.panels(self.capacity.rows, columns)[1])

    def _layer_arrays(self, layer: NodeLayer) -> LayerArrays:
        device, rows, width = self._device, self.capacity.rows, layer.n_out
        y = device.empty((rows, width))
        is_first = layer is self._stack.nodes[0]
        if not self._training:
            return LayerArrays(y, u=self._x if is_first else self._u)
        sums = self._parts_of_sums(layer)
        return LayerArrays(
            y,
            stats=device.empty((2, width)) if layer.norm else None,
            u=self._x if is_first else self._panels(layer.k),
            g=self._g,
            kept=device.empty(ceil_div(rows * width, 8), np.uint8) if layer.dropout else None,
            sums=device.empty((sums.number, sums.stride, 2)) if layer.norm else None,
            partials=device.empty((self._dw(layer).splits, layer.k, width)),
            totals=device.zeros((2, width)) if layer.norm else None,
        )

    def _parts_of_sums(self, layer: NodeLayer) -> Parts:
        """Return the parts of batch norm's gradient: of a readout by graphs, of a product by tiles of rows."""
        if layer is not self._stack.nodes[-1]:
            return Parts(layer.n_out, geometry.tiles(self.capacity.rows), 0)
        if self._clustered:
            return Parts(layer.n_out, ceil_div(self.capacity.graphs, geometry.CLUSTER), geometry.CLUSTER)
        return Parts(shared.columns_of(layer.n_out), self._graph_blocks, 1)

    def _dw(self, layer: NodeLayer) -> geometry.ProductDwGeometry:
        rows = self._data.capacity(self.capacity.graphs).rows  # not of this epoch: bits depend on the splits
        at_once = self._device.multiprocessors
        return geometry.product_dw(rows, layer.k, layer.n_out, at_once, self._model.products)

    def _weight_panels(self, number: int) -> tuple[DeviceArray, DeviceArray | None]:
        """Return a layer's weights, forward and, for training, backward."""
        layer, packed = self._stack.nodes[number], self._packed[number]
        plan = geometry.weight_panels(layer.n_in, layer.channels, layer.n_out)
        backward = packed.view(plan.forward_floats, plan.backward_floats) if self._training else None
        return packed.view(0, plan.forward_floats), backward

    def pack(self) -> list[Call]:
        calls = []
        for number, layer in enumerate(self._stack.nodes):
            shape = (layer.n_in, layer.channels, layer.n_out)
            (forward, backward), (weight, bias) = self._weight_panels(number), self._weights_of(layer)
            fields = self._folding(number) | {"forward": forward, "backward": backward, "weight": weight, "bias": bias}
            fields |= dict(zip("FCP", shape, strict=True)) | {"round": self._round}
            calls.append(Call("fused_weight_panels", geometry.weight_panels(*shape).launch, fields))
        return calls

    # -------------------------------------------------------------------------------------------- forward

    def forward(self) -> list[Call]:
        calls = [self._product_call(0), *self._draw_calls()]
        for number in range(1, len(self._layers)):
            calls += [self._propagate_call(number), self._product_call(number)]
        return [*calls, self._readout_call()]

    def _readout_call(self) -> Call:
        if not self._clustered:
            return super()._readout_call()
        stack, training, arrays, (head,) = self._stack, self._training, self._layers[-1], self._stack.graphs
        _, stats, _, _, gamma, beta = self._normed(len(self._layers) - 1)
        launch = geometry.readout(self.capacity.graphs, head.n_in, head.n_out)
        results = (NULL if training else self.logits, arrays.g, arrays.sums)
        kept_for_update = (self._losses, self._head_inputs[0], self._head_gradients[0])
        known = (self.plan.progress if training else NULL, self._size, self.plan.rates, self._node_ptr)
        given = (arrays.y, stats, gamma, beta, arrays.kept, self._targets.astype_view(np.float32))
        weights = (self._model.loss_weights, *self._weights_of(head), self._keep_scale)
        kinds = (READOUTS.index(stack.readout), LOSSES.index(stack.target), int(training))
        arguments = (*results, *kept_for_update, *known, *given, *weights, head.n_in, head.n_out, *kinds)
        return Call("fused_wide_readout", launch, arguments)

    def _draw_calls(self) -> list[Call]:
        """Return the launch that draws the bits of dropout; it follows the first product, which reads the batch."""
        drawn = [
            [arrays.kept.ptr, philox.purpose_key(layer.dropout), layer.n_out]
            for layer, arrays in zip(self._stack.nodes, self._layers, strict=True)
            if isinstance(arrays.kept, DeviceArray)
        ]
        if not drawn:
            return []
        self._drawn = self._device.upload(np.array(drawn, np.int64))
        launch = geometry.draw(self.capacity.rows, max(layer.n_out for layer in self._stack.nodes), len(drawn))
        return [Call("fused_wide_draw", launch, (self._drawn, self._size, self._seed, self._threshold))]

    def _propagate_call(self, number: int) -> Call:
        layer, before = self._stack.nodes[number], self._layers[number - 1]
        _, stats, _, _, gamma, beta = self._normed(number - 1)
        given = (before.y, stats, gamma, beta, before.kept, *self._rows, self._size, self._keep_scale)
        shape = (layer.n_in, layer.channels, layer.k, self.panel_rows, int(layer.is_dense), self._round)
        launch = geometry.propagate(self.capacity.rows, layer.n_in, layer.channels)
        return Call("fused_propagate", launch, (self._layers[number].u, *given, *shape))

    def _product_call(self, number: int) -> Call:
        layer, arrays = self._stack.nodes[number], self._layers[number]
        _, stats, running_mean, running_var, _, _ = self._normed(number)
        epsilon, momentum, _ = self._norm_numbers(number)
        launch = geometry.product(self.capacity.rows, layer.n_out, self._model.products)
        results = (arrays.y, stats, running_mean, running_var, self._partials, self._counters)
        given = (arrays.u, self._weight_panels(number)[0], self._size, epsilon, momentum)
        shape = (layer.n_out, layer.k, self.panel_rows, int(number == 0))
        return Call(f"fused_product_{self._model.products}", launch, (*results, *given, *shape))

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
        layer, arrays = self._stack.nodes[number], self._layers[number]
        _, stats, _, _, gamma, _ = self._normed(number)
        results = (self._dy_t, self._v if number > 0 else NULL, arrays.totals)
        given = (arrays.g, arrays.y, stats, arrays.sums, gamma, *self._t_rows, self._size)
        shape = (layer.channels, layer.n_out, self.panel_rows, int(layer.is_dense), self._round)
        launch = geometry.propagate_backward(self.capacity.rows, layer.n_out)
        arguments = (*results, *given, *self._parts_of_sums(layer), *shape)
        return Call("fused_propagate_backward", launch, arguments)

    def _product_dx_call(self, number: int) -> Call:
        layer, before = self._stack.nodes[number], self._layers[number - 1]
        _, stats, _, _, gamma, beta = self._normed(number - 1)
        launch = geometry.product_dx(self.capacity.rows, layer.n_in, self._model.products)
        given = (self._v, self._weight_panels(number)[1], before.y, stats, gamma, beta, before.kept, self._size)
        shape = (self._keep_scale, layer.n_in, layer.channels, layer.n_out, self.panel_rows)
        return Call(f"fused_product_dx_{self._model.products}", launch, (before.g, before.sums, *given, *shape))

    def _product_dw_call(self, number: int) -> Call:
        layer, arrays = self._stack.nodes[number], self._layers[number]
        shape = (layer.k, layer.n_out, self.panel_rows, int(number > 0))
        arguments = (arrays.partials, arrays.u, self._dy_t, self._size, *shape)
        return Call(f"fused_product_dw_{self._model.products}", self._dw(layer).launch, arguments)

    # -------------------------------------------------------------------------------------------- update

    def _job_tables(self) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Upload the jobs, one per matrix W' and per vector, and which block does which tile."""
        heads = zip(self._stack.graphs, self._head_inputs, self._head_gradients, strict=True)
        jobs = [  # these take longest and come first
            WideJob(layer.weight, layer.bias, layer.n_in, 1, layer.n_out, gradient, given)
            for layer, given, gradient in heads
        ]
        jobs += [job for number in range(len(self._layers)) for job in self._wide_jobs(number)]
        tiles = [
            (number, k, p, 0)
            for number, job in enumerate(jobs)
            for k in range(0, job.C * job.F + job.C, geometry.PANEL)
            for p in range(0, job.P, geometry.PANEL)
        ]
        upload = self._device.upload
        return (
            upload(np.concatenate([job.fields() for job in jobs])),
            upload(np.array(tiles, dtype=np.int32).ravel()),
            self._device.zeros(len(tiles), np.float64),
        )

    def _wide_jobs(self, number: int) -> list[WideJob]:
        layer, arrays = self._stack.nodes[number], self._layers[number]
        assert isinstance(arrays.partials, DeviceArray)
        shape, splits = (layer.n_in, layer.channels, layer.n_out), arrays.partials.shape[0]
        panels = self._weight_panels(number)
        own = WideJob(layer.weight, layer.bias, *shape, arrays.partials, parts=splits, panels=panels, round=self._round)
        if layer.norm is None:
            return [own]
        assert isinstance(arrays.totals, DeviceArray)
        width = layer.n_out
        dbeta, dgamma = arrays.totals.view(0, width), arrays.totals.view(width, width)
        norm = [(layer.norm.gamma, dgamma), (layer.norm.beta, dbeta)]
        rows, columns = (width // geometry.PANEL, geometry.PANEL) if width % geometry.PANEL == 0 else (1, width)
        return [own, *(WideJob(0, start, 0, rows, columns, sums) for start, sums in norm)]
