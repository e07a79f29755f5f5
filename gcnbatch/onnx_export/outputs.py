"""What a run predicts as ONNX nodes: each model's outputs, their mean, mixture and standard deviation.

They are those of `gcnbatch.inference.models` and `gcnbatch.training.mixed`, except that regressions are not rounded to
decimal places, and that rows with infinite logits are not NaN. Values are float64, (B, K).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.inference.models import Model, Whole
from gcnbatch.onnx_export import members
from gcnbatch.onnx_export.graph import Graph, Value
from gcnbatch.onnx_export.networks import Inputs, logits
from gcnbatch.training.mixed import NETWORK, Mixed


class Found(NamedTuple):
    """Outputs (B, K), and their standard deviation where several models or members give them."""

    value: Value
    deviation: Value | None


def predictions(graph: Graph, wholes: Sequence[Whole], inputs: Inputs) -> Found:
    """Return what these predict together; NaN in tasks that none has learned."""
    each = [_whole(graph, one, inputs) for one in wholes]
    left_out = np.stack([one.left_out for one in wholes])
    found = each[0] if len(each) == 1 else _mean(graph, [one.value for one in each], left_out)
    absent = left_out.all(axis=0)
    if not absent.any():
        return found
    mask = np.where(absent, np.nan, 1.0)
    return Found(found.value * mask, found.deviation and found.deviation * mask)


def _whole(graph: Graph, whole: Whole, inputs: Inputs) -> Found:
    left_out = np.stack([model.left_out for model in whole.models])
    mixed = whole.mixed
    networks = None
    if mixed is None or mixed.needs_network:
        networks = _mean(graph, [_model(graph, model, inputs) for model in whole.models], left_out)
    if mixed is None:
        assert networks is not None
        return networks
    return _mixture(graph, whole, mixed, networks, inputs)


def _model(graph: Graph, model: Model, inputs: Inputs) -> Value:
    wide = logits(graph, model, inputs).astype(np.float64)
    if model.header.target == "binary":
        return graph("Sigmoid", wide)
    if model.header.target == "multiclass":
        return graph("Softmax", wide, axis=1)
    values = wide * model.scaling.std + model.scaling.mean
    return values if model.scaling.transforms is None else members.invert(graph, model.scaling.transforms, values)


def _mean(graph: Graph, single: Sequence[Value], left_out: NDArray[np.bool_]) -> Found:
    """Return mean and deviation over the members that have a task; `left_out` (members, T), T is 1 for classes."""
    if len(single) == 1:
        return Found(single[0], None)
    count = (~left_out).sum(axis=0)
    mean = _weighted(zip(single, ~left_out / np.maximum(count, 1), strict=True))
    squares = [_square(one - mean) for one in single]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = ~left_out / np.where(count > 1, count - 1, np.nan)
    return Found(mean, graph("Sqrt", _weighted(zip(squares, shares, strict=True))))


def _mixture(graph: Graph, whole: Whole, mixed: Mixed, networks: Found | None, inputs: Inputs) -> Found:
    assert inputs.features is not None
    mixture, header = mixed.mixture, whole.models[0].header
    found = members.predictions(graph, mixture.members, header, inputs.features)
    learned = members.known(mixture.members)
    if networks is not None:
        found[NETWORK] = networks.value
        learned[NETWORK] = np.asarray(np.stack([~model.left_out for model in whole.models]).any(axis=0))
    names = [name for name in mixture.names if name in found]
    of_names = dict(zip(mixture.names, mixture.weights, strict=True))
    weights = np.zeros((len(names), header.n_outputs))
    for row, name in zip(weights, names, strict=True):
        row[:] = np.where(learned[name], of_names[name], 0.0)
    total = np.maximum(weights.sum(axis=0), np.finfo(float).tiny)
    shares = weights / total
    transforms = mixture.members.transforms
    scaled = [members.apply(graph, transforms, found[name]) for name in names]
    value = members.invert(graph, transforms, _weighted(zip(scaled, shares, strict=True)))
    squares = []
    for name in names:
        square = _square(found[name] - value)
        if name == NETWORK and networks is not None and networks.deviation is not None:
            spread = networks.deviation.is_nan().where(np.float64(0), networks.deviation)
            square = square + _square(spread)
        squares.append(square)
    return Found(value, graph("Sqrt", _weighted(zip(squares, shares, strict=True))))


def _square(value: Value) -> Value:
    return value * value


def _weighted(pairs: Any) -> Value:
    """Return the sum of values, each times its weights (K,) or (1,)."""
    first, *others = (value * weights for value, weights in pairs)
    for other in others:
        first = first + other
    return first
