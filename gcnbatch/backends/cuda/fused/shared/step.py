"""The launches of a fused step, over arrays that never move: what is captured, and what is run one by one."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.fused.shared.data import Capacity, FusedSet
from gcnbatch.backends.cuda.fused.shared.model import APPLY, ONLY_GRADIENTS, UPDATE, Model, Optimizer
from gcnbatch.backends.cuda.fused.shared.stack import GraphLayer, NodeLayer, Norm, Stack
from gcnbatch.backends.cuda.runtime.graph import NULL, Call
from gcnbatch.backends.cuda.runtime.launch import ceil_div, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

FIRST, CONVOLUTION, DENSE = 0, 1, 2  # `kind` of the kernels: where a layer's U comes from
GRAPHS = 0  # `unit` of a Job whose parts are graphs, not tiles of rows
READOUTS = ("sum", "mean", "max")
LOSSES = ("binary", "multiclass", "regression")


@dataclass(frozen=True)
class LayerArrays:
    """What a node layer leaves for others; see fused_forward.cu and fused_backward.cu. None: inference, or no norm."""

    y: DeviceArray
    stats: DeviceArray | int = NULL
    u: DeviceArray | int = NULL
    g: DeviceArray | int = NULL
    kept: DeviceArray | int = NULL
    moments: DeviceArray | int = NULL
    sums: DeviceArray | int = NULL
    partials: DeviceArray | int = NULL
    totals: DeviceArray | int = NULL  # of sums, in steps of wide layers


@dataclass(frozen=True)
class Job:
    """What fused_update.cu does with one parameter array; fields as there."""

    start: int
    count: int
    right: DeviceArray
    right_stride: int
    parts: int
    unit: int
    width: int
    columns: int = 0
    channels: int = 1
    n_in: int = 1
    packed: DeviceArray | None = None
    left: DeviceArray | None = None
    left_stride: int = 0
    step: int = 1

    @property
    def lanes(self) -> int:
        """Threads that share an element."""
        return geometry.lanes(self.parts)

    @property
    def elements_of_a_block(self) -> int:
        """Elements that a block updates."""
        return geometry.UPDATE_THREADS // self.lanes

    def fields(self) -> NDArray[np.int64]:
        """Return the struct, 8 bytes an entry: pointers, then pairs of 4-byte numbers."""
        pointers = [array.ptr if array is not None else NULL for array in (self.left, self.right, self.packed)]
        columns = self.columns or self.width
        numbers = [self.start, self.count, self.left_stride, self.right_stride, self.parts, self.unit, self.lanes]
        numbers += [self.n_in, self.channels, self.width, columns, columns]
        return np.concatenate([np.array([*pointers, self.step], np.int64), np.array(numbers, np.int32).view(np.int64)])


class Plan:
    """The plan of an epoch on the device, in an array for `steps` steps and `graphs` graphs.

    `tiles`, if not 0, is the most that a batch may have of them (`fused.tiles`).

    Attributes
    ----------
    array : DeviceArray
        All of it.
    progress : DeviceArray, (4,)
    rates : DeviceArray, (steps, 4)
    views : dict of DeviceArray
        See Stage in fused/shared/stage.cuh, HalfStage in fused/fp16/stage.cuh.
    """

    def __init__(self, device: Device, steps: int, graphs: int, tiles: int = 0) -> None:
        self.steps, self.graphs = steps, graphs
        lengths = {"progress": 4, "rates": 4 * steps, "batch_ptr": steps + 1, "graphs": graphs}
        lengths |= dict.fromkeys(("nodes", "edges", "t_edges"), graphs + steps)
        if tiles:
            lengths |= {"tile_starts": steps * (tiles + 1), "tile_counts": steps}
        self._starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
        self.array = device.empty(sum(lengths.values()), np.int32)
        self.views = {name: self.array.view(self._starts[name], length) for name, length in lengths.items()}
        self.progress = self.views["progress"]
        self.rates = self.views["rates"].astype_view(np.float32)

    def holds(self, steps: int, graphs: int) -> bool:
        """Return whether an epoch of so many steps and graphs can be uploaded."""
        return self.steps == steps and self.graphs >= graphs

    def packed(self, plan: EpochPlan, weights: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return what `array` is to hold of an epoch but for what `begun` adds; `weights` are those of its labels."""
        host = np.zeros(self.array.shape, np.int32)
        self._rates_in(host)[:, 3] = weights
        arrays: dict[str, NDArray[Any]] = {
            "batch_ptr": plan.batch_ptr,
            "graphs": plan.graphs,
            **plan.pointers,
            **plan.tables,
        }
        for name, values in arrays.items():
            host[self._starts[name] : self._starts[name] + len(values)] = values
        return host

    def begun(self, packed: NDArray[np.int32], rates: NDArray[np.float32], first: int) -> NDArray[np.int32]:
        """Fill the rates, (steps, 3), into `packed` and return it; staging begins with step `first`."""
        packed[0] = first
        self._rates_in(packed)[:, :3] = rates
        return packed

    def _rates_in(self, host: NDArray[np.int32]) -> NDArray[np.float32]:
        start = self._starts["rates"]
        return host[start : start + 4 * self.steps].view(np.float32).reshape(-1, 4)


