"""The operations that a backend offers; the layers of a model call them.

Dimensions: B graphs in a batch, N nodes in the batch, E stored edges, F / P features in / out, C adjacency channels,
K outputs, R rows of targets (B, or N for node-level sets).

Every backend offers the same operations under the same names with the same meaning; ``gcnbatch/reference`` is their
specification. `Array` is the backend's own array type (a NumPy array, a device buffer); the model never looks inside.

Conventions of all operations:

- An operation returns new arrays and leaves its inputs unchanged, except where a docstring says "in place".
- With `out`, the operation overwrites it and returns it; for gradients, `out` receives those of the parameters.
- A graph convolution passes its adjacency to the dense products as `graphs`. A backend without batching loops over its
  graphs and channels; the others ignore it. Results do not depend on it.
- With `totals` (2,) float64, a loss adds its sum and its weight to `totals` in place, so a step reads nothing back.

Only fused layers (`gcnbatch.model.fusion`) call `relu_dropout` and `relu_dropout_backward`, and pass these arguments,
which serve speed. A backend may ignore `zeros` and `reader`, but not `kept`.

- `zeros`, of `spmm` and `spmm_backward`: the expected share of zeros in the dense operand. Results are equal up to
  rounding, also where it is wrong.
- `reader`, of `relu_dropout`: the product that alone reads the result, which may then have a form for that product.
- `kept`, of `matmul_dx`: what `relu_dropout` returned beside the operand X of the product. The result is then the
  gradient by the input of `relu_dropout`, as if `relu_dropout_backward` followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.sparse import Adjacency, Array, Csr
from gcnbatch.data.weighted_targets import LossKind

__all__ = [
    "Adjacency",
    "Array",
    "Csr",
    "DropoutKey",
    "GraphFeatures",
    "LossKind",
    "Ops",
    "OpsOnPart",
    "PartialOps",
    "Reader",
    "Readout",
]

Readout = Literal["sum", "mean", "max"]


class DropoutKey(NamedTuple):
    """Key of a dropout mask: the key and an element's number determine its random bits. See `gcnbatch.philox`.

    `first` is the number of the array's first element: above 0 on a rank that holds later rows of a global batch.
    """

    seed: int
    purpose: str
    epoch: int
    step: int
    first: int = 0


class Reader(NamedTuple):
    """The product that alone reads an operation's result H: `Ops.spmm` with this adjacency and share of zeros in H."""

    adjacency: Adjacency
    zeros: float


