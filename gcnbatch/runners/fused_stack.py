"""The layers of a ChemGCN as the fused engine takes them."""

from __future__ import annotations

from collections.abc import Sequence

from gcnbatch.backends.cuda.fused.shared.stack import GraphLayer, Joined, NodeLayer, Norm, Stack
from gcnbatch.backends.ops import Readout
from gcnbatch.model.junctions import Add, Concatenate, Junction, Maximum
from gcnbatch.model.layers import (
    BatchNormRelu,
    Dense,
    Dropout,
    GraphConv,
    Join,
    Layer,
    LayerNormRelu,
    ReadoutLayer,
    Relu,
    VirtualNode,
)
from gcnbatch.runners.task import RunnerTask


def unsupported(layers: Sequence[Layer | Junction]) -> str | None:
    """Return the key of the configuration that asks for a layer which the engine does not have, or None."""
    return next((reason for layer in layers if (reason := _unsupported(layer))), None)


def _unsupported(layer: Layer | Junction) -> str | None:
    if isinstance(layer, ReadoutLayer) and len(layer.kinds) > len(set(layer.kinds)):
        return "a readout twice (model.readout)"
    if isinstance(layer, LayerNormRelu):
        return "layer norm (model.norm)"
    if isinstance(layer, VirtualNode):
        return "virtual nodes (model.virtual_node)"
    if layer.name.startswith("ffn"):
        return "feed-forward networks (model.ffn)"
    if isinstance(layer, Concatenate | Maximum):
        return "jumping knowledge (model.jumping_knowledge)"
    return None


def describe(task: RunnerTask) -> Stack:
    """Return the layers of a task's model; a parameter is given by its start in the flat array."""
    model = task.model
    start = {name: slot.start for name, slot in model.layout().slots.items()}
    nodes: list[NodeLayer] = []
    graphs: list[GraphLayer] = []
    readouts: tuple[Readout, ...] = ()
    rate = 0.0
    joined: Joined | None = None
    groups = _groups(model.layers)
    for head, *following in groups:
        dropout = next((layer for layer in following if isinstance(layer, Dropout)), None)
        rate = dropout.rate if dropout else rate
        key = dropout.name if dropout else ""
        if isinstance(head, ReadoutLayer):
            readouts = head.kinds
            continue
        if isinstance(head, Join):
            joined = Joined(head.n_features, *(start[spec.name] for spec in head.specs()))
            continue
        assert isinstance(head, GraphConv | Dense), head
        places = (head.name, start[f"{head.name}.weight"], start[f"{head.name}.bias"], head.n_in, head.n_out)
        if readouts:
            graphs.append(GraphLayer(*places, dropout=key))
            continue
        norm = next((layer for layer in following if isinstance(layer, BatchNormRelu)), None)
        known = None
        if norm:
            gamma, beta, mean, var = (start[spec.name] for spec in norm.specs())
            known = Norm(gamma, beta, mean, var, norm.epsilon, norm.momentum)
        channels = head.n_channels if isinstance(head, GraphConv) else 1
        residual = any(isinstance(layer, Add) for layer in following)
        nodes.append(NodeLayer(*places, channels, isinstance(head, Dense), known, key, residual))
    return Stack(tuple(nodes), readouts, tuple(graphs), rate, task.loss.kind, bool(task.loss.weighted), joined)


def _groups(layers: Sequence[Layer | Junction]) -> list[list[Layer | Junction]]:
    """Group the layers: each group begins with a product (GraphConv, Dense), the readout or features."""
    groups: list[list[Layer | Junction]] = []
    for layer in layers:
        if isinstance(layer, Relu | BatchNormRelu | Dropout | Add):
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups
