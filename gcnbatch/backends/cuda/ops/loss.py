"""Losses with their gradients (dense/loss.cu)."""

from __future__ import annotations

from functools import lru_cache

from gcnbatch.backends.cuda.ops.common import COUNTER_BYTES, DOUBLE_BYTES, KernelOps
from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS, Launch, ceil_div, next_power_of_two
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.ops import LossKind

LOSS_THREADS: int = declared("dense/loss.cu").constant("LOSS_THREADS")
LOSSES: dict[str, int] = {name.lower(): number for name, number in declared("dense/loss.cu").enum("Loss").items()}
ENTRIES_OF_ONE_BLOCK = 16_384  # a loss of at most so many entries is one launch of one block
MANY_ROWS_LANES = 8  # most lanes that share a row where rows fill the device
Loss = tuple[DeviceArray, DeviceArray, DeviceArray]  # total, weight, dlogits


@lru_cache(maxsize=4096)
def loss_geometry(n_entries: int, n_threads: int, multiprocessors: int) -> Launch:
    """Return the launch of a loss over `n_entries` by `n_threads` threads; a single block also sums the label weights.

    >>> loss_geometry(50 * 12, 50 * 12, 132).block, loss_geometry(232_965 * 41, 232_965 * 8, 132).grid
    ((608, 1, 1), (1056, 1, 1))
    """
    if n_entries <= ENTRIES_OF_ONE_BLOCK:
        return Launch((1, 1, 1), (min(max(ceil_div(n_threads, 32), 1) * 32, LOSS_THREADS), 1, 1))
    return Launch((min(ceil_div(n_threads, BLOCK_THREADS), 8 * multiprocessors), 1, 1), (BLOCK_THREADS, 1, 1))


