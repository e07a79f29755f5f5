"""Operations of backend ``cpu`` as loops compiled by Numba: each value is read and written once.

NumPy reads and writes whole arrays for each arithmetic operation, so memory bounds its speed. A loop here finishes a
row while the row is in the L1 cache. `CompiledOps` inherits all other operations from `CpuOps`; dense products stay in
BLAS.

Numba compiles once, in a few seconds, and caches the code beside this file or in its own folder. Loops add in the order
of the rows on one thread, so runs repeat to the bit. The compiler may contract a product and a sum into one fused
multiply-add, which rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cpu.backend import CpuBackend, HostBatch, HostFeed, HostMeter
from gcnbatch.backends.cpu.ops import CpuOps, Float, add_to, update_running
from gcnbatch.backends.cpu.sources import HostAdjacency, Sources
from gcnbatch.backends.ops import Adjacency, Csr, Ops, Readout
from gcnbatch.data.batches import BatchSource, PreparedRows
from gcnbatch.data.sparse import check_reach, ragged_rows


def compiled(function: Callable[..., Any], allowed: frozenset[str] = frozenset({"contract"})) -> Callable[..., Any]:
    """Let Numba compile `function` at its first call, and cache the code on disk if a folder is writable.

    `allowed` are LLVM's flags of its arithmetic.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": set(allowed), "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable cache folder
        return numba.njit(**options)(function)


@compiled
def _csr_product(indptr: Any, indices: Any, data: Any, dense: Any, out: Any) -> None:
    """Write A D to `out` (N, P), for A (N, M) in compressed sparse rows and D = `dense` (M, P)."""
    for row in range(out.shape[0]):
        sums = out[row]
        sums[:] = np.float32(0)
        for entry in range(indptr[row], indptr[row + 1]):
            weight, source = data[entry], dense[indices[entry]]
            for p in range(sums.shape[0]):
                sums[p] += weight * source[p]


@partial(compiled, allowed=frozenset({"contract", "reassoc", "nsz"}))  # else a sum is one chain of additions
def _sampled_products(a: Any, b: Any, rows: Any, columns: Any, out: Any) -> None:
    """Write the product of row rows[e] of `a` and row columns[e] of `b` to out[e]."""
    for entry in range(out.shape[0]):
        left, right, total = a[rows[entry]], b[columns[entry]], np.float32(0)
        for p in range(left.shape[0]):
            total += left[p] * right[p]
        out[entry] = total


@compiled
def _add_row(y: Any, b: Any) -> None:
    """Add b (P,) to every row of y (N, P), in place.

    A separate output array might overlap y, and then the compiler would not vectorise the loop.
    """
    for n in range(y.shape[0]):
        for p in range(y.shape[1]):
            y[n, p] += b[p]


@compiled
def _add_by_channel(z: Any, bounds: Any, b: Any) -> None:
    for c in range(b.shape[0]):
        for n in range(bounds[c], bounds[c + 1]):
            for p in range(z.shape[1]):
                z[n, p] += b[c, p]


@compiled
def _moments(x: Any) -> Any:
    """Return mean and biased variance of the columns, computed in two passes."""
    n, p = x.shape
    mean, var = np.zeros(p, np.float32), np.zeros(p, np.float32)
    for i in range(n):
        for j in range(p):
            mean[j] += x[i, j]
    mean /= np.float32(n)
    for i in range(n):
        for j in range(p):
            distance = x[i, j] - mean[j]
            var[j] += distance * distance
    var /= np.float32(n)
    return mean, var


