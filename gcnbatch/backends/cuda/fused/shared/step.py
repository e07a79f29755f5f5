"""The part of a fused step that all forms on graphs share: arrays with fixed addresses, and launches on them.

A form subclasses `Workspace`. It adds its layer arrays, packed weights, forward and backward kernels, and the jobs of
its update. The engine captures the launches into CUDA graphs, or runs them one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared import geometry
from gcnbatch.backends.cuda.fused.shared.arena import Arena, Memory, arena_of, of_member
from gcnbatch.backends.cuda.fused.shared.cohort import Cohort
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.model import APPLY, ONLY_GRADIENTS, UPDATE, UpdateRule
from gcnbatch.backends.cuda.fused.shared.stack import GraphLayer, NodeLayer, Norm
from gcnbatch.backends.cuda.ops.loss import LOSSES
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.layouts import Layout
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.data.graph_features import LIMIT

_SHARED = declared("fused/shared/fused.cuh")
MAX_MEMBERS, REGION_UNIT = (_SHARED.constant(name) for name in ("MAX_MEMBERS", "REGION_UNIT"))
SIZE_FIELDS = _SHARED.enum("BatchSize::Field")["FIELDS"]
READOUTS = tuple(name.lower() for name in declared("fused/shared/pooling.cuh").enum("Pooling"))
MOST_READOUTS = declared("fused/shared/pooling.cuh").constant("MOST_READOUTS")


@dataclass(frozen=True)
class LayerArrays:
    """Arrays that a node layer's kernels leave for later kernels; None where a model or inference does not need one."""

    y: DeviceArray
    stats: DeviceArray | None = None
    u: DeviceArray | None = None
    g: DeviceArray | None = None
    kept: DeviceArray | None = None
    moments: DeviceArray | None = None
    sums: DeviceArray | None = None
    partials: DeviceArray | None = None
    totals: DeviceArray | None = None  # sums over all rows, in wide steps
    h: DeviceArray | None = None  # the output of a residual connection
    g_h: DeviceArray | None = None  # the gradient of an output that several layers read


class Normed(NamedTuple):
    """Arrays of a layer's batch norm that a kernel reads or writes; None: not used."""

    moments: DeviceArray | None = None
    stats: DeviceArray | None = None
    running_mean: DeviceArray | None = None
    running_var: DeviceArray | None = None
    gamma: DeviceArray | None = None
    beta: DeviceArray | None = None


def csr_fields(arrays: tuple[DeviceArray | None, ...], prefix: str = "") -> dict[str, DeviceArray | None]:
    """Return the arrays of a CSR matrix by field name; each name begins with `prefix`."""
    return dict(zip((f"{prefix}indptr", f"{prefix}indices", f"{prefix}values"), arrays, strict=True))


