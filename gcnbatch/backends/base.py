"""The interfaces of a backend: `Ops` (one operation, forward or backward), `Feed` (batches) and `Runner` (one step).

Dimensions: B graphs in a batch, N nodes in the batch, E stored edges, F / P features in / out, C adjacency channels,
K outputs, R rows of targets (B, or N for node-level sets).

Every backend offers the same operations under the same names with the same meaning; ``gcnbatch/reference`` is their
specification. An array is whatever the backend computes with (`Array`: a NumPy array, a device buffer); the model never
looks inside. Operations return new arrays and leave their inputs unchanged, except where a docstring says "in place".
Where an `out` is given, the result (of gradients, that of the parameters) overwrites it and it is returned. A graph
convolution hands its adjacency to the dense products as `graphs`: a backend without batching loops over its graphs and
channels; others, and the results, do not look at it. Losses add their sum and its weight to `totals` (2,) float64, in
place, when it is given: a step then reads nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.sparse import Adjacency, Csr

if TYPE_CHECKING:
    from gcnbatch.data.batches import BatchSource

__all__ = [
    "START",
    "Adjacency",
    "Array",
    "Backend",
    "Batch",
    "Clock",
    "Csr",
    "DropoutKey",
    "Feed",
    "Launched",
    "Meter",
    "Ops",
    "Readout",
    "Runner",
]

Array = Any
Readout = Literal["sum", "mean", "max"]


class DropoutKey(NamedTuple):
    """What a dropout mask depends on besides the element number; see `gcnbatch.philox`."""

    seed: int
    purpose: str
    epoch: int
    step: int


class Ops(Protocol):
    """The operations. Shapes are given per method; float arrays are float32 (the reference takes any float type)."""

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
        """Gradients of `matmul`: dX = dY Wᵀ (N, F), or None when not needed, and dW = Xᵀ dY (F, P), `out`."""

    def sparse_matmul(self, x: Csr, w: Array) -> Array:
        """Sparse features X (N, F) times W (F, P): (N, P)."""

    def sparse_matmul_backward(self, dy: Array, x: Csr, out: Array | None = None) -> Array:
        """Gradient of `sparse_matmul` by W: Xᵀ dY (F, P), `out`."""

    def bias_add(self, y: Array, b: Array, graphs: Adjacency | None = None, out: Array | None = None) -> Array:
        """Y (N, P) plus b (P,) on every row; `out` may be Y."""

    def bias_add_backward(self, dy: Array, out: Array | None = None, graphs: Adjacency | None = None) -> Array:
        """Gradient by b: column sums of dY, (P,), `out`."""

    def linear(self, x: Array, w: Array, b: Array, graphs: Adjacency | None = None) -> Array:
        """`matmul`, then `bias_add`: X W + b, (N, P); a backend may do both at once."""

    def linear_backward(
        self,
        dy: Array,
        x: Array,
        w: Array,
        need_dx: bool = True,
        out: tuple[Array, Array] | None = None,
        graphs: Adjacency | None = None,
    ) -> tuple[Array | None, Array, Array]:
        """Gradients of `linear`: dX and dW as of `matmul`, db as of `bias_add`; `out` is (dw, db)."""

    def spmm(self, adjacency: Adjacency, h: Array) -> Array:
        """sum_c A_c H_c for H (N, C*P) with channel c in columns c*P … (c+1)*P-1: (N, P)."""

    def spmm_backward(self, adjacency: Adjacency, dy: Array) -> Array:
        """Gradient by H: A_cᵀ dY in channel c's columns, (N, C*P)."""

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
        """Gamma (x - mean) / sqrt(var + epsilon) + beta over the N rows of x (N, P); returns (y, saved).

        Training uses the batch's mean and biased variance and updates, in place, the running statistics:
        running = (1 - momentum) running + momentum batch, with the unbiased variance (N / (N - 1), N = 1 as biased).
        Otherwise the running statistics are used. N = 0 changes nothing. With `relu`, y is what `relu` makes of it: a
        value is then written once, not twice, and the backward pass begins with that of `relu`.
        """

    def batch_norm_backward(
        self, dy: Array, saved: Any, gamma: Array, out: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """Gradients (dx (N, P), dgamma (P,), dbeta (P,)) of a training `batch_norm`; `out` is (dgamma, dbeta)."""

    def relu(self, x: Array, out: Array | None = None) -> Array:
        """max(x, 0), NaN where x is NaN; `out` may be x."""

    def relu_backward(self, dy: Array, y: Array, out: Array | None = None) -> Array:
        """Gradient of `relu`: dY where y > 0, else 0; `y` is what `relu` returned, `out` may be dY."""

    def dropout(self, x: Array, rate: float, key: DropoutKey) -> tuple[Array, Array]:
        """Zero an element with probability `rate`, scale the others by 1 / (1 - rate); returns (y, mask).

        Element e (row-major) is kept when its 32 random bits are >= floor(rate * 2^32). Works on any shape.
        """

    def dropout_backward(self, dy: Array, mask: Array, rate: float) -> Array:
        """DY / (1 - rate) where kept, else 0."""

    def readout(self, h: Array, node_ptr: Array, kind: Readout) -> tuple[Array, Any]:
        """Sum, mean or maximum of each graph's rows of H (N, P): (B, P), and what the backward pass needs.

        A graph with 0 nodes yields a zero row.
        """

    def readout_backward(self, dr: Array, node_ptr: Array, kind: Readout, saved: Any) -> Array:
        """Gradient by H (N, P); of equal maxima the first node takes it all."""

    def sigmoid_cross_entropy(
        self, logits: Array, y: Array, pos_weight: Array, totals: Array | None = None
    ) -> tuple[Any, Any, Array]:
        """Masked sigmoid cross-entropy of logits (R, K), y (R, K) in {0, 1, NaN = missing}, pos_weight (K,).

        Per entry: pos_weight y softplus(-z) + (1 - y) softplus(z). Returns (sum over labelled entries, their number,
        gradient of sum / number by the logits). Without any label: (0, 0, zeros).
        """

    def softmax_cross_entropy(
        self, logits: Array, y: Array, class_weight: Array, totals: Array | None = None
    ) -> tuple[Any, Any, Array]:
        """Softmax cross-entropy of logits (R, K), y (R, 1) int32 with -1 = missing, class_weight (K,).

        Returns (weighted sum over labelled rows, sum of their weights, gradient of the quotient by the logits).
        """

    def mean_squared_error(self, logits: Array, y: Array, totals: Array | None = None) -> tuple[Any, Any, Array]:
        """Squared error over entries of y (R, K) that are not NaN: (sum, number, gradient of sum / number)."""

    def clip_norm(self, gradients: Array, max_norm: float) -> None:
        """Scale the flat gradients (P,), in place, by max_norm / norm when their Euclidean norm exceeds max_norm."""

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
        """One Adam step over all parameters, flat (P,), in place on parameters, m and v (Kingma and Ba, 2015).

        `step` counts from 1. g = gradient + l2 p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g²;
        p -= learning_rate (m̂ / (sqrt(v̂) + epsilon) + weight_decay p), with m̂ = m / (1 - beta1^step), v̂ likewise.
        `l2` (P,) and `weight_decay` (P,), the latter decoupled, are 0 where a parameter must not shrink.
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
        """G = gradient + l2 p; velocity = momentum velocity + g; p -= learning_rate (velocity + weight_decay p).

        In place on parameters and velocity, flat (P,).
        """


class Batch(Protocol):
    """B graphs where the backend computes."""

    @property
    def x(self) -> Array:
        """Node features, float32: an (N, F) array, or Csr."""

    @property
    def adjacency(self) -> Any:
        """An `Adjacency`, or what the backend has for one: the model only hands it on."""

    @property
    def node_ptr(self) -> Array:
        """First node row of each graph, integers (B+1,)."""

    @property
    def targets(self) -> Array:
        """(R, K): float32 with NaN, or int32 (R, 1) with -1, where missing."""


class Feed(Protocol):
    """Brings graphs of one data set to where the backend computes."""

    def begin_epoch(self, batches: Sequence[NDArray[np.int64]]) -> None:
        """Announce the graph numbers of every batch of an epoch, in order: a feed may upload or prefetch."""

    def batch(self, index: int) -> Batch:
        """Return batch `index` of the epoch."""

    def gather(self, graphs: NDArray[np.int64]) -> Batch:
        """Return these graphs as a batch, outside an epoch."""

    def close(self) -> None:
        """Give back what the feed holds."""


class Launched(NamedTuple):
    """One run of a kernel: its name and the marks right before and right behind it."""

    name: str
    start: Any
    stop: Any


class Meter(Protocol):
    """What a backend can tell about its own work; `compare-backends` measures with it.

    A mark is a moment in the order of the work: on a device an event in its stream, on the host the time. Work on a
    device runs behind the host's back, so marks alone tell when it ran.
    """

    @property
    def clock(self) -> Literal["device", "host"]:
        """Whose clock the marks are read from."""

    @property
    def launches(self) -> int:
        """Kernels launched since the backend was opened; 0 for ever on the host."""

    def about(self) -> dict[str, str]:
        """Return what computes, for a report: the device's name, driver, compiler, or the processor's name."""

    def mark(self) -> Any:
        """Return a mark behind all work asked for so far."""

    def microseconds(self, start: Any, stop: Any) -> float:
        """Return the time from one mark to a later one; waits until the later one has passed."""

    def synchronize(self) -> None:
        """Wait until all work asked for is done."""

    def queued(self) -> AbstractContextManager[None]:
        """Hold back the work asked for inside, then let it run in one go, as far as the queue reaches.

        Marks inside then tell how long the work takes, not how long the device waits for the host to ask for it.
        """

    def traced(self) -> AbstractContextManager[list[Launched]]:
        """Collect every launch made inside; nothing on the host."""

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Call `run` and return the most bytes that arrays held at once meanwhile, beyond what was held before."""


class Backend(Protocol):
    """An opened backend: its operations, its memory, its way of getting at the data."""

    @property
    def name(self) -> str:
        """The name of its entry in `gcnbatch.backends.registry`."""

    @property
    def ops(self) -> Ops:
        """The operations."""

    @property
    def meter(self) -> Meter:
        """Its clock and counters."""

    def zeros(self, count: int, dtype: type[np.floating[Any]] = np.float32) -> Array:
        """Return a flat array (count,) of zeros."""

    def view(self, flat: Array, start: int, shape: tuple[int, ...]) -> Array:
        """Return the elements of `flat` from `start` on as an array of this shape that shares its memory."""

    def write(self, array: Array, values: NDArray[Any]) -> None:
        """Copy host values into `array`."""

    def read(self, array: Array) -> NDArray[Any]:
        """Return a host copy of `array`."""

    def feed(self, source: BatchSource, targets: NDArray[Any]) -> Feed:
        """Return the feed of a data set with `targets`, (R, K) for every row of the set."""


class Clock(NamedTuple):
    """Where training stands: `epoch` and `step` within it, both from 0; what dropout masks are keyed by."""

    epoch: int
    step: int


START = Clock(0, 0)


class Runner(Protocol):
    """One model on one backend with one data set: what the training loop, `infer` and `compare-backends` hold.

    The loop hands over an epoch's batches, then asks for its steps one by one; a runner may prefetch, upload or replay
    as it likes as long as after `step` returns control, parameters asked for by `state` are those after that step.
    """

    backend: str

    @property
    def eval_batch_size(self) -> int:
        """Graphs that `predict` takes best at a time."""

    def about(self) -> dict[str, Any]:
        """Return what of the machine the bits of its results depend on, by name, for ``metrics.json``."""

    def begin_epoch(self, epoch: int, batches: Sequence[NDArray[np.int64]], learning_rate: float) -> None:
        """Announce the epoch: the rows (graph numbers) of every batch in order."""

    def expect(self, batches: Sequence[NDArray[np.int64]]) -> None:
        """Take note of what `begin_epoch` will announce next, the same object: time to plan it while a device works."""

    def step(self, index: int) -> None:
        """Run batch `index` of the epoch: gather, forward, loss, backward, update."""

    def gradients(self, graphs: NDArray[np.int64]) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """Return the mean loss of these graphs and the gradient of every parameter by name, of a training pass.

        Nothing is updated but the running statistics; dropout masks are those of the first step of the first epoch.
        """

    def take_loss(self) -> tuple[float, float]:
        """Return (sum of loss, sum of its weights) over the steps since the last call, and start again from 0."""

    def predict(self, graphs: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits of these graphs (rows of targets, K) with running statistics and without dropout."""

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Return a copy of all that training changes, by name: parameters, statistics, moments, the loss so far."""

    def load_state(self, state: dict[str, NDArray[np.float32]]) -> None:
        """Set what `state` returned (of any backend)."""

    def close(self) -> None:
        """Give back what the runner holds."""
