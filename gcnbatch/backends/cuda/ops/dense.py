"""The dense operations on a CUDA device: every method launches kernels on the device's stream and returns at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gcnbatch import philox
from gcnbatch.backends.base import DropoutKey, Readout
from gcnbatch.backends.cuda.ops import geometry
from gcnbatch.backends.cuda.ops.geometry import COUNTER_BYTES, DOUBLE_BYTES, FLOAT_BYTES, Precision
from gcnbatch.backends.cuda.runtime.launch import Launch, elementwise, next_power_of_two
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.errors import InputError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

TF32_SINCE = (8, 0)
TILES = [tile.name for tiles in geometry.TILES.values() for tile in tiles]
FORWARD, DGRAD, WGRAD = ({tile: f"matmul_{tile}_{kind}" for tile in TILES} for kind in ("forward", "dgrad", "wgrad"))
Loss = tuple[DeviceArray, DeviceArray, DeviceArray]  # total, weight, dlogits


class BatchNormSaved(NamedTuple):
    """What the backward pass of a training `batch_norm` needs.

    Its input, `statistics` (2, P) of dense/batch_norm.cu, and its output where that went through ReLU, else None.
    """

    x: DeviceArray
    statistics: DeviceArray
    y: DeviceArray | None


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
        self._partials = self._counters = DeviceArray(0, (0,), np.dtype(np.uint8))
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
            self.device.launch(
                "matmul_32x32_backward",
                plan.launch,
                dx=dx,
                dw=dw,
                db=db,
                partials=partials,
                counters=counters,
                dy=dy,
                x=x,
                w=w,
                N=N,
                F=F,
                P=P,
                rows_per_part=plan.rows_per_part,
                dw_blocks=plan.dw_blocks,
            )
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
        (N, F, P), (ldy, ldx, ldw) = sizes, strides
        tile, launch = geometry.matmul(N, P, F, self.device.multiprocessors, self.precision)
        self.device.launch(FORWARD[tile], launch, y=y, x=x, w=w, bias=bias, ldy=ldy, ldx=ldx, ldw=ldw, N=N, F=F, P=P)

    def multiply_dgrad(
        self,
        dx: DeviceArray,
        dy: DeviceArray,
        w: DeviceArray,
        sizes: tuple[int, int, int],
        strides: tuple[int, int, int],
    ) -> None:
        """dX = dY Wᵀ for `sizes` (N, F, P) and `strides` (lddx, lddy, ldw)."""
        (N, F, P), (lddx, lddy, ldw) = sizes, strides
        tile, launch = geometry.matmul(N, F, P, self.device.multiprocessors, self.precision)
        self.device.launch(DGRAD[tile], launch, dx=dx, dy=dy, w=w, lddx=lddx, lddy=lddy, ldw=ldw, N=N, F=F, P=P)

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
        (N, F, P), (lddw, ldx, lddy) = sizes, strides
        self.device.launch(
            WGRAD[plan.tile],
            plan.launch,
            dw=dw,
            partials=partials,
            counters=counters,
            x=x,
            dy=dy,
            lddw=lddw,
            ldx=ldx,
            lddy=lddy,
            N=N,
            F=F,
            P=P,
            rows_per_part=plan.rows_per_part,
            accumulate=accumulate,
        )

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
        (N, P), (ldy, ldx) = sizes, strides
        self.device.launch("bias_add_forward", geometry.row_tiles(N, P), y=y, x=x, b=b, ldy=ldy, ldx=ldx, N=N, P=P)

    def sum_columns(
        self, db: DeviceArray, dy: DeviceArray, sizes: tuple[int, int], stride: int, accumulate: bool = False
    ) -> None:
        """db = column sums of dY, or added to what db holds, for `sizes` (N, P) and rows `stride` elements apart."""
        N, P = sizes
        plan, partials, counters = self._column_reduction(N, P, FLOAT_BYTES)
        self.device.launch(
            "bias_add_backward",
            plan.launch,
            db=db,
            partials=partials,
            counters=counters,
            dy=dy,
            lddy=stride,
            N=N,
            P=P,
            rows_per_chunk=plan.rows_per_chunk,
            accumulate=accumulate,
        )

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
        output = {"y": y, "x": x, "gamma": gamma, "beta": beta, "N": N, "P": P, "relu": relu}
        running = {"running_mean": running_mean, "running_var": running_var, "epsilon": epsilon}
        if not training:
            launch("batch_norm_evaluate", tiles, **output, **running)
            return y, None
        statistics = self.device.empty((2, P))
        if N:
            plan, partials, counters = self._column_reduction(N, P, 3 * FLOAT_BYTES)
            launch(
                "batch_norm_statistics",
                plan.launch,
                statistics=statistics,
                partials=partials,
                counters=counters,
                x=x,
                momentum=momentum,
                N=N,
                P=P,
                rows_per_chunk=plan.rows_per_chunk,
                **running,
            )
            launch("batch_norm_normalise", tiles, statistics=statistics, **output)
        return y, BatchNormSaved(x, statistics, y if relu else None)

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
        both = {"dgamma": dgamma, "dbeta": dbeta, "dy": dy, "x": x, "y": y, "statistics": statistics, "N": N, "P": P}
        self.device.launch(
            "batch_norm_backward_sums",
            plan.launch,
            partials=partials,
            counters=counters,
            rows_per_chunk=plan.rows_per_chunk,
            **both,
        )
        self.device.launch("batch_norm_backward_dx", geometry.row_tiles(N, P), dx=dx, gamma=gamma, **both)
        return dx, dgamma, dbeta

    # ------------------------------------------------------------------------------------- ReLU and dropout

    def relu(self, x: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        y = self.or_empty(out, x.shape)
        self.device.launch("relu_forward", elementwise(x.size, per_thread=4), y=y, x=x, n=x.size)
        return y

    def relu_backward(self, dy: DeviceArray, y: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        dx = self.or_empty(out, dy.shape)
        self.device.launch("relu_backward", elementwise(dy.size, per_thread=4), dx=dx, dy=dy, y=y, n=dy.size)
        return dx

    def dropout(self, x: DeviceArray, rate: float, key: DropoutKey) -> tuple[DeviceArray, DeviceArray]:
        y, mask = self.device.empty(x.shape), self.device.empty(x.shape, np.uint8)
        self.device.launch(
            "dropout_forward",
            elementwise(x.size, per_thread=8),
            y=y,
            mask=mask,
            x=x,
            n=x.size,
            seed=key.seed,
            purpose=philox.purpose_key(key.purpose),
            epoch=key.epoch,
            step=key.step,
            threshold=int(rate * 2**32),
            scale=1 / (1 - rate),
        )
        return y, mask

    def dropout_backward(self, dy: DeviceArray, mask: DeviceArray, rate: float) -> DeviceArray:
        dx = self.device.empty(dy.shape)
        launch = elementwise(dy.size, per_thread=4)
        self.device.launch("dropout_backward", launch, dx=dx, dy=dy, mask=mask, n=dy.size, scale=1 / (1 - rate))
        return dx

    # ----------------------------------------------------------------------------------------------- readout

    def readout(self, h: DeviceArray, node_ptr: DeviceArray, kind: Readout) -> tuple[DeviceArray, ReadoutSaved]:
        B, (N, P) = len(node_ptr) - 1, h.shape
        r, launch = self.device.empty((B, P)), geometry.readout(B, P)
        if kind == "max":
            argmax = self.device.empty((B, P), np.int32)
            self.device.launch("readout_max_forward", launch, r=r, argmax=argmax, h=h, node_ptr=node_ptr, P=P)
            return r, ReadoutSaved(N, argmax)
        self.device.launch("readout_sum_forward", launch, r=r, h=h, node_ptr=node_ptr, P=P, mean=kind == "mean")
        return r, ReadoutSaved(N, None)

    def readout_backward(
        self, dr: DeviceArray, node_ptr: DeviceArray, kind: Readout, saved: ReadoutSaved
    ) -> DeviceArray:
        B, P = dr.shape
        dh, launch = self.device.empty((saved.n_nodes, P)), geometry.readout(B, P)
        both = {"dh": dh, "dr": dr, "node_ptr": node_ptr, "P": P}
        if saved.argmax is not None:
            self.device.launch("readout_max_backward", launch, argmax=saved.argmax, **both)
        else:
            self.device.launch("readout_sum_backward", launch, mean=kind == "mean", **both)
        return dh

    # ------------------------------------------------------------------------------------------------ losses

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
        (R, K), lanes = logits.shape, min(next_power_of_two(logits.shape[1]), 32)
        launch, arrays, results = self._loss(logits, y, R * lanes)
        if launch.blocks > 1:
            counting = geometry.loss(logits.size, R, self.device.multiprocessors)
            counted = {name: arrays[name] for name in ("weight", "partials", "counter", "y")}
            self.device.launch("label_weight", counting, class_weight=class_weight, R=R, **counted)
        sizes = {"R": R, "K": K, "lanes": lanes}
        self.device.launch("softmax_cross_entropy", launch, totals=totals, class_weight=class_weight, **sizes, **arrays)
        return results

    def mean_squared_error(self, logits: DeviceArray, y: DeviceArray, totals: DeviceArray | None = None) -> Loss:
        launch, arrays, results = self._loss(logits, y, logits.size)
        self._count_labels(launch, arrays)
        self.device.launch("mean_squared_error", launch, totals=totals, n=logits.size, **arrays)
        return results

    def _loss(self, logits: DeviceArray, y: DeviceArray, n_threads: int) -> tuple[Launch, dict[str, DeviceArray], Loss]:
        """Return the launch, the arrays that all loss kernels take, and of these (total, weight, dlogits)."""
        launch = geometry.loss(logits.size, n_threads, self.device.multiprocessors)
        total, weight, dlogits = self.device.empty((1,)), self.device.empty((1,)), self.device.empty(logits.shape)
        partials, counter = self._workspaces(launch.blocks * DOUBLE_BYTES, COUNTER_BYTES)
        arrays = {"total": total, "weight": weight, "dlogits": dlogits, "partials": partials, "counter": counter}
        return launch, {**arrays, "logits": logits, "y": y}, (total, weight, dlogits)

    def _count_labels(self, launch: Launch, arrays: dict[str, DeviceArray]) -> None:
        if launch.blocks > 1:
            counted = {name: arrays[name] for name in ("weight", "partials", "counter", "y")}
            self.device.launch("label_count", launch, n=arrays["y"].size, **counted)

    # ------------------------------------------------------------------------------------------ update rules

    def clip_norm(self, gradients: DeviceArray, max_norm: float) -> None:
        launch, factor = geometry.norm(gradients.size), self.device.empty((1,))
        partials, counter = self._workspaces(launch.blocks * DOUBLE_BYTES, COUNTER_BYTES)
        both = {"factor": factor, "gradients": gradients, "n": gradients.size}
        self.device.launch("clip_norm_factor", launch, partials=partials, counter=counter, max_norm=max_norm, **both)
        self.device.launch("clip_norm_scale", elementwise(gradients.size), **both)

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
        self.device.launch(
            "adam_step",
            elementwise(parameters.size),
            parameters=parameters,
            m=m,
            v=v,
            gradients=gradients,
            weight_decay=weight_decay,
            l2=l2,
            n=parameters.size,
            learning_rate=learning_rate,
            beta1=beta1,
            rest1=1 - beta1,
            beta2=beta2,
            rest2=1 - beta2,
            correction1=1 / (1 - beta1**step),
            correction2=1 / (1 - beta2**step),
            epsilon=epsilon,
        )

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
        self.device.launch(
            "sgd_step",
            elementwise(parameters.size),
            parameters=parameters,
            velocity=velocity,
            gradients=gradients,
            weight_decay=weight_decay,
            l2=l2,
            n=parameters.size,
            learning_rate=learning_rate,
            momentum=momentum,
        )

    # --------------------------------------------------------------------------------------------- workspaces

    def or_empty(self, out: DeviceArray | None, shape: tuple[int, ...]) -> DeviceArray:
        """Return `out`, or a new array when there is none."""
        return self.device.empty(shape) if out is None else out

    def _workspaces(self, partials_bytes: int, counters_bytes: int) -> tuple[DeviceArray, DeviceArray]:
        """Return room for partial sums, and counters that are 0 and that every kernel leaves at 0.

        All kernels share both: they run one after the other.
        """
        if partials_bytes > self._partials_bytes:
            self._partials = self.device.workspace("partials", partials_bytes)
            self._partials_bytes = self._partials.nbytes
        if counters_bytes > self._counters_bytes:
            self._counters = self.device.workspace("counters", counters_bytes)
            self._counters_bytes = self._counters.nbytes
        return self._partials, self._counters

    def _column_reduction(
        self, N: int, P: int, bytes_per_value: int
    ) -> tuple[geometry.ColumnsGeometry, DeviceArray, DeviceArray]:
        plan = geometry.column_reduction(N, P, self.device.multiprocessors)
        chunks, columns, _ = plan.launch.grid
        return plan, *self._workspaces(chunks * P * bytes_per_value, columns * COUNTER_BYTES)
