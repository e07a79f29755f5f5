"""The launches of a training step in halves: three kernels over batches in tiles of rows that hold whole graphs.

`cuda_src/fused/FUSED.md` follows the step; `cuda_src/fused/fp16/tiles.cuh` tells why halves do for TF32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.backends.cuda.fused.fp16 import step_geometry as one_pass
from gcnbatch.backends.cuda.fused.fp16.tiles import TiledPlan, tiles_of
from gcnbatch.backends.cuda.fused.shared.data import Capacity, FusedSet
from gcnbatch.backends.cuda.fused.shared.epoch import Plan
from gcnbatch.backends.cuda.fused.shared.model import Model
from gcnbatch.backends.cuda.fused.shared.stack import NodeLayer, Stack
from gcnbatch.backends.cuda.fused.shared.step import LOSSES, READOUTS, Workspace
from gcnbatch.backends.cuda.runtime.graph import NULL, Call
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


def packed_weights(device: Device, stack: Stack) -> tuple[DeviceArray, ...]:
    """Return arrays for each layer's weights as panels of halves, forward and then, but for the first, backward."""
    return tuple(
        device.zeros((1 + (number > 0), layer.n_out * geometry.columns_of_u(layer.n_in)), np.uint16)
        for number, layer in enumerate(stack.nodes)
    )


@dataclass(frozen=True)
class HalfArrays:
    """What a node layer leaves for others; see PassLayer in fused/fp16/step.cuh. fused_half_dw leaves `partials`."""

    u: DeviceArray
    y: DeviceArray
    dy: DeviceArray
    v: DeviceArray | None
    scale: DeviceArray
    bias_parts: DeviceArray
    dbias: DeviceArray
    dgamma: DeviceArray
    dbeta: DeviceArray
    partials: DeviceArray


