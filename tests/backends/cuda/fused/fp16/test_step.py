"""The fp16 step kernel on a GPU: each phase against float64, computed from the kernel's previous phase."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.backends.cuda.fused.fp16.step import padded
from gcnbatch.backends.cuda.fused.shared.step import csr_fields
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.registry import open_backend

pytestmark = pytest.mark.gpu

Array = NDArray[Any]
R, SLICE = geometry.TILE_ROWS, geometry.PANEL
EPSILON, MOMENTUM, STEP = 1e-5, 0.1, 2
W_SCALE, U_SCALE, FIRST_SCALE = geometry.WEIGHT_SCALE, 128.0, 512.0
SUM, MEAN, MAX = declared("fused/shared/pooling.cuh").enum("Pooling").values()
BINARY, MULTICLASS, REGRESSION, *_ = declared("fused/shared/loss.cuh").enum("Loss").values()
ROUNDING = 2.0**-11  # relative error of a number rounded to 11 bits


@dataclass
class Case:
    """Random graphs in tiles, random weights, and the kernel's results."""

    graphs: list[int]
    P: int = 128
    F: int = 75
    L: int = 2
    K: int = 100
    readout: int = MEAN
    loss: int = MULTICLASS
    symmetric: bool = True
    density: float = 0.0
    spare_tiles: int = 1
    gradient_scale: float = 1.0

    def __post_init__(self) -> None:
        backend = open_backend("batched")
        assert isinstance(backend, CudaBackend)
        self.device, self.rng = backend.device, np.random.default_rng(len(self.graphs) * 7 + self.P + self.L)
        self.pack()
        self.S, self.B, self.N = self.P // SLICE, len(self.graphs), sum(self.graphs)
        self.K0 = SLICE * -(-self.F // SLICE)
        self.make_rows()
        self.make_parameters()

    # ---- the batch

    def pack(self) -> None:
        """Assign graphs to tiles, first fit, and number them in the order of tiles."""
        tiles: list[list[int]] = []
        for n in self.graphs:
            tile = next((tile for tile in tiles if sum(tile) + n <= R and len(tile) < R), None)
            if tile is None:
                tiles.append(tile := [])
            tile.append(n)
        self.graphs = [n for tile in tiles for n in tile]
        self.n_tiles, self.T = len(tiles), len(tiles) + self.spare_tiles
        self.tile_ptr = np.zeros(self.T + 1, np.int32)
        self.tile_ptr[1 : self.n_tiles + 1] = np.cumsum([len(tile) for tile in tiles])
        self.tile_ptr[self.n_tiles + 1 :] = 7_777  # the kernel must not read it
        self.tile_rows = np.array([*map(sum, tiles), *[0] * self.spare_tiles], np.int32)
        first = [R * t + np.cumsum([0, *tile[:-1]]) for t, tile in enumerate(tiles)]
        self.node_ptr = np.concatenate(first).astype(np.int32)
        self.rows = np.concatenate([R * t + np.arange(sum(tile)) for t, tile in enumerate(tiles)]).astype(np.int64)

    def make_rows(self) -> None:
        """Make A, block-diagonal; unless A is symmetric, about a tenth of the rows are empty."""
        blocks = []
        for n in self.graphs:
            a = self.floats(n, n) * (self.rng.random((n, n)) < self.density + 1 / max(n, 1))
            a = a + a.T + np.eye(n) if self.symmetric else a * (self.rng.random((n, 1)) < 0.9)
            blocks.append(sp.coo_array(a / max(1.0, np.abs(a).sum(axis=1).max(initial=0))))
        packed = sp.csr_array(sp.block_diag(blocks, format="csr")).astype(np.float32).tocoo()
        shape = (self.T * R, self.T * R)
        self.a = sp.csr_array((packed.data, (self.rows[packed.row], self.rows[packed.col])), shape=shape)
        self.exists = np.zeros(self.T * R, bool)
        self.exists[self.rows] = True
        self.graph_of_row = np.full(self.T * R, -1)
        self.graph_of_row[self.rows] = np.repeat(np.arange(self.B), self.graphs)

    def csr(self, a: sp.csr_array) -> tuple[Array, Array, Array]:
        a = sp.csr_array(a)
        a.sort_indices()
        return a.indptr.astype(np.int32), (a.indices % R).astype(np.int32), a.data.astype(np.float32)

    # ---- the model

    def floats(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, np.float32)

    def make_parameters(self) -> None:
        widths = [self.F, *[self.P] * self.L]
        self.weights = [self.floats(n, m) / np.float32(np.sqrt(n)) for n, m in pairwise(widths)]
        self.bias = [self.floats(self.P) for _ in range(self.L)]
        self.gamma = [1 + 0.3 * self.floats(self.P) for _ in range(self.L)]
        self.beta = [0.3 * self.floats(self.P) for _ in range(self.L)]
        self.running = [(self.floats(self.P), 1 + self.floats(self.P) ** 2) for _ in range(self.L)]
        self.head_weight, self.head_bias = (
            self.floats(self.P, self.K) / np.float32(np.sqrt(self.P)),
            self.floats(self.K),
        )
        self.x = np.zeros((self.T * R, self.K0), np.float32)
        self.x[self.rows, : self.F] = self.floats(self.N, self.F)
        self.u0 = self.a @ self.x
        self.loss_weight = 0.5 + self.rng.random(self.K).astype(np.float32)
        if self.loss == MULTICLASS:
            self.targets = self.rng.integers(-1, self.K, (self.B, 1)).astype(np.int32)
            self.label_weight = float(self.loss_weight[self.targets[self.targets >= 0]].sum())
        else:
            self.targets = self.floats(self.B, self.K)
            if self.loss == BINARY:
                self.targets = (self.targets > 0).astype(np.float32)
            self.targets[self.rng.random(self.targets.shape) < 0.2] = np.nan
            self.label_weight = float(np.isfinite(self.targets).sum())
        self.label_weight /= self.gradient_scale
        self.reach = max(1.0, float(np.abs(self.a).sum(axis=0).max()))

    def weight_panels(self, w: Array, rows: int, columns: int) -> Array:
        """Return (rows, columns) of a matrix filled up with 0 as slices of 64 rows in panels of 64 columns."""
        full = np.zeros((rows, columns), np.float32)
        full[: w.shape[0], : w.shape[1]] = w * W_SCALE
        slices = full.reshape(rows // 64, 64, columns // 64, 64).transpose(0, 2, 1, 3)
        return swizzle(slices.astype(np.float16))

    # ---- the launch

    def upload(self, host: Array) -> Any:
        return self.device.upload(host.view(np.uint16) if host.dtype == np.float16 else host)

    def poison(self, *shape: int, dtype: Any = np.float32) -> Any:
        return self.upload(np.full(shape, np.nan, dtype))

    def prepare(self) -> None:
        """Upload the arrays, and set the fields of the kernel's parameters."""
        T, S, P, up = self.T, self.S, self.P, self.upload
        self.layers: list[dict[str, Any]] = []
        for number in range(self.L):
            K, first = (self.K0, True) if number == 0 else (P, False)
            u = up(to_panels(self.u0 * FIRST_SCALE)) if first else self.poison(T, S, R, 64, dtype=np.float16)
            mean, var = self.running[number]
            layer = {
                "u": u,
                "w_forward": up(self.weight_panels(self.weights[number].T, P, K)),
                "w_backward": None if first else up(self.weight_panels(self.weights[number], P, P)),
                "bias": up(self.bias[number]),
                "gamma": up(self.gamma[number]),
                "beta": up(self.beta[number]),
                "running_mean": up(mean),
                "running_var": up(var),
                "y": self.poison(T, S, 64 * R),
                "dy": self.poison(T, S, R, 64, dtype=np.float16),
                "v": None if first else self.poison(T, S, R, 64, dtype=np.float16),
                "scale": self.poison(1),
                "dbias": self.poison(T, P),
                "dgamma": self.poison(P),
                "dbeta": self.poison(P),
                "K": K,
                "u_scale": FIRST_SCALE if first else U_SCALE,
                "epsilon": EPSILON,
                "momentum": MOMENTUM,
            }
            self.layers.append(layer)
        rates = np.zeros((STEP + 1, 4), np.float32)
        rates[STEP, 3] = self.label_weight
        rowsum = np.full(T * R, np.nan, np.float32)
        rowsum[self.rows] = np.asarray(self.a.sum(axis=1)).ravel()[self.rows]
        csr = [up(part) for part in self.csr(self.a)]
        t_csr = [None] * 3 if self.symmetric else [up(part) for part in self.csr(self.a.T)]
        self.fields: dict[str, Any] = {
            "size": up(np.array([self.N, self.B, STEP, 5], np.int32)),
            "shape": up(np.array([self.n_tiles, 0], np.int32)),
            "tile_ptr": up(self.tile_ptr),
            "tile_rows": up(self.tile_rows),
            "node_ptr": up(self.node_ptr),
            "n_nodes": up(np.array(self.graphs, np.int32)),
            "rowsum": up(rowsum),
            **csr_fields(tuple(csr)),
            **csr_fields(tuple(t_csr), "t_"),
            "targets": up(self.targets).astype_view(np.float32),
            "progress": self.device.zeros(4, np.int32),
            "rates": up(rates),
            "loss_weight": up(self.loss_weight),
            "head_weight": up(self.head_weight),
            "head_bias": up(self.head_bias),
            "input": self.poison(self.B, P),
            "gradient": self.poison(self.B, self.K),
            "losses": self.poison(T, dtype=np.float64),
            "exchange": self.device.zeros(geometry.exchange_bytes(self.L, T, P), np.uint8),
            "n_layers": self.L,
            "n_outputs": self.K,
            "readout": self.readout,
            "loss": self.loss,
            "tiles": T,
            "reach": self.reach,
            "layers": padded(self.layers, geometry.MAX_LAYERS),
        }

    def launch(self) -> None:
        self.device.launch(geometry.entry(self.P), geometry.launch(self.P, self.T), **self.fields)

    def run(self) -> dict[str, Array]:
        """Run the kernel; return all its outputs, panels as matrices of all rows."""
        self.prepare()
        self.launch()
        return self.results()

    def results(self) -> dict[str, Array]:
        down, found = self.device.download, {}
        names = ("dbias", "dgamma", "dbeta", "scale", "running_mean", "running_var")
        for number, layer in enumerate(self.layers):
            for name in names:
                found[f"{name}{number}"] = down(layer[name])
            for name in ("u", "dy", "v"):
                if (array := layer[name]) is not None:
                    found[f"{name}{number}"] = from_panels(down(array).view(np.float16))
        for name in ("input", "gradient", "losses", "progress"):
            found[name] = down(self.fields[name])
        return found

    # ---- the reference

    def loss_of(self, logits: Array) -> tuple[float, Array]:
        """Return the sum of the weighted losses, and the gradient of the logits."""
        gradient, total = np.zeros_like(logits), 0.0
        for b, (z, target) in enumerate(zip(logits, self.targets, strict=True)):
            if self.loss == MULTICLASS:
                label = int(target[0])
                if label < 0:
                    continue
                share = np.exp(z - z.max())
                share /= share.sum()
                weight = float(self.loss_weight[label])
                total -= weight * np.log(share[label])
                gradient[b] = weight / self.label_weight * (share - np.eye(self.K)[label])
                continue
            known = ~np.isnan(target)
            t = np.where(known, target, 0).astype(np.float64)
            if self.loss == BINARY:
                p, sigmoid = self.loss_weight, 1 / (1 + np.exp(-z))
                cost = p * t * np.logaddexp(0, -z) + (1 - t) * np.logaddexp(0, z)
                slope = (1 - t) * sigmoid - p * t * (1 - sigmoid)
            else:
                cost, slope = (z - t) ** 2, 2 * (z - t)
            total += cost[known].sum()
            gradient[b] = np.where(known, slope / max(self.label_weight, 1.0), 0)
        return total, gradient

    def norm(self, number: int, y: Array) -> tuple[Array, Array, Array, Array]:
        """Return mean, variance, x̂ and z of a layer's Y over the rows of the batch."""
        mean, var = y[self.rows].mean(axis=0), y[self.rows].var(axis=0)
        x_hat = (y - mean) / np.sqrt(var + EPSILON)
        return mean, var, x_hat, x_hat * self.gamma[number] + self.beta[number]

    def product(self, number: int, u: Array) -> Array:
        weight = (self.weights[number] * W_SCALE).astype(np.float16).astype(np.float64) / W_SCALE
        rowsum = np.asarray(self.a.astype(np.float64).sum(axis=1)).reshape(-1, 1)
        return u[:, : len(weight)] @ weight + rowsum * self.bias[number]

    def pooled(self, z: Array) -> tuple[Array, Array]:
        """Return R, and the factor of dR for each row and column."""
        share, found = np.zeros((self.T * R, self.P)), np.zeros((self.B, self.P))
        for b, n in enumerate(self.graphs):
            rows = self.node_ptr[b] + np.arange(n)
            if n == 0:
                continue
            if self.readout == MAX:
                found[b] = z[rows].max(axis=0)
                share[rows[z[rows].argmax(axis=0)], np.arange(self.P)] = 1
            else:
                share[rows] = 1 / n if self.readout == MEAN else 1
                found[b] = (z[rows] * share[rows]).sum(axis=0)
        return found, share


def swizzle(panels: Array) -> Array:
    """Return panels (..., rows, 64) with the chunks of their rows swizzled; its own inverse."""
    rows = np.arange(panels.shape[-2])
    chunks = panels.reshape(*panels.shape[:-1], 8, 8)
    return np.ascontiguousarray(chunks[..., rows[:, None], np.arange(8) ^ rows[:, None] % 8, :]).reshape(panels.shape)


def to_panels(matrix: Array) -> Array:
    panels = matrix.reshape(-1, R, matrix.shape[1] // 64, 64).transpose(0, 2, 1, 3)
    return swizzle(np.ascontiguousarray(panels).astype(np.float16))


def from_panels(panels: Array) -> Array:
    """Return the matrix of all rows as float64."""
    rows = swizzle(panels).transpose(0, 2, 1, 3)
    return rows.reshape(-1, panels.shape[1] * 64).astype(np.float64)


def assert_near(got: Array, want: Array, relative: float, scale: Array | float | None = None) -> None:
    """Every element within `relative` of its size, and of the scale of all."""
    absolute = np.abs(want).max(initial=0) * 1e-5 if scale is None else scale
    error = np.abs(got - want)
    assert (error <= relative * np.abs(want) + absolute + 1e-30).all(), (error.max(), np.abs(want).max())


def check(case: Case, got: dict[str, Array]) -> None:
    """Check each phase of the step, from the kernel's result of the phase before."""
    u = [got["u0"] / FIRST_SCALE, *(got[f"u{number}"] / U_SCALE for number in range(1, case.L))]
    a, there = case.a.astype(np.float64), case.exists
    here = np.repeat(np.arange(case.T) < case.n_tiles, R)
    norms = []
    for number in range(case.L):
        mean, var, x_hat, z = case.norm(number, case.product(number, u[number]))
        old_mean, old_var = case.running[number]
        unbiased = var * case.N / max(case.N - 1, 1)
        assert_near(got[f"running_mean{number}"], old_mean + MOMENTUM * (mean - old_mean), 1e-5, 1e-5)
        assert_near(got[f"running_var{number}"], old_var + MOMENTUM * (unbiased - old_var), 1e-4)
        norms.append((var, x_hat, z))
        if number + 1 < case.L:
            want = a @ (np.maximum(z, 0) * there[:, None])
            assert_near(u[number + 1][here], want[here], 1.1 * ROUNDING, 2e-5 * max(1.0, np.abs(want).max()))
    pooled, share = case.pooled(np.maximum(norms[-1][2], 0))
    assert_near(got["input"], pooled, 1e-4, 1e-4 * np.abs(pooled).max())
    logits = got["input"].astype(np.float64) @ case.head_weight + case.head_bias
    total, gradient = case.loss_of(logits)
    assert_near(got["gradient"], gradient, 1e-4)
    np.testing.assert_allclose(got["losses"].sum(), total, rtol=1e-5, atol=1e-6)
    assert (got["losses"][case.n_tiles :] == 0).all()
    assert got["progress"].tolist() == [STEP + 1, case.N, case.B, STEP]
    d_pooled = got["gradient"].astype(np.float64) @ case.head_weight.T
    g = share * d_pooled[np.maximum(case.graph_of_row, 0)]
    for number in range(case.L - 1, -1, -1):
        var, x_hat, z = norms[number]
        g = np.where((z > 0) & there[:, None], g, 0)
        doubtful = (np.abs(z) < 1e-5) & there[:, None]  # rounding decides their ReLU
        dbeta, dgamma = g.sum(axis=0), (g * np.where(there[:, None], x_hat, 0)).sum(axis=0)
        size = np.abs(g).sum(axis=0).max() * (1e-4 + 4 * doubtful.any())
        assert_near(got[f"dbeta{number}"], dbeta, 1e-4, size)
        assert_near(got[f"dgamma{number}"], dgamma, 1e-4, 4 * size)
        slope = case.gamma[number] / np.sqrt(var + EPSILON)
        dy = np.where(there[:, None], slope * (g - dbeta / case.N - x_hat * (dgamma / case.N)), 0)
        scale = float(got[f"scale{number}"][0])
        assert np.log2(scale) % 1 == 0
        found = got[f"dy{number}"] / scale
        assert np.isfinite(found[here]).all()
        bound = case.reach * (2 + np.sqrt(case.N)) * np.abs(slope * g).max()
        assert bound == 0 or 0.99 * 24_576 <= scale * bound <= 1.01 * 49_152 or abs(np.log2(scale)) == 100
        sure = here[:, None] & ~doubtful
        assert_near(found[sure], dy[sure], 1.1 * ROUNDING, np.abs(dy).max() * 3e-4 + 2.0**-24 / scale)
        assert (found[here & ~there] == 0).all()
        rowsum = np.asarray(a.sum(axis=1)).reshape(-1, 1)
        parts = (rowsum * dy).reshape(case.T, R, -1).sum(axis=1)[: case.n_tiles]
        size = np.abs(rowsum * dy).reshape(case.T, R, -1).sum(axis=1).max() * (1e-3 + doubtful.any())
        assert_near(got[f"dbias{number}"][: case.n_tiles], parts, 1e-4, size)
        if number == 0:
            break
        v = a.T @ dy
        sure = (np.abs(a.T) @ doubtful == 0) & here[:, None]
        assert_near(
            (got[f"v{number}"] / scale)[sure], v[sure], 1.1 * ROUNDING, np.abs(dy).max() * 3e-4 + 2.0**-24 / scale
        )
        weight = (case.weights[number] * W_SCALE).astype(np.float16).astype(np.float64) / W_SCALE
        g = np.where(here[:, None], got[f"v{number}"] / scale, 0) @ weight.T


def sizes(seed: int, count: int, low: int = 1, high: int = 50) -> list[int]:
    return np.random.default_rng(seed).integers(low, high + 1, count).tolist()


CASES: dict[str, dict[str, Any]] = {
    "narrow": {"graphs": sizes(0, 11)},
    "one layer": {"graphs": sizes(1, 20), "L": 1, "readout": SUM, "loss": REGRESSION, "K": 1},
    "one node": {"graphs": [1], "K": 3, "loss": BINARY},
    "single atoms": {"graphs": [1] * 200, "K": 7, "readout": SUM, "loss": BINARY},
    "graphs without nodes": {"graphs": [0, 5, 0, 144, 9, 0], "K": 12, "loss": BINARY},
    "not symmetric": {"graphs": sizes(2, 30), "symmetric": False, "L": 3, "readout": MAX},
    "dense": {"graphs": [50, 40, 30, 50, 50], "density": 0.9, "symmetric": False},
    "wide": {"graphs": sizes(3, 100, 4, 33), "P": 512, "L": 3, "spare_tiles": 0},
    "wide features": {"graphs": sizes(4, 40), "P": 384, "F": 512, "readout": MAX, "loss": BINARY, "K": 160},
    "four layers": {"graphs": sizes(5, 40), "P": 256, "F": 300, "L": 4, "readout": SUM, "loss": REGRESSION, "K": 12},
    "eight layers": {"graphs": sizes(10, 40), "P": 256, "L": 8, "symmetric": False},
    "many graphs in a tile": {"graphs": [1, 2, 3, 4, 5] * 60, "P": 512, "symmetric": False},
    "few rows": {"graphs": [7, 3, 5], "P": 256, "symmetric": False},
    "large gradients": {"graphs": sizes(6, 10), "gradient_scale": 1e3},
    "small gradients": {"graphs": sizes(7, 10), "gradient_scale": 1e-8},
}


@pytest.mark.parametrize("name", CASES)
def test_every_phase_is_near_float64_and_repeats_to_the_bit(name: str) -> None:
    case = Case(**CASES[name])
    got = case.run()
    check(case, got)
    again = Case(**CASES[name]).run()
    for key, value in got.items():
        np.testing.assert_array_equal(value, again[key], err_msg=key)


def test_launches_with_different_numbers_of_tiles_are_independent() -> None:
    """A launch ignores words of the exchange buffer that an earlier launch wrote."""
    case = Case(sizes(8, 40), P=512, spare_tiles=0)
    first = case.run()
    shape, size = case.fields["shape"], case.fields["size"]
    case.device.upload(np.array([1, 0], np.int32), shape)
    case.device.upload(np.array([case.tile_rows[0], case.tile_ptr[1], STEP, 5], np.int32), size)
    case.launch()
    assert (case.results()["losses"][1:] == 0).all()
    case.device.upload(np.array([case.n_tiles, 0], np.int32), shape)
    case.device.upload(np.array([case.N, case.B, STEP, 5], np.int32), size)
    case.launch()
    for key, value in case.results().items():
        if not key.startswith("running"):
            np.testing.assert_array_equal(value, first[key], err_msg=key)


def test_nan_in_the_weights_reaches_the_loss() -> None:
    case = Case(sizes(9, 20))
    case.weights[0][3, 5] = np.nan
    got = case.run()
    assert np.isnan(got["losses"][: case.n_tiles]).all()
    assert np.isnan(got["dy0"][case.exists]).any()
