"""Running error analysis: the operations on numbers that carry a bound of their float32 error.

`RoundedOps` evaluates each operation in float64. Every number is a `Rounded`: an exact value, and a bound of the
distance to the float32 value that a correct program computes for it. An operation propagates the bounds of its operands
and adds its own rounding (Higham: "Accuracy and stability of numerical algorithms", 2nd ed., SIAM 2002, sections 2.2,
3.1, 3.3). The bound is componentwise and holds for every order of summation. No float32 run enters it.

- One of + - * sqrt has a relative error of at most u = 2^-24, / of 2 u, as the reciprocal may be rounded before. A
  product below 2^-126 may become 0.
- A sum of n terms errs by at most gamma(n - 1) sum |term|, a product of matrices by gamma(n) |X| |W|; see
  `gcnbatch.reference.rounding`.
- exp, log and log1p err by at most 4 units in the last place: NumPy documents 2.5 and 3.8, CUDA 2.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from gcnbatch.backends.ops import DropoutKey
from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.reference import dropout as reference_dropout
from gcnbatch.reference.composed import ComposedOps
from gcnbatch.reference.rounding import SMALLEST, UNIT, gamma, product_bound

ELEMENTARY = 8  # units u of an elementary function

Float = NDArray[np.float64]


class Rounded:
    """Exact values and bounds of their float32 errors: two arrays of one shape, with the operations of an array."""

    __array_ufunc__ = None  # NumPy arrays defer arithmetic with a Rounded to this class

    def __init__(self, value: ArrayLike, error: ArrayLike = 0.0) -> None:
        self.value = np.array(value, dtype=np.float64)
        self.error = np.array(np.broadcast_to(error, self.value.shape), dtype=np.float64)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def T(self) -> Rounded:
        return Rounded(self.value.T, self.error.T)

    @property
    def reach(self) -> Float:
        """Largest magnitude that the float32 value may have."""
        return np.abs(self.value) + self.error

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Rounded:
        return Rounded(self.value[index], self.error[index])

    def __setitem__(self, index: Any, other: Rounded) -> None:
        self.value[index], self.error[index] = other.value, other.error

    def __neg__(self) -> Rounded:
        return Rounded(-self.value, self.error)

    def __add__(self, other: Any) -> Rounded:
        other = lift(other)
        value = self.value + other.value
        error = self.error + other.error
        return Rounded(value, error + UNIT * (np.abs(value) + error))

    def __sub__(self, other: Any) -> Rounded:
        return self + -lift(other)

    def __mul__(self, other: Any) -> Rounded:
        other = lift(other)
        value = self.value * other.value
        error = self.reach * other.reach - np.abs(value)
        return Rounded(value, error + UNIT * self.reach * other.reach + SMALLEST)

    def __truediv__(self, other: Any) -> Rounded:
        other = lift(other)
        value = self.value / other.value
        room = np.abs(other.value) - other.error
        assert np.all(room > 0), "a divisor may be zero"
        error = (self.error + np.abs(value) * other.error) / room
        return Rounded(value, error + 2 * UNIT * (np.abs(value) + error) + SMALLEST)

    def __matmul__(self, other: Rounded) -> Rounded:
        propagated = sum(
            left @ right
            for left, right in ((np.abs(self.value), other.error), (self.error, other.reach))
            if left.any() and right.any()  # inputs are exact, and their products take most of the time
        )
        rounding = product_bound(len(other), self.reach @ other.reach)
        return Rounded(self.value @ other.value, propagated + rounding)

    def __radd__(self, other: Any) -> Rounded:
        return lift(other) + self

    def __rsub__(self, other: Any) -> Rounded:
        return lift(other) - self

    def __rmul__(self, other: Any) -> Rounded:
        return lift(other) * self

    def __rtruediv__(self, other: Any) -> Rounded:
        return lift(other) / self

    def sum(self, axis: int | None = None) -> Rounded:
        count = self.value.size if axis is None else self.shape[axis]
        rounding = gamma(max(count - 1, 0)) * self.reach.sum(axis=axis)
        return Rounded(self.value.sum(axis=axis), self.error.sum(axis=axis) + rounding)

    def square(self) -> Rounded:
        return self * self

    def sqrt(self) -> Rounded:
        value = np.sqrt(self.value)
        error = value - np.sqrt(np.maximum(self.value - self.error, 0))
        return Rounded(value, error + UNIT * (value + error))

    def exp(self) -> Rounded:
        value = np.exp(self.value)
        return elementary(value, value * np.expm1(self.error))

    def log(self) -> Rounded:
        return elementary(np.log(self.value), -np.log1p(-self.error / self.value))

    def log1p(self) -> Rounded:
        return elementary(np.log1p(self.value), self.error / (1 + self.value - self.error))

    def positive(self) -> Rounded:
        """Return max(., 0): exact, and 0 where the float32 value cannot be positive."""
        return Rounded(np.maximum(self.value, 0), np.where(self.value + self.error > 0, self.error, 0))

    def where(self, mask: NDArray[np.bool_]) -> Rounded:
        """Return the value where `mask` holds, else 0."""
        return Rounded(np.where(mask, self.value, 0), np.where(mask, self.error, 0))


def lift(number: Any) -> Rounded:
    """Return a constant rounded to float32; it is exact if float32 can represent it."""
    if isinstance(number, Rounded):
        return number
    value = np.asarray(number, dtype=np.float64)
    exact = value == value.astype(np.float32)
    return Rounded(value, np.where(exact, 0, UNIT * np.abs(value)))


def elementary(value: Float, error: Float) -> Rounded:
    """Return the result of an elementary function, whose operand contributes `error`."""
    return Rounded(value, error + ELEMENTARY * UNIT * (np.abs(value) + error) + SMALLEST)


def into(out: Rounded | None, result: Rounded) -> Rounded:
    """Return `result`, written to `out` when one is given."""
    if out is None:
        return result
    out[...] = result
    return out


def sparse_product(matrix: Csr, dense: Rounded) -> Rounded:
    """Sparse times dense: a row of n entries errs by gamma(n) |A| |H|. Entries are given, hence exact."""
    entries, shape = matrix.data.value, (len(matrix.indptr) - 1, matrix.n_cols)
    # abs() of a matrix would first sum repeated entries.
    a, size = (sp.csr_array((data, matrix.indices, matrix.indptr), shape=shape) for data in (entries, np.abs(entries)))
    error = size @ dense.error + product_bound(np.diff(matrix.indptr), size @ dense.reach)
    return Rounded(a @ dense.value, error)


def transposed(matrix: Csr) -> Csr:
    """Return the transpose with repeated entries, each of which is a separate term."""
    row = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
    order = np.argsort(matrix.indices, kind="stable")
    counts = np.bincount(matrix.indices, minlength=matrix.n_cols)
    return Csr(np.concatenate([[0], np.cumsum(counts)]), row[order], matrix.data[order], len(matrix.indptr) - 1)


def softplus(z: Rounded) -> Rounded:
    """max(z, 0) + log(1 + exp(-|z|)) of exact z."""
    return z.positive() + Rounded(-np.abs(z.value)).exp().log1p()


class RoundedOps(ComposedOps):
    """`gcnbatch.backends.ops.Ops` on `Rounded` arrays, by the formulas of the reference."""

    def matmul(self, x: Rounded, w: Rounded, graphs: object = None) -> Rounded:
        return x @ w

    def matmul_backward(self, dy, x, w, need_dx=True, out=None, graphs=None):
        return (dy @ w.T if need_dx else None), into(out, x.T @ dy)

    def matmul_dx(self, dy: Rounded, w: Rounded, graphs: object = None, kept=None) -> Rounded:
        dx = dy @ w.T
        return dx if kept is None else self.relu_dropout_backward(dx, kept)

    def sparse_matmul(self, x: Csr, w: Rounded) -> Rounded:
        return sparse_product(x, w)

    def sparse_matmul_backward(self, dy: Rounded, x: Csr, out: Rounded | None = None) -> Rounded:
        return into(out, sparse_product(transposed(x), dy))

    def bias_add(self, y: Rounded, b: Rounded, graphs: object = None, out: Rounded | None = None) -> Rounded:
        return into(out, y + b)

    def bias_add_backward(self, dy: Rounded, out: Rounded | None = None, graphs: object = None) -> Rounded:
        return into(out, dy.sum(axis=0))

    def linear(self, x: Rounded, w: Rounded, b: Rounded, graphs: object = None) -> Rounded:
        """Bound one sum of F + 1 terms: the bias may be its first."""
        ones = Rounded(np.ones((len(x), 1)))
        return join(x, ones, axis=1) @ join(w, b[None], axis=0)

    def linear_backward(self, dy, x, w, need_dx=True, out=None, graphs=None):
        dw, db = out or (None, None)
        return *self.matmul_backward(dy, x, w, need_dx, dw), self.bias_add_backward(dy, db)

    def spmm(self, adjacency: Adjacency, h: Rounded, zeros: float = 0.0) -> Rounded:
        channels = adjacency.n_channels
        shape = (h.shape[0] * channels, h.shape[1] // channels)
        return sparse_product(adjacency.forward, Rounded(h.value.reshape(shape), h.error.reshape(shape)))

    def spmm_backward(self, adjacency: Adjacency, dy: Rounded, zeros: float = 0.0) -> Rounded:
        dh = sparse_product(adjacency.transpose, dy)
        shape = (dy.shape[0], adjacency.n_channels * dy.shape[1])
        return Rounded(dh.value.reshape(shape), dh.error.reshape(shape))

    def sddmm(self, a: Rounded, b: Rounded, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> Rounded:
        shape = (b.value.size // a.shape[1], a.shape[1])
        return (a[rows] * Rounded(b.value.reshape(shape), b.error.reshape(shape))[columns]).sum(axis=1)

    def batch_norm(self, x, gamma, beta, running_mean, running_var, epsilon, momentum, training, relu=False):
        n, mean, var = len(x), running_mean, running_var
        if training and n > 0:
            mean = x.sum(axis=0) / n
            var = (x - mean).square().sum(axis=0) / n
            running_mean[...] = (1 - momentum) * running_mean + momentum * mean
            running_var[...] = (1 - momentum) * running_var + momentum * (n / max(n - 1, 1)) * var
        inverse_std = 1 / (var + epsilon).sqrt()
        x_hat = (x - mean) * inverse_std
        y = gamma * x_hat + beta
        return (y.positive() if relu else y), (x_hat, inverse_std, y if relu else None)

    def batch_norm_backward(self, dy, saved, gamma, out=None):
        """Bound the gradients; a ReLU whose input is within its bound of 0 may take either side, an error of dy."""
        x_hat, inverse_std, y = saved
        if y is not None:
            unsure = (np.abs(y.value) <= y.error) & (dy.value != 0)
            dy = dy.where(y.value > 0)
            dy = Rounded(dy.value, np.where(unsure, np.inf, dy.error))
        n = max(len(dy), 1)
        dbeta, dgamma = dy.sum(axis=0), (dy * x_hat).sum(axis=0)
        dx = gamma * inverse_std * (dy - dbeta / n - x_hat * dgamma / n)
        return (dx, dgamma, dbeta) if out is None else (dx, into(out[0], dgamma), into(out[1], dbeta))

    def layer_norm(self, x, gamma, beta, epsilon, relu=False):
        width = x.shape[1]
        centred = x - x.sum(axis=1)[:, None] / width
        inverse_std = 1 / (centred.square().sum(axis=1)[:, None] / width + epsilon).sqrt()
        x_hat = centred * inverse_std
        y = gamma * x_hat + beta
        return (y.positive() if relu else y), (x_hat, inverse_std, y if relu else None)

    def layer_norm_backward(self, dy, saved, gamma, out=None):
        x_hat, inverse_std, y = saved
        if y is not None:
            unsure = (np.abs(y.value) <= y.error) & (dy.value != 0)
            dy = dy.where(y.value > 0)
            dy = Rounded(dy.value, np.where(unsure, np.inf, dy.error))
        width, g = dy.shape[1], dy * gamma
        means = (g.sum(axis=1)[:, None] / width, (g * x_hat).sum(axis=1)[:, None] / width)
        dx = inverse_std * (g - means[0] - x_hat * means[1])
        dgamma, dbeta = (dy * x_hat).sum(axis=0), dy.sum(axis=0)
        return (dx, dgamma, dbeta) if out is None else (dx, into(out[0], dgamma), into(out[1], dbeta))

    def relu(self, x: Rounded, out: Rounded | None = None) -> Rounded:
        return into(out, x.positive())

    def relu_backward(self, dy: Rounded, y: Rounded, out: Rounded | None = None) -> Rounded:
        return into(out, dy.where(y.value > 0))

    def add(self, a: Rounded, b: Rounded) -> Rounded:
        return a + b

    def maximum(self, a: Rounded, b: Rounded) -> Rounded:
        return Rounded(np.maximum(a.value, b.value), np.maximum(a.error, b.error))

    def maximum_backward(self, dy: Rounded, a: Rounded, b: Rounded) -> tuple[Rounded, Rounded]:
        return dy.where(a.value >= b.value), dy.where(a.value < b.value)

    def concatenate(self, parts) -> Rounded:
        return Rounded(*(np.concatenate([getattr(part, what) for part in parts], 1) for what in ("value", "error")))

    def concatenate_backward(self, dy: Rounded, widths) -> tuple[Rounded, ...]:
        return tuple(dy[:, end - width : end] for width, end in zip(widths, np.cumsum(widths), strict=True))

    def take(self, x: Rounded, rows) -> Rounded:
        return x[rows]

    def dropout(self, x: Rounded, rate: float, key: DropoutKey):
        mask = reference_dropout(x.value, rate, key)[1]
        return self.dropout_backward(x, mask, rate), mask

    def dropout_backward(self, dy: Rounded, mask: NDArray[np.bool_], rate: float) -> Rounded:
        return (dy * (1 / (1 - rate))).where(mask)

    def relu_dropout(self, x: Rounded, rate: float, key: DropoutKey, out: Rounded | None = None, reader=None):
        positive = self.relu(x)
        y, mask = self.dropout(positive, rate, key)
        return into(out, y), (mask & (positive.value > 0), rate)

    def relu_dropout_backward(self, dy: Rounded, kept, out: Rounded | None = None) -> Rounded:
        return into(out, self.dropout_backward(dy, *kept))

    def readout(self, h: Rounded, node_ptr: NDArray[np.int64], kind: str):
        r = Rounded(np.zeros((len(node_ptr) - 1, h.shape[1])))
        winner = np.full(r.shape, -1)
        for b, (first, end) in enumerate(pairwise(node_ptr)):
            if first == end:
                continue
            if kind == "max":
                winner[b] = first + h.value[first:end].argmax(axis=0)
                r[b] = h[winner[b], np.arange(h.shape[1])]
            else:
                total = h[first:end].sum(axis=0)
                r[b] = total / (end - first) if kind == "mean" else total
        return r, winner

    def readout_backward(
        self, dr: Rounded, node_ptr: NDArray[np.int64], kind: str, saved: NDArray[np.int64]
    ) -> Rounded:
        graph = np.repeat(np.arange(len(dr)), np.diff(node_ptr))
        dh = dr[graph]
        if kind == "max":
            return dh.where(saved[graph] == np.arange(len(graph))[:, None])
        return dh / np.diff(node_ptr)[graph, None] if kind == "mean" else dh

    def join(self, r: Rounded, features: GraphFeatures, mean: Rounded, scale: Rounded, limit: float) -> Rounded:
        """Bound the scaled values; to cut them makes no error larger."""
        x = features.values[features.rows]
        known = ~np.isnan(x.value)
        z = (Rounded(np.where(known, x.value, 0)) - mean) * scale
        z = Rounded(np.clip(z.value, -limit, limit), z.error).where(known)
        return join(r, z, axis=1)

    def join_backward(self, dy: Rounded, width: int) -> Rounded:
        return dy[:, :width]

    def sigmoid_cross_entropy(self, logits: Rounded, y: Rounded, pos_weight: Rounded):
        labelled = ~np.isnan(y.value)
        positive = Rounded(np.where(labelled, y.value, 0))
        negative = 1 - positive
        cost = pos_weight * positive * softplus(-logits) + negative * softplus(logits)
        slope = negative * (-softplus(-logits)).exp() - pos_weight * positive * (-softplus(logits)).exp()
        number = int(labelled.sum())
        return cost[labelled].sum(), Rounded(number), slope.where(labelled) / max(number, 1)

    def softmax_cross_entropy(self, logits: Rounded, y: NDArray[np.int32], class_weight: Rounded):
        return self._softmax(logits, y, class_weight[y[y[:, 0] >= 0, 0]])

    def _softmax(self, logits: Rounded, y: NDArray[np.int32], w: Rounded):
        rows = np.flatnonzero(y[:, 0] >= 0)
        dlogits = Rounded(np.zeros(logits.shape))
        labels, z = y[rows, 0], logits[rows]
        weight = w.sum()
        if not len(rows):
            return Rounded(0.0), weight, dlogits
        shifted = z - z.value.max(axis=1, keepdims=True)
        log_p = shifted - shifted.exp().sum(axis=1)[:, None].log()
        total = -(w * log_p[np.arange(len(rows)), labels]).sum()
        if weight.value > 0:
            chosen = np.arange(z.shape[1]) == labels[:, None]
            dlogits[rows] = w[:, None] * (log_p.exp() - chosen) / weight
        return total, weight, dlogits

    def mean_squared_error(self, logits: Rounded, y: Rounded):
        labelled = ~np.isnan(y.value)
        difference = (logits - Rounded(np.where(labelled, y.value, 0))).where(labelled)
        number = int(labelled.sum())
        return difference.square().sum(), Rounded(number), 2 * difference / max(number, 1)

    def weighted_loss(self, logits: Rounded, y: Rounded, kind: str, parameters: Rounded):
        values, weights, bounds = (
            Rounded(np.nan_to_num(part)) for part in np.split(y.value, 3, axis=1)
        )  # inputs, which are exact
        labelled = ~np.isnan(y.value[:, : values.shape[1]])
        if kind == "softmax":
            labels = np.where(labelled, values.value, -1).astype(np.int32)
            rows = np.flatnonzero(labelled)
            w = weights[rows, np.zeros(len(rows), int)] * parameters[labels[rows, 0]]
            return self._softmax(logits, labels, w)
        if kind == "sigmoid":
            negative = 1 - values
            cost = parameters * values * softplus(-logits) + negative * softplus(logits)
            slope = negative * (-softplus(-logits)).exp() - parameters * values * (-softplus(logits)).exp()
        else:
            difference = logits - values
            difference = difference.where(bounds.value * difference.value <= 0)
            size = Rounded(np.abs(difference.value), difference.error)
            sign = np.sign(difference.value)
            cost, slope = difference.square(), 2 * difference
            if kind == "absolute":
                cost, slope = size, Rounded(sign)
            if kind == "huber":
                inside, beyond = (size.value <= parameters.value), parameters * (size - 0.5 * parameters)
                cost = Rounded(
                    np.where(inside, 0.5 * cost.value, beyond.value), np.where(inside, 0.5 * cost.error, beyond.error)
                )
                slope = difference.where(inside) + (parameters * Rounded(sign)).where(~inside)
        w = weights.where(labelled)
        weight = w.sum()
        gradient = w * slope / weight if weight.value > 0 else Rounded(np.zeros(logits.shape))
        return (w * cost.where(labelled)).sum(), weight, gradient.where(labelled)

    def clip_norm(self, gradients: Rounded, max_norm: float) -> None:
        norm = gradients.square().sum().sqrt()
        assert abs(norm.value - max_norm) > norm.error, "whether to clip depends on rounding"
        if norm.value > max_norm:
            gradients[...] = gradients * (max_norm / norm)

    def adam_step(
        self, parameters, gradients, m, v, step, learning_rate, beta1, beta2, epsilon, weight_decay, l2
    ) -> None:
        g = gradients + l2 * parameters
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g.square()
        m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
        update = m_hat / (v_hat.sqrt() + epsilon) + weight_decay * parameters
        parameters[...] = parameters - learning_rate * update

    def sgd_step(self, parameters, gradients, velocity, learning_rate, momentum, weight_decay, l2) -> None:
        g = gradients + l2 * parameters
        velocity[...] = momentum * velocity + g
        parameters[...] = parameters - learning_rate * (velocity + weight_decay * parameters)


def join(first: Rounded, second: Rounded, axis: int) -> Rounded:
    """Return two arrays joined along an axis."""
    parts = ((first.value, second.value), (first.error, second.error))
    return Rounded(*(np.concatenate(pair, axis=axis) for pair in parts))