@dataclass(frozen=True)
class HalfJob:
    """What fused/fp16/update.cuh does with one parameter array, or a dense layer on graphs; fields as there."""

    weight: int
    F: int
    P: int
    right: DeviceArray
    bias: int | None = None
    panels: tuple[DeviceArray, DeviceArray | None] | None = None
    parts: int = 1

    @property
    def rows(self) -> int:
        """Those of the matrix; a dense layer's bias is one more."""
        return self.F + (self.bias is not None)

    def fields(self) -> NDArray[np.int64]:
        """Return the struct, 8 bytes an entry: pointers, then pairs of 4-byte numbers."""
        numbers = [self.weight, self.bias or 0, self.rows, self.F, self.P, geometry.columns_of_u(self.F)]
        numbers += [self.parts, self.right.size // self.parts]
        return joined((self.right, *(self.panels or (None, None))), np.array(numbers, np.int32))


def tiles_of_chunks(jobs: Sequence[HalfJob]) -> NDArray[np.int32]:
    """Return which block of the update does which tile of which job, (blocks, 4)."""
    places = [
        (number, k, p, 0)
        for number, job in enumerate(jobs)
        for k in range(0, job.rows, geometry.UPDATE_ROWS)
        for p in range(0, job.P, geometry.UPDATE_TILE)
    ]
    return np.array(places, np.int32).reshape(-1, 4)


def places_of(products: Sequence[NDArray[np.int64]], plan: geometry.DwGeometry) -> NDArray[np.int64]:
    """Return what fused/fp16/weight_gradient.cu calls DwPlace: a product, and the first panels of a block in it."""
    return np.concatenate(
        [joined((), products[number], np.array([u, dy, 0, 0], np.int32)) for number, u, dy in plan.places]
    )


def vector_job(start: int, right: DeviceArray) -> HalfJob:
    """Return the job of a vector of parameters: it is dealt with as a matrix."""
    return HalfJob(start, right.size // geometry.UPDATE_TILE, geometry.UPDATE_TILE, right)


def joined(pointers: Sequence[DeviceArray | int | None], *numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return a struct of pointers and then numbers, 8 bytes an entry."""
    found = [array.ptr if isinstance(array, DeviceArray) else NULL for array in pointers]
    return np.concatenate([np.array(found, np.int64), *(part.view(np.int64) for part in numbers)])


class HalfWorkspace(Workspace):
    """As `Workspace`, for training in halves.

    Parameters
    ----------
    data : FusedSet
        With `halves`.
    most_tiles : int
        Tiles that a batch may have on this device.
    """

    update_entry, may_skip_decay = "fused_half_update", True
    same_carveout = True

    def __init__(
        self,
        device: Device,
        stack: Stack,
        model: Model,
        data: FusedSet,
        capacity: Capacity,
        plan: Plan,
        seed: int,
        most_tiles: int,
    ) -> None:
        assert data.halves is not None
        self._halves, self.tiles = data.halves, tiles_of(capacity.rows, most_tiles)
        super().__init__(device, stack, model, data, capacity, plan, seed, training=True)
        scales = [self._scale_of(number) for number in range(len(stack.nodes))]
        self._u_scales = device.upload(np.array(scales, np.float32))
        self._head_dw = device.empty((self._width + 1, stack.n_outputs))
        self._tables, self._dw_tables = self._pass_tables(), self._dw_table()

    # -------------------------------------------------------------------------------------------- arrays

    @property
    def _width(self) -> int:
        return self._stack.nodes[0].n_out

    def _allocate_batch(self) -> None:
        device, at, rows = self._device, self.capacity, geometry.TILE_ROWS * self.tiles
        self._graph_blocks = self.tiles  # each leaves a sum of losses
        self._size, self._shape = device.zeros(4, np.int32), device.zeros(2, np.int32)
        self._tile_ptr, self._tile_rows = device.zeros(self.tiles + 1, np.int32), device.zeros(self.tiles, np.int32)
        self._node_ptr, self._n_nodes = device.zeros(at.graphs, np.int32), device.zeros(at.graphs, np.int32)
        self._rows = self._csr(rows, at.edges)
        self._t_rows = self._rows if self._data.symmetric else self._csr(rows, at.t_edges)
        self._row_sums, self._x = device.zeros(rows), self._panels(self._halves.columns)
        self._targets = device.empty((at.graphs, self._data.targets.shape[1]), self._data.targets.dtype)
        self._exchange = device.zeros(
            one_pass.exchange_bytes(len(self._stack.nodes), self.tiles, self._width), np.uint8
        )

    def _panels(self, columns: int) -> DeviceArray:
        return self._device.zeros(
            (self.tiles, columns // geometry.PANEL, geometry.TILE_ROWS, geometry.PANEL), np.uint16
        )

    def _layer_arrays(self, layer: NodeLayer) -> Any:
        device, width, is_first = self._device, layer.n_out, layer is self._stack.nodes[0]
        return HalfArrays(
            u=self._x if is_first else self._panels(width),
            y=device.empty((self.tiles, geometry.TILE_ROWS * width)),
            dy=self._panels(width),
            v=None if is_first else self._panels(width),
            scale=device.zeros(1),
            bias_parts=device.zeros((self.tiles, width)),
            dbias=device.zeros(width),
            dgamma=device.zeros(width),
            dbeta=device.zeros(width),
            partials=device.empty((self._dw.splits, layer.n_in, width)),
        )

    def _arrays(self, number: int) -> HalfArrays:
        arrays: Any = self._layers[number]
        assert isinstance(arrays, HalfArrays)
        return arrays

    @property
    def _dw(self) -> geometry.DwGeometry:
        shapes = tuple((geometry.columns_of_u(layer.n_in), layer.n_out) for layer in self._stack.nodes)
        return geometry.dw(shapes, (self._width, self._stack.n_outputs), self._device.multiprocessors)

    def _weight_panels(self, number: int) -> tuple[DeviceArray, DeviceArray | None]:
        """Return a layer's weights, forward and backward."""
        packed = self._packed[number]
        length = packed.shape[1]
        return packed.view(0, length), packed.view(length, length) if number else None

    def pack(self) -> list[Call]:
        calls = []
        for number, layer in enumerate(self._stack.nodes):
            forward, backward = self._weight_panels(number)
            columns, weight = geometry.columns_of_u(layer.n_in), self._weights_of(layer)[0]
            arguments = (forward, NULL if backward is None else backward, weight, layer.n_in, layer.n_out, columns)
            calls.append(Call("fused_half_weights", geometry.weights(layer.n_out, columns), arguments))
        return calls

    # -------------------------------------------------------------------------------------------- tables

    @property
    def _own_t_rows(self) -> tuple[DeviceArray, DeviceArray, DeviceArray] | tuple[None, None, None]:
        """The transposed adjacency, where it is another one."""
        return (None, None, None) if self._data.symmetric else self._t_rows

    def _stage_table(self) -> DeviceArray:
        """Upload what fused/fp16/stage.cuh calls HalfStage, field by field."""
        data, views, halves = self._data, self.plan.views, self._halves
        batch = (self._size, self._shape, self._tile_ptr, self._tile_rows, self._node_ptr, self._n_nodes)
        staged = (*batch, *self._rows, self._row_sums, *self._own_t_rows, self._x, self._targets)
        names = ("batch_ptr", "graphs", "nodes", "edges", "t_edges", "tile_starts", "tile_counts")
        of_plan = (self.plan.progress, *(views[name] for name in names))
        of_set = (data.node_ptr, *data.rows, *data.t_rows, halves.row_sums, halves.u, data.targets)
        sizes = [self.plan.steps, 0, halves.columns, data.targets.shape[1], self.tiles]
        pointers = (*staged, *of_plan, *of_set)
        table = self._device.upload(joined(pointers, np.array(sizes, np.int64)))
        self._epoch = table.view(len(pointers) + 1, 1)
        return table

    def _pass_tables(self) -> tuple[DeviceArray, DeviceArray]:
        """Upload what fused/fp16/step.cuh calls Pass and PassLayer."""
        stack, (head,) = self._stack, self._stack.graphs
        (indptr, indices, values), (t_indptr, t_indices, t_values) = self._rows, self._own_t_rows
        weight, bias = self._weights_of(head)
        of_all = one_pass.Pass(
            size=self._size,
            shape=self._shape,
            tile_ptr=self._tile_ptr,
            tile_rows=self._tile_rows,
            node_ptr=self._node_ptr,
            n_nodes=self._n_nodes,
            rowsum=self._row_sums,
            indptr=indptr,
            indices=indices,
            values=values,
            t_indptr=t_indptr,
            t_indices=t_indices,
            t_values=t_values,
            targets=self._targets,
            progress=self.plan.progress,
            rates=self.plan.rates,
            loss_weight=self._model.loss_weights,
            head_weight=weight,
            head_bias=bias,
            input=self._head_inputs[0],
            gradient=self._head_gradients[0],
            losses=self._losses,
            exchange=self._exchange,
            n_layers=len(stack.nodes),
            n_outputs=stack.n_outputs,
            readout=READOUTS.index(stack.readout),
            loss=LOSSES.index(stack.target),
            tiles=self.tiles,
            reach=self._halves.reach,
        )
        layers = [self._pass_layer(number).table() for number in range(len(stack.nodes))]
        return self._device.upload(of_all.table()), self._device.upload(np.concatenate(layers))

    def _pass_layer(self, number: int) -> one_pass.PassLayer:
        layer, arrays, of, width = self._stack.nodes[number], self._arrays(number), self._model, self._width
        norm, (forward, backward) = layer.norm, self._weight_panels(number)
        assert norm is not None
        return one_pass.PassLayer(
            u=arrays.u,
            w_forward=forward,
            w_backward=backward,
            bias=self._weights_of(layer)[1],
            gamma=of.parameter(norm.gamma, width),
            beta=of.parameter(norm.beta, width),
            running_mean=of.buffer(norm.running_mean, width),
            running_var=of.buffer(norm.running_var, width),
            y=arrays.y,
            dy=arrays.dy,
            v=arrays.v,
            scale=arrays.scale,
            dbias=arrays.bias_parts,
            dgamma=arrays.dgamma,
            dbeta=arrays.dbeta,
            K=geometry.columns_of_u(layer.n_in),
            u_scale=self._scale_of(number),
            epsilon=norm.epsilon,
            momentum=norm.momentum,
        )

    def _scale_of(self, number: int) -> float:
        """Return what a layer's U is multiplied by."""
        return self._halves.inner_scale if number else self._halves.scale

    def _dw_table(self) -> tuple[DeviceArray, DeviceArray]:
        """Upload what fused/fp16/weight_gradient.cu calls HalfProduct, layer by layer, and DwPlace, block by block."""
        products = []
        for number, layer in enumerate(self._stack.nodes):
            arrays, columns = self._arrays(number), geometry.columns_of_u(layer.n_in)
            scales = (arrays.scale, self._u_scales.view(number, 1))
            pointers = (arrays.u, arrays.dy, *scales, arrays.partials, arrays.bias_parts, arrays.dbias)
            products.append(joined(pointers, np.array([layer.n_in, layer.n_out, columns, 0], np.int32)))
        return self._device.upload(np.concatenate(products)), self._device.upload(places_of(products, self._dw))

    # -------------------------------------------------------------------------------------------- step

    def packed(self, plan: EpochPlan, weights: NDArray[np.float32]) -> NDArray[np.int32]:
        assert isinstance(plan, TiledPlan)
        return super().packed(plan.in_tiles(self.tiles), weights)

    @property
    def _stage_blocks(self) -> int:
        return min(self.capacity.graphs + self.tiles, self._device.multiprocessors)

    def stage(self) -> Call:
        launch = geometry.stage(self.capacity.graphs, self.tiles, self._device.multiprocessors)
        return Call("fused_half_stage", launch, (self._stage,))

    def forward(self) -> list[Call]:
        return [Call(one_pass.entry(self._width), one_pass.launch(self._width, self.tiles), self._tables)]

    def backward(self) -> list[Call]:
        plan, (head,) = self._dw, self._stack.graphs
        given = (self._shape, self._size, self._head_inputs[0], self._head_gradients[0])
        sizes = (len(self._layers), len(plan.places), plan.splits, head.n_in, head.n_out)
        return [Call("fused_half_dw", plan.launch, (self._head_dw, *self._dw_tables, *given, *sizes))]

    def _job_tables(self) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Upload the jobs, and which block does which tile of them."""
        (head,) = self._stack.graphs
        jobs = [HalfJob(head.weight, head.n_in, head.n_out, self._head_dw, head.bias)]
        jobs += [job for number in range(len(self._layers)) for job in self._jobs_of(number)]
        places = tiles_of_chunks(jobs)
        upload = self._device.upload
        return (
            upload(np.concatenate([job.fields() for job in jobs])),
            upload(places.ravel()),
            self._device.zeros(len(places), np.float64),
        )

    def _jobs_of(self, number: int) -> list[HalfJob]:
        """Return the jobs of a layer's weights, bias, gamma and beta."""
        layer, arrays, norm = self._stack.nodes[number], self._arrays(number), self._stack.nodes[number].norm
        assert norm is not None
        vectors = ((layer.bias, arrays.dbias), (norm.gamma, arrays.dgamma), (norm.beta, arrays.dbeta))
        parts, panels = self._dw.splits, self._weight_panels(number)
        matrix = HalfJob(layer.weight, layer.n_in, layer.n_out, arrays.partials, panels=panels, parts=parts)
        return [matrix, *(vector_job(start, gradient) for start, gradient in vectors)]
