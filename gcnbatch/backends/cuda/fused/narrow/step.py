"""The launches of a narrow step, in which blocks hold weights in registers (cuda_src/fused/narrow/step.cu).

A layer of 64 columns and 1 channel without dropout has specialised kernels with the same parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcnbatch import philox
from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.fused.narrow.geometry import OF_GRAPHS
from gcnbatch.backends.cuda.fused.shared import geometry as shared
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.fused.shared.cohort import Cohort
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.model import UpdateRule
from gcnbatch.backends.cuda.fused.shared.stack import NodeLayer
from gcnbatch.backends.cuda.fused.shared.step import LayerArrays, Normed, Workspace, csr_fields
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared

FIRST, CONVOLUTION, DENSE = declared("fused/narrow/shape.cuh").enum("LayerKind").values()
_CHANNELS = declared("fused/narrow/channels_weights.cuh")
SPECIALISED = "_64x1"  # suffix of specialised kernels


def has_channel_kernels(cohort: Cohort) -> bool:
    """Return whether a model trains with kernels that skip what is 0 in U (fused/narrow/channels.cuh).

    All its layers are convolutions of 64 columns and several channels without residual connections.
    """
    (first, *others), channels = cohort.stack.nodes, cohort.stack.nodes[0].channels
    has_shape = all(
        layer.n_out == geometry.CHANNEL_COLUMNS and not layer.is_dense and not layer.residual
        for layer in (first, *others)
    )
    places = cohort.data.places
    k = cohort.data.k if places is not None else first.k
    splits = geometry.CHANNEL_SPLITS
    launches = geometry.channels_forward(1, channels, splits), geometry.channels_backward(1, channels, splits)
    needed = max(launch.shared for launch in (geometry.channels_first(1, k), *launches, geometry.channels_weights(1)))
    fits = needed <= shared.shared_limit(cohort.device.compute_capability) and channels <= geometry.MOST_CHANNELS
    return bool(others) and has_shape and channels > 1 and fits


class NarrowWorkspace(Workspace):
    """The arrays and launches of a narrow step; parameters as `Workspace`."""

    def __init__(self, cohort: Cohort, memory: Memory, capacity: Capacity, plan: StagedEpoch, training: bool) -> None:
        self._dealt = geometry.dealt(capacity.rows, cohort.members, cohort.device.multiprocessors)
        self._has_channels = training and has_channel_kernels(cohort)
        super().__init__(cohort, memory, capacity, plan, training)
        self.may_skip_decay = cohort.members > 1
        self.update_entry = "fused_narrow_update_of_many" if self._has_wide_chunks else "fused_narrow_update"
        if training:
            self._tables = self._job_tables()  # in the arena, with all other arrays
        if self._has_channels:
            self.same_carveout = True
            self._dy = [None, *(memory.empty((capacity.rows, layer.n_out)) for layer in self._stack.nodes[1:])]
            self._slabs = self._upload_tables(_CHANNELS.layout("WeightSlab"), self._all_slabs())

    # -------------------------------------------------------------------------------------------- arrays

    def _allocate_x(self) -> DeviceArray:
        if self._has_channels:
            return self._data.x
        return self._memory.zeros((self._rows_of_tiles, self._data.k))

    def _allocate_source(self) -> DeviceArray | None:
        return self._memory.zeros(self._rows_of_tiles, np.int32) if self._has_channels else None

    @property
    def _rows_of_tiles(self) -> int:
        """Rows of whole tiles: kernels read them before they know the batch's size."""
        return shared.TILE * ceil_div(self.capacity.rows, shared.TILE)

    @property
    def _rows_of_set(self) -> tuple[DeviceArray | None, ...]:
        return self._data.channel_rows if self._has_channels else super()._rows_of_set

    @property
    def _rows_of_node(self) -> int:
        return self._data.channels if self._has_channels else 1

    @property
    def _is_symmetric(self) -> bool:
        return self._data.channel_rows is self._data.t_rows if self._has_channels else super()._is_symmetric

    def _packed_weights(self) -> tuple[DeviceArray, ...]:
        """Allocate an array for each layer's weights, (K, P rounded up to 4)."""
        depths = (self._columns_of_u(number) for number in range(len(self._stack.nodes)))
        return tuple(
            self._memory.zeros((k, shared.columns_of(layer.n_out)))
            for k, layer in zip(depths, self._stack.nodes, strict=True)
        )

    def _layer_arrays(self, layer: NodeLayer) -> LayerArrays:
        memory, rows, width = self._memory, self.capacity.rows, layer.n_out
        y, h = memory.empty((rows, width)), memory.empty((rows, width)) if layer.residual else None
        if not self._training:
            return LayerArrays(y, h=h)
        number = self._stack.nodes.index(layer)
        branches = self._stack.branches(number)
        columns = shared.columns_of(width)
        return LayerArrays(
            y,
            stats=memory.empty((2, width)) if layer.norm else None,
            u=self._x if number == 0 else memory.empty((rows, self._stored_columns(layer))),
            g=memory.empty((rows, width)),
            kept=memory.empty(4 * ceil_div(rows * width, 32), np.uint8) if layer.dropout else None,
            moments=memory.empty((self._tiles, columns, 2)) if layer.norm else None,
            sums=memory.empty((self._parts_of_sums(number), columns, 2)) if layer.norm else None,
            partials=memory.empty((self._dw_sums, self._columns_of_u(number), columns)),
            h=h,
            g_h=memory.empty((rows, width)) if branches else None,
        )

    def _stored_columns(self, layer: NodeLayer) -> int:
        """Return the columns of U that the forward pass of a layer stores; of channels, row sums are not among them."""
        return layer.channels * layer.n_in if self._has_channels else layer.k

    def _sums_graphs(self, number: int) -> bool:
        """Whether the partial sums of a layer's G are of graphs, written by the readout, and not of tiles of rows."""
        return number == len(self._stack.nodes) - 1 and not self._stack.branches(number)

    @property
    def _tiles(self) -> int:
        """Partial moments over tiles of rows, and partial sums of gradients.

        Kernels of layers with channels write one for each tile.
        """
        return ceil_div(self.capacity.rows, shared.TILE) if self._has_channels else self._dealt.parts

    def _parts_of_sums(self, number: int) -> int:
        """Return how many partial sums of a layer's G there are."""
        return self._graph_parts if self._sums_graphs(number) else self._tiles

    @property
    def _dw_sums(self) -> int:
        """Partial sums of a weight gradient."""
        return geometry.LANES if self._has_channels else self._dealt.dw_sums

    def _norm_numbers(self, number: int) -> tuple[float, float, int]:
        epsilon, momentum, _ = super()._norm_numbers(number)
        is_reduced = self._training and self._stack.nodes[number].norm is not None
        return epsilon, momentum, self._tiles if is_reduced else 0

    def pack(self) -> list[Call]:
        calls = []
        for number, (layer, packed) in enumerate(zip(self._stack.nodes, self._packed, strict=True)):
            weight, bias = self._weights_of(layer)
            fields = self._folding(number) | {"packed": packed, "weight": weight, "bias": bias}
            fields |= {"F": layer.n_in, "C": layer.channels, "P": layer.n_out, "K": self._columns_of_u(number)}
            fields |= {"columns": self._data.columns if number == 0 else None}
            calls.append(self._call("fused_narrow_pack", elementwise(packed.size), fields))
        return calls

    # -------------------------------------------------------------------------------------------- forward

    def _entry(self, phase: str, number: int) -> str:
        """Return the name of a phase's kernel for a layer: the specialised kernel if it supports the layer."""
        layer, columns = self._stack.nodes[number], geometry.SPECIALISED_COLUMNS
        is_plain = not (layer.is_dense or layer.channels > 1 or self._drops)
        if is_plain and layer.n_out == columns:
            if number == 0 and self._columns_of_u(number) <= geometry.FORWARD_CHUNK:
                return f"fused_narrow_{phase}_first{SPECIALISED}"
            if number > 0 and layer.n_in == columns:
                return f"fused_narrow_{phase}{SPECIALISED}"
        return f"fused_narrow_{phase}"

    def _has_warps(self, launch: Launch, entry: str, k: int = 0, many: int = geometry.MANY_TILES) -> bool:
        """Whether a launch runs in which few warps have a whole tile, instead of a kernel with the same results."""
        fits = launch.shared <= shared.shared_limit(self._device.compute_capability) and k <= geometry.MOST_OF_WARPS
        has_many = self._training and len(self.launched) >= many
        return has_many and fits and self._has_tile_a_part(self.most_rows) and entry.endswith(SPECIALISED)

    def _has_tile_a_part(self, rows: int) -> bool:
        """Whether batches of so many nodes have at most one tile for each partial sum."""
        return ceil_div(rows, shared.TILE) <= self._dealt.parts

    def takes(self, rows: int) -> bool:
        return self._has_tile_a_part(rows) or not self._has_tile_a_part(self.most_rows)

    @property
    def _usual_tiles(self) -> int:
        """Tiles of a batch of average graphs."""
        return ceil_div(int(self.capacity.graphs * self._data.sizes["nodes"].mean()), shared.TILE)

    def branches(self) -> list[tuple[int, ...]]:
        number = geometry.branches(len(self.launched)) if self._training else 1
        return [self.launched[branch::number] for branch in range(number)]

    def _shape(self, number: int) -> dict[str, Any]:
        layer = self._stack.nodes[number]
        kind = FIRST if number == 0 else DENSE if layer.is_dense else CONVOLUTION
        sizes = {"F": layer.n_in, "C": layer.channels, "P": layer.n_out, "K": self._columns_of_u(number)}
        return sizes | {"kind": kind}

    def forward(self) -> list[Call]:
        calls = []
        for number, layer in enumerate(self._stack.nodes):
            calls += [self._forward_call(number), *([self._residual_forward_call(number)] if layer.residual else [])]
            calls += self._join_calls() if number == 0 and not self._has_channels else []
        return [*calls, self._readout_call()]

    def _forward_call(self, number: int) -> Call:
        layer, arrays = self._stack.nodes[number], self._layers[number]
        fields: dict[str, Any] = csr_fields(self._rows) | {
            "y": arrays.y,
            "moments": arrays.moments,
            "kept": arrays.kept,
        }
        if number == 0:
            fields |= dict.fromkeys(("u", "y_prev", "kept_prev", *(f"{name}_prev" for name in Normed._fields)))
            fields |= {"x": self._x, "epsilon_prev": 1.0, "momentum_prev": 0.0, "parts_prev": 0}
        else:
            fields |= {"u": arrays.u} | self._output(number - 1, "_prev")
            fields["x"] = self._x.view(self._data.first_sum, 1)  # the row sums
        purpose = philox.purpose_key(layer.dropout) if layer.dropout else 0
        fields |= {"purpose": purpose, "of_dropout": self._of_dropout, "parts": self._dealt.parts}
        fields |= {"packed": self._packed[number], "size": self._size, "x_stride": self._data.k}
        fields["source"] = self._source
        members, entry, k = len(self.launched), self._entry("forward", number), self._columns_of_u(number)
        if self._has_channels and number > 0:
            return self._call(*self._channel_launch("forward", number), fields | self._shape(number))
        if self._has_channels:
            tile_blocks = geometry.channels_first_blocks(self.capacity.rows, members, self._device.multiprocessors)
            join, of_join = self._join()
            launch = self._spread(geometry.channels_first(tile_blocks + join.blocks, k))
            call = self._call("fused_narrow_channels_first", launch, fields | self._shape(number))
            splits = {"tile_blocks": tile_blocks, "join_splits": join.grid[0]}
            return call._replace(arguments={"layer": call.arguments, "join": of_join, **splits})
        blocks = self._dealt.blocks_of_warps(members, self._device.multiprocessors)
        warps = geometry.warps_of_tile(self._usual_tiles, blocks)
        launch = geometry.forward_of_warps(blocks, k, warps)
        if self._has_warps(launch, entry, k):
            return self._call(f"{entry}_warps{warps}", launch, fields | self._shape(number))
        blocks = self._dealt.forward_blocks(members, self._device.multiprocessors)
        launch = geometry.forward(blocks, layer.n_in, layer.n_out, k)
        return self._call(entry, launch, fields | self._shape(number))

    def _channel_launch(self, phase: str, number: int) -> tuple[str, Launch]:
        """Return the kernel of a layer with channels in a phase, ``"forward"`` or ``"backward"``, and its geometry."""
        limit, channels = shared.shared_limit(self._device.compute_capability), self._stack.nodes[number].channels
        among = self.capacity.rows, len(self.launched), self._device.multiprocessors
        splits = geometry.channel_splits(channels, among[1], limit)
        blocks = geometry.channel_blocks(self.capacity.rows, splits, *among[1:])
        launch = geometry.CHANNEL_LAUNCHES[phase](blocks, channels, splits)
        return f"fused_narrow_channels_{phase}{geometry.SHARES[splits]}", self._spread(launch)

    def _spread(self, launch: Launch) -> Launch:
        """Return the launch with a multiprocessor for each block, if there are as many."""
        limit = shared.shared_limit(self._device.compute_capability)
        return geometry.spread(launch, len(self.launched), self._device.multiprocessors, limit)

    def _residual_forward_call(self, number: int) -> Call:
        width, arrays = self._stack.nodes[number].n_out, self._layers[number]
        of_prev = self._output(number - 1, "_prev")
        names = ("y_prev", "stats_prev", "gamma_prev", "beta_prev", "kept_prev")
        fields = self._statistics(number) | {name: of_prev[name] for name in names}
        fields |= {"h": arrays.h, "y": arrays.y, "kept": arrays.kept, "size": self._size, "P": width}
        blocks = self._dealt.forward_blocks(len(self.launched), self._device.multiprocessors)
        return self._call("fused_narrow_residual_forward", geometry.residual(blocks, width), fields)

    @property
    def _of_dropout(self) -> DeviceArray | None:
        """MemberValues, for kernels that need no others than those of dropout; None: nothing is dropped."""
        return self._model.values if self._drops else None

    def _has_specialised_readout(self) -> bool:
        return self._has_plain_readout() and len(self._stack.graphs) == 1 and not (self._stack.joined or self._drops)

    def _has_plain_readout(self) -> bool:
        """Whether specialised readouts know the columns, the pooling, the loss and the number of outputs."""
        stack = self._stack
        return (
            self._training
            and stack.nodes[-1].n_out == geometry.SPECIALISED_COLUMNS
            and stack.readouts in (("sum",), ("mean",))
            and not stack.weighted
            and stack.loss != "softmax"
            and stack.n_outputs <= geometry.MOST_OUTPUTS
        )

    def _has_hidden_readout(self) -> bool:
        """Whether the readout is that of models with one hidden layer (fused/narrow/readout_hidden.cuh)."""
        widths = [layer.n_out for layer in self._stack.graphs[:-1]]
        is_joined = self._stack.joined is None or self._joined is not None
        return self._has_plain_readout() and widths == [geometry.HIDDEN_COLUMNS] and is_joined

    @property
    def _rows_at(self) -> int:
        return geometry.HIDDEN_FLOATS if self._has_hidden_readout() else super()._rows_at

    def _readout_call(self) -> Call:
        if self._has_hidden_readout():
            return super()._readout_call()._replace(entry=f"fused_narrow_readout_64x{geometry.HIDDEN_COLUMNS}")
        if not self._has_specialised_readout():
            return super()._readout_call()
        entry = f"fused_narrow_readout{SPECIALISED}"
        graphs, multiprocessors = self._graph_parts, self._device.multiprocessors
        launch = geometry.readout_of_warps(graphs, len(self.launched), multiprocessors)
        if self._has_warps(launch, entry, many=geometry.MANY_GRAPHS) and self.capacity.graphs <= graphs:
            return self._call(f"{entry}_warps", launch, self._readout_fields())
        return self._call(entry, geometry.specialised_readout(self._graph_blocks), self._readout_fields())

    # -------------------------------------------------------------------------------------------- backward

    def backward(self) -> list[Call]:
        calls = []
        if self._has_channels:
            calls = [self._backward_call(number) for number in range(len(self._layers) - 1, 0, -1)]
            return [*calls, self._weights_call()]
        for number in range(len(self._layers) - 1, -1, -1):
            calls += [self._residual_backward_call(number)] if self._stack.branches(number) else []
            calls.append(self._backward_call(number))
        return calls

    def _residual_backward_call(self, number: int) -> Call:
        """Return the launch that adds the gradients of a layer's output and takes them to its G."""
        (layer, *above), arrays, normed = self._stack.nodes[number:], self._layers[number], self._normed(number)
        skips = bool(above) and above[0].residual
        fields: dict[str, Any] = {"g": arrays.g, "g_h": arrays.g_h, "sums": arrays.sums, "size": self._size}
        fields |= {"g_skip": self._layers[number + 1].g_h if skips else None, "y": arrays.y, "kept": arrays.kept}
        fields |= {"stats": normed.stats, "gamma": normed.gamma, "beta": normed.beta}
        fields |= {"parts": self._dealt.parts, "P": layer.n_out}
        blocks = self._dealt.forward_blocks(len(self.launched), self._device.multiprocessors)
        return self._call("fused_narrow_residual_backward", geometry.residual(blocks, layer.n_out), fields)

    def _backward_call(self, number: int) -> Call:
        layer, arrays, is_first = self._stack.nodes[number], self._layers[number], number == 0
        k = self._columns_of_u(number)
        normed, sums_graphs = self._normed(number), self._sums_graphs(number)
        names = ("g_prev", "sums_prev", "y_prev", "stats_prev", "gamma_prev", "beta_prev", "kept_prev")
        fields: dict[str, Any] = dict.fromkeys(names)
        if not is_first:
            before = self._output(number - 1, "_prev")
            before |= {f"{name}_prev": array for name, array in self._gradient(number - 1).items()}
            fields |= {name: before[name] for name in names}
        fields |= {"size": self._size, "y": arrays.y, "g": arrays.g, "sums": arrays.sums, "u": arrays.u}
        fields |= {"stats": normed.stats, "gamma": normed.gamma, "partials": arrays.partials}
        fields |= csr_fields(self._t_rows, "t_") | {"packed": self._packed[number], "of_dropout": self._of_dropout}
        if self._has_channels:
            fields |= {"parts": 0, "parts_of_sums": self._parts_of_sums(number), "sums_are_of_graphs": int(sums_graphs)}
            fields |= {"dx_blocks": 0, "dw_blocks": 0, "dw_sums": self._dw_sums}
            call = self._call(*self._channel_launch("backward", number), fields | self._shape(number))
            return call._replace(arguments={"layer": call.arguments, "dy": self._dy[number]})
        n_in, members, entry = 0 if is_first else layer.n_in, len(self.launched), self._entry("backward", number)
        dx_blocks, dw_blocks = self._dealt.backward_blocks(is_first, members, self._device.multiprocessors)
        launch = geometry.backward(dx_blocks, dw_blocks, n_in, layer.channels, layer.n_out, k)
        of_warps = self._dealt.backward_blocks_of_warps(is_first, members, self._device.multiprocessors)
        sums = geometry.sums_of_block(self._dealt.dw_sums, of_warps[1])
        warps = 1 if is_first or sums > 1 else geometry.warps_of_tile(self._usual_tiles, of_warps[0])
        launch_of_warps = geometry.backward_of_warps(*of_warps, warps, self._dealt.dw_sums)
        if self._has_warps(launch_of_warps, entry, k):
            dx_blocks, dw_blocks = of_warps
            launch, entry = launch_of_warps, f"{entry}_sums{sums}" if is_first else f"{entry}_warps{warps}_sums{sums}"
        fields |= {"parts": self._dealt.parts, "parts_of_sums": self._parts_of_sums(number)}
        fields |= {"sums_are_of_graphs": int(sums_graphs), "dw_sums": self._dealt.dw_sums}
        fields |= {"dx_blocks": dx_blocks, "dw_blocks": dw_blocks} | self._shape(number) | {"F": n_in}
        return self._call(entry, launch, fields)

    def _weights_call(self) -> Call:
        """Return the launch that computes the gradients of all layers' weights, where layers have channels."""
        fields = {"slabs": self._slabs, "size": self._size}
        launch = self._spread(geometry.channels_weights(self._n_slabs, self._ranges_of_block))
        return self._call("fused_narrow_channels_weights", launch, fields | {"of_block": self._ranges_of_block})

    @property
    def _ranges_of_block(self) -> int:
        """Ranges of nodes of which a block of that launch adds the sums."""
        if not self._has_channels:
            return 1
        return geometry.ranges_of_block(self._n_slabs, self._cohort.members, self._device.multiprocessors)

    @property
    def _n_slabs(self) -> int:
        """How many slabs `_all_slabs` has, which are made once all arrays are there."""
        of_first = ceil_div(self._columns_of_u(0), geometry.CHANNEL_COLUMNS)
        return of_first + sum(layer.channels for layer in self._stack.nodes[1:])

    def _all_slabs(self) -> list[dict[str, Any]]:
        """Return a WeightSlab (fused/narrow/channels_weights.cuh) for each 64 rows of the layers' gradients."""
        return [slab for number in range(len(self._layers)) for slab in self._slabs_of(number)]

    def _slabs_of(self, number: int) -> list[dict[str, Any]]:
        layer, arrays, normed, k = (
            self._stack.nodes[number],
            self._layers[number],
            self._normed(number),
            self._columns_of_u(number),
        )
        fields: dict[str, Any] = {"partials": arrays.partials, "y": arrays.y, "g": arrays.g, "sums": arrays.sums}
        fields |= {"stats": normed.stats, "gamma": normed.gamma, "parts_of_sums": self._parts_of_sums(number)}
        fields |= {"K": k, "C": layer.channels, "channel": -1}
        fields |= {"left": arrays.u, "left_stride": self._data.k, "source": self._source, "indptr": self._rows[0]}
        fields |= {"dy": self._dy[number], "row_sums": None, "sums_stride": self._data.k}
        if number == 0:
            return [fields | {"first": first} for first in range(0, k, geometry.CHANNEL_COLUMNS)]
        columns = [self._x.view(self._data.first_sum + c, 1) for c in range(layer.channels)]
        places = ({"channel": c, "first": c * geometry.CHANNEL_COLUMNS} for c in range(layer.channels))
        return [fields | place | {"row_sums": column} for place, column in zip(places, columns, strict=True)]

    # -------------------------------------------------------------------------------------------- update

    def _job_tables(self) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Upload a Job (fused/narrow/update.cuh) for each parameter array."""
        jobs = [job for number in range(len(self._layers)) for job in self._jobs_of_nodes(number)]
        graphs = self.capacity.graphs
        for layer, given, gradient in zip(self._stack.graphs, self._head_inputs, self._head_gradients, strict=True):
            f, p = layer.n_in, layer.n_out
            jobs.append(job(layer.weight, (f, 1, p), gradient, p, graphs, OF_GRAPHS, left=given, left_stride=f))
            jobs.append(job(layer.bias, (1, 1, p), gradient, p, graphs, OF_GRAPHS))
        widest = 4 if self._has_wide_chunks else 1
        chunks = geometry.chunks(jobs, widest, self._cohort.members > 1, self._is_large)
        return (
            self._upload_tables(declared("fused/narrow/update.cuh").layout("Job"), jobs),
            self._device.upload(chunks),
            self._memory.zeros(len(chunks), np.float64),
        )

    @property
    def _has_wide_chunks(self) -> bool:
        """Whether threads of the update have four elements: fewer blocks for many members, or many parameters.

        The norm of clipped gradients is a sum over chunks, so there the members do not matter.
        """
        return (self._is_large or self._cohort.members >= geometry.MANY_MEMBERS) and not self._cohort.clips

    @property
    def _is_large(self) -> bool:
        return len(self._model.trainable) >= geometry.MANY_PARAMETERS

    @property
    def _stages_by_blocks(self) -> bool:
        """Whether a graph has a block that stages it, not a warp."""
        nodes = float(self._data.sizes["nodes"].mean())
        of_node = self._rows_of_node if self._has_channels else self._data.k
        return self._cohort.members == 1 or nodes * of_node + self._n_features >= geometry.MANY_NUMBERS

    @property
    def _stage_blocks(self) -> int:
        stagers = shared.stagers(self.capacity.graphs, self._stages_by_blocks)
        return min(stagers, self._device.multiprocessors)

    def _update_call(self, rule: UpdateRule, mode: int, totals: DeviceArray | None = None) -> Call:
        call = super()._update_call(rule, mode, totals)
        return call._replace(arguments={**call.arguments, "stages_by_blocks": int(self._stages_by_blocks)})

    def _jobs_of_nodes(self, number: int) -> list[dict[str, Any]]:
        layer, arrays, packed = self._stack.nodes[number], self._layers[number], self._packed[number]
        f, c, p, columns = layer.n_in, layer.channels, layer.n_out, shared.columns_of(layer.n_out)
        of_block = self._ranges_of_block
        parts, unit = ceil_div(self._dw_sums, of_block), of_block * shared.TILE
        part = of_block * self._columns_of_u(number) * columns
        assert arrays.partials is not None
        weight = job(layer.weight, (f, c, p), arrays.partials, part, parts, unit, columns=columns, packed=packed)
        weight["places"] = self._data.places if number == 0 else None
        first_sum = self._data.first_sum if number == 0 else c * f
        place = first_sum * columns, c * columns  # of the bias rows, in a partial sum and in the packed weights
        biases = arrays.partials.view(*place), packed.view(*place)
        bias = job(layer.bias, (1, c, p), biases[0], part, parts, unit, columns=columns, packed=biases[1])
        if layer.norm is None:
            return [weight, bias]
        assert arrays.sums is not None
        parts, unit = arrays.sums.shape[0], OF_GRAPHS if self._sums_graphs(number) else shared.TILE
        norm = [(layer.norm.gamma, arrays.sums.view(1, p)), (layer.norm.beta, arrays.sums)]
        return [weight, bias, *(job(start, (1, 1, p), sums, 2 * columns, parts, unit, step=2) for start, sums in norm)]


def job(
    start: int,
    shape: tuple[int, int, int],
    right: DeviceArray,
    right_stride: int,
    parts: int,
    unit: int,
    columns: int = 0,
    packed: DeviceArray | None = None,
    left: DeviceArray | None = None,
    left_stride: int = 0,
    step: int = 1,
) -> dict[str, Any]:
    """Return the fields of a Job (fused/narrow/update.cuh) for parameters (F, C P); `columns` 0: P."""
    f, c, p = shape
    fields: dict[str, Any] = {"left": left, "right": right, "packed": packed, "step": step}
    fields |= {"left_stride": left_stride, "right_stride": right_stride, "parts": parts, "unit": unit}
    fields |= {"start": start, "count": f * c * p, "F": f, "C": c, "P": p, "places": None}
    return fields | {"columns": columns or p, "packed_columns": columns or p}
