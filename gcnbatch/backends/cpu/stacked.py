"""Operations of K models of one architecture on one batch, for batches of few nodes.

There, the calls of NumPy take more time than the arithmetic: one call for all models replaces K. Arrays have a leading
axis of the models: nodes (K, N, P), weights (K, F, P), vectors (K, 1, P). The features of the nodes, which all models
read, have none. Results differ from those of one model by rounding at most: products have other shapes. They repeat to
the bit, and those of a model do not depend on the other models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Stacked
from gcnbatch.backends.blas import BlasThreads
from gcnbatch.backends.cpu.sources import HostAdjacency
from gcnbatch.backends.ops import Csr, Ops, Readout
from gcnbatch.data.graph_features import HostFeatures

Float = NDArray[np.float32]
_threads = BlasThreads()
_MOST = 4  # graphs: with more, arrays of all models leave the caches, and calls take little of the time


def stacked(ops: Ops, parameters: Sequence[Mapping[str, Float]]) -> Stacked:
    """Return the stacked operations and parameters of models, from the operations and parameters of each."""
    found = {name: np.stack([of[name] for of in parameters]) for name in parameters[0]}
    vectors = {name: values[:, None] for name, values in found.items() if values.ndim == 2}
    return Stacked(StackedOps(ops), found | vectors, _MOST)


class StackedOps:
    """What the forward pass of a prediction needs of `gcnbatch.backends.ops.Ops`, for all models at once.

    Parameters
    ----------
    ops : Ops
        Those of one model, on the CPU.
    """

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def matmul(self, x: Float, w: Float, graphs: Any = None) -> Float:
        _threads.fit(0)
        return x @ w

    def sparse_matmul(self, x: Csr, w: Float) -> Float:
        return np.stack([self._ops.sparse_matmul(x, one) for one in w])

    def bias_add(self, y: Float, b: Float, graphs: Any = None, out: Float | None = None) -> Float:
        return np.add(y, b, out=out)

    def linear(self, x: Float, w: Float, b: Float, graphs: Any = None) -> Float:
        y = self.matmul(x, w)
        y += b
        return y

    def spmm(self, adjacency: Any, h: Float, zeros: float = 0.0) -> Float:
        if h.ndim == 2:  # the features, which all models read
            found: Float = self._ops.spmm(adjacency, h)
            return found
        rows = h.shape[1] * adjacency.n_channels
        return _by_rows(h.reshape(len(h), rows, -1), lambda wide: self._ops.sparse_matmul(adjacency.forward, wide))

    def convolve(self, adjacency: Any, x: Float, w: Float, b: Float) -> tuple[Float, None]:
        if isinstance(adjacency, HostAdjacency) and (atoms := adjacency.atoms(x)) is not None:
            adjacency, x = atoms.adjacency, atoms.x
        return self.spmm(adjacency, self.linear(x, w, b)), None

    def batch_norm(
        self,
        x: Float,
        gamma: Float,
        beta: Float,
        running_mean: Float,
        running_var: Float,
        epsilon: float,
        momentum: float,
        training: bool,
        relu: bool = False,
    ) -> tuple[Float, None]:
        y = x - running_mean
        y *= gamma / np.sqrt(running_var + np.float32(epsilon))
        y += beta
        return (self.relu(y, out=y) if relu else y), None

    def layer_norm(self, x: Float, gamma: Float, beta: Float, epsilon: float, relu: bool = False) -> tuple[Float, None]:
        y = x - x.mean(axis=-1, keepdims=True)
        y *= gamma / np.sqrt(np.square(y).mean(axis=-1, keepdims=True) + np.float32(epsilon))
        y += beta
        return (self.relu(y, out=y) if relu else y), None

    def relu(self, x: Float, out: Float | None = None) -> Float:
        return np.maximum(x, np.float32(0), out=out)

    def add(self, a: Float, b: Float) -> Float:
        return a + b

    def maximum(self, a: Float, b: Float) -> Float:
        return np.maximum(a, b)

    def concatenate(self, parts: Sequence[Float]) -> Float:
        return np.concatenate(list(parts), axis=-1)

    def readout(self, h: Float, node_ptr: NDArray[np.int64], kind: Readout) -> tuple[Float, None]:
        return _by_rows(h, lambda wide: self._ops.readout(wide, node_ptr, kind)[0]), None

    def readout_backward(self, dr: Float, node_ptr: NDArray[np.int64], kind: Readout, saved: Any) -> Float:
        return _by_rows(dr, lambda wide: self._ops.readout_backward(wide, node_ptr, kind, saved))

    def join(self, r: Float, features: Any, mean: Float, scale: Float, limit: float) -> Float:
        z = features.values[features.rows] - mean
        missing = np.isnan(z)
        z *= scale
        np.clip(z, -limit, limit, out=z)
        z[missing] = 0
        return self.concatenate([r, z])

    def join_linear(
        self, r: Float, features: Any, mean: Float, scale: Float, limit: float, w: Float, b: Float
    ) -> tuple[Float, None]:
        if not isinstance(features, HostFeatures):
            return self.linear(self.join(r, features, mean, scale, limit), w, b), None
        first = mean.shape[-1] - features.counts.n_cols
        counts = features.scaled_counts(mean[..., first:], scale[..., first:], limit)
        if counts is None:
            return self.linear(self.join(r, features, mean, scale, limit), w, b), None
        x = self.join(r, features.measured, mean[..., :first], scale[..., :first], limit)
        dense = x.shape[-1]
        y = self.linear(x, w[:, :dense], b)
        scaled = [Csr(counts.indptr, counts.indices, values[0], counts.n_cols) for values in counts.data]
        y += np.stack([self._ops.sparse_matmul(*pair) for pair in zip(scaled, w[:, dense:], strict=True)])
        return y, None


def _by_rows(h: Float, function: Callable[[Float], Float]) -> Float:
    """Apply a function of rows (N, any), which maps each column alone, to the rows of all models, (K, N, P)."""
    models, rows, width = h.shape
    y = function(h.transpose(1, 0, 2).reshape(rows, models * width))
    return y.reshape(len(y), models, width).transpose(1, 0, 2)
