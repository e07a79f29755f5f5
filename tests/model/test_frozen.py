"""Frozen models: the outputs of inference, and gradients by features and edges against central differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.config_sections import ChemGCNConfig
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.sparse import Csr
from gcnbatch.lab.backend_comparison.reference import ReferenceBackend
from gcnbatch.model.frozen import FrozenModel, Pairs, freeze
from gcnbatch.reference import ReferenceOps
from tests.builders import build_graphset
from tests.model.cases import Case, Given
from tests.ops.cases import build_adjacency

MODELS = {
    **{readout: ({"readout": readout}, {}) for readout in ("sum", "mean", "max")},
    "dense layers, a head and dropout": ({"dense": (4, 3), "head": (3,), "dropout": 0.2}, {}),
    "no norm, two readouts": ({"norm": "none", "readout": ("max", "mean")}, {}),
    "layer norm, residual": ({"norm": "layer", "widths": (3, 3, 3), "residual": True, "dropout": 0.1}, {}),
    "feed-forward networks with batch norm": ({"ffn": True, "residual": True, "widths": (3, 3)}, {}),
    "feed-forward networks without norm": ({"ffn": True, "norm": "none"}, {}),
    "virtual node, jumping knowledge": ({"virtual_node": True, "jumping_knowledge": "cat", "residual": True}, {}),
    "one channel": ({}, {"n_channels": 1}),
    "classes, four channels": ({}, {"target": "multiclass", "n_channels": 4}),
    "sparse features": ({}, {"features": "csr"}),
}
STEP = 1e-6


@pytest.fixture(params=MODELS, ids=str)
def given(request: pytest.FixtureRequest) -> tuple[Case, GraphSet]:
    """A case in float64 with edges of a plain list, some repeated, and a graph without nodes."""
    model, data = MODELS[request.param]
    graphs = build_graphset(6, **{"n_features": 3, "weights": True, "seed": 2, **data})
    config = ChemGCNConfig(**{"widths": (3, 2), "adjacency": "stored", **model})
    return Case.of(config, graphs, list(range(6))).astype(np.float64), graphs


def with_edges(case: Case, graphs: GraphSet, weight: NDArray[Any]) -> Given:
    first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))
    ends = (first + graphs.src, first + graphs.dst, graphs.channel)
    return case.batch._replace(adjacency=build_adjacency(graphs.n_nodes, graphs.header.n_channels, *ends, weight))


def with_node(batch: Given, node: int, factor: float) -> Given:
    """Return the batch with the features of a node times a factor."""
    if isinstance(batch.x, Csr):
        data = batch.x.data.copy()
        data[batch.x.indptr[node] : batch.x.indptr[node + 1]] *= factor
        return batch._replace(x=Csr(batch.x.indptr, batch.x.indices, data, batch.x.n_cols))
    x = batch.x.copy()
    x[node] *= factor
    return batch._replace(x=x)


def test_outputs_and_gradients(given: tuple[Case, GraphSet]) -> None:
    case, graphs = given
    frozen = FrozenModel(
        ReferenceBackend(np.float64, by_loops=True), freeze(case.model, case.parameters), case.parameters
    )
    weight = graphs.weight.astype(np.float64)
    batch = with_edges(case, graphs, weight)
    logits, kept = frozen.forward(batch)
    np.testing.assert_allclose(logits, replace(case, batch=batch).outputs(ReferenceOps()), rtol=1e-12, atol=1e-12)

    head = np.random.default_rng(0).normal(size=logits.shape)
    first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))
    edges = Pairs(first + graphs.dst, (first + graphs.src) * graphs.header.n_channels + graphs.channel)
    each = np.arange(graphs.n_nodes)
    found = frozen.gradients(batch, kept, head, edges, Pairs(each, each))

    def slope(up: Given, down: Given) -> float:
        return float(((frozen.forward(up)[0] - frozen.forward(down)[0]) * head).sum()) / (2 * STEP)

    of_nodes = [slope(with_node(batch, node, 1 + STEP), with_node(batch, node, 1 - STEP)) for node in each]
    np.testing.assert_allclose(found.nodes, of_nodes, rtol=1e-5, atol=1e-7)
    moved = STEP * np.eye(graphs.n_edges)
    of_edges = [slope(*(with_edges(case, graphs, weight + by) for by in (one, -one))) for one in moved]
    np.testing.assert_allclose(sum(found.edges), of_edges, rtol=1e-5, atol=1e-7)
    assert np.any(of_nodes)
    assert np.any(of_edges)
