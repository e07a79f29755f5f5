"""Gradients by inputs on every backend, against the reference in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends import registry
from gcnbatch.config_sections import ChemGCNConfig
from gcnbatch.explanation.integrated import GraphPath, midpoints
from gcnbatch.lab.backend_comparison.parity import bounds, distance
from gcnbatch.lab.backend_comparison.reference import ReferenceBackend, jitters
from gcnbatch.model.gcn import build
from gcnbatch.runners.input_gradients import InputGradientRunner
from tests.builders import build_graphset

BACKENDS = [pytest.param(entry.name, marks=pytest.mark.gpu if entry.on_gpu else ()) for entry in registry.BACKENDS]
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bond channels, maximum": ({"readout": "max", "dense": (9,), "head": (5,)}, {"n_channels": 4}),
    "one channel, sum": ({"widths": (33,)}, {"n_channels": 1}),
    "sparse features": ({"readout": "mean", "norm": "none"}, {"features": "csr"}),
    "every junction": (
        {
            "widths": (8, 8),
            "norm": "layer",
            "residual": True,
            "ffn": True,
            "virtual_node": True,
            "jumping_knowledge": "cat",
            "readout": ("sum", "max"),
        },
        {},
    ),
    "no edges": ({}, {"edges_per_node": 0}),
    "features of graphs": ({"head": (5,)}, {"graph_features": 3}),
}
UNITS, RUNS = 8.0, 8  # of the reference in float32, with moved roundings

Results = dict[str, NDArray[Any]]


def results(backend: Any, name: str) -> Results:
    config, data = MODELS[name]
    graphs = build_graphset(12, **{"n_features": 31, "max_nodes": 11, "seed": 4, **data})
    model = build(ChemGCNConfig(**{"widths": (16, 7), **config}), graphs.header)
    rng = np.random.default_rng(1)
    weights = {
        key: value + rng.uniform(0.1, 0.5, value.shape).astype(np.float32)
        for key, value in model.layout().initial(0).items()
    }
    runner = InputGradientRunner(backend, model, weights, np.eye(2, dtype=np.float32))
    path = GraphPath.of(graphs, "symmetric", None if graphs.graph_features is None else graphs.graph_features.dense())
    source = path.at(midpoints(3))
    columns = len(graphs.header.graph_feature_names)
    found = runner.contributions(source, path.pairs(3), np.nonzero(np.ones((36, columns))))
    of_features = {"features": found.graphs} if columns else {}
    return {"outputs": runner.outputs(source), "nodes": found.nodes, "edges": found.edges, **of_features}


@cache
def allowed(name: str) -> tuple[Results, dict[str, float]]:
    exact = results(ReferenceBackend(np.float64, by_loops=True), name)
    runs = [ReferenceBackend(np.float32, by_loops=True, jitter=jitter) for jitter in jitters(RUNS, UNITS)]
    return exact, bounds(exact, (results(run, name) for run in runs))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_agrees_with_the_reference(backend: str, name: str) -> None:
    exact, bound = allowed(name)
    for key, found in results(registry.open_backend(backend), name).items():
        assert found.shape == exact[key].shape
        assert distance(found, exact[key]) <= bound[key], key
    assert np.any(exact["nodes"]) == (name != "no edges")
