"""The launches of an fp16 step: three kernels over batches in tiles of rows that hold whole graphs.

`cuda_src/fused/FUSED.md` follows the step; `cuda_src/fused/fp16/tiles.cuh` explains why fp16 is as accurate as TF32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.backends.cuda.fused.fp16.features import Fp16Features
from gcnbatch.backends.cuda.fused.fp16.tiles import TiledPlan, tiles_of
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.fused.shared.cohort import Cohort
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.stack import NodeLayer
from gcnbatch.backends.cuda.fused.shared.step import READOUTS, SIZE_FIELDS, Workspace, csr_fields
from gcnbatch.backends.cuda.fused.wide.jobs import chunk_table
from gcnbatch.backends.cuda.ops.loss import LOSSES
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared


@dataclass(frozen=True)
class Fp16Arrays:
    """Outputs of a node layer, as in Fp16Layer (fused/fp16/step.cuh), and the partial sums of its weight gradient."""

    u: DeviceArray
    y: DeviceArray
    dy: DeviceArray
    v: DeviceArray | None
    scale: DeviceArray
    bias_partials: DeviceArray
    dbias: DeviceArray
    dgamma: DeviceArray
    dbeta: DeviceArray
    partials: DeviceArray


def job(
    shape: tuple[int, int],
    starts: tuple[int, int | None],
    right: DeviceArray,
    n_partials: int = 1,
    panels: tuple[DeviceArray | None, DeviceArray | None] = (None, None),
) -> dict[str, Any]:
    """Return the fields of an Fp16Job (fused/fp16/update.cuh).

    Parameters
    ----------
    shape : (F, P)
    starts : (int, int or None)
        Of the matrix and of the bias, its row F, in the flat arrays; None: it has no such row.
    right : DeviceArray
        Partial sums of the gradient.
    panels : tuple of DeviceArray or None
        The packed weights, forward and backward.
    """
    (F, P), (weight, bias) = shape, starts
    fields: dict[str, Any] = {"right": right, "forward": panels[0], "backward": panels[1]}
    fields |= {"weight": weight, "bias": bias or 0, "n_rows": F + (bias is not None)}
    fields |= {"F": F, "P": P, "K": geometry.columns_of_u(F)}
    return fields | {"n_partials": n_partials, "partial_stride": right.size // n_partials}


def vector_job(start: int, right: DeviceArray) -> dict[str, Any]:
    """Return the job of a vector of parameters, which is updated like a matrix."""
    columns = geometry.CHUNK_COLUMNS
    return job((right.size // columns, columns), (start, None), right)


def padded(structs: Sequence[Mapping[str, Any]], length: int) -> list[Mapping[str, Any]]:
    """Return structs for an array of fixed length: the last one again, which no kernel reads."""
    return [*structs, *[structs[-1]] * (length - len(structs))]


class Fp16Workspace(Workspace):
    """As `Workspace`, for training.

    Parameters
    ----------
    features : Fp16Features
        The set in fp16.
    most_tiles : int
        Tiles that a batch may have on this device.
    """

    update_entry, may_skip_decay = "fused_fp16_update", True
    same_carveout = True

    def __init__(
        self,
        cohort: Cohort,
        memory: Memory,
        capacity: Capacity,
        plan: StagedEpoch,
        features: Fp16Features,
        most_tiles: int,
    ) -> None:
        self._features, self.tiles = features, tiles_of(capacity.rows, most_tiles)
        super().__init__(cohort, memory, capacity, plan, training=True)
        self._head_dw = memory.empty((self._width + 1, self._stack.n_outputs))
        self._places = self._place_table()

    # -------------------------------------------------------------------------------------------- arrays

    @property
    def _width(self) -> int:
        """P of all layers."""
        return self._stack.nodes[0].n_out

    def _allocate_batch(self) -> None:
        memory, capacity, rows = self._memory, self.capacity, geometry.TILE_ROWS * self.tiles
        self._graph_parts = self.tiles  # each leaves a sum of losses
        self._size, self._shape = memory.zeros(SIZE_FIELDS, np.int32), memory.zeros(2, np.int32)
        self._tile_ptr, self._tile_rows = memory.zeros(self.tiles + 1, np.int32), memory.zeros(self.tiles, np.int32)
        self._node_ptr, self._n_nodes = memory.zeros(capacity.graphs, np.int32), memory.zeros(capacity.graphs, np.int32)
        self._rows = self._csr(rows, capacity.edges)
        self._t_rows = self._rows if self._data.symmetric else self._csr(rows, capacity.t_edges)
        self._row_sums, self._x = memory.zeros(rows), self._panels(self._features.columns)
        targets = self._cohort.labels[0].targets
        self._targets = memory.empty((capacity.graphs, targets.shape[1]), targets.dtype)
        self._exchange = memory.zeros(
            geometry.exchange_bytes(len(self._stack.nodes), self.tiles, self._width), np.uint8
        )

    def _panels(self, columns: int) -> DeviceArray:
        return self._memory.zeros(
            (self.tiles, columns // geometry.PANEL, geometry.TILE_ROWS, geometry.PANEL), np.uint16
        )

    def _layer_arrays(self, layer: NodeLayer) -> Any:
        memory, width, is_first = self._memory, layer.n_out, layer is self._stack.nodes[0]
        return Fp16Arrays(
            u=self._x if is_first else self._panels(width),
            y=memory.empty((self.tiles, geometry.TILE_ROWS * width)),
            dy=self._panels(width),
            v=None if is_first else self._panels(width),
            scale=memory.zeros(1),
            bias_partials=memory.zeros((self.tiles, width)),
            dbias=memory.zeros(width),
            dgamma=memory.zeros(width),
            dbeta=memory.zeros(width),
            partials=memory.empty((self._gradient_geometry.splits, layer.n_in, width)),
        )

    def _packed_weights(self) -> tuple[DeviceArray, ...]:
        """Allocate each layer's weights as fp16 panels, forward and then, but for the first, backward."""
        return tuple(
            self._memory.zeros((1 + (number > 0), layer.n_out * geometry.columns_of_u(layer.n_in)), np.uint16)
            for number, layer in enumerate(self._stack.nodes)
        )

    def _arrays(self, number: int) -> Fp16Arrays:
        arrays: Any = self._layers[number]
        assert isinstance(arrays, Fp16Arrays)
        return arrays

    @property
    def _gradient_geometry(self) -> geometry.WeightGradientGeometry:
        shapes = tuple((geometry.columns_of_u(layer.n_in), layer.n_out) for layer in self._stack.nodes)
        (head,) = self._stack.graphs
        return geometry.weight_gradient(shapes, (head.n_in, head.n_out), self._device.multiprocessors)

    def _weight_panels(self, number: int) -> tuple[DeviceArray, DeviceArray | None]:
        """Return a layer's weights as panels, forward and, but for the first layer, backward."""
        packed = self._packed[number]
        length = packed.shape[1]
        return packed.view(0, length), packed.view(length, length) if number else None

    @property
    def _own_t_rows(self) -> tuple[DeviceArray | None, ...]:
        """The transposed adjacency; None where it is the adjacency itself."""
        return (None, None, None) if self._data.symmetric else self._t_rows

    def _u_scale(self, number: int) -> float:
        """Return the scale of a layer's U."""
        return self._features.inner_scale if number else self._features.scale

    def pack(self) -> list[Call]:
        calls = []
        for number, layer in enumerate(self._stack.nodes):
            forward, backward = self._weight_panels(number)
            columns = geometry.columns_of_u(layer.n_in)
            fields: dict[str, Any] = {"forward": forward, "backward": backward, "weight": self._weights_of(layer)[0]}
            fields |= {"F": layer.n_in, "P": layer.n_out, "K": columns}
            calls.append(Call("fused_fp16_weights", geometry.weights(layer.n_out, columns), fields))
        return calls

    # -------------------------------------------------------------------------------------------- staging

    def _stage_table(self) -> DeviceArray:
        """Upload an Fp16Stage (fused/fp16/stage.cuh)."""
        data, views, features = self._data, self.plan.views, self._features
        of_plan = ("progress", "batch_ptr", "graphs", "edges", "t_edges", "tile_starts", "tile_counts")
        fields: dict[str, Any] = {name: views[name] for name in of_plan} | {"rows": views["nodes"]}
        fields |= csr_fields(self._rows) | csr_fields(self._own_t_rows, "t_")
        fields |= csr_fields(data.rows, "set_") | csr_fields(data.t_rows, "set_t_")
        fields |= {"size": self._size, "shape": self._shape, "tile_ptr": self._tile_ptr, "tile_rows": self._tile_rows}
        fields |= {"node_ptr": self._node_ptr, "n_nodes": self._n_nodes, "rowsum": self._row_sums, "u": self._x}
        fields |= {"set_node_ptr": data.node_ptr, "set_rowsum": features.row_sums, "set_u": features.u}
        fields |= {"targets": self._targets.astype_view(np.int32), "K": features.columns}
        fields |= {"T": self._targets.shape[1], "tiles": self.tiles}
        return self._upload_stages(declared("fused/fp16/stage.cuh").layout("Fp16Stage"), fields)

    def pack_plan(self, host: NDArray[np.int32], plan: EpochPlan, weights: NDArray[np.float32]) -> None:
        assert isinstance(plan, TiledPlan)
        super().pack_plan(host, plan.in_tiles(self.tiles), weights)

    @property
    def _stage_blocks(self) -> int:
        return min(self.capacity.graphs + self.tiles, self._device.multiprocessors)

    def stage(self) -> Call:
        launch = geometry.stage(self.capacity.graphs, self.tiles, self._device.multiprocessors)
        return Call("fused_fp16_stage", launch, {"stage": self._stage})

    # -------------------------------------------------------------------------------------------- step

    def forward(self) -> list[Call]:
        stack, (head,) = self._stack, self._stack.graphs
        weight, bias = self._weights_of(head)
        fields: dict[str, Any] = csr_fields(self._rows) | csr_fields(self._own_t_rows, "t_")
        fields |= {"size": self._size, "shape": self._shape, "tile_ptr": self._tile_ptr, "tile_rows": self._tile_rows}
        fields |= {"node_ptr": self._node_ptr, "n_nodes": self._n_nodes, "rowsum": self._row_sums}
        fields |= {"targets": self._targets.astype_view(np.float32), "loss_weight": self._model.loss_weights}
        fields |= {
            "progress": self.plan.progress,
            "rates": self.plan.rates.astype_view(np.float32),
            "losses": self._losses,
        }
        fields |= {"head_weight": weight, "head_bias": bias, "exchange": self._exchange}
        fields |= {"input": self._head_inputs[0], "gradient": self._head_gradients[0]}
        fields |= {"n_layers": len(stack.nodes), "n_outputs": stack.n_outputs, "tiles": self.tiles}
        fields |= {"readout": READOUTS.index(stack.readouts[0]), "loss": LOSSES[stack.loss]}
        layers = [self._layer_fields(number) for number in range(len(stack.nodes))]
        fields |= {"reach": self._features.reach, "layers": padded(layers, geometry.MAX_LAYERS)}
        return [Call(geometry.entry(self._width), geometry.launch(self._width, self.tiles), fields)]

    def _layer_fields(self, number: int) -> dict[str, Any]:
        """Return the fields of an Fp16Layer (fused/fp16/step.cuh)."""
        layer, arrays, norm = self._stack.nodes[number], self._arrays(number), self._stack.nodes[number].norm
        assert norm is not None
        (forward, backward), (gamma, beta) = self._weight_panels(number), self._affine(norm, self._width)
        running_mean, running_var = self._running(norm, self._width)
        fields: dict[str, Any] = {"u": arrays.u, "y": arrays.y, "dy": arrays.dy, "v": arrays.v, "scale": arrays.scale}
        fields |= {"w_forward": forward, "w_backward": backward, "bias": self._weights_of(layer)[1]}
        fields |= {"gamma": gamma, "beta": beta, "running_mean": running_mean, "running_var": running_var}
        fields |= {"dbias": arrays.bias_partials, "dgamma": arrays.dgamma, "dbeta": arrays.dbeta}
        fields |= {"K": geometry.columns_of_u(layer.n_in), "u_scale": self._u_scale(number)}
        return fields | {"epsilon": norm.epsilon, "momentum": norm.momentum}

    def backward(self) -> list[Call]:
        plan, (head,) = self._gradient_geometry, self._stack.graphs
        products = [self._product_fields(number) for number in range(len(self._layers))]
        fields: dict[str, Any] = {"products": padded(products, geometry.MAX_LAYERS), "places": self._places}
        fields |= {"head": self._head_dw, "input": self._head_inputs[0], "gradient": self._head_gradients[0]}
        fields |= {"shape": self._shape, "size": self._size, "n_products": len(products)}
        fields |= {"n_places": len(plan.places), "splits": plan.splits, "F": head.n_in, "P": head.n_out}
        return [Call("fused_fp16_weight_gradient", plan.launch, fields)]

    def _product_fields(self, number: int) -> dict[str, Any]:
        """Return the fields of an Fp16Product (fused/fp16/weight_gradient.cu)."""
        layer, arrays = self._stack.nodes[number], self._arrays(number)
        fields: dict[str, Any] = {"u": arrays.u, "dy": arrays.dy, "scale": arrays.scale, "partials": arrays.partials}
        fields |= {"bias_partials": arrays.bias_partials, "dbias": arrays.dbias, "u_scale": self._u_scale(number)}
        return fields | {"F": layer.n_in, "P": layer.n_out, "K": geometry.columns_of_u(layer.n_in)}

    def _place_table(self) -> DeviceArray:
        """Upload a GradientTile (fused/fp16/weight_gradient.cu) for each block of a split."""
        layout = declared("fused/fp16/weight_gradient.cu").layout("GradientTile")
        return self._device.upload(layout.pack_many(place._asdict() for place in self._gradient_geometry.places))

    # -------------------------------------------------------------------------------------------- update

    def _job_tables(self) -> tuple[Any, DeviceArray, DeviceArray]:
        (head,) = self._stack.graphs
        jobs = [job((head.n_in, head.n_out), (head.weight, head.bias), self._head_dw)]
        jobs += [one for number in range(len(self._layers)) for one in self._jobs_of(number)]
        shapes = [(one["n_rows"], one["P"]) for one in jobs]
        chunks = chunk_table(shapes, geometry.CHUNK_ROWS, geometry.CHUNK_COLUMNS)
        device = self._device
        return padded(jobs, geometry.MAX_JOBS), device.upload(chunks), device.zeros(len(chunks), np.float64)

    def _jobs_of(self, number: int) -> list[dict[str, Any]]:
        """Return the jobs of a layer's weights, bias, gamma and beta."""
        layer, arrays, norm = self._stack.nodes[number], self._arrays(number), self._stack.nodes[number].norm
        assert norm is not None
        vectors = ((layer.bias, arrays.dbias), (norm.gamma, arrays.dgamma), (norm.beta, arrays.dbeta))
        shape, splits, panels = (layer.n_in, layer.n_out), arrays.partials.shape[0], self._weight_panels(number)
        matrix = job(shape, (layer.weight, None), arrays.partials, splits, panels)
        return [matrix, *(vector_job(start, gradient) for start, gradient in vectors)]