class Ops(Protocol):
    """All operations. Each method states its shapes; float arrays are float32 (the reference takes any float type)."""

    def matmul(self, x: Array, w: Array, graphs: Adjacency | None = None) -> Array:
        """X (N, F) times W (F, P): (N, P)."""

    def matmul_backward(
        self,
        dy: Array,
        x: Array,
        w: Array,
        need_dx: bool = True,
        out: Array | None = None,
        graphs: Adjacency | None = None,
    ) -> tuple[Array | None, Array]:
        """Gradients of `matmul`: dX = dY Wᵀ (N, F), None unless `need_dx`; dW = Xᵀ dY (F, P), written to `out`."""

    def matmul_dx(self, dy: Array, w: Array, graphs: Adjacency | None = None, kept: Any = None) -> Array:
        """Gradient of `matmul` by X alone: dX = dY Wᵀ (N, F).

        With `kept`, `relu_dropout_backward` is applied to it; see the head of this file.
        """

    def sparse_matmul(self, x: Csr, w: Array) -> Array:
        """Sparse features X (N, F) times W (F, P): (N, P)."""

    def sparse_matmul_backward(self, dy: Array, x: Csr, out: Array | None = None) -> Array:
        """Gradient of `sparse_matmul` by W: Xᵀ dY (F, P), written to `out`."""

    def bias_add(self, y: Array, b: Array, graphs: Adjacency | None = None, out: Array | None = None) -> Array:
        """Y (N, P) plus b (P,) on every row; `out` may be Y."""

    def bias_add_backward(self, dy: Array, out: Array | None = None, graphs: Adjacency | None = None) -> Array:
        """Gradient of `bias_add` by b: column sums of dY, (P,), written to `out`."""

    def linear(self, x: Array, w: Array, b: Array, graphs: Adjacency | None = None) -> Array:
        """X W + b, (N, P): `matmul` and `bias_add`, which a backend may compute in one kernel."""

    def linear_backward(
        self,
        dy: Array,
        x: Array,
        w: Array,
        need_dx: bool = True,
        out: tuple[Array, Array] | None = None,
        graphs: Adjacency | None = None,
    ) -> tuple[Array | None, Array, Array]:
        """Gradients of `linear`: dX and dW as for `matmul`, db as for `bias_add`; `out` is (dw, db)."""

    def spmm(self, adjacency: Adjacency, h: Array, zeros: float = 0.0) -> Array:
        """sum_c A_c H_c for H (N, C*P) with channel c in columns c*P … (c+1)*P-1: (N, P), or (R, P) for R rows of A.

        `zeros` is the expected share of zeros in H; see the head of this file.
        """

    def spmm_backward(self, adjacency: Adjacency, dy: Array, zeros: float = 0.0) -> Array:
        """Gradient of `spmm` by H: A_cᵀ dY in channel c's columns, (N, C*P); `zeros` is the share of zeros in dY.

        dY has a row for each row of A.
        """

    def sddmm(self, a: Array, b: Array, rows: Array, columns: Array) -> Array:
        """Sampled products of rows of A (M, P) and B (Q, P): the sum of A[rows[e]] * B[columns[e]] per entry e, (E,).

        `rows` and `columns` are int32 (E,). B may be (N, C*P): its rows are then (node, channel), as in `spmm`. With
        A = dY and B = H, the gradient of `spmm` by the value of channel c's edge j→i is the entry (i, j*C + c).
        """

    def convolve(self, adjacency: Adjacency, x: Array, w: Array, b: Array) -> tuple[Array, Any]:
        """`spmm` of `linear`: sum_c A_c (X W_c + b_c) for X (N, F), W (F, C*P) and b (C*P,), (N, P), as (y, saved)."""

    def convolve_backward(
        self,
        adjacency: Adjacency,
        dy: Array,
        saved: Any,
        w: Array,
        need_dx: bool = True,
        out: tuple[Array, Array] | None = None,
    ) -> tuple[Array | None, Array, Array]:
        """Gradients of `convolve` (dx, dw, db), as of `linear`; `out` is (dw, db)."""

    def batch_norm(
        self,
        x: Array,
        gamma: Array,
        beta: Array,
        running_mean: Array,
        running_var: Array,
        epsilon: float,
        momentum: float,
        training: bool,
        relu: bool = False,
    ) -> tuple[Array, Any]:
        """Return y = gamma (x - mean) / sqrt(var + epsilon) + beta over the N rows of x (N, P), as (y, saved).

        Training uses the batch's mean and biased variance. It updates the running statistics in place:
        running = (1 - momentum) running + momentum batch, with the unbiased variance, N / (N - 1) times the biased one
        (N = 1: the biased one). N = 0 changes nothing. Inference uses the running statistics. With `relu`, ReLU is
        applied to y, and the backward operation includes it: fused, y is written once instead of twice.
        """

    def batch_norm_backward(
        self, dy: Array, saved: Any, gamma: Array, out: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """Gradients (dx (N, P), dgamma (P,), dbeta (P,)) of a training `batch_norm`; `out` is (dgamma, dbeta)."""

    def layer_norm(self, x: Array, gamma: Array, beta: Array, epsilon: float, relu: bool = False) -> tuple[Array, Any]:
        """Return y = gamma (x - mean) / sqrt(var + epsilon) + beta, (y, saved); mean and biased variance of each row.

        With `relu`, ReLU is applied to y, and the backward operation includes it.
        """

    def layer_norm_backward(
        self, dy: Array, saved: Any, gamma: Array, out: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """Gradients (dx (N, P), dgamma (P,), dbeta (P,)) of `layer_norm`; `out` is (dgamma, dbeta)."""

    def relu(self, x: Array, out: Array | None = None) -> Array:
        """max(x, 0), any shape, NaN where x is NaN; `out` may be x."""

    def relu_backward(self, dy: Array, y: Array, out: Array | None = None) -> Array:
        """Gradient of `relu`: dY where y > 0, else 0; `y` is what `relu` returned, `out` may be dY."""

    def add(self, a: Array, b: Array) -> Array:
        """A + B, two arrays of one shape. The gradient by both is dY."""

    def maximum(self, a: Array, b: Array) -> Array:
        """Return the larger of A and B by element, two arrays of one shape; NaN where one of them is."""

    def maximum_backward(self, dy: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """Gradients of `maximum` by A and B: dY where A (B) is the larger one, A where they are equal; else 0."""

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """Matrices (N, P_i) side by side: (N, sum of the P_i)."""

    def concatenate_backward(self, dy: Array, widths: Sequence[int]) -> tuple[Array, ...]:
        """Gradients of `concatenate` by its parts: new arrays (N, P_i), for `widths` P_i."""

    def take(self, x: Array, rows: Array) -> Array:
        """Rows of X (N, P) by number, int32 (M,): (M, P)."""

    def dropout(self, x: Array, rate: float, key: DropoutKey) -> tuple[Array, Array]:
        """Zero each element with probability `rate`, scale the others by 1 / (1 - rate); return (y, mask), any shape.

        Element e (row-major, from `key.first`) is kept when its 32 random bits are at least floor(rate * 2^32).
        """

    def dropout_backward(self, dy: Array, mask: Array, rate: float) -> Array:
        """Gradient of `dropout`: dY / (1 - rate) where the mask keeps it, else 0."""

    def relu_dropout(
        self, x: Array, rate: float, key: DropoutKey, out: Array | None = None, reader: Reader | None = None
    ) -> tuple[Array, Any]:
        """`relu`, then `dropout`: (y, kept); `kept` says which gradients pass both. `out` may be x.

        With `reader`, a backend may return y in a form that this product alone reads, and leave `out` undefined.
        """

    def relu_dropout_backward(self, dy: Array, kept: Any, out: Array | None = None) -> Array:
        """Gradient of `relu_dropout`: dY / (1 - rate) where `kept`, else 0; `out` may be dY."""

    def readout(self, h: Array, node_ptr: Array, kind: Readout) -> tuple[Array, Any]:
        """Return (sum, mean or maximum of each graph's rows of H (N, P), saved); the first is (B, P).

        A graph with 0 nodes yields a zero row.
        """

    def readout_backward(self, dr: Array, node_ptr: Array, kind: Readout, saved: Any) -> Array:
        """Gradient of `readout` by H (N, P); of equal maxima, the first node receives the whole gradient."""

    def join(self, r: Array, features: GraphFeatures, mean: Array, scale: Array, limit: float) -> Array:
        """R (B, P) with the scaled features of its graphs to the right: (B, P + D).

        Feature d of graph b is (values[rows[b], d] - mean[d]) scale[d], cut to -limit … limit; 0 for a NaN value.
        """

    def join_backward(self, dy: Array, width: int) -> Array:
        """Gradient of `join` by R: the first `width` columns of dY, (B, P)."""

    def join_linear(
        self, r: Array, features: GraphFeatures, mean: Array, scale: Array, limit: float, w: Array, b: Array
    ) -> tuple[Array, Any]:
        """`linear` of `join`, for W (P + D, Q) and b (Q,): (B, Q), as (y, saved)."""

    def join_linear_backward(
        self,
        dy: Array,
        saved: Any,
        w: Array,
        width: int,
        need_dr: bool = True,
        out: tuple[Array, Array] | None = None,
    ) -> tuple[Array | None, Array, Array]:
        """Gradients of `join_linear`: dR (B, P), for `width` P, None unless `need_dr`, dW, db; `out` is (dw, db)."""

    def sigmoid_cross_entropy(
        self, logits: Array, y: Array, pos_weight: Array, totals: Array | None = None
    ) -> tuple[Any, Any, Array]:
        """Masked sigmoid cross-entropy of logits (R, K), y (R, K) in {0, 1, NaN = missing}, pos_weight (K,).

        An entry costs pos_weight y softplus(-z) + (1 - y) softplus(z). Returns (sum over labelled entries, their
        number, gradient of sum / number by the logits); without any label (0, 0, zeros).
        """

    def softmax_cross_entropy(
        self, logits: Array, y: Array, class_weight: Array, totals: Array | None = None
    ) -> tuple[Any, Any, Array]:
        """Softmax cross-entropy of logits (R, K), y (R, 1) int32 with -1 = missing, class_weight (K,).

        Returns (weighted sum over labelled rows, sum of their weights, gradient of the quotient by the logits).
        """

    def mean_squared_error(self, logits: Array, y: Array, totals: Array | None = None) -> tuple[Any, Any, Array]:
        """Squared error over entries of y (R, K) that are not NaN: (sum, number, gradient of sum / number)."""

    def weighted_loss(
        self, logits: Array, y: Array, kind: LossKind, parameters: Array, totals: Array | None = None
    ) -> tuple[Any, Any, Array]:
        """Loss of a kind with a weight for each label, and a bound of each label of a regression.

        `y` has weighted targets (R, 3 T), see `gcnbatch.data.weighted_targets`; T is 1 for softmax, else K.
        `parameters` (K,): weights of positives (sigmoid) or classes (softmax), the delta of huber; else unused. A label
        multiplies its cost and its weight by its own weight. A regression that the label's bound allows costs nothing.
        Returns (sum, sum of weights, gradient of the quotient by the logits); without weight (0, 0, zeros).
        """

    def clip_norm(self, gradients: Array, max_norm: float) -> None:
        """Scale the flat gradients (P,) in place by max_norm / norm if their Euclidean norm exceeds `max_norm`."""

    def adam_step(
        self,
        parameters: Array,
        gradients: Array,
        m: Array,
        v: Array,
        step: int,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: Array,
        l2: Array,
    ) -> None:
        """Run one Adam step (Kingma and Ba, 2015) over all parameters, flat (P,), in place on parameters, m and v.

        `step` counts from 1. g = gradient + l2 p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g²;
        p -= learning_rate (m̂ / (sqrt(v̂) + epsilon) + weight_decay p), with m̂ = m / (1 - beta1^step), v̂ likewise.
        `l2` (P,) and the decoupled `weight_decay` (P,) are 0 for parameters without decay.
        """

    def sgd_step(
        self,
        parameters: Array,
        gradients: Array,
        velocity: Array,
        learning_rate: float,
        momentum: float,
        weight_decay: Array,
        l2: Array,
    ) -> None:
        """Run one step of gradient descent with momentum, flat (P,), in place on parameters and velocity.

        g = gradient + l2 p; velocity = momentum velocity + g; p -= learning_rate (velocity + weight_decay p).
        """


class PartialOps(Ops, Protocol):
    """Operations whose batch norm can be computed over rows that several ranks hold."""

    def batch_norm_moments(self, x: Array) -> tuple[Array, Array]:
        """Mean and biased variance of the columns of x (N, P), each (P,); zeros for N = 0."""

    def batch_norm_sums(
        self, dy: Array, saved: Any, out: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """Return dgamma, dbeta (P,), written to `out`, and the dY that `batch_norm_dx` takes."""

    def batch_norm_dx(self, dy: Array, saved: Any, gamma: Array, dgamma: Array, dbeta: Array, rows: int) -> Array:
        """Gradient of `batch_norm` by x, for the sums of all `rows` rows of the batch."""


class OpsOnPart(Ops, Protocol):
    """Operations on a rank's part of global batches."""

    def in_chunks(self) -> AbstractContextManager[None]:
        """While entered, operations may wait, to run beside exchanges; all of them have been launched at its end.

        Nothing but these operations reads their results before.
        """

    def close(self) -> None:
        """Free what the operations keep from one call to the next."""
