"""The dense operations on a CUDA device: every method launches kernels on the device's stream and returns at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gcnbatch import philox
from gcnbatch.backends.base import DropoutKey, Readout
from gcnbatch.backends.cuda import geometry_dense as geometry
from gcnbatch.backends.cuda.geometry_dense import COUNTER_BYTES, DOUBLE_BYTES, FLOAT_BYTES, Precision
from gcnbatch.backends.cuda.launch import Launch, elementwise, next_power_of_two
from gcnbatch.backends.cuda.memory import DeviceArray
from gcnbatch.errors import InputError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.device import Device

TF32_SINCE = (8, 0)
NO_ARRAY = DeviceArray(0, (0,), np.dtype(np.float32))  # a null pointer in a kernel
NO_TOTALS = DeviceArray(0, (0,), np.dtype(np.float64))
TILES = [tile.name for tiles in geometry.TILES.values() for tile in tiles]
FORWARD, DGRAD, WGRAD = ({tile: f"matmul_{tile}_{kind}" for tile in TILES} for kind in ("forward", "dgrad", "wgrad"))


class BatchNormSaved(NamedTuple):
    """What the backward pass of a training `batch_norm` needs.

    Its input, `statistics` (2, P) of batch_norm.cu, and its output where that went through ReLU, else no array.
    """

    x: DeviceArray
    statistics: DeviceArray
    y: DeviceArray


class ReadoutSaved(NamedTuple):
    """The number of nodes, and for "max" the row that each maximum came from, int32 (B, P)."""

    n_nodes: int
    argmax: DeviceArray | None


class DenseOps:
    """The dense part of `gcnbatch.backends.base.Ops` on `DeviceArray`; losses and weights are arrays of shape (1,).

    Parameters
    ----------
    device : Device
    precision : "fp32" or "tf32"
        Of matrix products: "tf32" rounds their inputs to 11 bits and multiplies on the tensor cores.

    Raises
    ------
    InputError
        When the device has no TF32.
    """

    def __init__(self, device: Device, precision: Precision = "fp32") -> None:
        if precision == "tf32" and device.compute_capability < TF32_SINCE:
            raise InputError(
                "precision",
                f"'tf32' on {device.name} (compute capability {'.'.join(map(str, device.compute_capability))})",
                "a GPU of compute capability 8.0 or newer",
                "Set precision = 'fp32'.",
            )
        self.device, self.precision = device, precision
        self._partials = self._counters = NO_ARRAY
        self._partials_bytes = self._counters_bytes = 0

    # ---------------------------------------------------------------------------------------------- products

    def matmul(self, x: DeviceArray, w: DeviceArray, graphs: Any = None) -> DeviceArray:
        (N, F), P = x.shape, w.shape[1]
        y = self.device.empty((N, P))
        self.multiply(y, x, w, (N, F, P), (P, F, P))
        return y

    def matmul_backward(
        self,
        dy: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        need_dx: bool = True,
        out: DeviceArray | None = None,
        graphs: Any = None,
    ) -> tuple[DeviceArray | None, DeviceArray]:
        dw = self.or_empty(out, w.shape)
        return self._gradients(dy, x, w, need_dx, dw, None), dw

    def linear(self, x: DeviceArray, w: DeviceArray, b: DeviceArray, graphs: Any = None) -> DeviceArray:
        (N, F), P = x.shape, w.shape[1]
        y = self.device.empty((N, P))
        self.multiply(y, x, w, (N, F, P), (P, F, P), b)
        return y

    def linear_backward(
        self,
        dy: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        need_dx: bool = True,
        out: tuple[DeviceArray, DeviceArray] | None = None,
        graphs: Any = None,
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray]:
        dw, db = out or (self.device.empty(w.shape), self.device.empty((w.shape[1],)))
        return self._gradients(dy, x, w, need_dx, dw, db), dw, db

    def _gradients(
        self,
        dy: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        need_dx: bool,
        dw: DeviceArray,
        db: DeviceArray | None,
    ) -> DeviceArray | None:
        """Write dW and db, and return dX: in one launch where the product is small, else one by one."""
        (N, F), P = x.shape, w.shape[1]
        dx = self.device.empty((N, F)) if need_dx else None
        plan = self.all_gradients((N, F, P), need_dx)
        if plan is not None:
            partials, counters = self._workspaces(plan.partials_bytes, plan.counters_bytes)
            arrays = (or_null(dx), dw, or_null(db), partials, counters, dy, x, w)
            tail = (N, F, P, plan.rows_per_part, plan.dw_blocks)
            self.device.launch("matmul_32x32_backward", plan.launch, *arrays, *tail)
            return dx
        if dx is not None:
            self.multiply_dgrad(dx, dy, w, (N, F, P), (F, P, P))
        self.multiply_wgrad(dw, x, dy, (N, F, P), (P, F, P))
        if db is not None:
            self.sum_columns(db, dy, (N, P), P)
        return dx

    def all_gradients(self, sizes: tuple[int, int, int], need_dx: bool) -> geometry.BackwardGeometry | None:
        """Return the launch of all gradients at once; None where each is better off alone."""
        return geometry.matmul_backward(*sizes, self.device.multiprocessors, need_dx, self.precision)

    def multiply(
        self,
        y: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        sizes: tuple[int, int, int],
        strides: tuple[int, int, int],
        bias: DeviceArray | None = None,
    ) -> None:
        """Y = X W (+ bias) for `sizes` (N, F, P), rows that begin `strides` (ldy, ldx, ldw) elements apart."""
        N, F, P = sizes
        tile, launch = geometry.matmul(N, P, F, self.device.multiprocessors, self.precision)
        self.device.launch(FORWARD[tile], launch, y, x, w, or_null(bias), *strides, *sizes)

    def multiply_dgrad(
        self,
        dx: DeviceArray,
        dy: DeviceArray,
        w: DeviceArray,
        sizes: tuple[int, int, int],
        strides: tuple[int, int, int],
    ) -> None:
        """dX = dY Wᵀ for `sizes` (N, F, P) and `strides` (lddx, lddy, ldw)."""
        N, F, P = sizes
        tile, launch = geometry.matmul(N, F, P, self.device.multiprocessors, self.precision)
        self.device.launch(DGRAD[tile], launch, dx, dy, w, *strides, *sizes)

    def multiply_wgrad(
        self,
        dw: DeviceArray,
        x: DeviceArray,
        dy: DeviceArray,
        sizes: tuple[int, int, int],
        strides: tuple[int, int, int],
        accumulate: bool = False,
    ) -> None:
        """dW = Xᵀ dY, or added to what dW holds, for `sizes` (N, F, P) and `strides` (lddw, ldx, lddy)."""
        plan = geometry.matmul_wgrad(*sizes, self.device.multiprocessors, self.precision)
        partials, counters = self._workspaces(plan.partials_bytes, plan.counters_bytes)
        tail = (*strides, *sizes, plan.rows_per_part, int(accumulate))
        self.device.launch(WGRAD[plan.tile], plan.launch, dw, partials, counters, x, dy, *tail)

    # -------------------------------------------------------------------------------------------------- bias

    def bias_add(
        self, y: DeviceArray, b: DeviceArray, graphs: Any = None, out: DeviceArray | None = None
    ) -> DeviceArray:
        N, P = y.shape
        out = self.or_empty(out, (N, P))
        self.add_bias(out, y, b, (N, P), (P, P))
        return out

    def bias_add_backward(self, dy: DeviceArray, out: DeviceArray | None = None, graphs: Any = None) -> DeviceArray:
        N, P = dy.shape
        db = self.or_empty(out, (P,))
        self.sum_columns(db, dy, (N, P), P)
        return db

    def add_bias(
        self, y: DeviceArray, x: DeviceArray, b: DeviceArray, sizes: tuple[int, int], strides: tuple[int, int]
    ) -> None:
        """Y = X + b on every row, for `sizes` (N, P) and `strides` (ldy, ldx); y may be x."""
        self.device.launch("bias_add_forward", geometry.row_tiles(*sizes), y, x, b, *strides, *sizes)

    def sum_columns(
        self, db: DeviceArray, dy: DeviceArray, sizes: tuple[int, int], stride: int, accumulate: bool = False
    ) -> None:
        """db = column sums of dY, or added to what db holds, for `sizes` (N, P) and rows `stride` elements apart."""
        plan, partials, counters = self._column_reduction(*sizes, FLOAT_BYTES)
        tail = (stride, *sizes, plan.rows_per_chunk, int(accumulate))
        self.device.launch("bias_add_backward", plan.launch, db, partials, counters, dy, *tail)

    # -------------------------------------------------------------------------------------------- batch norm

    def batch_norm(
        self,
        x: DeviceArray,
        gamma: DeviceArray,
        beta: DeviceArray,
        running_mean: DeviceArray,
        running_var: DeviceArray,
        epsilon: float,
        momentum: float,
        training: bool,
        relu: bool = False,
    ) -> tuple[DeviceArray, BatchNormSaved | None]:
        (N, P), launch = x.shape, self.device.launch
        y = self.device.empty((N, P))
        tiles = geometry.row_tiles(N, P)
        if not training:
            arrays = (y, x, gamma, beta, running_mean, running_var)
            launch("batch_norm_evaluate", tiles, *arrays, epsilon, N, P, int(relu))
            return y, None
        statistics = self.device.empty((2, P))
        if N:
            plan, partials, counters = self._column_reduction(N, P, 3 * FLOAT_BYTES)
            arrays = (statistics, running_mean, running_var, partials, counters, x)
            launch("batch_norm_statistics", plan.launch, *arrays, epsilon, momentum, N, P, plan.rows_per_chunk)
            launch("batch_norm_normalise", tiles, y, x, statistics, gamma, beta, N, P, int(relu))
        return y, BatchNormSaved(x, statistics, y if relu else NO_ARRAY)

    def batch_norm_backward(
        self,
        dy: DeviceArray,
        saved: BatchNormSaved,
        gamma: DeviceArray,
        out: tuple[DeviceArray, DeviceArray] | None = None,
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        (N, P), (x, statistics, y) = dy.shape, saved
        dx = self.device.empty((N, P))
        dgamma, dbeta = out or (self.device.empty((P,)), self.device.empty((P,)))
        plan, partials, counters = self._column_reduction(N, P, 2 * FLOAT_BYTES)
        arrays = (dgamma, dbeta, partials, counters, dy, x, y, statistics)
        self.device.launch("batch_norm_backward_sums", plan.launch, *arrays, N, P, plan.rows_per_chunk)
        arrays = (dx, dy, x, y, statistics, gamma, dgamma, dbeta)
        self.device.launch("batch_norm_backward_dx", geometry.row_tiles(N, P), *arrays, N, P)
        return dx, dgamma, dbeta

    # ------------------------------------------------------------------------------------- ReLU and dropout

    def relu(self, x: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        y = self.or_empty(out, x.shape)
        self.device.launch("relu_forward", elementwise(x.size, per_thread=4), y, x, x.size)
        return y

    def relu_backward(self, dy: DeviceArray, y: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        dx = self.or_empty(out, dy.shape)
        self.device.launch("relu_backward", elementwise(dy.size, per_thread=4), dx, dy, y, dy.size)
        return dx

    def dropout(self, x: DeviceArray, rate: float, key: DropoutKey) -> tuple[DeviceArray, DeviceArray]:
        y, mask = self.device.empty(x.shape), self.device.empty(x.shape, np.uint8)
        words = (key.seed, philox.purpose_key(key.purpose), key.epoch, key.step)
        tail = (x.size, *words, int(rate * 2**32), 1 / (1 - rate))
        self.device.launch("dropout_forward", elementwise(x.size, per_thread=8), y, mask, x, *tail)
        return y, mask

    def dropout_backward(self, dy: DeviceArray, mask: DeviceArray, rate: float) -> DeviceArray:
        dx = self.device.empty(dy.shape)
        launch = elementwise(dy.size, per_thread=4)
        self.device.launch("dropout_backward", launch, dx, dy, mask, dy.size, 1 / (1 - rate))
        return dx

    # ----------------------------------------------------------------------------------------------- readout

    def readout(self, h: DeviceArray, node_ptr: DeviceArray, kind: Readout) -> tuple[DeviceArray, ReadoutSaved]:
        B, (N, P) = len(node_ptr) - 1, h.shape
        r, launch = self.device.empty((B, P)), geometry.readout(B, P)
        if kind == "max":
            argmax = self.device.empty((B, P), np.int32)
            self.device.launch("readout_max_forward", launch, r, argmax, h, node_ptr, P)
            return r, ReadoutSaved(N, argmax)
        self.device.launch("readout_sum_forward", launch, r, h, node_ptr, P, int(kind == "mean"))
        return r, ReadoutSaved(N, None)

    def readout_backward(
        self, dr: DeviceArray, node_ptr: DeviceArray, kind: Readout, saved: ReadoutSaved
    ) -> DeviceArray:
        B, P = dr.shape
        dh, launch = self.device.empty((saved.n_nodes, P)), geometry.readout(B, P)
        if saved.argmax is not None:
            self.device.launch("readout_max_backward", launch, dh, dr, saved.argmax, node_ptr, P)
        else:
            self.device.launch("readout_sum_backward", launch, dh, dr, node_ptr, P, int(kind == "mean"))
        return dh

    # ------------------------------------------------------------------------------------------------ losses

    def sigmoid_cross_entropy(
        self, logits: DeviceArray, y: DeviceArray, pos_weight: DeviceArray, totals: DeviceArray | None = None
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        launch, results, workspaces = self._loss(logits, logits.size)
        self._count_labels(launch, results, workspaces, y)
        tail = (logits.size, logits.shape[1])
        arrays = (*results, totals or NO_TOTALS, *workspaces, logits, y, pos_weight)
        self.device.launch("sigmoid_cross_entropy", launch, *arrays, *tail)
        return results

    def softmax_cross_entropy(
        self, logits: DeviceArray, y: DeviceArray, class_weight: DeviceArray, totals: DeviceArray | None = None
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        (R, K), lanes = logits.shape, min(next_power_of_two(logits.shape[1]), 32)
        launch, results, workspaces = self._loss(logits, R * lanes)
        if launch.blocks > 1:
            counting = geometry.loss(logits.size, R, self.device.multiprocessors)
            self.device.launch("label_weight", counting, results[1], *workspaces, y, class_weight, R)
        arrays = (*results, totals or NO_TOTALS, *workspaces, logits, y, class_weight)
        self.device.launch("softmax_cross_entropy", launch, *arrays, R, K, lanes)
        return results

    def mean_squared_error(
        self, logits: DeviceArray, y: DeviceArray, totals: DeviceArray | None = None
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        launch, results, workspaces = self._loss(logits, logits.size)
        self._count_labels(launch, results, workspaces, y)
        arrays = (*results, totals or NO_TOTALS, *workspaces, logits, y)
        self.device.launch("mean_squared_error", launch, *arrays, logits.size)
        return results

    def _loss(
        self, logits: DeviceArray, n_threads: int
    ) -> tuple[Launch, tuple[DeviceArray, DeviceArray, DeviceArray], tuple[DeviceArray, DeviceArray]]:
        """Return the launch, the arrays for (total, weight, dlogits), and partials and counter."""
        launch = geometry.loss(logits.size, n_threads, self.device.multiprocessors)
        results = (self.device.empty((1,)), self.device.empty((1,)), self.device.empty(logits.shape))
        return launch, results, self._workspaces(launch.blocks * DOUBLE_BYTES, COUNTER_BYTES)

    def _count_labels(
        self,
        launch: Launch,
        results: tuple[DeviceArray, DeviceArray, DeviceArray],
        workspaces: tuple[DeviceArray, DeviceArray],
        y: DeviceArray,
    ) -> None:
        if launch.blocks > 1:
            self.device.launch("label_count", launch, results[1], *workspaces, y, y.size)

    # ------------------------------------------------------------------------------------------ update rules

    def clip_norm(self, gradients: DeviceArray, max_norm: float) -> None:
        launch, factor = geometry.norm(gradients.size), self.device.empty((1,))
        workspaces = self._workspaces(launch.blocks * DOUBLE_BYTES, COUNTER_BYTES)
        self.device.launch("clip_norm_factor", launch, factor, *workspaces, gradients, gradients.size, max_norm)
        self.device.launch("clip_norm_scale", elementwise(gradients.size), gradients, factor, gradients.size)

    def adam_step(
        self,
        parameters: DeviceArray,
        gradients: DeviceArray,
        m: DeviceArray,
        v: DeviceArray,
        step: int,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: DeviceArray,
        l2: DeviceArray,
    ) -> None:
        corrections = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
        tail = (parameters.size, learning_rate, beta1, 1 - beta1, beta2, 1 - beta2, *corrections, epsilon)
        arrays = (parameters, m, v, gradients, weight_decay, l2)
        self.device.launch("adam_step", elementwise(parameters.size), *arrays, *tail)

    def sgd_step(
        self,
        parameters: DeviceArray,
        gradients: DeviceArray,
        velocity: DeviceArray,
        learning_rate: float,
        momentum: float,
        weight_decay: DeviceArray,
        l2: DeviceArray,
    ) -> None:
        arrays = (parameters, velocity, gradients, weight_decay, l2)
        launch = elementwise(parameters.size)
        self.device.launch("sgd_step", launch, *arrays, parameters.size, learning_rate, momentum)

    # --------------------------------------------------------------------------------------------- workspaces

    def or_empty(self, out: DeviceArray | None, shape: tuple[int, ...]) -> DeviceArray:
        """Return `out`, or a new array when there is none."""
        return self.device.empty(shape) if out is None else out

    def _workspaces(self, partials_bytes: int, counters_bytes: int) -> tuple[DeviceArray, DeviceArray]:
        """Return room for partial sums, and counters that are 0 and that every kernel leaves at 0.

        All kernels share both: they run one after the other.
        """
        if partials_bytes > self._partials_bytes:
            self._partials = self.device.workspace("partials", partials_bytes).astype_view(np.float32)
            self._partials_bytes = self._partials.nbytes
        if counters_bytes > self._counters_bytes:
            self._counters = self.device.workspace("counters", counters_bytes).astype_view(np.int32)
            self._counters_bytes = self._counters.nbytes
        return self._partials, self._counters

    def _column_reduction(
        self, N: int, P: int, bytes_per_value: int
    ) -> tuple[geometry.ColumnsGeometry, DeviceArray, DeviceArray]:
        plan = geometry.column_reduction(N, P, self.device.multiprocessors)
        chunks, columns, _ = plan.launch.grid
        return plan, *self._workspaces(chunks * P * bytes_per_value, columns * COUNTER_BYTES)


def or_null(array: DeviceArray | None) -> DeviceArray:
    """Return `array`, or a null pointer when there is none."""
    return NO_ARRAY if array is None else array
