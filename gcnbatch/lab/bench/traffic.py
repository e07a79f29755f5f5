"""Bytes and floating-point operations of every operation, from which all GB/s and GFLOP/s are computed.

Each function has the name and the first arguments of an operation in `gcnbatch.backends.ops.Ops`. It reads only their
shapes, so arrays of any backend are accepted. The rules:

- Bytes are compulsory traffic: every input is read once, every result written once, with 4 bytes per element (1 for a
  dropout mask). A kernel may move more (a second pass over the rows) or less (the input is still in cache). So these
  GB/s compare kernels, and may exceed the memory's bandwidth.
- An addition, multiplication, division, comparison, exponential, logarithm or square root of the formula is 1 flop; a
  multiply-add is 2. Index arithmetic and random numbers count 0.

Dimensions as in `gcnbatch.backends.ops`: N nodes, F / P features in / out, C channels, B graphs, R rows of targets, K
outputs, nnz stored entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import getfullargspec
from math import prod
from typing import Any, NamedTuple

from gcnbatch.backends.base import Batch
from gcnbatch.backends.ops import Adjacency, Array, Csr, GraphFeatures, LossKind, Readout


class Traffic(NamedTuple):
    """Compulsory bytes and floating-point operations of one call."""

    bytes: int
    flops: int


def of(operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> Traffic | None:
    """Return the traffic of a call of `operation` that returned `result`; None if there is no formula."""
    formula = FORMULAS.get(operation)
    if formula is None:
        return None
    known = getfullargspec(formula).args
    named = {**dict(zip(known, arguments, strict=False)), **keywords, "result": result}
    return formula(**{name: named[name] for name in known if name in named})


def matmul(x: Array, w: Array) -> Traffic:
    """Y = X W: 4 (N F + F P + N P) bytes, 2 N F P flops."""
    (n, f), p = x.shape, w.shape[1]
    return Traffic(4 * (n * f + f * p + n * p), 2 * n * f * p)


def matmul_backward(dy: Array, x: Array, w: Array, need_dx: bool = True) -> Traffic:
    """dW = Xᵀ dY: 4 (N P + N F + F P) bytes, 2 N F P flops; dX = dY Wᵀ if needed: 4 (F P + N F) and 2 N F P more."""
    (n, f), p = x.shape, w.shape[1]
    return Traffic(4 * (n * p + n * f + f * p + (f * p + n * f if need_dx else 0)), 2 * n * f * p * (1 + need_dx))


def matmul_dx(dy: Array, w: Array) -> Traffic:
    """dX = dY Wᵀ: 4 (N P + F P + N F) bytes, 2 N F P flops."""
    (n, p), f = dy.shape, w.shape[0]
    return Traffic(4 * (n * p + f * p + n * f), 2 * n * f * p)


def sparse_matmul(x: Csr, w: Array) -> Traffic:
    """Y = X W for sparse X: 4 (N + 1) + 8 nnz + 4 (F P + N P) bytes, 2 nnz P flops."""
    p = w.shape[1]
    return Traffic(_csr(x) + 4 * (prod(w.shape) + _rows(x) * p), 2 * _entries(x) * p)


def sparse_matmul_backward(dy: Array, x: Csr) -> Traffic:
    """dW = Xᵀ dY for sparse X: 4 (N + 1) + 8 nnz + 4 (N P + F P) bytes, 2 nnz P flops."""
    p = dy.shape[1]
    return Traffic(_csr(x) + 4 * (_rows(x) * p + x.n_cols * p), 2 * _entries(x) * p)


def bias_add(y: Array) -> Traffic:
    """Y + b: 4 (2 N P + P) bytes, N P flops."""
    n, p = y.shape
    return Traffic(4 * (2 * n * p + p), n * p)


def bias_add_backward(dy: Array) -> Traffic:
    """Column sums: 4 (N P + P) bytes, N P flops."""
    n, p = dy.shape
    return Traffic(4 * (n * p + p), n * p)


def linear(x: Array, w: Array) -> Traffic:
    """X W + b: 4 (N F + F P + P + N P) bytes, 2 N F P + N P flops."""
    (n, f), p = x.shape, w.shape[1]
    return Traffic(4 * (n * f + f * p + p + n * p), 2 * n * f * p + n * p)


def linear_backward(dy: Array, x: Array, w: Array, need_dx: bool = True) -> Traffic:
    """`matmul_backward`, plus 4 P bytes and N P flops for db."""
    n, p = dy.shape
    both = matmul_backward(dy, x, w, need_dx)
    return Traffic(both.bytes + 4 * p, both.flops + n * p)


def spmm(adjacency: Adjacency, h: Array) -> Traffic:
    """sum_c A_c H_c for R rows of A: 4 (R + 1) + 8 nnz + 4 (N C P + R P) bytes, 2 nnz P flops."""
    matrix, (n, wide) = adjacency.forward, h.shape
    p = wide // adjacency.n_channels
    return Traffic(_csr(matrix) + 4 * (n * wide + _rows(matrix) * p), 2 * _entries(matrix) * p)


def spmm_backward(adjacency: Adjacency, dy: Array) -> Traffic:
    """A_cᵀ dY for R rows of A: 4 (N C + 1) + 8 nnz + 4 (R P + N C P) bytes, 2 nnz P flops."""
    matrix, (r, p) = adjacency.transpose, dy.shape
    return Traffic(_csr(matrix) + 4 * (r * p + _rows(matrix) * p), 2 * _entries(matrix) * p)


def sddmm(a: Array, b: Array, rows: Array) -> Traffic:
    """Sampled products: each operand read once, 4 (M P + Q P) + 12 E bytes, 2 E P flops."""
    n, p = rows.shape[0], a.shape[1]
    return Traffic(4 * (prod(a.shape) + prod(b.shape)) + 12 * n, 2 * n * p)


def batch_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    running_mean: Array,
    running_var: Array,
    epsilon: float,
    momentum: float,
    training: bool,
    relu: bool = False,
) -> Traffic:
    """Training: 4 (2 N P + 6 P) bytes, 7 N P flops; with running statistics: 4 (2 N P + 4 P) bytes, 2 N P flops.

    Training sums each value (1), centres, squares and sums it (3), centres, scales and shifts it (3), and reads and
    writes the running statistics. ReLU adds N P flops and no byte.
    """
    n, p = x.shape
    return Traffic(4 * (2 * n * p + (6 if training else 4) * p), ((7 if training else 2) + relu) * n * p)


def batch_norm_backward(dy: Array) -> Traffic:
    """dX from dY, x and y (for ReLU, as in our models): 4 (4 N P + 5 P) bytes, 9 N P flops.

    Inputs are also mean, deviation and gamma; results are also dgamma and dbeta. Per value: ReLU (1), sum for dbeta
    (1), centred product for dgamma (3), dx = a dy + b x + c (4).
    """
    n, p = dy.shape
    return Traffic(4 * (4 * n * p + 5 * p), 9 * n * p)


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float, relu: bool = False) -> Traffic:
    """4 (2 N P + 2 P) bytes; per value 7 flops as in training batch norm, and 1 for ReLU."""
    n, p = x.shape
    return Traffic(4 * (2 * n * p + 2 * p), (7 + relu) * n * p)


def layer_norm_backward(dy: Array) -> Traffic:
    """dX from dY, x and y (for ReLU, as in our models): 4 (4 N P + 3 P) bytes, 15 N P flops.

    Per value: ReLU (1), x̂ (2), dgamma (2), dbeta (1), g (1), two means (3), dx (5).
    """
    n, p = dy.shape
    return Traffic(4 * (4 * n * p + 3 * p), 15 * n * p)


def relu(x: Array) -> Traffic:
    """8 n bytes, n flops for n elements."""
    n = prod(x.shape)
    return Traffic(8 * n, n)


def relu_backward(dy: Array) -> Traffic:
    """12 n bytes, n flops."""
    n = prod(dy.shape)
    return Traffic(12 * n, n)


def add(a: Array) -> Traffic:
    """12 n bytes, n flops for n elements."""
    n = prod(a.shape)
    return Traffic(12 * n, n)


def maximum(a: Array) -> Traffic:
    """As `add`."""
    return add(a)


def maximum_backward(dy: Array) -> Traffic:
    """20 n bytes, n flops."""
    n = prod(dy.shape)
    return Traffic(20 * n, n)


def concatenate(parts: Sequence[Array]) -> Traffic:
    """8 bytes per element of all parts, no flops."""
    return Traffic(8 * sum(prod(part.shape) for part in parts), 0)


def concatenate_backward(dy: Array) -> Traffic:
    """8 bytes per element, no flops."""
    return concatenate([dy])


def take(x: Array, rows: Array) -> Traffic:
    """M rows of P columns: 4 (2 M P + M) bytes, no flops."""
    (m,), p = rows.shape, x.shape[1]
    return Traffic(4 * (2 * m * p + m), 0)


def dropout(x: Array) -> Traffic:
    """9 n bytes including the mask, n flops."""
    n = prod(x.shape)
    return Traffic(9 * n, n)


def dropout_backward(dy: Array) -> Traffic:
    """9 n bytes, n flops."""
    return dropout(dy)


def relu_dropout(x: Array) -> Traffic:
    """8 n bytes, and a bit per element of the mask; 2 n flops."""
    n = prod(x.shape)
    return Traffic(8 * n + n // 8, 2 * n)


def relu_dropout_backward(dy: Array) -> Traffic:
    """8 n bytes, and a bit per element of the mask; n flops."""
    n = prod(dy.shape)
    return Traffic(8 * n + n // 8, n)


def readout(h: Array, node_ptr: Array) -> Traffic:
    """4 (N P + B P + B + 1) bytes, N P flops."""
    (n, p), pointers = h.shape, node_ptr.shape[0]
    return Traffic(4 * (n * p + (pointers - 1) * p + pointers), n * p)


def readout_backward(dr: Array, node_ptr: Array, kind: Readout, saved: Any, result: Array) -> Traffic:
    """4 (B P + N P + B + 1) bytes; B P flops for the mean, else none. The result is (N, P)."""
    b, p = dr.shape
    return Traffic(4 * (b * p + prod(result.shape) + b + 1), b * p if kind == "mean" else 0)


def join(r: Array, features: GraphFeatures, mean: Array) -> Traffic:
    """4 (2 B P + 2 B D + 2 D + B) bytes; 4 B D flops: difference, product and both limits."""
    (b, p), d = r.shape, mean.shape[0]
    return Traffic(4 * (2 * b * p + 2 * b * d + 2 * d + b), 4 * b * d)


def join_backward(dy: Array, width: int) -> Traffic:
    """8 B P bytes."""
    return Traffic(8 * dy.shape[0] * width, 0)


def sigmoid_cross_entropy(logits: Array) -> Traffic:
    """4 (3 R K + K + 2) bytes, 17 R K flops: 2 for exp and log1p, 8 for the cost, 7 for the slope."""
    r, k = logits.shape
    return Traffic(4 * (3 * r * k + k + 2), 17 * r * k)


def softmax_cross_entropy(logits: Array) -> Traffic:
    """4 (2 R K + R + K + 2) bytes, 6 R K flops: maximum, difference, exponential, sum, quotient, weight."""
    r, k = logits.shape
    return Traffic(4 * (2 * r * k + r + k + 2), 6 * r * k)


def mean_squared_error(logits: Array) -> Traffic:
    """4 (3 R K + 2) bytes, 4 R K flops: difference, square, sum, scale."""
    entries = prod(logits.shape)
    return Traffic(4 * (3 * entries + 2), 4 * entries)


def weighted_loss(logits: Array, y: Array, kind: LossKind) -> Traffic:
    """4 (2 R K + 3 R T + K + 2) bytes; flops of the plain loss, and 3 for each label: its weight, twice, its bound."""
    (r, k), labels = logits.shape, prod(y.shape) // 3
    plain = {"sigmoid": 17, "softmax": 6}.get(kind, 4)
    return Traffic(4 * (2 * r * k + 3 * labels + k + 2), plain * r * k + 3 * labels)


def clip_norm(gradients: Array) -> Traffic:
    """8 P bytes, 3 P flops (square, sum, scale), as if the norm always exceeded the limit."""
    p = prod(gradients.shape)
    return Traffic(8 * p, 3 * p)


def adam_step(parameters: Array) -> Traffic:
    """36 P bytes for six arrays read and three written; 18 P flops.

    g + l2 p (2), m (3), v (4), both corrections (2), root, + epsilon, quotient (3), decay (2), the step (2).
    """
    p = prod(parameters.shape)
    return Traffic(36 * p, 18 * p)


def sgd_step(parameters: Array) -> Traffic:
    """28 P bytes for five arrays read, two written; 8 P flops: g + l2 p (2), velocity (2), decay (2), step (2)."""
    p = prod(parameters.shape)
    return Traffic(28 * p, 8 * p)


def gather(result: Batch) -> Traffic:
    """8 bytes per element of a batch, read from the set and written; the transpose counts only if it differs."""
    matrices = [result.adjacency.forward]
    if result.adjacency.transpose is not result.adjacency.forward:
        matrices.append(result.adjacency.transpose)
    x = _csr(result.x) if isinstance(result.x, Csr) else 4 * prod(result.x.shape)
    once = x + sum(map(_csr, matrices)) + 4 * (prod(result.targets.shape) + result.node_ptr.shape[0])
    return Traffic(2 * once, 0)


def _rows(matrix: Csr) -> int:
    return int(matrix.indptr.shape[0]) - 1


def _entries(matrix: Csr) -> int:
    return int(matrix.indices.shape[0])


def _csr(matrix: Csr) -> int:
    """Bytes of a matrix with 4-byte pointers, columns and values."""
    return 4 * (_rows(matrix) + 1) + 8 * _entries(matrix)


FORMULAS: dict[str, Callable[..., Traffic]] = {
    name: formula
    for name, formula in vars().items()
    if getattr(formula, "__annotations__", {}).get("return") == "Traffic"
}
