"""The interfaces of an opened backend: `Backend`, its `Feed` of batches and `Meter`, and the `Runner` of models on it.

`gcnbatch.backends.ops` has the operations and the dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.ops import Array, GraphFeatures, Ops

if TYPE_CHECKING:
    from gcnbatch.backends.mixtures import MixtureOps
    from gcnbatch.data.batches import BatchSource


class Offset(NamedTuple):
    """Where a rank's part of a global batch begins: its first node, graph, and stored value of sparse features."""

    nodes: int = 0
    graphs: int = 0
    entries: int = 0


ORIGIN = Offset()


class Batch(Protocol):
    """B graphs in the backend's memory."""

    @property
    def x(self) -> Array:
        """Node features, float32: an (N, F) array, or Csr."""

    @property
    def adjacency(self) -> Any:
        """An `Adjacency`, or the backend's own form of one; the model does not look inside."""

    @property
    def node_ptr(self) -> Array:
        """First node row of each graph, integers (B+1,)."""

    @property
    def targets(self) -> Array:
        """Targets, (R, K): float32 with NaN where missing, or int32 (R, 1) with -1 where missing; or weighted ones."""

    @property
    def graph_features(self) -> GraphFeatures | None:
        """Features of the graphs; None where no model uses them."""

    @property
    def labelled(self) -> Batch | None:
        """The batch with the R rows that have labels alone, for the last product of a training step.

        Its adjacency has these rows, (R, N*C), and its targets are theirs, (R, K). None unless the batch is a whole
        graph of whose nodes few have labels. A backend may always return None.
        """


class Feed(Protocol):
    """Source of batches of one data set, in the backend's memory."""

    def begin_epoch(self, batches: Sequence[NDArray[np.int64]]) -> None:
        """Announce the graph numbers of every batch of an epoch, in order; a feed may then upload or prefetch."""

    def batch(self, index: int) -> Batch:
        """Return batch `index` of the epoch."""

    def gather(self, graphs: NDArray[np.int64]) -> Batch:
        """Return these graphs as a batch, outside an epoch."""

    def close(self) -> None:
        """Release the feed's resources."""


class Launched(NamedTuple):
    """One kernel launch: the kernel's name, and marks right before and after it."""

    name: str
    start: Any
    stop: Any


class Meter(Protocol):
    """Clock and counters of a backend; `compare-backends` measures with them.

    A mark is an event in a device's stream, or a time on the host. Devices run asynchronously, so only marks say when
    their work ran.
    """

    @property
    def clock(self) -> Literal["device", "host"]:
        """The clock that marks are read from."""

    @property
    def launches(self) -> int:
        """Kernels launched since the backend was opened; always 0 on the host."""

    def about(self) -> dict[str, str]:
        """Return facts for a report: the device's name, driver and compiler, or the processor's name."""

    def mark(self) -> Any:
        """Return a mark after all work queued so far."""

    def microseconds(self, start: Any, stop: Any) -> float:
        """Return the time from one mark to a later one; wait until the later one has passed."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def queued(self) -> AbstractContextManager[None]:
        """Delay the launches made inside the context until it ends, then run them without gaps.

        Marks inside then measure the device's work without the host's launch overhead, as long as the device's queue
        has room for all launches.
        """

    def traced(self) -> AbstractContextManager[list[Launched]]:
        """Collect every kernel launch made inside the context; none on the host."""

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Call `run` and return its peak of array memory, in bytes above what was allocated before."""


class Stacked(NamedTuple):
    """Operations that predict with several models of one architecture at once.

    Parameters
    ----------
    ops : object
        Those of `Ops` that a forward pass needs. Logits are (models, B, K).
    parameters : dict of Array
        Of all models, by name.
    most : int
        Graphs of the largest batch for which they take less time than one model after the other.
    """

    ops: Any
    parameters: Mapping[str, Array]
    most: int


