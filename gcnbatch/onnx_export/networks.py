"""Networks as ONNX nodes: `gcnbatch.model.frozen`, whose batch norm is folded, step by step.

ONNX Runtime adds the updates of ScatterND in several threads without a lock, and loses updates. So products with the
adjacency gather from a list of edges of each node, padded to the same length, and readouts from a list of each graph's
nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.batches import GraphBatch
from gcnbatch.data.graph_features import LIMIT
from gcnbatch.data.schema import Header
from gcnbatch.data.sparse import Csr
from gcnbatch.inference.models import Model
from gcnbatch.model.frozen import Stage, freeze
from gcnbatch.model.junctions import Add, Concatenate, Maximum
from gcnbatch.model.layers import Join, LayerNormRelu, ReadoutLayer, Relu, VirtualNode
from gcnbatch.onnx_export.graph import Graph, Value

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Inputs:
    """The inputs of the graph, of B graphs with N nodes together; K is the most edges into a node, M the most nodes.

    Parameters
    ----------
    x : float32, (N, F)
        Features of the nodes of all graphs.
    edges : int64, (N, K)
        Source times C plus channel of each edge into a node; sources are counted over all graphs. 0 where padded.
    weights : float32, (N, K)
        0 where padded.
    nodes : int64, (B, M)
        Nodes of each graph, -1 where padded.
    features : float32 (B, D), or None
        Of whole graphs, NaN where missing; None if no model reads them.
    """

    x: Value
    edges: Value
    weights: Value
    nodes: Value
    features: Value | None

    @classmethod
    def of(cls, graph: Graph, header: Header, features: bool) -> Inputs:
        """Declare the inputs of models with this header."""
        width = len(header.graph_feature_names)
        return cls(
            graph.input("x", np.float32, "N", header.n_features),
            graph.input("edges", np.int64, "N", "K"),
            graph.input("weights", np.float32, "N", "K"),
            graph.input("nodes", np.int64, "B", "M"),
            graph.input("features", np.float32, "B", width) if features else None,
        )


def inputs_of(batch: GraphBatch, features: NDArray[np.float32] | None) -> Arrays:
    """Return the values of `Inputs` for a batch, by name; `features` (B, D) are all of its graphs."""
    forward, x = batch.adjacency.forward, batch.x
    if isinstance(x, Csr):
        x = sp.csr_array((x.data, x.indices, x.indptr), shape=(batch.n_nodes, x.n_cols)).toarray()
    into = np.diff(forward.indptr)
    found = {
        "x": x,
        "edges": _padded(forward.indices.astype(np.int64), into, 0),
        "weights": _padded(forward.data, into, 0),
        "nodes": _padded(np.arange(batch.n_nodes), np.diff(batch.node_ptr), -1),
    }
    return found if features is None else found | {"features": features}


def _padded(values: NDArray[Any], lengths: NDArray[Any], fill: int) -> NDArray[Any]:
    """Return a row of the next `lengths` values each, padded to the longest."""
    found = np.full((len(lengths), max(int(lengths.max(initial=0)), 1)), fill, values.dtype)
    found[np.arange(found.shape[1]) < lengths[:, None]] = values
    return found


def logits(graph: Graph, model: Model, inputs: Inputs) -> Value:
    """Return the logits (B, K), float32, of a network."""
    frozen = freeze(model.model, model.weights)
    weights = {name: array.astype(np.float32) for name, array in model.weights.items()}
    h, outputs = inputs.x, dict[str, Value]()
    for step in frozen.steps:
        match step:
            case Stage():
                h = _stage(step, h, inputs)
            case Relu():
                h = h.relu()
            case LayerNormRelu(name=name, epsilon=epsilon):
                centred = h - h.mean(1)
                scale = graph("Sqrt", (centred * centred).mean(1) + np.float32(epsilon))
                h = (centred / scale * weights[f"{name}.gamma"] + weights[f"{name}.beta"]).relu()
            case ReadoutLayer(kinds=kinds):
                parts = [_readout(graph, h, inputs.nodes, kind) for kind in kinds]
                h = graph("Concat", *parts, axis=1)
            case VirtualNode(name=name):
                read = _readout(graph, h, inputs.nodes, "mean")
                of_graph = (read @ weights[f"{name}.weight"] + weights[f"{name}.bias"]).relu()
                h = h + of_graph.take(_graph_of(graph, inputs))
            case Join(name=name):
                assert inputs.features is not None
                joined = inputs.features.take(np.arange(step.n_features), axis=1)
                scaled = (joined - weights[f"{name}.mean"]) * weights[f"{name}.scale"]
                scaled = scaled.clip(np.float32(-LIMIT), np.float32(LIMIT))
                h = graph("Concat", h, joined.is_nan().where(np.float32(0), scaled), axis=1)
            case Add(of=other):
                h = h + outputs[frozen.parts[other]]
            case Concatenate(others=others):
                h = graph("Concat", *(outputs[frozen.parts[name]] for name in others), h, axis=1)
            case Maximum(others=others):
                h = graph("Max", *(outputs[frozen.parts[name]] for name in others), h)
            case _:
                assert_never(step)
        outputs[step.name] = h
    return h


def _stage(stage: Stage, h: Value, inputs: Inputs) -> Value:
    """Return Y = sum_c A_c (H W_c + b_c) + shift, or H W + b + shift without channels; with ReLU."""
    y = h @ stage.weight.astype(np.float32) + stage.bias.astype(np.float32)
    if stage.channels:
        width = len(stage.bias) // stage.channels
        if stage.channels > 1:
            y = y.reshape(-1, width)  # a row for each node and channel
        weight = h.graph("Unsqueeze", inputs.weights, np.array([2]))
        y = (y.take(inputs.edges) * weight).sum(1, keep=False)
    if stage.shift is not None:
        y = y + stage.shift.astype(np.float32)
    return y.relu() if stage.relu else y


def _readout(graph: Graph, h: Value, nodes: Value, kind: str) -> Value:
    """Return sum, mean or maximum (B, P) of each graph's rows of H (N, P); 0 of a graph without nodes."""
    real = graph("Unsqueeze", nodes >= np.int64(0), np.array([2]))
    rows = h.take(graph("Max", nodes, np.int64(0)))
    count = real.astype(np.float32).sum(1, keep=False)
    if kind == "max":
        lowest: Any = np.finfo(np.float32).min
        largest = graph("ReduceMax", real.where(rows, lowest), np.array([1]), keepdims=0)
        return (count >= np.float32(1)).where(largest, np.float32(0))
    total = real.where(rows, np.float32(0)).sum(1, keep=False)
    return total / graph("Max", count, np.float32(1)) if kind == "mean" else total


def _graph_of(graph: Graph, inputs: Inputs) -> Value:
    """Return the graph (N,) of each node."""
    count, flat = inputs.x.length(0), inputs.nodes.reshape(-1)
    graphs = graph("Range", np.int64(0), inputs.nodes.length(0).reshape(), np.int64(1)).reshape(-1, 1)
    owners = graph("Expand", graphs, graph("Shape", inputs.nodes)).reshape(-1)
    place = (flat >= np.int64(0)).where(flat, count)  # padding is written after the last node
    empty = graph("ConstantOfShape", count + np.array([1]), value=graph.tensor(np.zeros(1, np.int64)))
    found = graph("ScatterElements", empty, place, owners)
    return graph("Slice", found, np.array([0]), count)