class LossOps(KernelOps):
    """The losses of `gcnbatch.backends.ops.Ops`; totals and weights are arrays of shape (1,)."""

    def sigmoid_cross_entropy(
        self, logits: DeviceArray, y: DeviceArray, pos_weight: DeviceArray, totals: DeviceArray | None = None
    ) -> Loss:
        launch, arrays, results = self._loss(logits, y, logits.size)
        self._count_labels(launch, arrays)
        sizes = {"n": logits.size, "K": logits.shape[1]}
        self.device.launch("sigmoid_cross_entropy", launch, totals=totals, pos_weight=pos_weight, **sizes, **arrays)
        return results

    def softmax_cross_entropy(
        self, logits: DeviceArray, y: DeviceArray, class_weight: DeviceArray, totals: DeviceArray | None = None
    ) -> Loss:
        (R, K), lanes = logits.shape, self._lanes(logits)
        launch, arrays, results = self._loss(logits, y, R * lanes)
        if launch.blocks > 1:
            counting = loss_geometry(logits.size, R, self.device.multiprocessors)
            counted = {name: arrays[name] for name in ("weight", "partials", "counter", "y")}
            self.device.launch("label_weight", counting, class_weight=class_weight, R=R, **counted)
        sizes = {"R": R, "K": K, "lanes": lanes}
        self.device.launch("softmax_cross_entropy", launch, totals=totals, class_weight=class_weight, **sizes, **arrays)
        return results

    def softmax_weight(self, y: DeviceArray, class_weight: DeviceArray) -> DeviceArray:
        """Return the sum of the labelled rows' weights, (1,)."""
        R, weight = y.shape[0], self.device.empty((1,))
        counting = loss_geometry(ENTRIES_OF_ONE_BLOCK + 1, max(R, 1), self.device.multiprocessors)
        partials, counter = self.workspaces(counting.blocks * DOUBLE_BYTES, COUNTER_BYTES)
        arrays = {"weight": weight, "partials": partials, "counter": counter, "y": y, "class_weight": class_weight}
        self.device.launch("label_weight", counting, R=R, **arrays)
        return weight

    def softmax_of_rows(
        self,
        dlogits: DeviceArray,
        total: DeviceArray,
        logits: DeviceArray,
        y: DeviceArray,
        class_weight: DeviceArray,
        weight: DeviceArray,
    ) -> None:
        """Write loss and gradient of some rows of a batch whose weight is known."""
        (R, K), arrays = logits.shape, {"dlogits": dlogits, "total": total, "logits": logits, "y": y}
        lanes = min(next_power_of_two(K), MANY_ROWS_LANES)
        blocks = min(ceil_div(R * lanes, BLOCK_THREADS), 8 * self.device.multiprocessors)
        launch = Launch((max(blocks, 2), 1, 1), (BLOCK_THREADS, 1, 1))  # one block alone would find its own weight
        partials, counter = self.workspaces(launch.blocks * DOUBLE_BYTES, COUNTER_BYTES)
        arrays |= {"class_weight": class_weight, "weight": weight, "partials": partials, "counter": counter}
        self.device.launch("softmax_cross_entropy", launch, totals=None, R=R, K=K, lanes=lanes, **arrays)

    def mean_squared_error(self, logits: DeviceArray, y: DeviceArray, totals: DeviceArray | None = None) -> Loss:
        launch, arrays, results = self._loss(logits, y, logits.size)
        self._count_labels(launch, arrays)
        self.device.launch("mean_squared_error", launch, totals=totals, n=logits.size, **arrays)
        return results

    def weighted_loss(
        self,
        logits: DeviceArray,
        y: DeviceArray,
        kind: LossKind,
        parameters: DeviceArray,
        totals: DeviceArray | None = None,
    ) -> Loss:
        (R, K), is_softmax = logits.shape, kind == "softmax"
        lanes = self._lanes(logits) if is_softmax else K
        launch, arrays, results = self._loss(logits, y, R * lanes)
        if launch.blocks > 1:
            counted = {name: arrays[name] for name in ("weight", "partials", "counter", "y")}
            weights, labels = (parameters, R) if is_softmax else (None, logits.size)
            self.device.launch("weighted_label_weight", launch, class_weight=weights, n=labels, K=K, **counted)
        if is_softmax:
            sizes = {"R": R, "K": K, "lanes": lanes}
            self.device.launch("weighted_softmax", launch, totals=totals, class_weight=parameters, **sizes, **arrays)
        else:
            sizes = {"n": logits.size, "K": K, "loss": LOSSES[kind]}
            self.device.launch("weighted_loss", launch, totals=totals, parameters=parameters, **sizes, **arrays)
        return results

    @staticmethod
    def _lanes(logits: DeviceArray) -> int:
        """Return the lanes that share a row of classes."""
        most = 32 if logits.size <= ENTRIES_OF_ONE_BLOCK else MANY_ROWS_LANES
        return min(next_power_of_two(logits.shape[1]), most)

    def _loss(self, logits: DeviceArray, y: DeviceArray, n_threads: int) -> tuple[Launch, dict[str, DeviceArray], Loss]:
        """Return the launch, the arguments that all losses share, and the results (total, weight, dlogits)."""
        launch = loss_geometry(logits.size, n_threads, self.device.multiprocessors)
        both, dlogits = self.device.empty((2,)), self.device.empty(logits.shape)
        total, weight = both.view(0, 1), both.view(1, 1)  # side by side, so that ranks add both at once
        partials, counter = self.workspaces(launch.blocks * DOUBLE_BYTES, COUNTER_BYTES)
        arrays = {"total": total, "weight": weight, "dlogits": dlogits, "partials": partials, "counter": counter}
        return launch, {**arrays, "logits": logits, "y": y}, (total, weight, dlogits)

    def _count_labels(self, launch: Launch, arrays: dict[str, DeviceArray]) -> None:
        if launch.blocks > 1:
            counted = {name: arrays[name] for name in ("weight", "partials", "counter", "y")}
            self.device.launch("label_count", launch, n=arrays["y"].size, **counted)