@compiled
def _normalise(x: Any, mean: Any, scale: Any, beta: Any, relu: bool, y: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            value = (x[i, j] - mean[j]) * scale[j] + beta[j]
            y[i, j] = np.float32(0) if relu and value <= np.float32(0) else value


@compiled
def _normalise_sums(dy: Any, x: Any, mean: Any, y: Any, relu: bool, dgamma: Any, dbeta: Any) -> None:
    """Write the column sums of dY (x - mean) and of dY; with `relu`, dY counts only where y > 0."""
    dgamma[:] = np.float32(0)
    dbeta[:] = np.float32(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            g = dy[i, j] if not relu or y[i, j] > np.float32(0) else np.float32(0)
            dgamma[j] += g * (x[i, j] - mean[j])
            dbeta[j] += g


@compiled
def _normalise_dx(dy: Any, x: Any, mean: Any, y: Any, relu: bool, scale: Any, slope: Any, shift: Any, dx: Any) -> None:
    """Write scale dY - slope (x - mean) - shift to `dx`; with `relu`, dY counts only where y > 0."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            g = dy[i, j] if not relu or y[i, j] > np.float32(0) else np.float32(0)
            dx[i, j] = scale[j] * g - slope[j] * (x[i, j] - mean[j]) - shift[j]


@compiled
def _segment_sums(h: Any, node_ptr: Any, mean: bool, r: Any) -> None:
    sums = np.empty(r.shape[1])  # float64: outputs far smaller than the sums of a large graph would lose digits
    for b in range(r.shape[0]):
        sums[:] = 0
        for n in range(node_ptr[b], node_ptr[b + 1]):
            for p in range(r.shape[1]):
                sums[p] += h[n, p]
        size = node_ptr[b + 1] - node_ptr[b] if mean and node_ptr[b + 1] > node_ptr[b] else 1
        for p in range(r.shape[1]):
            r[b, p] = sums[p] / size


@compiled
def _segment_spread(dr: Any, node_ptr: Any, mean: bool, dh: Any) -> None:
    for b in range(dr.shape[0]):
        size = np.float32(node_ptr[b + 1] - node_ptr[b] if mean else 1)
        for n in range(node_ptr[b], node_ptr[b + 1]):
            for p in range(dr.shape[1]):
                dh[n, p] = dr[b, p] / size


@compiled
def _sigmoid_cross_entropy(logits: Any, y: Any, pos_weight: Any, gradient: Any) -> Any:
    """Return the sum of the losses and the number of labels; `gradient` is not yet divided by that number."""
    total, count = 0.0, 0
    for r in range(logits.shape[0]):
        for k in range(logits.shape[1]):
            z, label = logits[r, k], y[r, k]
            gradient[r, k] = np.float32(0)
            if math.isnan(label):
                continue
            count += 1
            # softplus(±z) = max(±z, 0) + log1p(exp(-|z|)) has no cancellation when the model is confident and right.
            decay = math.exp(-abs(z))
            tail = math.log1p(decay)
            larger = np.float32(1) / (np.float32(1) + decay)
            smaller = decay * larger
            weighted, negative = label * pos_weight[k], np.float32(1) - label
            if z >= 0:
                total += weighted * tail + negative * (z + tail)
                gradient[r, k] = negative * larger - weighted * smaller
            else:
                total += weighted * (tail - z) + negative * tail
                gradient[r, k] = negative * smaller - weighted * larger
    return total, count


@compiled
def _adam(parameters: Any, gradients: Any, m: Any, v: Any, numbers: Any, weight_decay: Any, l2: Any) -> None:
    learning_rate, beta1, rest1, beta2, rest2, correction1, correction2, epsilon = numbers
    for i in range(parameters.shape[0]):
        p = parameters[i]
        g = gradients[i] + l2[i] * p
        m[i] = beta1 * m[i] + rest1 * g
        v[i] = beta2 * v[i] + rest2 * (g * g)
        update = m[i] * correction1 / (np.sqrt(v[i] * correction2) + epsilon)
        parameters[i] = p - learning_rate * (update + weight_decay[i] * p)


@compiled
def _gather_nodes(graphs: Any, set_node_ptr: Any, set_x: Any, node_ptr: Any, x: Any) -> None:
    for b in range(graphs.shape[0]):
        first, source = node_ptr[b], set_node_ptr[graphs[b]]
        for n in range(node_ptr[b + 1] - first):
            for f in range(x.shape[1]):
                x[first + n, f] = set_x[source + n, f]


@compiled
def _gather_rows(
    graphs: Any,
    set_node_ptr: Any,
    set_entry_ptr: Any,
    set_row_length: Any,
    set_indices: Any,
    set_data: Any,
    node_ptr: Any,
    per_node: int,
    stride: int,
    indptr: Any,
    indices: Any,
    data: Any,
) -> None:
    """Gather the rows of `graphs` from one sparse matrix of the set, as `PreparedRows.gather` does."""
    entry = 0
    indptr[0] = 0
    for b in range(graphs.shape[0]):
        row, source = node_ptr[b] * per_node, set_node_ptr[graphs[b]] * per_node
        for r in range((node_ptr[b + 1] - node_ptr[b]) * per_node):
            indptr[row + r + 1] = indptr[row + r] + set_row_length[source + r]
        begin, end = set_entry_ptr[graphs[b]], set_entry_ptr[graphs[b] + 1]
        shift = np.int32(node_ptr[b] * stride)
        for k in range(end - begin):
            indices[entry + k] = set_indices[begin + k] + shift
            data[entry + k] = set_data[begin + k]
        entry += end - begin


@compiled
def _sources(indptr: Any, columns: Any, data: Any, n_channels: int) -> Any:
    """Return what `sources_of` does, as arrays."""
    n_rows = indptr.shape[0] - 1
    place = np.zeros(n_channels * n_rows, np.int32)
    keys = np.empty(columns.shape[0], np.int32)
    for entry in range(columns.shape[0]):
        keys[entry] = columns[entry] % n_channels * n_rows + columns[entry] // n_channels
        place[keys[entry]] += 1
    n_pairs = 0
    for key in range(n_channels * n_rows):
        n_pairs += place[key] > 0
    nodes, bounds = np.empty(n_pairs, np.int32), np.empty(n_channels + 1, np.int64)
    starts = np.zeros(n_pairs + 1, np.int32)
    pair = 0
    for channel in range(n_channels):
        bounds[channel] = pair
        for row in range(n_rows):
            count = place[channel * n_rows + row]
            if count > 0:
                nodes[pair], place[channel * n_rows + row] = row, pair
                starts[pair + 1] = starts[pair] + count
                pair += 1
    bounds[n_channels] = pair
    filled = starts[:-1].copy()
    indices, of_rows, values = np.empty_like(keys), np.empty_like(keys), np.empty_like(data)
    for row in range(n_rows):
        for entry in range(indptr[row], indptr[row + 1]):
            pair = place[keys[entry]]
            indices[entry] = pair
            of_rows[filled[pair]], values[filled[pair]] = row, data[entry]
            filled[pair] += 1
    return nodes, bounds, indices, starts, of_rows, values


def compiled_sources_of(adjacency: Csr, n_channels: int) -> Sources:
    """Return what `gcnbatch.backends.cpu.sources.sources_of` does."""
    entries = adjacency.indptr, adjacency.indices, adjacency.data
    nodes, bounds, columns, indptr, indices, data = _sources(*entries, n_channels)
    forward = Csr(adjacency.indptr, columns, adjacency.data, len(nodes))
    return Sources(nodes, bounds, forward, Csr(indptr, indices, data, len(adjacency.indptr) - 1))


@compiled
def _keep(x: Any, mask: Any, scale: Any, y: Any) -> None:
    """Write x scale to `y` where `mask`, else 0."""
    for i in range(x.shape[0]):
        y[i] = x[i] * scale if mask[i] else np.float32(0)


@compiled
def _sums_of_rows(rows: Any, parts: Any, sums: Any) -> None:
    """Add row m of `parts` to row rows[m] of `sums`."""
    for m in range(parts.shape[0]):
        total, part = sums[rows[m]], parts[m]  # else the compiler would not vectorise the loop
        for p in range(part.shape[0]):
            total[p] += part[p]


class CompiledFeed(HostFeed):
    """`HostFeed` that gathers batches in Numba's loops; sparse and float16 features, which Numba lacks, in NumPy."""

    def gather(self, graphs: NDArray[np.int64]) -> HostBatch:
        prepared, set_node_ptr = self._source.prepared, self._source.node_ptr
        if prepared is None or self._only:
            return super().gather(graphs)
        node_ptr, atoms = exclusive_sums(set_node_ptr, graphs), prepared.atoms
        if atoms is not None:
            row_of = np.empty((node_ptr[-1], 1), np.int32)
            _gather_nodes(graphs, set_node_ptr, atoms.numbers[:, None], node_ptr, row_of)
            atoms = replace(atoms, numbers=row_of[:, 0])
            x = atoms[:]
        elif sp.issparse(prepared.stored_x) or prepared.stored_x.dtype == np.float16:
            return super().gather(graphs)
        else:
            x = np.empty((node_ptr[-1], prepared.stored_x.shape[1]), np.float32)
            _gather_nodes(graphs, set_node_ptr, prepared.stored_x, node_ptr, x)
        forward = self._rows(prepared.forward, graphs, node_ptr)
        targets = self._targets[graphs]
        if self._source.header.level == "node":
            targets = self._targets[ragged_rows(set_node_ptr, graphs)[0]]

        def transpose() -> Csr:
            return forward if prepared.symmetric else self._rows(prepared.transpose, graphs, node_ptr)

        adjacency = HostAdjacency(forward, transpose, prepared.channels, x, atoms, compiled_sources_of)
        return HostBatch(x, adjacency, node_ptr, targets, prepared.of_graphs(graphs))

    def _rows(self, rows: PreparedRows, graphs: NDArray[np.int64], node_ptr: NDArray[np.int64]) -> Csr:
        n_nodes, n_entries = int(node_ptr[-1]), int(exclusive_sums(rows.entry_ptr, graphs)[-1])
        check_reach(n_nodes * max(rows.stride, rows.per_node), "nodes times channels")
        check_reach(n_entries, "edges")
        indptr = np.empty(n_nodes * rows.per_node + 1, np.int32)
        indices, data = np.empty(n_entries, np.int32), np.empty(n_entries, np.float32)
        own = (rows.entry_ptr, rows.row_length, rows.indices, rows.data)
        shape = (rows.per_node, rows.stride)
        _gather_rows(graphs, self._source.node_ptr, *own, node_ptr, *shape, indptr, indices, data)
        return Csr(indptr, indices, data, n_nodes * rows.stride)


def exclusive_sums(ptr: NDArray[np.int64], graphs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pointer (B+1,) of a batch of these graphs: exclusive prefix sums of their lengths in `ptr`."""
    ends = np.zeros(len(graphs) + 1, np.int64)
    np.cumsum(ptr[graphs + 1] - ptr[graphs], out=ends[1:])
    return ends


class CompiledOps(CpuOps):
    """`gcnbatch.backends.ops.Ops` on the CPU with Numba's loops; as deterministic as `CpuOps`."""

    def sparse_matmul(self, x: Csr, w: Float) -> Float:
        y = np.empty((len(x.indptr) - 1, w.shape[1]), np.float32)
        _csr_product(x.indptr, x.indices, x.data, w, y)
        return y

    def bias_add(self, y: Float, b: Float, graphs: Adjacency | None = None, out: Float | None = None) -> Float:
        if out is not y:
            return super().bias_add(y, b, graphs, out)
        _add_row(y, b)
        return y

    def _add_by_channel(self, z: Float, bounds: NDArray[Any], b: Float) -> None:
        _add_by_channel(z, bounds, b)

    def spmm(self, adjacency: Adjacency, h: Float, zeros: float = 0.0) -> Float:
        matrix, width = adjacency.forward, h.shape[1] // adjacency.n_channels
        y = np.empty((len(matrix.indptr) - 1, width), np.float32)
        _csr_product(matrix.indptr, matrix.indices, matrix.data, h.reshape(-1, width), y)
        return y

    def spmm_backward(self, adjacency: Adjacency, dy: Float, zeros: float = 0.0) -> Float:
        matrix, channels, width = adjacency.transpose, adjacency.n_channels, dy.shape[1]
        dh = np.empty((len(matrix.indptr) - 1, width), np.float32)
        _csr_product(matrix.indptr, matrix.indices, matrix.data, dy, dh)
        return dh.reshape(len(dh) // channels, channels * width)

    def _sums_of_rows(self, dwide: Float, sources: Sources, n_rows: int) -> Float:
        dx = np.zeros((n_rows, dwide.shape[1]), np.float32)
        _sums_of_rows(sources.nodes, dwide, dx)
        return dx

    def dropout_backward(self, dy: Float, mask: NDArray[np.bool_], rate: float) -> Float:
        y = np.empty(dy.shape, np.float32)
        _keep(dy.ravel(), mask.ravel(), np.float32(1 / (1 - rate)), y.ravel())
        return y

    def sddmm(self, a: Float, b: Float, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> Float:
        out = np.empty(len(rows), np.float32)
        _sampled_products(a, b.reshape(-1, a.shape[1]), rows, columns, out)
        return out

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
        n, y = len(x), np.empty_like(x)
        mean, var = running_mean, running_var
        if training and n:
            mean, var = _moments(x)
            update_running(running_mean, running_var, mean, var, n, momentum)
        inverse = 1 / np.sqrt(var + np.float32(epsilon))
        _normalise(x, mean, gamma * inverse, beta, relu, y)
        return y, (x, mean, inverse, y, relu)

    def batch_norm_moments(self, x: Float) -> tuple[Float, Float]:
        mean, var = _moments(x) if len(x) else np.zeros((2, x.shape[1]), np.float32)
        return mean, var

    def batch_norm_sums(
        self, dy: Float, saved: Any, out: tuple[Float, Float] | None = None
    ) -> tuple[Float, Float, Float]:
        x, mean, inverse, y, relu = saved
        dgamma, dbeta = out or (np.empty_like(mean), np.empty_like(mean))
        _normalise_sums(dy, x, mean, y, relu, dgamma, dbeta)
        dgamma *= inverse
        return dgamma, dbeta, dy

    def batch_norm_dx(self, dy: Float, saved: Any, gamma: Float, dgamma: Float, dbeta: Float, rows: int) -> Float:
        x, mean, inverse, y, relu = saved
        dx, scale, n = np.empty_like(dy), gamma * inverse, np.float32(max(rows, 1))
        _normalise_dx(dy, x, mean, y, relu, scale, scale * inverse * dgamma / n, scale * dbeta / n, dx)
        return dx

    def readout(self, h: Float, node_ptr: NDArray[np.int64], kind: Readout) -> tuple[Float, Any]:
        if kind == "max":
            return super().readout(h, node_ptr, kind)
        r = np.empty((len(node_ptr) - 1, h.shape[1]), np.float32)
        _segment_sums(h, node_ptr, kind == "mean", r)
        return r, None

    def readout_backward(self, dr: Float, node_ptr: NDArray[np.int64], kind: Readout, saved: Any) -> Float:
        if kind == "max":
            return super().readout_backward(dr, node_ptr, kind, saved)
        dh = np.empty((int(node_ptr[-1]), dr.shape[1]), np.float32)
        _segment_spread(dr, node_ptr, kind == "mean", dh)
        return dh

    def sigmoid_cross_entropy(
        self, logits: Float, y: Float, pos_weight: Float, totals: NDArray[np.float64] | None = None
    ) -> tuple[float, float, Float]:
        gradient = np.empty_like(logits)
        total, count = _sigmoid_cross_entropy(logits, y, pos_weight, gradient)
        gradient *= np.float32(1 / max(count, 1))
        return add_to(totals, total, float(count)), float(count), gradient

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
        corrections = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
        numbers = (learning_rate, beta1, 1 - beta1, beta2, 1 - beta2, *corrections, epsilon)
        _adam(parameters, gradients, m, v, tuple(map(np.float32, numbers)), weight_decay, l2)


class CompiledBackend(CpuBackend):
    """Backend ``cpu`` with Numba's loops."""

    ops: Ops = CompiledOps()
    meter = HostMeter(f"Numba {numba.__version__}")

    def feed(self, source: BatchSource, targets: NDArray[Any]) -> HostFeed:
        return CompiledFeed(source, targets)
