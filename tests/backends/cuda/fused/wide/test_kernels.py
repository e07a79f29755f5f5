"""The wide kernels one by one on a GPU: against float64, with odd sizes and poisoned outputs, and repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.fused.shared.step import MAX_MEMBERS
from gcnbatch.backends.cuda.fused.wide import geometry
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.registry import open_backend
from gcnbatch.reference.rounding import product_bound

pytestmark = pytest.mark.gpu

Array = NDArray[Any]
ALONE = {"model": 0, "work": 0, "places": np.zeros(MAX_MEMBERS, np.uint8)}
SHARED = ("fused_wide_weights", "fused_wide_propagate", "fused_wide_product_tf32", "fused_wide_product_3xtf32")
EPSILON, MOMENTUM, KEEP_SCALE = 1e-5, 0.1, 1.25
SPARE = 200  # rows of capacity beyond N
PRECISIONS = ["tf32", "3xtf32"]
# N, F, C, P
CASES = {
    "wide": (700, 512, 1, 512),
    "one of each": (1, 1, 1, 1),
    "odd": (257, 75, 4, 100),
    "columns that no vector divides": (129, 31, 2, 130),
    "rows of one tile": (128, 64, 1, 64),
    "more channels than features": (33, 2, 4, 68),
    "narrow depth": (300, 8, 1, 200),
}


@dataclass
class Layer:
    """Random inputs of a layer, and a device for its kernels."""

    N: int
    F: int
    C: int
    P: int
    batch_norm: bool = True
    dropout: bool = True
    round: int = 0

    def __post_init__(self) -> None:
        backend = open_backend("batched")
        assert isinstance(backend, CudaBackend)
        self.device, self.rng = backend.device, np.random.default_rng(self.N * 7 + self.F)
        self.K, self.size = geometry.augmented_columns(self.F, self.C), np.array([self.N, 0], np.int32)

    def floats(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, np.float32)

    def norm(self, columns: int, y: Array) -> tuple[Array | None, Array | None, Array | None]:
        """Return stats, gamma and beta of a batch norm over the rows of y."""
        if not self.batch_norm:
            return None, None, None
        wide = y.astype(np.float64)
        stats = np.stack([wide.mean(axis=0), 1 / np.sqrt(wide.var(axis=0) + EPSILON)])
        return stats.astype(np.float32), 1 + 0.3 * self.floats(columns), 0.3 * self.floats(columns)

    def adjacency(self) -> sp.csr_array:
        """Return (N, N C) with about three entries per row and channel; some rows are empty."""
        count = 3 * self.N * self.C
        rows, columns = self.rng.integers(0, self.N, count), self.rng.integers(0, self.N * self.C, count)
        return sp.csr_array(sp.coo_array((self.floats(count), (rows, columns)), shape=(self.N, self.N * self.C)))

    def kept(self, rows: int, columns: int) -> tuple[Array | None, Array]:
        """Return random dropout bits in the device's layout, and as a mask."""
        mask = self.rng.random((rows, columns)) < 1 / KEEP_SCALE
        if not self.dropout:
            return None, np.ones((rows, columns))
        return np.packbits(mask.ravel(), bitorder="little"), mask

    def launch(self, entry: str, launch: Launch, outputs: dict[str, Any], **inputs: Any) -> list[Array]:
        """Run a kernel twice on poisoned outputs (shapes, initial contents or None); return the outputs."""

        def on_device(value: Any) -> Any:
            return self.device.upload(value) if isinstance(value, np.ndarray) else value

        given = {name: on_device(value) for name, value in inputs.items()}
        runs = []
        for _ in range(2):
            written = {
                name: on_device(np.full(out, np.nan, np.float32) if isinstance(out, tuple) else out)
                for name, out in outputs.items()
            }
            alone = {"members": ALONE} if entry in SHARED else {}
            self.device.launch(entry, launch, **written, **given, **alone)
            runs.append([self.device.download(out) for out in written.values() if out is not None])
        for first, second in zip(*runs, strict=True):
            np.testing.assert_array_equal(first, second)
        return runs[0]

    def capacity(self, columns: int) -> int:
        return geometry.panels(self.N + SPARE, columns)[0]

    def to_panels(self, matrix: Array) -> Array:
        """Return U or dY as panels: zeros where products read beyond the matrix, NaN elsewhere."""
        (N, columns), capacity = matrix.shape, self.capacity(matrix.shape[1])
        wide = np.full((capacity, -(-columns // 32) * 32), np.nan, np.float32)
        wide[: -(-N // 32) * 32] = 0
        wide[:N, :columns] = round_to_11_bits(matrix) if self.round else matrix
        return pack(wide)

    def v_panels(self, v: Array) -> Array:
        """Return V as panels, each channel in its own panels."""
        pad = -self.P % 32
        return self.to_panels(np.pad(v.reshape(-1, self.C, self.P), ((0, 0), (0, 0), (0, pad))).reshape(len(v), -1))

    def transposed_panels(self, dy: Array) -> Array:
        """Return the transpose of dY as panels of P rows, with zeros where products read beyond it."""
        wide = np.full((dy.shape[1], self.capacity(1)), np.nan, np.float32)
        wide[:, : -(-len(dy) // 32) * 32] = 0
        wide[:, : len(dy)] = round_to_11_bits(dy.T) if self.round else dy.T
        rests = wide - (wide.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return np.concatenate([pack(wide), pack(round_to_11_bits(rests))])

    def panels(self, columns: int) -> tuple[int]:
        """Return the shape of an output of panels."""
        return (geometry.panels(self.N + SPARE, columns)[1],)

    def weight_panels(self, weight: Array, bias: Array | None) -> list[Array]:
        """Return the packed weights of the forward and backward kernels."""
        launch, forward, backward = geometry.weight_panels(self.F, self.C, self.P)
        outputs = {"forward": (forward,), "backward": (backward,), "shift": None}
        fields = dict.fromkeys(("gamma", "beta", "running_mean", "running_var")) | {"weight": weight, "bias": bias}
        return self.launch("fused_wide_weights", launch, outputs, **fields, **self.folded)

    @property
    def folded(self) -> dict[str, Any]:
        """The numbers of `fused_wide_weights`."""
        sizes = {"F": self.F, "C": self.C, "P": self.P, "K": self.K, "columns": None}
        return sizes | {"epsilon": EPSILON, "round": self.round}

    def augmented(self, weight: Array, bias: Array | None) -> Array:
        """Return W'."""
        F, C, P = self.F, self.C, self.P
        below = np.zeros((self.K - C * F, P), np.float32)
        if bias is not None:
            below[:C] = bias.reshape(C, P)
        return np.concatenate([*np.moveaxis(weight.reshape(F, C, P), 1, 0), below])

    def product_fields(self, columns: int, u: Array, weight: Array) -> dict[str, Any]:
        """Return the inputs of a product forward with these panels."""
        tiles = geometry.tiles(self.N + SPARE)
        return {
            "partials": self.device.workspace("wide partials", 8 * tiles * columns),
            "counters": self.device.workspace("wide counters", 4 * -(-columns // geometry.TILE_COLUMNS)),
            "u": u,
            "weight": weight,
            "size": self.size,
            "epsilon": EPSILON,
            "momentum": MOMENTUM,
            "P": columns,
        }


def csr_fields(matrix: sp.csr_array | None, prefix: str = "") -> dict[str, Array | None]:
    """Return the fields of a CSR matrix, None without one."""
    names = [f"{prefix}{name}" for name in ("indptr", "indices", "values")]
    if matrix is None:
        return dict.fromkeys(names)
    arrays = (matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data)
    return dict(zip(names, arrays, strict=True))


def by_tiles(values: Array) -> list[Array]:
    """Return the rows by tile: a product writes one partial sum per tile."""
    return [values[first : first + geometry.TILE_ROWS] for first in range(0, max(len(values), 1), geometry.TILE_ROWS)]


def pack(matrix: Array) -> Array:
    """Return a matrix of whole panels as panels; chunk q of row i is stored at q ^ i % 8."""
    rows = np.arange(len(matrix))
    chunks = matrix.reshape(len(matrix), -1, 8, 4).transpose(1, 0, 2, 3)
    return np.ascontiguousarray(chunks[:, rows[:, None], np.arange(8) ^ rows[:, None] % 8]).ravel()


def unpack(panels: Array, rows: int) -> Array:
    """Return the matrix of panels with `rows` rows."""
    number = np.arange(rows)
    chunks = panels.reshape(-1, rows, 8, 4)[:, number[:, None], np.arange(8) ^ number[:, None] % 8]
    return chunks.transpose(1, 0, 2, 3).reshape(rows, -1)


def round_to_11_bits(x: Array) -> Array:
    """Round to 11 significant bits as the kernels do; NaN stays."""
    bits = x.astype(np.float32).view(np.uint32)
    even = (bits + 0x0FFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(x), x, even.view(np.float32))


def exact(value: Array | None, default: float) -> Array:
    return np.asarray(default) if value is None else value.astype(np.float64)


def activation(y: Array, stats: Array | None, gamma: Array | None, beta: Array | None) -> tuple[Array, Array]:
    """Return z and x̂."""
    mean, inverse = (0.0, 1.0) if stats is None else stats.astype(np.float64)
    x_hat = (y.astype(np.float64) - mean) * inverse
    return x_hat * exact(gamma, 1) + exact(beta, 0), x_hat


def assert_close(got: Array, want: Array, scale: Array | float = 1.0) -> None:
    """Assert equality up to the rounding of a few float32 operations on numbers of size `scale`."""
    np.testing.assert_array_less(np.abs(got - want), 4e-6 * scale + 1e-30)


def assert_product(got: Array, a: Array, b: Array, precision: str) -> None:
    """Compare a product with float64; each element has the error bound of its sum.

    TF32 rounds both factors to 11 bits: 2^-11 each. 3xTF32 rounds the residual of each factor to 11 bits, 2^-21 each,
    and omits the product of both residuals, 2^-22. Tensor cores truncate sums: 2 units per term.
    """
    want = a.astype(np.float64) @ b.astype(np.float64)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b)
    factors = 2 * 2.0**-11 if precision == "tf32" else 2 * 2.0**-21 + 2.0**-22
    bound = factors * magnitude + 2 * product_bound(len(b), magnitude)
    np.testing.assert_array_less(np.abs(got - want), bound)


cases = pytest.mark.parametrize(("N", "F", "C", "P"), CASES.values(), ids=list(CASES))
precisions = pytest.mark.parametrize("precision", PRECISIONS)


# ---- sparse rows


@cases
@pytest.mark.parametrize(("batch_norm", "dropout", "identity"), [(True, True, False), (False, False, True)])
def test_propagate_is_near_float64(
    N: int, F: int, C: int, P: int, batch_norm: bool, dropout: bool, identity: bool
) -> None:
    layer = Layer(N, F, 1 if identity else C, P, batch_norm, dropout)
    y, a = layer.floats(N, F), layer.adjacency()
    stats, gamma, beta = layer.norm(F, y)
    kept, mask = layer.kept(N, F)
    fields = {"y": y, "stats": stats, "gamma": gamma, "beta": beta, "kept": kept, "size": layer.size}
    fields |= csr_fields(a) | {"keep_scale": KEEP_SCALE, "F": F, "C": layer.C, "K": layer.K}
    fields |= {"capacity": layer.capacity(layer.K), "identity": int(identity), "round": 0}
    launch = geometry.propagate(N + SPARE, F, layer.C)
    z = np.maximum(activation(y, stats, gamma, beta)[0], 0) * mask * KEEP_SCALE
    want = np.zeros((N, layer.K))
    (panels,) = layer.launch("fused_wide_propagate", launch, {"u": layer.panels(layer.K)}, **fields)
    u = unpack(panels, layer.capacity(layer.K))
    assert (u[N : -(-N // 32) * 32] == 0).all()
    assert (u[:N, layer.K :] == 0).all()
    u = u[:N, : layer.K]
    for c in range(layer.C):
        of_channel = a[:, c :: layer.C].astype(np.float64)
        want[:, c * F : (c + 1) * F] = z if identity else of_channel @ z
        want[:, layer.C * F + c] = 1 if identity else of_channel.sum(axis=1)
    assert_close(u, want, 1 + np.abs(want).max())


@cases
@pytest.mark.parametrize("batch_norm", [True, False])
def test_propagate_backward_is_near_float64(N: int, F: int, C: int, P: int, batch_norm: bool) -> None:
    layer = Layer(N, F, C, P, batch_norm)
    y, g, a = layer.floats(N, P), layer.floats(N, P), layer.adjacency()
    stats, gamma, _ = layer.norm(P, y)
    x_hat = activation(y, stats, None, None)[1]
    partials, dy = None, g.astype(np.float64)
    if stats is not None:
        pairs = np.stack([g, g * x_hat], axis=-1)
        partials = np.stack([tile.sum(axis=0) for tile in by_tiles(pairs)]).astype(np.float32)
        dbeta, dgamma = partials.sum(axis=0, dtype=np.float64).T
        dy = gamma * stats[1].astype(np.float64) * (g - dbeta / N - x_hat * (dgamma / N))
    t = sp.csr_array(a.T)
    fields = {"g": g, "y": y, "stats": stats, "partials": partials, "gamma": gamma, "size": layer.size}
    fields |= csr_fields(t, "t_") | {"partial_stride": P, "max_partials": 0, "graphs_per_partial": 0}
    fields |= {"C": C, "P": P, "capacity": layer.capacity(P), "identity": 0, "round": 0}
    launch = geometry.propagate_backward(N + SPARE, P)
    outputs: dict[str, Any] = {"dy_t": (2 * P * layer.capacity(P),), "v": layer.panels(geometry.v_columns(C, P))}
    outputs["sums"] = (2, P) if batch_norm else None
    panels, v_panels, *sums = layer.launch("fused_wide_propagate_backward", launch, outputs, **fields)
    got, rests = (unpack(part, P).T for part in np.split(panels, 2))
    large = (got[:N].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    np.testing.assert_allclose(large + rests[:N], got[:N], rtol=2.0**-21)
    assert (got[N : -(-N // 32) * 32] == 0).all()
    scale = 1 + np.abs(dy).max()
    assert_close(got[:N], dy, scale)
    v = unpack(v_panels, layer.capacity(P))[:N].reshape(N, C, -1)
    assert (v[:, :, P:] == 0).all()
    assert_close(v[:, :, :P].reshape(N, C * P), (t.astype(np.float64) @ dy).reshape(N, C * P), 10 * scale)
    if partials is not None:
        assert_close(sums[0], partials.sum(axis=0, dtype=np.float64).T, np.abs(partials).sum(axis=0).max())
    outputs["v"] = None
    (alone, *_) = layer.launch("fused_wide_propagate_backward", launch, outputs, **fields)
    np.testing.assert_array_equal(alone[: len(panels) // 2], panels[: len(panels) // 2])


def test_partial_sums_beyond_the_batch_are_ignored() -> None:
    layer = Layer(40, 8, 1, 20)
    layer.size = np.array([40, 11], np.int32)  # two partial sums of eight graphs; a third is unused
    partials, y, g = layer.floats(3, 24, 2), layer.floats(40, 20), layer.floats(40, 20)
    stats, gamma, _ = layer.norm(20, y)
    fields = {"g": g, "y": y, "stats": stats, "partials": partials, "gamma": gamma, "size": layer.size}
    fields |= csr_fields(None, "t_") | {"partial_stride": 24, "max_partials": 3, "graphs_per_partial": 8}
    fields |= {"C": 1, "P": 20, "capacity": layer.capacity(20), "identity": 1, "round": 0}
    outputs = {"dy_t": (2 * 20 * layer.capacity(20),), "v": layer.panels(20), "sums": (2, 20)}
    launch = geometry.propagate_backward(40 + SPARE, 20)
    *_, sums = layer.launch("fused_wide_propagate_backward", launch, outputs, **fields)
    np.testing.assert_allclose(sums, partials[:2, :20].sum(axis=0).T, rtol=1e-6)


def test_v_of_a_dense_layer_is_dy() -> None:
    layer = Layer(70, 64, 1, 40, batch_norm=False)
    g = layer.floats(70, 40)
    fields: dict[str, Any] = {"g": g, "y": g, "stats": None, "partials": None, "gamma": None, "size": layer.size}
    fields |= csr_fields(None, "t_") | {"partial_stride": 40, "max_partials": 0, "graphs_per_partial": 0}
    fields |= {"C": 1, "P": 40, "capacity": layer.capacity(40), "identity": 1, "round": 0}
    outputs = {"dy_t": (2 * 40 * layer.capacity(40),), "v": layer.panels(40), "sums": None}
    launch = geometry.propagate_backward(70 + SPARE, 40)
    dy, v = layer.launch("fused_wide_propagate_backward", launch, outputs, **fields)
    np.testing.assert_array_equal(unpack(dy[: len(dy) // 2], 40)[:, :70], g.T)
    np.testing.assert_array_equal(unpack(v, layer.capacity(40))[:70, :40], g)
    assert (unpack(v, layer.capacity(40))[:70, 40:] == 0).all()


# ---- products


@cases
@precisions
def test_weights_for_predictions_contain_batch_norm(N: int, F: int, C: int, P: int, precision: str) -> None:
    """The slope is folded into the weights, the rest into the shift; there are no backward weights."""
    layer = Layer(N, F, C, P, round=int(precision == "tf32"))
    weight, bias, gamma, beta, mean = (layer.floats(*shape) for shape in ((F, C * P), (C * P,), (P,), (P,), (P,)))
    var = 0.1 + np.abs(layer.floats(P))
    launch, floats, _ = geometry.weight_panels(F, C, P)
    outputs = {"forward": (floats,), "backward": None, "shift": (P,)}
    fields = {"weight": weight, "bias": bias, "gamma": gamma, "beta": beta, "running_mean": mean, "running_var": var}
    forward, shift = layer.launch("fused_wide_weights", launch, outputs, **fields, **layer.folded)
    slope = gamma / np.sqrt(var.astype(np.float64) + EPSILON)
    found = unpack(forward[: floats // 2], P)[:, : layer.K].T
    want = layer.augmented(weight, bias) * slope
    np.testing.assert_allclose(found, want, rtol=2**-11 if layer.round else 1e-6)
    assert_close(shift, beta - mean * slope, 1 + np.abs(mean * slope))


@cases
@precisions
@pytest.mark.parametrize("batch_norm", [True, False])
def test_product_and_moments_are_near_float64(N: int, F: int, C: int, P: int, precision: str, batch_norm: bool) -> None:
    layer = Layer(N, F, C, P, round=int(precision == "tf32"))
    u, weight, bias = layer.floats(N, layer.K), layer.floats(F, C * P), layer.floats(C * P)
    u[:, C * F + C :] = 0
    before = [layer.floats(P), layer.floats(P)]
    outputs = {"y": (N, P), "stats": (2, P) if batch_norm else None}
    outputs |= {"running_mean": before[0], "running_var": before[1]}
    fields = layer.product_fields(P, layer.to_panels(u), layer.weight_panels(weight, bias)[0])
    fields |= {"K": layer.K, "capacity": layer.capacity(layer.K)}
    kernel = f"fused_wide_product_{precision}", geometry.product(N + SPARE, P, precision)
    y, *rest = layer.launch(*kernel, outputs, **fields, fresh=1)
    (again, *_) = layer.launch(*kernel, outputs, **fields, fresh=0)
    np.testing.assert_array_equal(y, again)
    assert_product(y, u, layer.augmented(weight, bias), precision)
    if not batch_norm:
        for got, want in zip(rest, before, strict=True):
            np.testing.assert_array_equal(got, want)
        return
    wide = y.astype(np.float64)
    mean, var = wide.mean(axis=0), wide.var(axis=0)
    stats, running_mean, running_var = rest
    assert_close(stats[0], mean, 1 + np.abs(wide).max())
    assert_close(stats[1] * np.sqrt(var + EPSILON), np.ones(P), 4.0)
    assert_close(running_mean, before[0] + MOMENTUM * (mean - before[0]), 1 + np.abs(wide).max())
    unbiased = var * N / max(N - 1, 1)
    assert_close(running_var, before[1] + MOMENTUM * (unbiased - before[1]), 1 + unbiased.max())


@cases
@precisions
@pytest.mark.parametrize(("batch_norm", "dropout"), [(True, True), (False, False)])
def test_product_dx_and_sums_are_near_float64(
    N: int, F: int, C: int, P: int, precision: str, batch_norm: bool, dropout: bool
) -> None:
    layer = Layer(N, F, C, P, batch_norm, dropout, int(precision == "tf32"))
    v, weight, y = layer.floats(N, C * P), layer.floats(F, C * P), layer.floats(N, F)
    stats, gamma, beta = layer.norm(F, y)
    kept, mask = layer.kept(N, F)
    outputs = {"g_prev": (N, F), "sums_prev": (geometry.tiles(N), F, 2) if batch_norm else None}
    fields = {"v": layer.v_panels(v), "weight": layer.weight_panels(weight, None)[1], "y_prev": y, "kept": kept}
    fields |= {"stats_prev": stats, "gamma_prev": gamma, "beta_prev": beta, "size": layer.size}
    fields |= {"keep_scale": KEEP_SCALE, "F": F, "C": C, "P": P, "capacity": layer.capacity(C * P)}
    launch = geometry.product_dx(N + SPARE, F, precision)
    g, *sums = layer.launch(f"fused_wide_product_dx_{precision}", launch, outputs, **fields)
    z, x_hat = activation(y, stats, gamma, beta)
    passes = (z > 0) & (mask > 0)
    assert (g[~passes] == 0).all()
    dz = np.where(passes, g / np.float32(KEEP_SCALE), v @ weight.T)
    assert_product(dz, v, weight.T, precision)
    if batch_norm:
        wide = g.astype(np.float64)
        dbeta, dgamma = sums[0].sum(axis=0, dtype=np.float64).T
        assert_close(dbeta, wide.sum(axis=0), np.abs(wide).sum(axis=0).max())
        assert_close(dgamma, (wide * x_hat).sum(axis=0), np.abs(wide * x_hat).sum(axis=0).max())


@cases
@precisions
def test_product_dw_is_near_float64(N: int, F: int, C: int, P: int, precision: str) -> None:
    layer = Layer(N, F, C, P, round=int(precision == "tf32"))
    u, dy = layer.floats(N, layer.K), layer.floats(N, P)
    fields = {"u": layer.to_panels(u), "dy_t": layer.transposed_panels(dy), "size": layer.size}
    fields |= {"K": layer.K, "P": P, "capacity": layer.capacity(P), "early": 0}
    for rows in (N + SPARE, 20 * N + 2000):  # the larger capacity has splits without rows
        launch, splits = geometry.product_dw(rows, layer.K, P, layer.device.multiprocessors, precision)
        outputs = {"partials": (splits, layer.K, P)}
        (partials,) = layer.launch(f"fused_wide_product_dw_{precision}", launch, outputs, **fields)
        assert_product(partials.sum(axis=0, dtype=np.float64), np.ascontiguousarray(u.T), dy, precision)


# ---- corner cases


@precisions
def test_a_batch_without_nodes_yields_zero_sums(precision: str) -> None:
    layer = Layer(0, 64, 1, 64, round=int(precision == "tf32"))
    empty = layer.to_panels(np.empty((0, 72), np.float32))
    weight, norm = layer.floats(64, 64), np.ones((2, 64), np.float32)
    fields = {"v": empty, "weight": layer.weight_panels(weight, None)[1], "y_prev": None, "kept": None}
    fields |= {"stats_prev": norm, "gamma_prev": norm[0], "beta_prev": norm[1], "size": layer.size}
    fields |= {"keep_scale": 1.0, "F": 64, "C": 1, "P": 64, "capacity": layer.capacity(64)}
    launch = geometry.product_dx(SPARE, 64, precision)
    outputs: dict[str, Any] = {"g_prev": None, "sums_prev": (1, 64, 2)}
    (sums,) = layer.launch(f"fused_wide_product_dx_{precision}", launch, outputs, **fields)
    assert (sums == 0).all()
    plan = geometry.product_dw(SPARE, 72, 64, 132, precision)
    fields = {"u": empty, "dy_t": empty, "size": layer.size}
    fields |= {"K": 72, "P": 64, "capacity": layer.capacity(64), "early": 0}
    outputs = {"partials": (plan.splits, 72, 64)}
    (partials,) = layer.launch(f"fused_wide_product_dw_{precision}", plan.launch, outputs, **fields)
    assert (partials == 0).all()


@precisions
def test_nan_propagates(precision: str) -> None:
    layer = Layer(130, 64, 1, 64, round=int(precision == "tf32"))
    u, weight = layer.floats(130, 72), layer.floats(64, 64)
    u[129, 5] = np.nan
    outputs = {"y": (130, 64), "stats": (2, 64)}
    outputs |= {name: np.zeros(64, np.float32) for name in ("running_mean", "running_var")}
    fields = layer.product_fields(64, layer.to_panels(u), layer.weight_panels(weight, None)[0])
    fields |= {"K": 72, "capacity": layer.capacity(72), "fresh": 0}
    launch = geometry.product(130 + SPARE, 64, precision)
    y, stats, *_ = layer.launch(f"fused_wide_product_{precision}", launch, outputs, **fields)
    assert np.isnan(y[129]).all()
    assert np.isfinite(y[:129]).all()
    assert np.isnan(stats).all()
