"""The launches of a training step in halves: three kernels over batches in tiles of rows that hold whole graphs.

`cuda_src/FUSED.md` follows the step; `cuda_src/fused_half.cuh` tells why halves do for TF32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda import geometry_fused_half as geometry
from gcnbatch.backends.cuda import geometry_fused_pass as one_pass
from gcnbatch.backends.cuda.fused.data import Capacity, FusedSet, propagated
from gcnbatch.backends.cuda.fused.stack import NodeLayer, Stack
from gcnbatch.backends.cuda.fused.step import LOSSES, NULL, READOUTS, Call, Model, Plan, Workspace
from gcnbatch.backends.cuda.fused.tiles import TiledPlan, tiles_of
from gcnbatch.backends.cuda.memory import DeviceArray
from gcnbatch.backends.cuda.plan import EpochPlan
from gcnbatch.data.batches import BatchSource, PreparedRows

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.device import Device

INPUT_SCALE = 128.0  # of U but for the first layer, as in fused_half.cuh


class HalfSet:
    """What of the data set a step in halves reads, on the device, beside what all wide steps read.

    Attributes
    ----------
    u : DeviceArray of halves, (nodes, K)
        A X, times `scale`.
    row_sums : DeviceArray, (nodes,)
        Of the adjacency.
    reach : float
        At least 1, and the largest sum of |Aᵀ| over a row.
    """

    def __init__(self, device: Device, source: BatchSource) -> None:
        prepared = source.prepared
        assert prepared is not None
        x: Any = prepared.stored_x
        n_in, n_nodes = x.shape[1], int(source.node_ptr[-1])
        self.columns = geometry.columns_of_u(n_in)
        largest = float(np.abs(x).max(initial=0)) * largest_row(prepared.forward)
        self.scale = geometry.scale_of(largest)
        self.reach = max(largest_row(prepared.transpose), 1.0)
        self.u, self.row_sums = device.empty((n_nodes, self.columns), np.uint16), device.empty(n_nodes)
        for first, part in propagated(prepared, source.node_ptr, n_in + 1):
            halves = np.zeros((len(part), self.columns), np.float16)
            halves[:, :n_in] = part[:, :n_in] * np.float32(self.scale)
            device.upload(halves.view(np.uint16), self.u.view(first * self.columns, halves.shape))
            device.upload(np.ascontiguousarray(part[:, n_in]), self.row_sums.view(first, len(part)))


def largest_row(rows: PreparedRows) -> float:
    """Return the largest sum of absolute values over a row."""
    ends = np.concatenate([np.zeros(1), np.cumsum(np.abs(rows.data), dtype=np.float64)])
    sums = np.diff(ends[np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.row_length, dtype=np.int64)])])
    return float(sums.max(initial=0))


def packed_weights(device: Device, stack: Stack) -> tuple[DeviceArray, ...]:
    """Return arrays for each layer's weights as panels of halves, forward and then, but for the first, backward."""
    return tuple(
        device.zeros((1 + (number > 0), layer.n_out * geometry.columns_of_u(layer.n_in)), np.uint16)
        for number, layer in enumerate(stack.nodes)
    )


@dataclass(frozen=True)
class HalfArrays:
    """What a node layer leaves for others; see PassLayer in fused_pass.cuh. fused_half_dw leaves `partials`."""

    u: DeviceArray
    y: DeviceArray
    dy: DeviceArray
    v: DeviceArray | None
    scale: DeviceArray
    dbias: DeviceArray
    dgamma: DeviceArray
    dbeta: DeviceArray
    partials: DeviceArray


@dataclass(frozen=True)
class HalfJob:
    """What fused_half_update.cuh does with one parameter array, or a dense layer on graphs; fields as there."""

    weight: int
    F: int
    P: int
    right: DeviceArray
    bias: int = 0
    left: DeviceArray | None = None
    panels: tuple[DeviceArray, DeviceArray | None] | None = None
    counts: DeviceArray | None = None
    parts: int = 1
    part_stride: int = 0

    @property
    def rows(self) -> int:
        """Those of the matrix; a dense layer's bias is one more."""
        return self.F + (self.left is not None)

    def fields(self) -> NDArray[np.int64]:
        """Return the struct, 8 bytes an entry: pointers, then pairs of 4-byte numbers."""
        arrays = (self.left, self.right, *(self.panels or (None, None)), self.counts)
        pointers = [array.ptr if array is not None else NULL for array in arrays]
        numbers = [self.weight, self.bias, self.rows, self.F, self.P, geometry.columns_of_u(self.F)]
        numbers += [self.parts, self.part_stride]
        return np.concatenate([np.array(pointers, np.int64), np.array(numbers, np.int32).view(np.int64)])