class Workspace(ABC):
    """The arrays of a step for batches up to a capacity, and the step's launches.

    Parameters
    ----------
    cohort : Cohort
    memory : Memory
        Where arrays of the step are allocated, for all members.
    capacity : Capacity
        Of a batch of any member.
    plan : StagedEpoch
    training : bool
        True: batch statistics, dropout, a backward pass. False: running statistics, logits only.

    Attributes
    ----------
    update_entry : str
        Name of the update kernel.
    may_skip_decay : bool
        Whether the update accepts null pointers for the decay arrays.
    same_carveout : bool
        Passed to `Recorder.record`.
    """

    update_entry: str
    may_skip_decay = False
    same_carveout = False

    def __init__(self, cohort: Cohort, memory: Memory, capacity: Capacity, plan: StagedEpoch, training: bool) -> None:
        self.panel_rows = 0  # rows of the panels that x is staged into; 0: x is staged row by row
        self._cohort, self._device, self._memory = cohort, cohort.device, memory
        self._stack, self._model, self._data = cohort.stack, cohort.model, cohort.data
        self.capacity, self.plan, self._training = capacity, plan, training
        self.launched, self.most_rows = tuple(range(cohort.members)), capacity.rows
        self._drops = training and self._stack.dropout > 0
        self._graph_parts = max(1, min(capacity.graphs, self._device.multiprocessors))
        self._allocate_batch()
        self._layers = [self._layer_arrays(layer) for layer in self._stack.nodes]
        self.logits = memory.empty((capacity.graphs, self._stack.n_outputs))
        self._losses = memory.zeros(self._graph_parts, np.float64)
        self._packed = self._packed_weights()
        self._heads = self._head_table()
        self._joined = self._allocate_joined()
        self._stage = self._stage_table()

    # -------------------------------------------------------------------------------------------- each form has its own

    @abstractmethod
    def _layer_arrays(self, layer: NodeLayer) -> LayerArrays:
        """Allocate the arrays of a node layer."""

    @abstractmethod
    def _packed_weights(self) -> tuple[DeviceArray, ...]:
        """Allocate each node layer's weights in the layout that the kernels read."""

    @abstractmethod
    def pack(self) -> list[Call]:
        """Return the launches that pack the weights; needed after anything but an update wrote the parameters."""

    @abstractmethod
    def forward(self) -> list[Call]:
        """Return the launches from the staged batch to the logits; in training, to the gradient of the last layer."""

    @abstractmethod
    def backward(self) -> list[Call]:
        """Return the launches from the gradient of the last layer to the partial sums of all gradients."""

    @abstractmethod
    def _job_tables(self) -> tuple[Any, DeviceArray, DeviceArray]:
        """Return the jobs of the update, the chunk of each block, and an array of one double per block."""

    def takes(self, rows: int) -> bool:
        """Whether the launches made for batches of up to `most_rows` nodes also work for batches of up to `rows`."""
        return True

    # -------------------------------------------------------------------------------------------- arrays

    @property
    def launched(self) -> tuple[int, ...]:
        """The members that launches work for."""
        return self._launched

    @launched.setter
    def launched(self, members: tuple[int, ...]) -> None:
        self._launched = members
        self.work_for(members)

    def branches(self) -> list[tuple[int, ...]]:
        """Return the launched members in groups that have launches of their own."""
        return [self.launched]

    def work_for(self, members: tuple[int, ...]) -> None:
        """Let the launches that are made from now on work for these of the launched members."""
        self._members_of_launch = members
        owner, places = self._model.trainable.owner, np.zeros(MAX_MEMBERS, np.uint8)
        places[: len(members)] = members
        model = owner.stride if isinstance(owner, Arena) else 0
        self._members = {"model": model // REGION_UNIT, "work": self._memory.stride // REGION_UNIT, "places": places}

    def _call(self, entry: str, launch: Launch, fields: dict[str, Any]) -> Call:
        """Return the launch of a kernel for all launched members, which are its grid's last dimension."""
        (x, y, z), members = launch.grid, len(self._members_of_launch)
        launch = launch if z == members else replace(launch, grid=(x, y, members))
        return Call(entry, launch, fields | {"members": self._members})

    def _allocate_batch(self) -> None:
        """Allocate the arrays of the staged batch; a symmetric adjacency is its own transpose."""
        memory, capacity, channels, targets = (
            self._memory,
            self.capacity,
            self._data.channels,
            self._cohort.labels[0].targets,
        )
        self._size = memory.zeros(SIZE_FIELDS, np.int32)
        self._node_ptr = memory.zeros(capacity.graphs + 1, np.int32)
        self._rows = self._csr(capacity.rows * self._rows_of_node, capacity.edges)
        self._t_rows = self._rows if self._is_symmetric else self._csr(capacity.rows * channels, capacity.t_edges)
        self._x = self._allocate_x()
        self._source = self._allocate_source()
        self._targets = memory.empty((capacity.graphs, targets.shape[1]), targets.dtype)
        joined = self._stack.joined
        self._graph_features = memory.empty((capacity.graphs, joined.n_features)) if joined else None

    @property
    def _rows_of_set(self) -> tuple[DeviceArray | None, ...]:
        """The set's adjacency in CSR, as its rows are staged."""
        return self._data.rows

    @property
    def _rows_of_node(self) -> int:
        """Rows of a node in it."""
        return 1

    @property
    def _is_symmetric(self) -> bool:
        """Whether it is its own transpose."""
        return self._data.symmetric

    def _columns_of_u(self, number: int) -> int:
        """Return the columns of a layer's U, and rows of its packed weights; the set may not store all of the first."""
        drops = number == 0 and self._data.places is not None
        return self._data.k if drops else self._stack.nodes[number].k

    def _allocate_x(self) -> DeviceArray:
        """Allocate U of the first layer, which is part of the staged batch."""
        return self._memory.zeros((self.capacity.rows, self._data.k))

    def _allocate_source(self) -> DeviceArray | None:
        """Allocate the row of the data set of each node, if kernels read U there instead of a staged one."""
        return None

    def _allocate_joined(self) -> DeviceArray | None:
        """Allocate the products of the features of whole graphs, if these are many; see `_join_calls`."""
        if not (self._stack.joins_ahead if self._training else self._stack.has_many_features):
            return None
        splits = geometry.join_splits(self._n_features) if self._training else 1
        return self._memory.empty((splits, self.capacity.graphs, self._stack.graphs[0].n_out))

    def _csr(self, rows: int, entries: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        memory = self._memory
        return memory.zeros(rows + 1, np.int32), memory.empty(max(entries, 1), np.int32), memory.empty(max(entries, 1))

    def _head_table(self) -> DeviceArray:
        """Upload a Head (fused/shared/heads.cuh) for each dense layer on graphs."""
        memory, graphs = self._memory, self.capacity.graphs
        self._head_inputs = [memory.empty((graphs, layer.n_in)) for layer in self._stack.graphs]
        self._head_gradients = [memory.empty((graphs, layer.n_out)) for layer in self._stack.graphs]
        table: list[dict[str, Any]] = []
        for layer, given, gradient in zip(self._stack.graphs, self._head_inputs, self._head_gradients, strict=True):
            weight, bias = self._weights_of(layer)
            purpose = philox.purpose_key(layer.dropout) if layer.dropout else 0
            arrays = {"weight": weight, "bias": bias, "input": given, "gradient": gradient}
            table.append(arrays | {"F": layer.n_in, "P": layer.n_out, "purpose": purpose})
        return self._upload_tables(declared("fused/shared/heads.cuh").layout("Head"), table)

    def _upload_tables(
        self,
        layout: Layout,
        structs: Sequence[Mapping[str, Any]],
        own: Sequence[Mapping[str, Any]] | None = None,
    ) -> DeviceArray:
        """Upload structs for every member, with pointers to that member's arrays; `own` are fields of each member."""
        members = self._memory.members
        fields = own or [{} for _ in range(members)]
        tables = [
            {**{n: of_member(v, k) for n, v in one.items()}, **fields[k]} for k in range(members) for one in structs
        ]
        return self._memory.upload_each(layout.pack_many(tables).reshape(members, len(structs)))

    def _folding(self, number: int) -> dict[str, Any]:
        """Return the arrays of batch norm that `pack` folds into a layer's weights; in training, all are None."""
        norm, width = self._stack.nodes[number].norm, self._stack.nodes[number].n_out
        if norm is None or self._training:
            return dict.fromkeys(("shift", "gamma", "beta", "running_mean", "running_var")) | {"epsilon": 1.0}
        gamma, beta = self._affine(norm, width)
        mean, var = self._running(norm, width)
        folded = {"gamma": gamma, "beta": beta, "running_mean": mean, "running_var": var, "epsilon": norm.epsilon}
        return folded | {"shift": self._shift(norm, width)}

    def _affine(self, norm: Norm, width: int) -> tuple[DeviceArray, DeviceArray]:
        return self._model.parameter(norm.gamma, width), self._model.parameter(norm.beta, width)

    def _running(self, norm: Norm, width: int) -> tuple[DeviceArray, DeviceArray]:
        return self._model.buffer(norm.running_mean, width), self._model.buffer(norm.running_var, width)

    def _shift(self, norm: Norm, width: int) -> DeviceArray:
        """Return the part of a layer's batch norm that predictions add to Y."""
        return self._model.shifts.view(norm.running_mean, width)

    def _weights_of(self, layer: NodeLayer | GraphLayer) -> tuple[DeviceArray, DeviceArray]:
        width = layer.n_out * (layer.channels if isinstance(layer, NodeLayer) else 1)
        return (
            self._model.parameter(layer.weight, layer.n_in * width),
            self._model.parameter(layer.bias, width),
        )

    # -------------------------------------------------------------------------------------------- staging

    def _stage_table(self) -> DeviceArray:
        """Upload a Stage (fused/shared/stage.cuh)."""
        data, layout = self._data, declared("fused/shared/stage.cuh").layout("Stage")
        of_plan = ("progress", "batch_ptr", "graphs", "nodes", "edges", "t_edges")
        own_t = (None, None, None) if self._is_symmetric else self._t_rows
        fields: dict[str, Any] = {name: self.plan.views[name] for name in of_plan}
        fields |= csr_fields(self._rows) | csr_fields(own_t, "t_")
        fields |= csr_fields(self._rows_of_set, "set_") | csr_fields(data.t_rows, "set_t_")
        fields |= {"size": self._size, "node_ptr": self._node_ptr, "set_node_ptr": data.node_ptr}
        fields |= {"set_starts": data.starts, "rows_of_node": self._rows_of_node}
        fields |= {"x": None if self._source is not None else self._x, "source": self._source}
        fields |= {"targets": self._targets.astype_view(np.int32), "set_x": data.x}
        fields |= {"C": data.channels, "K": data.k, "T": self._targets.shape[1], "panel_rows": self.panel_rows}
        fields |= {"features": self._graph_features, "D": self._n_features, "set_features": data.graph_features}
        fields |= {"feature_mean": None, "feature_scale": None, "feature_limit": LIMIT}
        if joined := self._stack.joined:
            fields["feature_mean"] = self._model.buffer(joined.mean, joined.n_features)
            fields["feature_scale"] = self._model.buffer(joined.scale, joined.n_features)
        return self._upload_stages(layout, fields)

    @property
    def _n_features(self) -> int:
        """Features of whole graphs beside the readout."""
        return self._stack.joined.n_features if self._stack.joined else 0

    def _upload_stages(self, layout: Layout, fields: dict[str, Any]) -> DeviceArray:
        """Upload the struct that staging reads for every member, with the member's targets in the set."""
        own = [{"set_targets": labels.targets.astype_view(np.int32)} for labels in self._cohort.labels]
        return self._upload_tables(layout, [fields], own)

    def pack_plan(self, host: NDArray[np.int32], plan: EpochPlan, weights: NDArray[np.float32]) -> None:
        """Write a member's plan of an epoch and its label weights to `host`, its row of the upload."""
        self.plan.pack(host, plan, weights)

    def send_plan(self, packed: NDArray[np.int32]) -> NDArray[np.int32]:
        """Queue the upload of the members' epochs, (members, …), packed by `plan`; return the front of them."""
        arena_of(self.plan.array).fill(self.plan.array, packed, ahead=True)
        return packed[:, : self.plan.front.size].copy()

    def begin_epoch(self, packed: NDArray[np.int32]) -> None:
        """Upload the members' epochs, (members, …), packed and begun by `plan`, or the front of those that are sent."""
        array = self.plan.array if packed.shape[1] == self.plan.array.size else self.plan.front
        arena_of(self.plan.array).fill(array, packed)

    def stage(self) -> Call:
        """Return the launch that stages the plans' next batches."""
        launch = geometry.stage(self._stagers, self._device.multiprocessors, len(self.launched))
        return self._call("fused_stage", launch, {"stage": self._stage})

    @property
    def _stagers(self) -> int:
        return geometry.stagers(self.capacity.graphs, self._cohort.members == 1)

    @property
    def _stage_blocks(self) -> int:
        """Blocks of the update kernel that stage the next batch."""
        return min(self._stagers, self._device.multiprocessors)

    # -------------------------------------------------------------------------------------------- readout

    def _normed(self, number: int) -> Normed:
        """Return the arrays of a layer's batch norm; in inference only the shift, as beta."""
        layer, arrays = self._stack.nodes[number], self._layers[number]
        if layer.norm is None:
            return Normed()
        if not self._training:
            return Normed(beta=self._shift(layer.norm, layer.n_out))
        running, affine = self._running(layer.norm, layer.n_out), self._affine(layer.norm, layer.n_out)
        return Normed(arrays.moments, arrays.stats, *running, *affine)

    def _norm_numbers(self, number: int) -> tuple[float, float, int]:
        """Return epsilon, momentum and the number of partial moments of a layer (0: its statistics are final)."""
        norm = self._stack.nodes[number].norm
        return (1.0, 0.0, 0) if norm is None or not self._training else (norm.epsilon, norm.momentum, 0)

    def _statistics(self, number: int) -> dict[str, Any]:
        """Return the fields of Statistics (fused/shared/columns.cuh) of a layer's Y."""
        epsilon, momentum, parts = self._norm_numbers(number)
        return self._normed(number)._asdict() | {"epsilon": epsilon, "momentum": momentum, "parts": parts}

    def _output(self, number: int, suffix: str = "") -> dict[str, Any]:
        """Return the fields from which kernels compute a layer's output: Y, dropout bits and Statistics, with `suffix`.

        The output of a residual connection is stored. They read it as a Y without batch norm and dropout.
        """
        arrays, nothing = self._layers[number], dict.fromkeys(Normed._fields)
        if self._stack.nodes[number].residual:
            fields = {"y": arrays.h, "kept": None, **nothing, "epsilon": 1.0, "momentum": 0.0, "parts": 0}
        else:
            fields = {"y": arrays.y, "kept": arrays.kept, **self._statistics(number)}
        return {name + suffix: value for name, value in fields.items()}

    def _gradient(self, number: int) -> dict[str, DeviceArray | None]:
        """Return the fields of the gradient that the kernel after a layer writes: `g`, and `sums` of its columns."""
        arrays = self._layers[number]
        return {"g": arrays.g_h, "sums": None} if self._stack.branches(number) else {"g": arrays.g, "sums": arrays.sums}

    def _join_calls(self) -> list[Call]:
        """Return the launch that multiplies the features of whole graphs, if there are many: after the first layer's.

        In training, the readout reads before its wait what this leaves, so another layer is between the two.
        """
        launch, fields = self._join()
        return [self._call("fused_join", launch, fields)] if launch.blocks else []

    def _join(self) -> tuple[Launch, dict[str, Any]]:
        """Return geometry and arguments (fused/shared/join.cuh) of these products; without many features, no blocks."""
        joined, graphs = self._joined, self.capacity.graphs
        if joined is None:
            arrays, sizes = ("out", "size", "features", "weight"), ("D", "P", "graphs", "of_split")
            nothing = dict.fromkeys(arrays) | dict.fromkeys(sizes, 0)
            return geometry.join(graphs, 0), nothing | {"members": self._members}
        splits, first, n_features = joined.shape[0], self._stack.graphs[0], self._n_features
        weight = self._model.parameter(first.weight + (first.n_in - n_features) * first.n_out, n_features * first.n_out)
        fields: dict[str, Any] = {"out": joined, "size": self._size, "features": self._graph_features, "weight": weight}
        fields |= {"D": n_features, "P": first.n_out, "graphs": graphs, "members": self._members}
        fields |= {"of_split": geometry.JOIN_FEATURES if splits > 1 else n_features}
        return geometry.join(graphs, splits), fields

    def _readout_call(self) -> Call:
        """Return the launch of the readout for any model."""
        if not self._training:
            return self._logits_call()
        stack, width = self._stack, self._stack.nodes[-1].n_out
        slots = geometry.READOUT_BLOCKS * self._device.multiprocessors
        blocks = geometry.blocks(self._graph_parts, len(self.launched), slots)
        entry = "fused_weighted_readout" if stack.weighted else "fused_readout"
        launch = geometry.readout(blocks, width, self._rows_at, self._held_rows)
        return self._call(entry, launch, self._readout_fields())

    @property
    def _rows_at(self) -> int:
        """Where a block of the readout holds rows of a graph in its shared memory, in floats."""
        return self._stack.rows_at

    @property
    def _held_rows(self) -> int:
        """Rows of a graph that a block of the readout holds in shared memory."""
        limit, largest = geometry.shared_limit(self._device.compute_capability), self._data.capacity(1).rows
        return geometry.held_rows(largest, self._stack.nodes[-1].n_out, self._rows_at, limit)

    @property
    def _graph_blocks(self) -> int:
        """Blocks of a member that share the partial sums over graphs."""
        return geometry.blocks(self._graph_parts, len(self.launched), self._device.multiprocessors)

    def _readout_fields(self) -> dict[str, Any]:
        """Return the fields of ReadoutParams (fused/shared/readout.cuh)."""
        stack, last = self._stack, len(self._layers) - 1
        fields = self._output(last) | self._gradient(last)
        fields |= {"losses": self._losses, "size": self._size, "node_ptr": self._node_ptr}
        fields |= {"rates": self.plan.rates, "progress": self.plan.progress}
        fields |= {"targets": self._targets.astype_view(np.float32), "loss_weight": self._model.loss_weights}
        fields |= {"values": self._model.values, "parts_of_graphs": self._graph_parts}
        fields |= {"features": self._graph_features, "D": self._n_features, "joined": self._joined}
        fields |= {"n_joined": self._joined.shape[0] if self._joined is not None else 0, "graphs": self.capacity.graphs}
        fields |= {"heads": self._heads, "n_heads": len(stack.graphs), "head_floats": stack.readout_floats}
        fields |= {"first_rows": stack.first_rows, "rows_at": self._rows_at, "held_rows": self._held_rows}
        fields |= {"P": stack.nodes[-1].n_out, "K": stack.n_outputs, "weight_floats": stack.weight_floats}
        return fields | {"readouts": self._readouts, "loss": LOSSES[stack.loss]}

    @property
    def _readouts(self) -> dict[str, Any]:
        """Return the fields of Readouts (fused/shared/pooling.cuh)."""
        kinds = np.zeros(MOST_READOUTS, np.uint8)
        kinds[: len(self._stack.readouts)] = [READOUTS.index(kind) for kind in self._stack.readouts]
        return {"kinds": kinds, "n": len(self._stack.readouts)}

    def _logits_call(self) -> Call:
        stack, last = self._stack, self._stack.nodes[-1]
        sizes, among = (last.n_out, stack.head_floats), (self._device.multiprocessors, len(self.launched))
        launch = geometry.logits(self.capacity.graphs, *sizes, *among)
        fields: dict[str, Any] = {"logits": self.logits, "size": self._size, "node_ptr": self._node_ptr}
        output = self._output(len(self._layers) - 1)
        fields |= {"y": output["y"], "shift": output["beta"]}
        fields |= {"heads": self._heads, "n_heads": len(stack.graphs), "head_floats": stack.head_floats}
        fields |= {"features": self._graph_features, "D": self._n_features, "joined": self._joined}
        return self._call("fused_logits", launch, fields | {"P": last.n_out, "readouts": self._readouts})

    # -------------------------------------------------------------------------------------------- update

    def update(self, rule: UpdateRule) -> list[Call]:
        """Return the launches that reduce the gradients, update the parameters and stage the next batch."""
        if rule.clips:
            return [self._update_call(rule, ONLY_GRADIENTS, self._model.totals), self._update_call(rule, APPLY)]
        return [self._update_call(rule, UPDATE, self._model.totals)]

    def gradients(self, rule: UpdateRule, totals: DeviceArray) -> Call:
        """Return the launch that writes the gradients, and adds the loss and its weight to `totals`."""
        return self._update_call(rule, ONLY_GRADIENTS, totals)

    @cached_property
    def _tables(self) -> tuple[Any, DeviceArray, DeviceArray]:
        """What `_job_tables` returns, once it is needed."""
        return self._job_tables()

    def _update_call(self, rule: UpdateRule, mode: int, totals: DeviceArray | None = None) -> Call:
        jobs, chunks, norms = self._tables
        of, n_chunks = self._model, len(norms)
        stages = 0 if mode == ONLY_GRADIENTS else self._stage_blocks
        skips = self.may_skip_decay and not rule.decays
        common: dict[str, Any] = {"parameters": of.trainable, "m": of.moments[0], "v": of.moments[-1]}
        common |= {"weight_decay": None if skips else of.weight_decay, "l2": None if skips else of.l2}
        common |= {"gradients": of.gradients, "norms": norms, "totals": totals, "losses": self._losses}
        common |= {"rates": self.plan.rates, "progress": self.plan.progress, "chunks": chunks}
        common |= {"n_chunks": n_chunks, "n_stages": stages, "n_losses": len(self._losses)}
        common |= {"mode": mode, "sgd": int(rule.sgd), "epsilon": rule.epsilon, "values": of.values}
        common |= {"members": self._members}
        common |= {"beta1": rule.beta1, "rest1": 1.0 - rule.beta1, "beta2": rule.beta2, "rest2": 1.0 - rule.beta2}
        fields = {"common": common, "jobs": jobs, "stage": self._stage}
        launch = geometry.update(n_chunks + stages)
        return Call(self.update_entry, replace(launch, grid=(launch.grid[0], 1, len(self._members_of_launch))), fields)
