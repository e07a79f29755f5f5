"""The fusion pass: which layers it replaces, and equal results with and without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.ops import Adjacency, Csr
from gcnbatch.config_sections import ChemGCNConfig, KipfConfig
from gcnbatch.model import gcn
from gcnbatch.model.fusion import Fused
from gcnbatch.model.gcn import Gcn, freeze_layers
from gcnbatch.model.parameters import ParameterLayout
from gcnbatch.reference import ReferenceOps
from tests.builders import build_graphset
from tests.model.cases import Case


def kipf(first: bool = True, **model: Any) -> Case:
    """Return a Kipf GCN of 4 features and 5 classes; `first`: all data is one graph with dense features."""
    options = {
        "level": "node",
        "target": "multiclass",
        "n_channels": 1,
        "max_nodes": 9,
        "n_classes": 5,
        "weights": True,
    }
    config = KipfConfig(**{"dropout": 0.5, "adjacency": "stored", **model})
    return Case.of(config, build_graphset(1, **options), [0], one_dense_graph=first)


def chemgcn(graph_features: int = 0, **model: Any) -> Case:
    config = ChemGCNConfig(**{"dropout": 0.5, "norm": "none", "adjacency": "stored", **model})
    graphs = build_graphset(4, weights=True, graph_features=graph_features, n_counts=graph_features // 2)
    return Case.of(config, graphs, [1, 3, 0])


def frozen(case: Case, *layers: str) -> Case:
    return replace(case, model=freeze_layers(case.model, layers))


DROPPED = ["conv1", "conv1.relu", "conv1.dropout"]
CASES: dict[str, tuple[Case, list[str]]] = {
    "ReLU, dropout and a product": (
        chemgcn(widths=(3, 2), dense=(3,), head=(2,)),
        ["conv1", "conv2*", "dense1*", "dense1.relu", "dense1.dropout", "readout", "head1", "output*"],
    ),
    "an output that a junction reads": (
        chemgcn(widths=(3, 3), residual=True, readout="max"),
        [*DROPPED, "conv2", "conv2.relu", "conv2.dropout", "conv2.residual", "readout", "output"],
    ),
    "no dropout": (
        chemgcn(widths=(3,), head=(4,), dropout=0.0),
        ["conv1", "conv1.relu", "readout", "head1", "head1.relu", "output"],
    ),
    "features of graphs": (
        chemgcn(4, widths=(3,), head=(3,)),
        [*DROPPED, "readout", "head1*", "output*"],
    ),
    "features of graphs behind frozen layers": (
        frozen(chemgcn(4, widths=(3,)), "all-conv", "features"),
        [*DROPPED, "readout", "features", "output"],
    ),
    "ReLU, dropout and a product behind frozen layers": (
        frozen(chemgcn(widths=(3, 2), head=(2,)), "conv1"),
        [*DROPPED, "conv2", "conv2.relu", "conv2.dropout", "readout", "head1", "output*"],
    ),
    "a convolution before a ReLU": (
        kipf(widths=(8,), first=False),
        ["conv1.dropout", "conv1*", "conv2*"],
    ),
    "A X of the features": (
        kipf(widths=(4,), input_dropout=False),
        ["conv1.propagate", "conv1", "conv2.propagate*", "conv2"],
    ),
    "A X of features with dropout": (
        kipf(widths=(4, 4)),
        ["conv1.dropout", "conv1.propagate", "conv1", "conv2*", "conv3.propagate*", "conv3"],
    ),
    "A X behind ReLU without dropout": (
        kipf(widths=(3,), first=False, dropout=0.0),
        ["conv1*", "conv1.relu", "conv2.propagate*", "conv2"],
    ),
    "a convolution between ReLUs": (
        kipf(widths=(8, 8), first=False, dropout=0.0),
        ["conv1*", "conv1.relu", "conv2*", "conv2.relu", "conv3"],
    ),
    "a convolution behind frozen layers": (
        frozen(kipf(widths=(8, 8), input_dropout=False), "conv1"),
        ["conv1.propagate", "conv1", "conv1.relu", "conv2.dropout", "conv2*", "conv3*"],
    ),
}


def computed(model: Gcn) -> list[str]:
    """Return the names of the layers that are computed; those of fused ones with a star."""
    return [layer.name + "*" * type(layer).__name__.startswith("Fused") for layer in model.fused.layers]


@pytest.mark.parametrize(("case", "names"), CASES.values(), ids=CASES)
def test_patterns_become_fused_layers(case: Case, names: list[str]) -> None:
    assert computed(case.model) == names


@pytest.mark.parametrize("case", [case for case, _ in CASES.values()], ids=CASES)
def test_frozen_layers_stay_those_of_the_plain_list(case: Case) -> None:
    model = case.model
    frozen = ParameterLayout(spec for layer in model.fused.layers[: model.fused.frozen] for spec in layer.specs())
    everything = ParameterLayout(spec for layer in model.fused.layers for spec in layer.specs())
    assert list(frozen.slots) == model.frozen_parameters()
    last = [part[-1:] for part in (model.fused.layers[: model.fused.frozen], model.layers[: model.frozen])]
    assert last[0] == last[1]
    assert everything.slots == model.layout().slots


def in_integers(case: Case) -> Case:
    """Return the case in float64 with integers for numbers: all sums are exact, so their order does not matter."""

    def rounded(values: Any) -> Any:
        return np.rint(8 * values)

    def matrix(csr: Csr) -> Csr:
        return replace(csr, data=rounded(csr.data))

    case = case.astype(np.float64)
    a = case.batch.adjacency
    adjacency = Adjacency(matrix(a.forward), matrix(a.transpose), a.n_channels)
    batch = case.batch._replace(x=rounded(case.batch.x), adjacency=adjacency)
    return replace(case, batch=batch, parameters={name: rounded(value) for name, value in case.parameters.items()})


def results(case: Case) -> dict[str, Any]:
    """Return logits of training and prediction, and the gradients for a gradient by the logits of integers."""
    ops = ReferenceOps()
    ctx = case.context(ops)
    logits, saved = case.model.forward(ctx, case.batch.x)
    dlogits = np.random.default_rng(0).integers(-4, 5, logits.shape).astype(np.float64)
    return {"logits": logits, "predicted": case.outputs(ops), **case.model.backward(ctx, dlogits, saved)}


@pytest.mark.parametrize("case", [case for case, _ in CASES.values()], ids=CASES)
def test_fused_layers_compute_what_the_plain_layers_do(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case = in_integers(case)
    found = results(case)
    monkeypatch.setattr(gcn, "fuse", lambda layers, frozen, _: Fused(tuple(layers), frozen))
    plain = replace(case, model=replace(case.model))  # a new model: it keeps its fused layers
    assert plain.model.fused.layers == case.model.layers
    expected = results(plain)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.any(values), name
        np.testing.assert_array_equal(found[name], values, err_msg=name)