def tiles_of_chunks(jobs: Sequence[HalfJob]) -> NDArray[np.int32]:
    """Return which block of the update does which tile of which job, (blocks, 4)."""
    size = geometry.UPDATE_TILE
    places = [
        (number, k, p, 0)
        for number, job in enumerate(jobs)
        for k in range(0, job.rows, size)
        for p in range(0, job.P, size)
    ]
    return np.array(places, np.int32).reshape(-1, 4)


def vector_job(start: int, width: int, right: DeviceArray, **parts: Any) -> HalfJob:
    """Return the job of a vector of parameters: it is dealt with as a matrix."""
    return HalfJob(start, width // geometry.UPDATE_TILE, geometry.UPDATE_TILE, right, **parts)


def joined(pointers: Sequence[DeviceArray | int | None], *numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return a struct of pointers and then numbers, 8 bytes an entry."""
    found = [array.ptr if isinstance(array, DeviceArray) else NULL for array in pointers]
    return np.concatenate([np.array(found, np.int64), *(part.view(np.int64) for part in numbers)])


class HalfWorkspace(Workspace):
    """As `Workspace`, for training in halves.

    Parameters
    ----------
    halves : HalfSet
    most_tiles : int
        Tiles that a batch may have on this device.
    """

    update_entry, may_skip_decay = "fused_half_update", True

    def __init__(
        self,
        device: Device,
        stack: Stack,
        model: Model,
        data: FusedSet,
        capacity: Capacity,
        plan: Plan,
        seed: int,
        halves: HalfSet,
        most_tiles: int,
    ) -> None:
        self._halves, self.tiles = halves, tiles_of(capacity.rows, most_tiles)
        super().__init__(device, stack, model, data, capacity, plan, seed, training=True)
        self._tables = self._pass_tables()

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
            dbias=device.zeros((self.tiles, width)),
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
        return geometry.dw(shapes, self._device.multiprocessors)

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
    def _own_t_rows(self) -> tuple[DeviceArray | None, ...]:
        """The transposed adjacency, where it is another one."""
        return (None, None, None) if self._data.symmetric else self._t_rows

    def _stage_table(self, epoch: int) -> DeviceArray:
        """Upload what fused_half_stage.cuh calls HalfStage, field by field."""
        data, views, halves = self._data, self.plan.views, self._halves
        batch = (self._size, self._shape, self._tile_ptr, self._tile_rows, self._node_ptr, self._n_nodes)
        staged = (*batch, *self._rows, self._row_sums, *self._own_t_rows, self._x, self._targets)
        names = ("batch_ptr", "graphs", "nodes", "edges", "t_edges", "tile_starts", "tile_counts")
        of_plan = (self.plan.progress, *(views[name] for name in names))
        of_set = (data.node_ptr, *data.rows, *data.t_rows, halves.row_sums, halves.u, data.targets)
        sizes = [self.plan.steps, epoch, halves.columns, data.targets.shape[1], self.tiles]
        pointers = (*staged, *of_plan, *of_set)
        self._epoch_field = len(pointers) + 1
        return self._device.upload(joined(pointers, np.array(sizes, np.int64)))

    def _pass_tables(self) -> tuple[DeviceArray, DeviceArray]:
        """Upload what fused_pass.cuh calls Pass and PassLayer."""
        stack, halves, (head,) = self._stack, self._halves, self._stack.graphs
        batch = (self._size, self._shape, self._tile_ptr, self._tile_rows, self._node_ptr, self._n_nodes)
        graph = (*batch, self._row_sums, *self._rows, *self._own_t_rows, self._targets)
        readout = (self.plan.progress, self.plan.rates, self._model.loss_weights, *self._weights_of(head))
        left = (self._head_inputs[0], self._head_gradients[0], self._losses, self._exchange)
        kinds = (READOUTS.index(stack.readout), LOSSES.index(stack.target))
        sizes = np.array([len(stack.nodes), stack.n_outputs, *kinds, self.tiles], np.int64)
        of_all = joined((*graph, *readout, *left), sizes, np.array([halves.reach, 0], np.float32))
        layers = [self._pass_layer(number) for number in range(len(stack.nodes))]
        return self._device.upload(of_all), self._device.upload(np.concatenate(layers))

    def _pass_layer(self, number: int) -> NDArray[np.int64]:
        layer, arrays, of = self._stack.nodes[number], self._arrays(number), self._model
        norm = layer.norm
        assert norm is not None
        affine = (of.parameter(start, self._width) for start in (norm.gamma, norm.beta))
        running = (of.buffer(start, self._width) for start in (norm.running_mean, norm.running_var))
        weights = (*self._weight_panels(number), self._weights_of(layer)[1], *affine, *running)
        left = (arrays.y, arrays.dy, arrays.v, arrays.scale, arrays.dbias, arrays.dgamma, arrays.dbeta)
        columns = np.array([geometry.columns_of_u(layer.n_in)], np.int64)
        numbers = np.array([INPUT_SCALE if number else self._halves.scale, norm.epsilon, norm.momentum, 0], np.float32)
        return joined((arrays.u, *weights, *left), columns, numbers)

    def _dw_table(self) -> tuple[DeviceArray, DeviceArray]:
        """Upload what fused_half_dw.cu calls HalfProduct, layer by layer, and which block does what."""
        jobs = []
        for number, layer in enumerate(self._stack.nodes):
            arrays = self._arrays(number)
            columns, scale = geometry.columns_of_u(layer.n_in), INPUT_SCALE if number else self._halves.scale
            sizes = np.array([layer.n_in, layer.n_out, columns, 0], np.int32)
            sizes[3:] = np.array([scale], np.float32).view(np.int32)
            jobs.append(joined((arrays.u, arrays.dy, arrays.scale, arrays.partials), sizes))
        places = np.array(self._dw.places, np.int32)
        return self._device.upload(np.concatenate(jobs)), self._device.upload(places)

    # -------------------------------------------------------------------------------------------- step

    def begin_epoch(self, epoch: int, plan: EpochPlan, rates: Any, first: int) -> None:
        assert isinstance(plan, TiledPlan)
        super().begin_epoch(epoch, plan.in_tiles(self.tiles), rates, first)

    @property
    def _stage_blocks(self) -> int:
        return min(self.capacity.graphs + self.tiles, self._device.multiprocessors)

    def stage(self) -> Call:
        launch = geometry.stage(self.capacity.graphs, self.tiles, self._device.multiprocessors)
        return Call("fused_half_stage", launch, (self._stage,))

    def forward(self) -> list[Call]:
        return [Call(f"fused_pass_{self._width}", one_pass.launch(self._width, self.tiles), self._tables)]

    def backward(self) -> list[Call]:
        self._dw_tables = self._dw_table()
        return [Call("fused_half_dw", self._dw.launch, (*self._dw_tables, self._shape))]

    def _job_tables(self) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Upload the jobs, and which block does which tile of them; those that take longest come first."""
        (head,) = self._stack.graphs
        given, gradient = self._head_inputs[0], self._head_gradients[0]
        jobs = [HalfJob(head.weight, head.n_in, head.n_out, gradient, head.bias, given)]
        vectors = [self._vector_jobs(number) for number in range(len(self._layers))]
        jobs += [bias for bias, *_ in vectors]
        jobs += [self._matrix_job(number) for number in range(len(self._layers))]
        jobs += [norm for _, *norms in vectors for norm in norms]
        places = tiles_of_chunks(jobs)
        upload = self._device.upload
        return (
            upload(np.concatenate([job.fields() for job in jobs])),
            upload(places.ravel()),
            self._device.zeros(len(places), np.float64),
        )

    def _matrix_job(self, number: int) -> HalfJob:
        layer, partials = self._stack.nodes[number], self._arrays(number).partials
        parts, stride = self._dw.splits, layer.n_in * layer.n_out
        panels = self._weight_panels(number)
        return HalfJob(layer.weight, layer.n_in, layer.n_out, partials, panels=panels, parts=parts, part_stride=stride)

    def _vector_jobs(self, number: int) -> list[HalfJob]:
        """Return the jobs of bias, gamma and beta."""
        layer, arrays, counts = self._stack.nodes[number], self._arrays(number), self.plan.views["tile_counts"]
        assert layer.norm is not None
        return [
            vector_job(layer.bias, self._width, arrays.dbias, counts=counts, part_stride=self._width),
            vector_job(layer.norm.gamma, self._width, arrays.dgamma),
            vector_job(layer.norm.beta, self._width, arrays.dbeta),
        ]