class Workspace:
    """The arrays of a step for batches up to a capacity, and its launches.

    Parameters
    ----------
    device : Device
    stack : Stack
    model : Model
    data : FusedSet
    capacity : Capacity
    plan : Plan
    seed : int
        Of dropout.
    training : bool
        Batch statistics, dropout, a way back; else running statistics and logits alone.
    """

    update_entry, may_skip_decay = "fused_update", False
    same_carveout = False  # as `Recorder.record` has it

    def __init__(
        self,
        device: Device,
        stack: Stack,
        model: Model,
        data: FusedSet,
        capacity: Capacity,
        plan: Plan,
        seed: int,
        training: bool,
    ) -> None:
        self.panel_rows = 0  # of panels that batches are staged into; 0: into rows
        self._device, self._stack, self._model, self._data = device, stack, model, data
        self.capacity, self.plan, self._seed, self._training = capacity, plan, seed, training
        self._keep_scale = 1.0 / (1.0 - stack.dropout) if training else 1.0
        self._threshold = floor(stack.dropout * 2**32) if training else 0
        self.blocks = geometry.blocks(capacity.rows, device.multiprocessors)
        self._graph_blocks = max(1, min(capacity.graphs, device.multiprocessors))
        self._allocate_batch()
        self._layers = [self._layer_arrays(layer) for layer in stack.nodes]
        self.logits = device.empty((capacity.graphs, stack.n_outputs))
        self._losses = device.zeros(self._graph_blocks, np.float64)
        self._packed = model.packed
        self._heads = self._head_table()
        self._stage = self._stage_table()
        self._jobs: Any = None

    # -------------------------------------------------------------------------------------------- arrays

    def _allocate_batch(self) -> None:
        """Make the staged arrays; a symmetric adjacency is its own transpose."""
        device, at, channels = self._device, self.capacity, self._data.channels
        self._size = device.zeros(4, np.int32)
        self._node_ptr = device.zeros(at.graphs + 1, np.int32)
        self._rows = self._csr(at.rows, at.edges)
        self._t_rows = self._rows if self._data.symmetric else self._csr(at.rows * channels, at.t_edges)
        self._x = device.zeros((ceil_div(at.rows, geometry.TILE) * geometry.TILE, self._data.k))
        self._targets = device.empty((at.graphs, self._data.targets.shape[1]), self._data.targets.dtype)

    def _csr(self, rows: int, entries: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        device = self._device
        return device.zeros(rows + 1, np.int32), device.empty(max(entries, 1), np.int32), device.empty(max(entries, 1))

    def _layer_arrays(self, layer: NodeLayer) -> LayerArrays:
        device, rows, width = self._device, self.capacity.rows, layer.n_out
        y = device.empty((rows, width))
        if not self._training:
            return LayerArrays(y)
        is_first, is_last = layer is self._stack.nodes[0], layer is self._stack.nodes[-1]
        parts = self._graph_blocks if is_last else self.blocks
        return LayerArrays(
            y,
            stats=device.empty((2, width)) if layer.norm else NULL,
            u=self._x if is_first else device.empty((rows, layer.k)),
            g=device.empty((rows, width)),
            kept=device.empty(ceil_div(rows * width, 8), np.uint8) if layer.dropout else NULL,
            moments=device.empty((self.blocks, geometry.columns_of(width), 2)) if layer.norm else NULL,
            sums=device.empty((parts, geometry.columns_of(width), 2)) if layer.norm else NULL,
            partials=device.empty((self.blocks, layer.k, geometry.columns_of(width))),
        )

    def _head_table(self) -> DeviceArray:
        """Upload what fused_readout.cu calls Head, layer by layer."""
        device, graphs = self._device, self.capacity.graphs
        self._head_inputs = [device.empty((graphs, layer.n_in)) for layer in self._stack.graphs]
        self._head_gradients = [device.empty((graphs, layer.n_out)) for layer in self._stack.graphs]
        table = []
        for layer, given, gradient in zip(self._stack.graphs, self._head_inputs, self._head_gradients, strict=True):
            weight, bias = self._weights_of(layer)
            purpose = philox.purpose_key(layer.dropout) if layer.dropout else 0
            table.append([weight.ptr, bias.ptr, given.ptr, gradient.ptr, layer.n_in, layer.n_out, purpose, 0])
        return device.upload(np.array(table, dtype=np.int64))

    def pack(self) -> list[Call]:
        """Return the launches that pack the weights, when parameters came from elsewhere than from an update."""
        calls = []
        for number, (layer, packed) in enumerate(zip(self._stack.nodes, self._packed, strict=True)):
            shift, *folded = self._folding(number)
            shape = (layer.n_in, layer.channels, layer.n_out, layer.k)
            arguments = (packed, shift, *self._weights_of(layer), *folded, *shape)
            calls.append(Call("fused_pack", elementwise(packed.size), arguments))
        return calls

    def _folding(self, number: int) -> tuple[Any, ...]:
        """Return a layer's shift and what fused/shared/fused.cuh calls Folding; nothing of it in training."""
        norm, width, of = self._stack.nodes[number].norm, self._stack.nodes[number].n_out, self._model
        if norm is None or self._training:
            return (*(NULL,) * 5, 1.0)
        return (of.shifts[number], *self._affine(norm, width), *self._running(norm, width), norm.epsilon)

    def _affine(self, norm: Norm, width: int) -> tuple[DeviceArray, DeviceArray]:
        return self._model.parameter(norm.gamma, width), self._model.parameter(norm.beta, width)

    def _running(self, norm: Norm, width: int) -> tuple[DeviceArray, DeviceArray]:
        return self._model.buffer(norm.running_mean, width), self._model.buffer(norm.running_var, width)

    def _weights_of(self, layer: NodeLayer | GraphLayer) -> tuple[DeviceArray, DeviceArray]:
        width = layer.n_out * (layer.channels if isinstance(layer, NodeLayer) else 1)
        return (
            self._model.parameter(layer.weight, layer.n_in * width),
            self._model.parameter(layer.bias, width),
        )

    def _stage_table(self) -> DeviceArray:
        """Upload what fused/shared/stage.cuh calls Stage, field by field; an epoch brings its number."""
        data, views = self._data, self.plan.views
        own_t = (None, None, None) if data.symmetric else self._t_rows
        staged = (self._size, self._node_ptr, *self._rows, *own_t, self._x, self._targets)
        plan = (self.plan.progress, *(views[name] for name in ("batch_ptr", "graphs", "nodes", "edges", "t_edges")))
        of_set = (data.node_ptr, *data.rows, *data.t_rows, data.x, data.targets)
        pointers = [array.ptr if array is not None else NULL for array in (*staged, *plan, *of_set)]
        sizes = [self.plan.steps, 0, data.channels, data.k, data.targets.shape[1], self.panel_rows]
        self._epoch_field = len(pointers) + 1
        return self._device.upload(np.array([*pointers, *sizes], dtype=np.int64))

    def packed(self, plan: EpochPlan, weights: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return what `begin_epoch` is given of an epoch: where everything is, and the weights of its labels."""
        return self.plan.packed(plan, weights)

    def begin_epoch(self, epoch: int, packed: NDArray[np.int32], rates: NDArray[np.float32], first: int) -> None:
        """Send an epoch, of which `first` is to be staged first; dropout is keyed by its number."""
        number = np.array([epoch], np.int64), self._stage.view(self._epoch_field, 1)
        self._device.send((self.plan.begun(packed, rates, first), self.plan.array), number)

    # -------------------------------------------------------------------------------------------- forward

    def stage(self) -> Call:
        """Return the launch that brings the plan's next batch."""
        return Call("fused_stage", geometry.stage(self.capacity.graphs, self._device.multiprocessors), (self._stage,))

    def forward(self) -> list[Call]:
        """Return the launches from the staged batch to the logits; in training to the gradient by the last layer."""
        return [self._forward_call(number) for number in range(len(self._layers))] + [self._readout_call()]

    def _normed(self, number: int) -> tuple[Any, ...]:
        """Return moments, stats, running statistics, gamma and beta of a layer; in inference only its shift."""
        layer, arrays = self._stack.nodes[number], self._layers[number]
        if layer.norm is None:
            return (NULL,) * 6
        if not self._training:
            return (*(NULL,) * 5, self._model.shifts[number])
        running, affine = self._running(layer.norm, layer.n_out), self._affine(layer.norm, layer.n_out)
        return (arrays.moments, arrays.stats, *running, *affine)

    def _norm_numbers(self, number: int) -> tuple[float, float, int]:
        """Return epsilon, momentum and the number of parts of a layer's moments (0: it has none)."""
        norm = self._stack.nodes[number].norm
        if norm is None or not self._training:
            return 1.0, 0.0, 0
        return norm.epsilon, norm.momentum, self.blocks

    def _kernel(self, phase: str, number: int) -> str:
        """Return the name of a phase's kernel for a layer: some are specialised in fused/narrow/specialised.cu."""
        layer = self._stack.nodes[number]
        if layer.is_dense or layer.channels > 1 or layer.n_out != geometry.USUAL or self._threshold:
            return phase
        if number == 0:
            return f"{phase}_first" if layer.k <= geometry.CHUNK else phase
        return f"{phase}_usual" if layer.n_in == geometry.USUAL else phase

    def _forward_call(self, number: int) -> Call:
        layer, arrays = self._stack.nodes[number], self._layers[number]
        kind = FIRST if number == 0 else DENSE if layer.is_dense else CONVOLUTION
        before: tuple[Any, ...] = (NULL,) * 8
        numbers: tuple[float, float, int] = (1.0, 0.0, 0)
        x = self._x
        if number > 0:
            previous = self._layers[number - 1]
            before, numbers = (previous.y, *self._normed(number - 1), previous.kept), self._norm_numbers(number - 1)
            x = self._x.view(self._data.channels * self._stack.nodes[0].n_in, 1)
        own = (arrays.y, arrays.u if number else NULL, arrays.moments, arrays.kept, self._size)
        purpose = philox.purpose_key(layer.dropout) if layer.dropout else 0
        scalars = (self._seed, purpose, self._threshold, self._keep_scale, *numbers, self._data.k)
        shape = (layer.n_in, layer.channels, layer.n_out, layer.k, kind)
        launch = geometry.forward(self.blocks, layer.n_in, layer.n_out, layer.k)
        arguments = (*own, x, *before, *self._rows, self._packed[number], *scalars, *shape)
        return Call(self._kernel("fused_forward", number), launch, arguments)

    def _has_usual_readout(self) -> bool:
        """Whether the readout is the one of fused/narrow/specialised_readout.cuh."""
        stack = self._stack
        return (
            stack.nodes[-1].n_out == geometry.USUAL
            and stack.readout != "max"
            and stack.target != "multiclass"
            and len(stack.graphs) == 1
            and stack.n_outputs <= geometry.USUAL_OUTPUTS
            and not self._threshold
        )

    def _usual_readout_call(self) -> Call:
        stack, arrays = self._stack, self._layers[-1]
        results = (arrays.g, arrays.sums, self._losses)
        known = (self.plan.progress, self._size, self.plan.rates, self._node_ptr, arrays.y)
        labels = (self._targets, self._model.loss_weights, self._heads)
        numbers = (*self._norm_numbers(len(self._layers) - 1), stack.n_outputs)
        kinds = (READOUTS.index(stack.readout), LOSSES.index(stack.target))
        arguments = (*results, *known, *self._normed(len(self._layers) - 1), *labels, *numbers, *kinds)
        return Call("fused_readout_usual", geometry.usual_readout(self._graph_blocks), arguments)

    def _readout_call(self) -> Call:
        if not self._training:
            return self._logits_call()
        if self._has_usual_readout():
            return self._usual_readout_call()
        stack, last = self._stack, self._stack.nodes[-1]
        arrays = self._layers[-1]
        results = (arrays.g, arrays.sums, self._losses)
        known = (self.plan.progress, self._size, self.plan.rates, self._node_ptr)
        labels = (arrays.kept, self._targets.astype_view(np.float32), self._model.loss_weights, self._heads)
        numbers = (
            self._seed,
            self._threshold,
            self._keep_scale,
            *self._norm_numbers(len(self._layers) - 1),
            self._graph_blocks,
        )
        sizes = (
            last.n_out,
            stack.n_outputs,
            len(stack.graphs),
            stack.head_floats,
            stack.weight_floats,
            READOUTS.index(stack.readout),
        )
        arguments = (
            *results,
            *known,
            arrays.y,
            *self._normed(len(self._layers) - 1),
            *labels,
            *numbers,
            *sizes,
            LOSSES.index(stack.target),
        )
        launch = geometry.readout(
            self._graph_blocks, last.n_out, len(stack.graphs), stack.n_outputs, stack.head_floats, stack.weight_floats
        )
        return Call("fused_readout", launch, arguments)

    def _logits_call(self) -> Call:
        stack, last = self._stack, self._stack.nodes[-1]
        shift = self._normed(len(self._layers) - 1)[-1]
        known = (self.logits, self._size, self._node_ptr, self._layers[-1].y, shift, self._heads)
        sizes = (last.n_out, len(stack.graphs), stack.head_floats, READOUTS.index(stack.readout))
        launch = geometry.logits(self.capacity.graphs, last.n_out, stack.head_floats, self._device.multiprocessors)
        return Call("fused_logits", launch, (*known, *sizes))

    # -------------------------------------------------------------------------------------------- backward

    def backward(self) -> list[Call]:
        """Return the launches from the gradient by the last layer to the parts of all gradients."""
        return [self._backward_call(number) for number in range(len(self._layers) - 1, -1, -1)]

    def _backward_call(self, number: int) -> Call:
        layer, arrays, is_first = self._stack.nodes[number], self._layers[number], number == 0
        kind = FIRST if is_first else DENSE if layer.is_dense else CONVOLUTION
        _, stats, _, _, gamma, _ = self._normed(number)
        results: tuple[Any, ...] = (NULL, NULL)
        before: tuple[Any, ...] = (NULL,) * 5
        if not is_first:
            previous = self._layers[number - 1]
            _, stats_prev, _, _, gamma_prev, beta_prev = self._normed(number - 1)
            results = (previous.g, previous.sums)
            before = (previous.y, stats_prev, gamma_prev, beta_prev, previous.kept)
        own = (self._size, arrays.y, arrays.g, stats, gamma, arrays.sums, arrays.u)
        is_last = number == len(self._layers) - 1
        parts = self._graph_blocks if is_last else self.blocks
        dx_blocks, n_in = (0, 0) if is_first else (self.blocks, layer.n_in)
        numbers = (self._keep_scale, parts, int(is_last), dx_blocks, self.blocks)
        shape = (n_in, layer.channels, layer.n_out, layer.k, kind)
        launch = geometry.backward(dx_blocks, self.blocks, n_in, layer.channels, layer.n_out, layer.k)
        packed = self._packed[number]
        arguments = (*results, arrays.partials, *own, *before, *self._t_rows, packed, *numbers, *shape)
        return Call(self._kernel("fused_backward", number), launch, arguments)

    # -------------------------------------------------------------------------------------------- update

    def update(self, rule: Optimizer) -> list[Call]:
        """Return the launches from the parts of gradients to new parameters and the next batch."""
        if rule.max_norm:
            return [self._update_call(rule, ONLY_GRADIENTS, self._model.totals), self._update_call(rule, APPLY)]
        return [self._update_call(rule, UPDATE, self._model.totals)]

    def gradients(self, rule: Optimizer, totals: DeviceArray) -> Call:
        """Return the launch that writes the gradients and adds the loss and its weight to `totals`."""
        return self._update_call(rule, ONLY_GRADIENTS, totals)

    def _update_call(self, rule: Optimizer, mode: int, totals: DeviceArray | int = NULL) -> Call:
        if self._jobs is None:
            self._jobs = self._job_tables()
        jobs, chunks, norms = self._jobs
        of, n_chunks = self._model, len(norms)
        stages = 0 if mode == ONLY_GRADIENTS else self._stage_blocks
        skips = self.may_skip_decay and not rule.decays
        decay: tuple[DeviceArray | int, ...] = (NULL, NULL) if skips else (of.weight_decay, of.l2)
        flat = (of.trainable, of.moments[0], of.moments[-1], of.gradients, norms, totals, self._losses)
        tables = (*decay, self.plan.rates, self.plan.progress, jobs, chunks, self._stage)
        numbers = (n_chunks, stages, self._graph_blocks, mode, int(rule.sgd), rule.beta1, 1.0 - rule.beta1)
        rest = (rule.beta2, 1.0 - rule.beta2, rule.epsilon, rule.max_norm)
        return Call(self.update_entry, geometry.update(n_chunks, stages), (*flat, *tables, *numbers, *rest))

    @property
    def _stage_blocks(self) -> int:
        """Blocks of the update that stage the next batch."""
        return min(self.capacity.graphs, self._device.multiprocessors)

    def _job_tables(self) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Upload what fused_update.cu calls Job, one per parameter array, and which block does which part of it."""
        jobs = [job for number in range(len(self._layers)) for job in self._jobs_of_nodes(number)]
        graphs = self.capacity.graphs
        for layer, given, gradient in zip(self._stack.graphs, self._head_inputs, self._head_gradients, strict=True):
            f, p = layer.n_in, layer.n_out
            jobs.append(Job(layer.weight, f * p, gradient, p, graphs, GRAPHS, p, left=given, left_stride=f))
            jobs.append(Job(layer.bias, p, gradient, p, graphs, GRAPHS, p))
        chunks = [
            (number, first) for number, job in enumerate(jobs) for first in range(0, job.count, job.elements_of_a_block)
        ]
        upload = self._device.upload
        return (
            upload(np.concatenate([job.fields() for job in jobs])),
            upload(np.array(chunks, dtype=np.int32).ravel()),
            self._device.zeros(len(chunks), np.float64),
        )

    def _jobs_of_nodes(self, number: int) -> list[Job]:
        layer, arrays, packed = self._stack.nodes[number], self._layers[number], self._packed[number]
        f, c, p, columns = layer.n_in, layer.channels, layer.n_out, geometry.columns_of(layer.n_out)
        part, known = layer.k * columns, (columns, c, f)
        assert isinstance(arrays.partials, DeviceArray)
        weight = Job(layer.weight, f * c * p, arrays.partials, part, self.blocks, geometry.TILE, p, *known, packed)
        first_bias = c * f * columns
        biases = (arrays.partials.view(first_bias, c * columns), packed.view(first_bias, c * columns))
        bias = Job(layer.bias, c * p, biases[0], part, self.blocks, geometry.TILE, p, columns, c, 1, biases[1])
        if layer.norm is None:
            return [weight, bias]
        assert isinstance(arrays.sums, DeviceArray)
        parts, unit = arrays.sums.shape[0], GRAPHS if number == len(self._layers) - 1 else geometry.TILE
        beta, gamma = arrays.sums, arrays.sums.view(1, p)
        norm = [(layer.norm.gamma, gamma), (layer.norm.beta, beta)]
        return [weight, bias, *(Job(start, p, sums, 2 * columns, parts, unit, p, step=2) for start, sums in norm)]
