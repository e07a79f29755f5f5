"""Training on the CPU multiplies only what is not zero, and equal atoms once; results are those of plain products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gcnbatch.backends.cpu import CpuBackend, CpuOps
from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import ChemGCNConfig, TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graph_features import HostFeatures
from gcnbatch.data.graphs import GraphSet
from gcnbatch.model.gcn import Loss, build, uniform_weights
from gcnbatch.reference import ReferenceOps
from gcnbatch.runners.choice import make_runner
from gcnbatch.runners.task import RunnerTask
from tests.builders import build_graphset


def molecules() -> GraphSet:
    """Return graphs of three kinds of atoms, few edges in each of six channels, two descriptors and seven counts."""
    drawn = build_graphset(48, n_channels=6, n_features=5, features="uint8", graph_features=9, n_counts=7, max_nodes=7)
    kinds = np.random.default_rng(0).integers(0, 3, drawn.n_nodes)
    return replace(drawn, x=np.eye(3, 5, dtype=np.uint8)[kinds])


def gradients(backend: CpuBackend, graphs: GraphSet, config: ChemGCNConfig):
    model = build(config, graphs.header)
    loss = Loss(graphs.header.target, uniform_weights(graphs.header))
    task = RunnerTask(model, loss, BatchSource(graphs, graph_features=True), graphs.y, TrainConfig(), seed=1)
    return make_runner(backend, [task]).gradients(np.arange(3, 40))


@pytest.mark.parametrize("head", [(), (4,)])
@pytest.mark.parametrize("backend", ["cpu", pytest.param("cpu-fast", marks=pytest.mark.numba)])
def test_gradients_equal_those_of_the_reference(backend: str, head: tuple[int, ...]) -> None:
    graphs, plain = molecules(), CpuBackend()
    plain.ops = ReferenceOps()  # type: ignore[assignment]
    config = ChemGCNConfig(widths=(6, 5), head=head, dropout=0.1)
    loss, found = gradients(CpuBackend() if backend == "cpu" else open_backend("cpu"), graphs, config)
    right, expected = gradients(plain, graphs, config)
    assert loss == pytest.approx(right, rel=1e-5)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-4, atol=2e-6 * np.abs(values).max(), err_msg=name)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cpu-fast", marks=pytest.mark.numba)])
def test_no_product_of_all_rows_or_counts_is_computed(backend: str) -> None:
    """Refuse the plain products, so that a step which multiplied more than it must would fail."""
    graphs = molecules()
    feed = (CpuBackend() if backend == "cpu" else open_backend("cpu")).feed(
        BatchSource(graphs, graph_features=True), graphs.y
    )
    batch = feed.gather(np.arange(3, 40))
    assert len(batch.adjacency.atoms(batch.x).x) == 3
    assert batch.adjacency.atoms(batch.x.copy()) is None
    assert len(batch.adjacency.sources.nodes) < 0.75 * 6 * len(batch.x)
    assert isinstance(batch.graph_features, HostFeatures)
    assert batch.graph_features.measured.values.shape[1] == 2
    assert isinstance(CpuOps().convolve(batch.adjacency, batch.x, np.ones((5, 12), np.float32), np.ones(12))[1], tuple)


def test_sets_that_are_joined_find_their_own_atoms_and_counts() -> None:
    graphs = molecules()
    parts = [BatchSource(graphs.take(rows), graph_features=True) for rows in (np.arange(20), np.arange(20, 48))]
    for part in parts:
        assert part.prepared is not None
        assert part.prepared.atoms is not None
        assert part.prepared.joined_features is not None
    whole = BatchSource.joined(parts).prepared
    assert whole is not None
    assert len(whole.atoms) == graphs.n_nodes  # type: ignore[arg-type]
    assert whole.joined_features.counts.n_rows == 48  # type: ignore[union-attr]