class Backend(Protocol):
    """An opened backend: its operations, memory and data feed."""

    @property
    def name(self) -> str:
        """The name of its entry in `gcnbatch.backends.registry`."""

    @property
    def ops(self) -> Ops:
        """The operations."""

    @property
    def meter(self) -> Meter:
        """Clock and counters."""

    def zeros(self, count: int, dtype: type[np.generic] = np.float32) -> Array:
        """Return a flat array (count,) of zeros."""

    def view(self, flat: Array, start: int, shape: tuple[int, ...]) -> Array:
        """Return an array of this shape that shares memory with `flat`, from element `start` on."""

    def write(self, array: Array, values: NDArray[Any]) -> None:
        """Copy host values into `array`."""

    def read(self, array: Array) -> NDArray[Any]:
        """Return a host copy of `array`."""

    def feed(self, source: BatchSource, targets: NDArray[Any]) -> Feed:
        """Return the feed of a data set; `targets` (R, K) has a row for every row of the set."""

    def stacked(self, parameters: Sequence[Mapping[str, Array]]) -> Stacked | None:
        """Return what predicts with several models of one architecture at once, given the parameters of each.

        None where the backend has nothing that takes less time than one model after the other.
        """

    def mixture_ops(self) -> MixtureOps | None:
        """Return the operations of mixtures on this backend; None: the host computes them."""


class Clock(NamedTuple):
    """Position in training: `epoch`, and `step` within it, both from 0. It is part of the key of dropout masks."""

    epoch: int
    step: int


START = Clock(0, 0)


class MemberEpoch(NamedTuple):
    """A member's part of an epoch of its runner.

    Parameters
    ----------
    epoch : int
        Number of the member's epoch, from 0.
    batches : sequence of int64 arrays
        Rows (graph numbers) of every batch of the epoch, in order.
    learning_rate : float
    first : int
        The first step to run; above 0 where a resumed run continues within an epoch.
    """

    epoch: int
    batches: Sequence[NDArray[np.int64]]
    learning_rate: float
    first: int = 0

    @property
    def steps(self) -> range:
        """The steps to run."""
        return range(self.first, len(self.batches))


class Runner(Protocol):
    """A cohort: K >= 1 models of one architecture on one backend with one data set.

    The training loop, `infer` and `compare-backends` call it. Members are numbered from 0. They may differ in seed,
    targets, loss weights, batches, learning rate, decay and dropout rate. A member's results are equal to the bit to
    those of the same model alone, for every K.

    The loop announces an epoch of each member, then calls `step` with every index from the first step of any member to
    the last one. A runner may prefetch, upload or queue work, as long as `state`, called after `step`, returns the
    state after that step.
    """

    backend: str
    size: int

    @property
    def eval_batch_size(self) -> int:
        """Number of graphs per member and call of `predict` that suits the runner."""

    def about(self) -> dict[str, Any]:
        """Return the machine's properties on which the bits of the results depend, by name, for ``metrics.json``."""

    def begin_epoch(self, epochs: Sequence[MemberEpoch | None]) -> None:
        """Announce an epoch of every member. A member with None is idle and takes no time."""

    def expect(self, batches: Sequence[Sequence[NDArray[np.int64]] | None]) -> None:
        """Prepare the batches of the next `begin_epoch`, which receives the same objects, while a device is busy."""

    def step(self, index: int) -> None:
        """Run batch `index` of every member with ``first <= index < len(batches)``: gather, …, backward, update."""

    def gradients(self, graphs: NDArray[np.int64]) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """Return the mean loss of these graphs in training mode, and the gradient of every parameter by name.

        Only for K = 1. Only the running statistics are updated; dropout masks are those of the first step of the first
        epoch.
        """

    def take_losses(self) -> list[tuple[float, float]]:
        """Return (sum of loss, sum of its weights) of each member since the last call, and reset them to 0."""

    def predict(
        self, graphs: Sequence[NDArray[np.int64] | None], rows: Sequence[NDArray[np.int64] | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        """Return each member's logits of its graphs (rows of targets, outputs); None for a member with None.

        Batch norm uses running statistics; there is no dropout. With `rows`, return those rows of them, in this order.
        """

    def state(self, member: int = 0) -> dict[str, NDArray[np.float32]]:
        """Return a copy of a member's training state by name: parameters, statistics, moments, the loss so far."""

    def weights(self, member: int = 0) -> dict[str, NDArray[np.float32]]:
        """Return a copy of the part of a member's `state` that predictions need: parameters and running statistics."""

    def load_state(self, state: dict[str, NDArray[np.float32]], member: int = 0) -> None:
        """Restore what `state` of a runner returned, on any backend."""

    def close(self) -> None:
        """Release the runner's resources."""
