"""Small models with a batch, in any float type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Clock
from gcnbatch.backends.ops import Adjacency, Csr, Ops
from gcnbatch.config_sections import ChemGCNConfig, KipfConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.graphs import GraphSet
from gcnbatch.model.gcn import Gcn, Loss, build, joins_graph_features
from gcnbatch.model.layers import Context


class Given(NamedTuple):
    """A batch on the host; see `gcnbatch.backends.base.Batch`."""

    x: Any
    adjacency: Adjacency
    node_ptr: NDArray[np.int64]
    targets: NDArray[Any]
    graph_features: GraphFeatures | None = None
    labelled: Given | None = None


@dataclass(frozen=True)
class Case:
    """A model, its parameters, a batch and a loss."""

    model: Gcn
    parameters: dict[str, NDArray[Any]]
    batch: Given
    loss: Loss

    @classmethod
    def of(
        cls,
        config: ChemGCNConfig | KipfConfig,
        graphs: GraphSet,
        picked: list[int],
        seed: int = 0,
        one_dense_graph: bool = False,
    ) -> Case:
        """Return a case with random parameters, none of them 0 or 1, so every parameter affects the result."""
        model = build(config, graphs.header, one_dense_graph)
        joined = joins_graph_features(config, graphs.header)
        source = BatchSource(graphs, config.adjacency, joined).batch(np.array(picked, dtype=np.int64))
        rng = np.random.default_rng(seed)
        parameters = {
            name: value + rng.uniform(0.1, 0.5, value.shape).astype(np.float32)
            for name, value in model.layout().initial(seed).items()
        }
        weights = rng.uniform(0.5, 2.0, graphs.header.n_outputs).astype(np.float32)
        targets = graphs.y[source.rows].astype(np.int32 if graphs.header.target == "multiclass" else np.float32)
        batch = Given(source.x, source.adjacency, source.node_ptr, targets, source.graph_features)
        return cls(model, parameters, batch, Loss(graphs.header.target, weights))

    def astype(self, dtype: type[np.floating[Any]]) -> Case:
        """Return this case with all numbers in this type."""
        loss = replace(self.loss, weights=self.loss.weights.astype(dtype))
        parameters = {name: value.astype(dtype) for name, value in self.parameters.items()}
        return Case(self.model, parameters, cast(self.batch, dtype), loss)

    def context(self, ops: Ops, training: bool = True) -> Context:
        """Return a context with a copy of the parameters, because running statistics change in place."""
        copies = {name: value.copy() for name, value in self.parameters.items()}
        return Context(ops, copies, self.batch, training, seed=3, clock=Clock(1, 2))

    def mean_loss(self, ops: Ops) -> float:
        """Return the loss of a training pass."""
        logits, _ = self.model.forward(self.context(ops), self.batch.x)
        total, weight, _ = self.loss(ops, logits, self.batch.targets, self.loss.weights)
        return float(total) / float(weight)

    def gradients(self, ops: Ops) -> dict[str, NDArray[Any]]:
        """Return the gradient of the loss of a training pass by parameter name."""
        ctx = self.context(ops)
        logits, saved = self.model.forward(ctx, self.batch.x)
        _, _, dlogits = self.loss(ops, logits, self.batch.targets, self.loss.weights)
        return self.model.backward(ctx, dlogits, saved)

    def outputs(self, ops: Ops) -> NDArray[Any]:
        """Return the logits of an inference pass."""
        return self.model.forward(self.context(ops, training=False), self.batch.x)[0]

    def moved(self, name: str, index: tuple[int, ...], by: float) -> Case:
        """Return this case with one element of a parameter changed."""
        value = self.parameters[name].copy()
        value[index] += by
        return replace(self, parameters={**self.parameters, name: value})


def cast(batch: Given, dtype: type[np.floating[Any]]) -> Given:
    """Return the batch with features and edge weights in this type."""
    adjacency, x, joined = batch.adjacency, batch.x, batch.graph_features
    forward, transpose = (_csr_as(part, dtype) for part in (adjacency.forward, adjacency.transpose))
    return batch._replace(
        x=_csr_as(x, dtype) if isinstance(x, Csr) else x.astype(dtype),
        adjacency=Adjacency(forward, transpose, adjacency.n_channels),
        graph_features=joined and GraphFeatures(joined.values.astype(dtype), joined.rows),
    )


def _csr_as(matrix: Csr, dtype: type[np.floating[Any]]) -> Csr:
    return replace(matrix, data=matrix.data.astype(dtype))
