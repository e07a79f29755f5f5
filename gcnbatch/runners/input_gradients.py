"""Gradients of a trained model's outputs by its inputs, by the operations of any backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend, Batch
from gcnbatch.backends.ops import Array
from gcnbatch.data.batches import BatchSource
from gcnbatch.model.frozen import FrozenModel, InputGradients, Pairs, freeze
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.layers import Join
from gcnbatch.runners.task import no_targets

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


class Contributions(NamedTuple):
    """Contributions of N nodes, E sampled edges and M sampled features of whole graphs to T outputs.

    Parameters
    ----------
    nodes : float32, (N, T)
        Gradient times input, summed over the features of each node.
    edges : float32, (E, T)
        Gradients by the values of the edges.
    graphs : float32, (M, T)
        Gradients by the scaled features of whole graphs.
    """

    nodes: Float32
    edges: Float32
    graphs: Float32


class InputGradientRunner:
    """A graph-level model in inference mode: running statistics, no dropout.

    Features of whole graphs come as the model takes them: scaled.

    Parameters
    ----------
    backend : Backend
        Backend ``fused`` has the operations of ``batched``.
    model : Gcn
    weights : dict of float32 arrays
        Parameters and running statistics by name.
    heads : float32, (T, K)
        The outputs that are explained, each a combination of the K logits.
    """

    def __init__(self, backend: Backend, model: Gcn, weights: Mapping[str, NDArray[Any]], heads: Float32) -> None:
        self.backend = backend.name
        self._backend, self._heads = backend, heads
        joined = {spec.name: spec for layer in model.layers if isinstance(layer, Join) for spec in layer.specs()}
        unscaled = {name: np.full(spec.shape, float(spec.init == "ones")) for name, spec in joined.items()}
        self._model = FrozenModel(backend, freeze(model, weights), {**weights, **unscaled})

    def outputs(self, source: BatchSource) -> Float32:
        """Return the outputs (B, T) of all graphs of `source`, as one batch."""
        with self._batch(source) as batch:
            logits: Float32 = self._backend.read(self._model.forward(batch)[0])
        return logits @ self._heads.T

    def contributions(
        self, source: BatchSource, edges: tuple[Int32, Int32], features: tuple[Int64, Int64]
    ) -> Contributions:
        """Return the contributions of all graphs of `source` to their outputs, as one batch.

        Parameters
        ----------
        edges : (int32 (E,), int32 (E,))
            Rows and columns of the sampled edges: channel c's edge from node j to node i, counted over the batch, is
            (i, j*C + c).
        features : (int64 (M,), int64 (M,))
            Graphs and columns of the sampled features of whole graphs; none for a model that joins none.
        """
        each = np.arange(int(source.node_ptr[-1]), dtype=np.int32)
        pairs, nodes = self._pairs(*edges), self._pairs(each, each)
        with self._batch(source) as batch:
            _, kept = self._model.forward(batch)
            heads = [self._upload(np.tile(head, (source.n_graphs, 1))) for head in self._heads]
            found: list[InputGradients] = []
            of_graphs = np.zeros((len(features[0]), len(heads)), np.float32)
            for column, head in enumerate(heads):
                one = self._model.gradients(batch, kept, head, pairs, nodes)
                if one.graphs is not None:  # (B, D): kept for one output at a time
                    of_graphs[:, column] = self._backend.read(one.graphs)[features]
                found.append(one._replace(graphs=None))
            of_edges = [sum(map(self._backend.read, one.edges)) for one in found]
            return Contributions(
                np.stack([self._backend.read(one.nodes) for one in found], 1), np.stack(of_edges, 1), of_graphs
            )

    @contextmanager
    def _batch(self, source: BatchSource) -> Iterator[Batch]:
        with closing(self._backend.feed(source, no_targets(source.header, source.n_graphs))) as feed:
            yield feed.gather(np.arange(source.n_graphs))

    def _pairs(self, rows: Int32, columns: Int32) -> Pairs:
        return Pairs(self._upload(rows), self._upload(columns))

    def _upload(self, values: NDArray[Any]) -> Array:
        flat = self._backend.zeros(values.size, values.dtype.type)
        self._backend.write(flat, values.ravel())
        return self._backend.view(flat, 0, values.shape)
