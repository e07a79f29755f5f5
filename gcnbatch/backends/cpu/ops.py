"""Operations of backend ``cpu`` in float32: dense products run in BLAS through NumPy, sparse products in SciPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import _sparsetools

from gcnbatch import philox
from gcnbatch.backends.blas import BlasThreads
from gcnbatch.backends.cpu.costs import SigmoidCosts, SoftmaxCosts, regression_costs, sigmoid_costs, softmax_costs
from gcnbatch.backends.cpu.sources import Atoms, HostAdjacency, Sources
from gcnbatch.backends.ops import Adjacency, Csr, DropoutKey, GraphFeatures, LossKind, Reader, Readout
from gcnbatch.data.graph_features import HostFeatures
from gcnbatch.data.weighted_targets import split
from gcnbatch.reference.arrays import into
from gcnbatch.reference.composed import ComposedOps

Float = NDArray[np.float32]
_threads = BlasThreads()


class Kept(NamedTuple):
    """Which elements' gradients pass ReLU and dropout, and the scale of these."""

    mask: NDArray[np.bool_]
    scale: np.float32


class _Wide(NamedTuple):
    """Rows (M, F) of the input of a convolution, of its sources."""

    sources: Sources
    x: Float


class CpuOps(ComposedOps):
    """`gcnbatch.backends.ops.Ops` on the CPU. Deterministic: the same inputs and thread count give the same bits.

    Small dense products run on one BLAS thread: see `gcnbatch.backends.blas`.
    """

    def matmul(self, x: Float, w: Float, graphs: Adjacency | None = None) -> Float:
        _threads.fit(x.size * w.shape[1])
        return x @ w

    def matmul_backward(
        self,
        dy: Float,
        x: Float,
        w: Float,
        need_dx: bool = True,
        out: Float | None = None,
        graphs: Adjacency | None = None,
    ) -> tuple[Float | None, Float]:
        _threads.fit(x.size * w.shape[1])
        return (dy @ w.T if need_dx else None), np.matmul(x.T, dy, out=out)

    def matmul_dx(self, dy: Float, w: Float, graphs: Adjacency | None = None, kept: Kept | None = None) -> Float:
        _threads.fit(dy.size * len(w))
        dx = dy @ w.T
        return dx if kept is None else self.relu_dropout_backward(dx, kept, out=dx)

    def sparse_matmul(self, x: Csr, w: Float) -> Float:
        return _product(x, w)

    def sparse_matmul_backward(self, dy: Float, x: Csr, out: Float | None = None) -> Float:
        dw = np.zeros((x.n_cols, dy.shape[1]), dtype=dy.dtype) if out is None else out
        dw[...] = 0
        _sparsetools.csc_matvecs(x.n_cols, len(dy), dy.shape[1], x.indptr, x.indices, x.data, dy.ravel(), dw.ravel())
        return dw

    def bias_add(self, y: Float, b: Float, graphs: Adjacency | None = None, out: Float | None = None) -> Float:
        return np.add(y, b, out=out)

    def bias_add_backward(self, dy: Float, out: Float | None = None, graphs: Adjacency | None = None) -> Float:
        return into(out, _column_sums(dy))

    def linear(self, x: Float, w: Float, b: Float, graphs: Adjacency | None = None) -> Float:
        y = self.matmul(x, w, graphs)
        return self.bias_add(y, b, graphs, out=y)

    def linear_backward(
        self,
        dy: Float,
        x: Float,
        w: Float,
        need_dx: bool = True,
        out: tuple[Float, Float] | None = None,
        graphs: Adjacency | None = None,
    ) -> tuple[Float | None, Float, Float]:
        dw, db = out or (None, None)
        db = self.bias_add_backward(dy, db, graphs)
        dx, dw = self.matmul_backward(dy, x, w, need_dx, dw, graphs)
        return dx, dw, db

    def spmm(self, adjacency: Adjacency, h: Float, zeros: float = 0.0) -> Float:
        channels = adjacency.n_channels
        return _product(adjacency.forward, h.reshape(h.shape[0] * channels, h.shape[1] // channels))

    def spmm_backward(self, adjacency: Adjacency, dy: Float, zeros: float = 0.0) -> Float:
        dh = _product(adjacency.transpose, dy)
        return dh.reshape(len(dh) // adjacency.n_channels, adjacency.n_channels * dy.shape[1])

    def convolve(self, adjacency: Adjacency, x: Float, w: Float, b: Float) -> tuple[Float, Any]:
        if not isinstance(adjacency, HostAdjacency):
            return super().convolve(adjacency, x, w, b)
        if (atoms := adjacency.atoms(x)) is not None:
            return super().convolve(atoms.adjacency, atoms.x, w, b)[0], atoms
        if (sources := adjacency.sources) is None:
            return super().convolve(adjacency, x, w, b)
        _threads.fit(0)
        width, wide = w.shape[1] // adjacency.n_channels, x.take(sources.nodes, axis=0)
        z = np.empty((len(wide), width), np.float32)
        for channel, first, end in sources.channels:
            columns, part = slice(channel * width, (channel + 1) * width), z[first:end]
            np.matmul(wide[first:end], w[:, columns], out=part)
        self._add_by_channel(z, sources.bounds, b.reshape(-1, width))
        return self.sparse_matmul(sources.forward, z), _Wide(sources, wide)

    def _add_by_channel(self, z: Float, bounds: NDArray[Any], b: Float) -> None:
        """Add row c of `b` (C, P) to the rows of `z` from bounds[c] to bounds[c + 1]."""
        z += b.repeat(np.diff(bounds), axis=0)

    def convolve_backward(
        self,
        adjacency: Adjacency,
        dy: Float,
        saved: Any,
        w: Float,
        need_dx: bool = True,
        out: tuple[Float, Float] | None = None,
    ) -> tuple[Float | None, Float, Float]:
        if isinstance(saved, Atoms):
            assert not need_dx, "the features have no gradient"
            return super().convolve_backward(saved.adjacency, dy, saved.x, w, False, out)
        if not isinstance(saved, _Wide):
            return super().convolve_backward(adjacency, dy, saved, w, need_dx, out)
        _threads.fit(0)
        sources, wide = saved
        width, dz = dy.shape[1], self.sparse_matmul(sources.transpose, dy)
        dwide = np.empty_like(wide) if need_dx else wide
        dw, db = out or (np.empty_like(w), np.empty(w.shape[1], np.float32))
        channels, ones = sources.channels, np.ones(len(dz), np.float32)
        if len(channels) < adjacency.n_channels:
            dw[...], db[...] = 0, 0
        for channel, first, end in channels:
            columns, part = slice(channel * width, (channel + 1) * width), dz[first:end]
            np.matmul(wide[first:end].T, part, out=dw[:, columns])
            np.matmul(ones[first:end], part, out=db[columns])
            if need_dx:
                np.matmul(part, w[:, columns].T, out=dwide[first:end])
        return (self._sums_of_rows(dwide, sources, len(dy)) if need_dx else None), dw, db

    def _sums_of_rows(self, dwide: Float, sources: Sources, n_rows: int) -> Float:
        """Return the sum of the rows of all pairs of each node."""
        dx = np.zeros((n_rows, dwide.shape[1]), np.float32)
        for _, first, end in sources.channels:
            dx[sources.nodes[first:end]] += dwide[first:end]  # a channel has no node twice
        return dx

    def sddmm(self, a: Float, b: Float, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> Float:
        wide = b.reshape(-1, a.shape[1])
        return np.einsum("ep,ep->e", a.take(rows, axis=0), wide.take(columns, axis=0))

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
    ) -> tuple[Float, Any]:
        n = len(x)
        if training and n:
            mean, var, centred = _moments(x)
            update_running(running_mean, running_var, mean, var, n, momentum)
        else:
            centred = x - running_mean
            var = running_var
        inverse = 1 / np.sqrt(var + np.float32(epsilon))
        y = centred * (gamma * inverse)
        y += beta
        if relu:
            np.maximum(y, np.float32(0), out=y)
        return y, (centred, inverse, y if relu else None)

    def batch_norm_moments(self, x: Float) -> tuple[Float, Float]:
        return _moments(x)[:2]

    def batch_norm_backward(
        self, dy: Float, saved: Any, gamma: Float, out: tuple[Float, Float] | None = None
    ) -> tuple[Float, Float, Float]:
        dgamma, dbeta, dy = self.batch_norm_sums(dy, saved, out)
        return self.batch_norm_dx(dy, saved, gamma, dgamma, dbeta, len(dy)), dgamma, dbeta

    def batch_norm_sums(
        self, dy: Float, saved: Any, out: tuple[Float, Float] | None = None
    ) -> tuple[Float, Float, Float]:
        centred, inverse, y = saved
        if y is not None:
            dy = dy * (y > 0)
        dgamma, dbeta = out or (None, None)
        return into(dgamma, np.einsum("np,np->p", dy, centred) * inverse), into(dbeta, _column_sums(dy)), dy

    def batch_norm_dx(self, dy: Float, saved: Any, gamma: Float, dgamma: Float, dbeta: Float, rows: int) -> Float:
        centred, inverse, _ = saved
        n = np.float32(max(rows, 1))
        dx: Float = centred * (inverse * dgamma / -n)
        dx += dy
        dx -= dbeta / n
        dx *= gamma * inverse
        return dx

    def layer_norm(self, x: Float, gamma: Float, beta: Float, epsilon: float, relu: bool = False) -> tuple[Float, Any]:
        width = np.float32(x.shape[1])
        x_hat = x - _row_sums(x) / width
        inverse = 1 / np.sqrt(np.einsum("np,np->n", x_hat, x_hat)[:, None] / width + np.float32(epsilon))
        x_hat *= inverse
        y = gamma * x_hat
        y += beta
        if relu:
            np.maximum(y, np.float32(0), out=y)
        return y, (x_hat, inverse, y if relu else None)

    def layer_norm_backward(
        self, dy: Float, saved: Any, gamma: Float, out: tuple[Float, Float] | None = None
    ) -> tuple[Float, Float, Float]:
        x_hat, inverse, y = saved
        if y is not None:
            dy = dy * (y > 0)
        width = np.float32(dy.shape[1])
        dbeta, dgamma = _column_sums(dy), np.einsum("np,np->p", dy, x_hat)
        dx = dy * gamma
        shift, slope = _row_sums(dx) / width, np.einsum("np,np->n", dx, x_hat)[:, None] / width
        dx -= shift
        dx -= x_hat * slope
        dx *= inverse
        if out is None:
            return dx, dgamma, dbeta
        return dx, into(out[0], dgamma), into(out[1], dbeta)

    def relu(self, x: Float, out: Float | None = None) -> Float:
        return np.maximum(x, np.float32(0), out=out)

    def relu_backward(self, dy: Float, y: Float, out: Float | None = None) -> Float:
        return np.multiply(dy, y > 0, out=out)

    def add(self, a: Float, b: Float) -> Float:
        return a + b

    def maximum(self, a: Float, b: Float) -> Float:
        return np.maximum(a, b)

    def maximum_backward(self, dy: Float, a: Float, b: Float) -> tuple[Float, Float]:
        da = dy * (a >= b)
        return da, dy - da

    def concatenate(self, parts: Sequence[Float]) -> Float:
        return np.concatenate(list(parts), axis=1)

    def concatenate_backward(self, dy: Float, widths: Sequence[int]) -> tuple[Float, ...]:
        return tuple(part.copy() for part in np.split(dy, np.cumsum(widths)[:-1], axis=1))

    def take(self, x: Float, rows: NDArray[np.int32]) -> Float:
        return x[rows]

    def dropout(self, x: Float, rate: float, key: DropoutKey) -> tuple[Float, NDArray[np.bool_]]:
        mask = _dropout_mask(x, rate, key)
        return self.dropout_backward(x, mask, rate), mask

    def dropout_backward(self, dy: Float, mask: NDArray[np.bool_], rate: float) -> Float:
        return np.multiply(dy, mask, dtype=np.float32) * np.float32(1 / (1 - rate))

    def relu_dropout(
        self, x: Float, rate: float, key: DropoutKey, out: Float | None = None, reader: Reader | None = None
    ) -> tuple[Float, Kept]:
        y, mask = self.relu(x, out), _dropout_mask(x, rate, key)
        kept = Kept(mask & (y > 0), np.float32(1 / (1 - rate)))
        y *= mask
        y *= kept.scale
        return y, kept

    def relu_dropout_backward(self, dy: Float, kept: Kept, out: Float | None = None) -> Float:
        dx = np.multiply(dy, kept.mask, out=out, dtype=np.float32)
        dx *= kept.scale
        return dx

    def readout(self, h: Float, node_ptr: NDArray[np.int64], kind: Readout) -> tuple[Float, Any]:
        if kind == "max":
            r = _segment_max(h, node_ptr)
            return r, _Maxima(node_ptr, h, r)
        # float64: outputs far smaller than the sums of a large graph would lose digits
        return _product(_membership(node_ptr, kind), h.astype(np.float64)).astype(h.dtype), None

    def readout_backward(self, dr: Float, node_ptr: NDArray[np.int64], kind: Readout, saved: Any) -> Float:
        if kind == "max":
            return _segment_max_backward(dr, saved)
        return np.repeat(dr if kind == "sum" else dr * _inverse_sizes(node_ptr)[:, None], np.diff(node_ptr), axis=0)

    def join(self, r: Float, features: GraphFeatures, mean: Float, scale: Float, limit: float) -> Float:
        b, p = r.shape
        y = np.empty((b, p + len(mean)), dtype=r.dtype)
        y[:, :p], z = r, y[:, p:]
        np.subtract(features.values[features.rows], mean, out=z)
        missing = np.isnan(z)
        z *= scale
        np.clip(z, -limit, limit, out=z)
        z[missing] = 0
        return y

    def join_backward(self, dy: Float, width: int) -> Float:
        return np.ascontiguousarray(dy[:, :width])

    def join_linear(
        self, r: Float, features: GraphFeatures, mean: Float, scale: Float, limit: float, w: Float, b: Float
    ) -> tuple[Float, Any]:
        if not isinstance(features, HostFeatures):
            return super().join_linear(r, features, mean, scale, limit, w, b)
        first = len(mean) - features.counts.n_cols
        counts = features.scaled_counts(mean[first:], scale[first:], limit)
        if counts is None:
            return super().join_linear(r, features, mean, scale, limit, w, b)
        x = self.join(r, features.measured, mean[:first], scale[:first], limit)
        y = self.linear(x, w[: x.shape[1]], b)
        y += self.sparse_matmul(counts, w[x.shape[1] :])
        return y, (x, counts)

    def join_linear_backward(
        self,
        dy: Float,
        saved: Any,
        w: Float,
        width: int,
        need_dr: bool = True,
        out: tuple[Float, Float] | None = None,
    ) -> tuple[Float | None, Float, Float]:
        x, counts = saved if isinstance(saved, tuple) else (saved, None)
        dw, db = out or (np.empty_like(w), np.empty(w.shape[1], np.float32))
        dense = x.shape[1]
        self.linear_backward(dy, x, w[:dense], need_dx=False, out=(dw[:dense], db))
        if counts is not None:
            self.sparse_matmul_backward(dy, counts, out=dw[dense:])
        return (self.matmul_dx(dy, w[:width]) if need_dr else None), dw, db

    def sigmoid_cross_entropy(
        self, logits: Float, y: Float, pos_weight: Float, totals: NDArray[np.float64] | None = None
    ) -> tuple[float, float, Float]:
        costs = sigmoid_costs(logits, y, pos_weight)
        count = float(np.count_nonzero(~np.isnan(y)))
        gradient = _sigmoid_slopes(logits, costs)
        total = add_to(totals, costs.costs.sum(dtype=np.float64), count)
        return total, count, gradient * np.float32(1 / max(count, 1.0))

    def softmax_cross_entropy(
        self,
        logits: Float,
        y: NDArray[np.int32],
        class_weight: Float,
        totals: NDArray[np.float64] | None = None,
    ) -> tuple[float, float, Float]:
        return _softmax_of(softmax_costs(logits, y, class_weight), logits, totals)

    def mean_squared_error(
        self, logits: Float, y: Float, totals: NDArray[np.float64] | None = None
    ) -> tuple[float, float, Float]:
        labelled = ~np.isnan(y)
        difference = np.where(labelled, logits - y, np.float32(0))
        count = float(np.count_nonzero(labelled))
        gradient = difference * np.float32(2 / max(count, 1.0))
        return add_to(totals, np.sum(difference * difference, dtype=np.float64), count), count, gradient

    def weighted_loss(
        self,
        logits: Float,
        y: Float,
        kind: LossKind,
        parameters: Float,
        totals: NDArray[np.float64] | None = None,
    ) -> tuple[float, float, Float]:
        values, weights, bounds = split(y)
        labelled = ~np.isnan(values)
        weights = np.where(labelled, weights, np.float32(0))
        if kind == "softmax":
            found = softmax_costs(logits, np.where(labelled, values, -1).astype(np.int32), parameters)
            own = weights[found.rows, 0]
            return _softmax_of(found._replace(costs=own * found.costs, weight=own * found.weight), logits, totals)
        if kind == "sigmoid":
            of_labels = sigmoid_costs(logits, values, parameters)
            costs, slopes = of_labels.costs, _sigmoid_slopes(logits, of_labels)
        else:
            difference = np.where(labelled, logits - values, np.float32(0))
            difference[bounds * difference > 0] = 0
            costs, slopes = regression_costs(difference, kind, parameters)
        weight = float(weights.sum(dtype=np.float64))
        total = add_to(totals, np.sum(weights * costs, dtype=np.float64), weight)
        return total, weight, weights * slopes * np.float32(1 / weight if weight else 0)

    def clip_norm(self, gradients: Float, max_norm: float) -> None:
        norm = float(np.linalg.norm(gradients.astype(np.float64)))
        if norm > max_norm:
            gradients *= np.float32(max_norm / norm)

    def adam_step(
        self,
        parameters: Float,
        gradients: Float,
        m: Float,
        v: Float,
        step: int,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: Float,
        l2: Float,
    ) -> None:
        g = l2 * parameters
        g += gradients
        m *= np.float32(beta1)
        m += np.float32(1 - beta1) * g
        v *= np.float32(beta2)
        g *= g
        g *= np.float32(1 - beta2)
        v += g
        denominator = np.sqrt(v * np.float32(1 / (1 - beta2**step)))
        denominator += np.float32(epsilon)
        update = m * np.float32(1 / (1 - beta1**step))
        update /= denominator
        update += weight_decay * parameters
        update *= np.float32(learning_rate)
        parameters -= update

    def sgd_step(
        self,
        parameters: Float,
        gradients: Float,
        velocity: Float,
        learning_rate: float,
        momentum: float,
        weight_decay: Float,
        l2: Float,
    ) -> None:
        velocity *= np.float32(momentum)
        velocity += gradients + l2 * parameters
        parameters -= np.float32(learning_rate) * (velocity + weight_decay * parameters)


def _sigmoid_slopes(logits: Float, costs: SigmoidCosts) -> Float:
    """Return the derivative of each cost."""
    larger = 1 / (1 + costs.decay)
    smaller = costs.decay * larger
    positive, is_positive = costs.positive, logits >= 0
    return costs.negative * np.where(is_positive, larger, smaller) - positive * np.where(is_positive, smaller, larger)


def _softmax_of(costs: SoftmaxCosts, logits: Float, totals: NDArray[np.float64] | None) -> tuple[float, float, Float]:
    """Return what `Ops.softmax_cross_entropy` does."""
    total = float(costs.weight.sum(dtype=np.float64))
    gradient = np.zeros_like(logits)
    probability = costs.exponent / costs.norm
    probability[np.arange(len(costs.rows)), costs.labels] -= 1
    gradient[costs.rows] = probability * (costs.weight / np.float32(total or 1.0))[:, None]
    return add_to(totals, costs.costs.sum(dtype=np.float64), total), total, gradient


def add_to(totals: NDArray[np.float64] | None, loss: float, weight: float) -> float:
    """Add a loss and its weight to `totals`, if given, and return the loss."""
    if totals is not None:
        totals += (loss, weight)
    return float(loss)


def update_running(running_mean: Float, running_var: Float, mean: Float, var: Float, n: int, momentum: float) -> None:
    """Move the running statistics of batch norm, in place, towards the mean and biased variance of a batch's n rows."""
    running_mean += np.float32(momentum) * (mean - running_mean)
    running_var += np.float32(momentum) * (var * np.float32(n / max(n - 1, 1)) - running_var)


def _moments(x: Float) -> tuple[Float, Float, Float]:
    """Return mean and biased variance of the columns, and x minus the mean; zeros without rows."""
    n = np.float32(max(len(x), 1))
    mean = _column_sums(x) / n
    centred = x - mean
    return mean, np.einsum("np,np->p", centred, centred) / n, centred


def _dropout_mask(x: Float, rate: float, key: DropoutKey) -> NDArray[np.bool_]:
    drawn = philox.bits(key.seed, key.purpose, key.epoch, key.step, x.size, key.first).reshape(x.shape)
    return drawn >= np.uint32(int(rate * 2**32))


def _column_sums(x: Float) -> Float:
    """Return the sum over rows as a product with ones: BLAS is several times faster than `sum(axis=0)`."""
    return np.ones(len(x), dtype=x.dtype) @ x


def _row_sums(x: Float) -> Float:
    """Return the sums over columns, (N, 1)."""
    return (x @ np.ones(x.shape[1], dtype=x.dtype))[:, None]


def _inverse_sizes(node_ptr: NDArray[np.int64]) -> Float:
    return (1 / np.maximum(np.diff(node_ptr), 1)).astype(np.float32)


def _product(matrix: Csr, dense: Float) -> Float:
    """Return sparse times dense.

    This calls the routine behind SciPy's ``@``. Building a SciPy matrix first would take as long as the product.
    """
    out = np.zeros((len(matrix.indptr) - 1, dense.shape[1]), dtype=dense.dtype)
    flat, sizes = np.ascontiguousarray(dense).ravel(), (len(out), matrix.n_cols, out.shape[1])
    _sparsetools.csr_matvecs(*sizes, matrix.indptr, matrix.indices, matrix.data, flat, out.ravel())
    return out


def _membership(node_ptr: NDArray[np.int64], kind: Readout) -> Csr:
    """Return the matrix (B, N) whose product with H sums (or averages) each graph's rows."""
    n = int(node_ptr[-1])
    sizes = np.diff(node_ptr)
    data = np.ones(n) if kind == "sum" else np.repeat(1 / np.maximum(sizes, 1), sizes)
    return Csr(node_ptr.astype(np.int32), np.arange(n, dtype=np.int32), data, n)


def _segment_max(h: Float, node_ptr: NDArray[np.int64]) -> Float:
    """Return each graph's maxima, (B, P); 0 for a graph without nodes.

    A loop: `np.maximum.reduceat` needs 1 to 6 times as long.
    """
    r = np.zeros((len(node_ptr) - 1, h.shape[1]), dtype=h.dtype)
    for graph, first, end in _filled(node_ptr):
        np.maximum.reduce(h[first:end], axis=0, out=r[graph])
    return r


def _segment_max_backward(dr: Float, maxima: _Maxima) -> Float:
    """Return dH (N, P): dR at the first row that holds the maximum R of its graph."""
    graphs, rows = maxima.places
    dh = np.zeros(maxima.h.shape, dtype=dr.dtype)
    dh[rows, np.arange(maxima.h.shape[1])] = dr[graphs]
    return dh


@dataclass(frozen=True, eq=False)
class _Maxima:
    """Maxima R (B, P) of each graph's rows of H (N, P)."""

    node_ptr: NDArray[np.int64]
    h: Float
    r: Float

    @cached_property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The G graphs with nodes, and the first row that holds each of their maxima, (G, P).

        NaN equals nothing: the graph's first row then counts. An explanation asks once per output, so this is kept.
        """
        graphs = np.flatnonzero(np.diff(self.node_ptr))
        winner = np.empty((len(graphs), self.h.shape[1]), dtype=np.int64)
        for row, (graph, first, end) in zip(winner, _filled(self.node_ptr), strict=True):
            (self.h[first:end] == self.r[graph]).argmax(axis=0, out=row)
        return graphs, winner + self.node_ptr[graphs, None]


def _filled(node_ptr: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield number, first row and end of each graph with nodes."""
    rows = node_ptr.tolist()
    return ((graph, *pair) for graph, pair in enumerate(pairwise(rows)) if pair[0] < pair[1])
