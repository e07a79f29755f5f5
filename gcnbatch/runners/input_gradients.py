"""Gradients of a trained model's outputs by its inputs, on any backend whose steps are operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Array, Backend, Batch
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.molecule_graphs import missing_targets
from gcnbatch.model.frozen import FrozenModel, Pairs, freeze
from gcnbatch.model.gcn import Gcn

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


class Contributions(NamedTuple):
    """What the inputs of N nodes and E sampled edges add to T outputs.

    Parameters
    ----------
    nodes : float32, (N, T)
        Gradient times input, summed over the features of each node.
    edges : float32, (E, T)
        Gradients by the values of the edges.
    """

    nodes: Float32
    edges: Float32


class InputGradientRunner:
    """A graph-level model in inference mode: running statistics, no dropout.

    Parameters
    ----------
    backend : Backend
        One whose steps are operations; see `gcnbatch.runners.choice.BackendChoice.backend_with_operations`.
    model : Gcn
    weights : dict of float32 arrays
        Parameters and running statistics by name.
    heads : float32, (T, K)
        The outputs that are explained, each a combination of the K logits.
    """

    def __init__(self, backend: Backend, model: Gcn, weights: Mapping[str, NDArray[Any]], heads: Float32) -> None:
        self.backend = backend.name
        self._at, self._heads = backend, heads
        self._model = FrozenModel(backend, freeze(model, weights))

    def outputs(self, source: BatchSource) -> Float32:
        """Return the outputs (B, T) of all graphs of `source`, as one batch."""
        with self._batch(source) as batch:
            logits: Float32 = self._at.read(self._model.forward(batch)[0])
        return logits @ self._heads.T

    def contributions(self, source: BatchSource, rows: Int32, columns: Int32) -> Contributions:
        """Return what the inputs of all graphs of `source` add to their outputs, as one batch.

        Parameters
        ----------
        rows, columns : int32, (E,)
            The sampled edges: channel c's edge from node j to node i, counted over the batch, is (i, j*C + c).
        """
        edges, each = self._pairs(rows, columns), np.arange(int(source.node_ptr[-1]), dtype=np.int32)
        nodes = self._pairs(each, each)
        with self._batch(source) as batch:
            _, kept = self._model.forward(batch)
            heads = [self._upload(np.tile(head, (source.n_graphs, 1))) for head in self._heads]
            found = [self._model.gradients(batch, kept, head, edges, nodes) for head in heads]
            of_edges = [sum(map(self._at.read, one.edges)) for one in found]
            return Contributions(np.stack([self._at.read(one.nodes) for one in found], 1), np.stack(of_edges, 1))

    @contextmanager
    def _batch(self, source: BatchSource) -> Iterator[Batch]:
        with closing(self._at.feed(source, missing_targets(source.header, source.n_graphs))) as feed:
            yield feed.gather(np.arange(source.n_graphs))

    def _pairs(self, rows: Int32, columns: Int32) -> Pairs:
        return Pairs(self._upload(rows), self._upload(columns))

    def _upload(self, values: NDArray[Any]) -> Array:
        flat = self._at.zeros(values.size, values.dtype.type)
        self._at.write(flat, values.ravel())
        return self._at.view(flat, 0, values.shape)
