"""MatMul and linear layers: tiled products, their gradients, and the choice of the tile (dense/matmul.cu)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gcnbatch.backends.cuda.ops.bias import BiasOps
from gcnbatch.backends.cuda.ops.common import COUNTER_BYTES
from gcnbatch.backends.cuda.ops.relu_dropout import ALL_KEPT, Kept
from gcnbatch.backends.cuda.runtime.launch import FLOAT_BYTES, Launch, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.errors import InputError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

Precision = Literal["fp32", "tf32"]

TF32_SINCE = (8, 0)  # first compute capability with TF32
ROWS_PER_PART = 64  # fewest rows of a partial sum of a weight gradient
# All gradients are one launch up to BLOCKS_AT_ONCE blocks per multiprocessor and ROWS_AT_ONCE rows per partial sum.
BLOCKS_AT_ONCE, ROWS_AT_ONCE = 3, 256
REDUCTION_COST = 8  # cost of adding one partial sum, in multiply-adds
UNGROUPED_PARTS, GROUP_PARTS = (declared("dense/matmul.cu").constant(f"{of}_PARTS") for of in ("UNGROUPED", "GROUP"))
# A multiprocessor computes several partial sums side by side if each has at least LONG_PART rows.
PARTS_SIDE_BY_SIDE, LONG_PART = 2, 2048


class Tile(NamedTuple):
    """A tiling strategy of dense/matmul.cu: a block computes one tile of the product.

    `speed` is the strategy's rate of multiply-adds relative to 128x64. Smaller tiles are slower: they load more
    operands per multiply-add, and their few warps hide less latency.
    """

    name: str
    rows: int
    columns: int
    depth: int
    threads: int
    speed: float


# Static assertions in the tests of the compiler hold these sizes to those of dense/matmul.cu.
TILES: dict[Precision, tuple[Tile, ...]] = {
    "fp32": (
        Tile("128x128", 128, 128, 8, 256, 1.1),
        Tile("128x64", 128, 64, 16, 256, 1.0),
        Tile("64x64", 64, 64, 16, 128, 0.9),
        Tile("32x32", 32, 32, 32, 128, 0.55),
        Tile("16x32", 16, 32, 32, 128, 0.4),
    ),
    "tf32": (Tile("tf32_128x64", 128, 64, 16, 256, 1.0), Tile("tf32_32x32", 32, 32, 32, 128, 0.4)),
}
WGRAD_TILES: dict[Precision, tuple[Tile, ...]] = {
    "fp32": (TILES["fp32"][0], TILES["fp32"][1], TILES["fp32"][3]),
    "tf32": TILES["tf32"],
}
_NAMES = [tile.name for tiles in TILES.values() for tile in tiles]
FORWARD, DGRAD, WGRAD = ({tile: f"matmul_{tile}_{kind}" for tile in _NAMES} for kind in ("forward", "dgrad", "wgrad"))


class MatmulGeometry(NamedTuple):
    """Geometry of `matmul_{tile}_forward` and `matmul_{tile}_dgrad`."""

    tile: str
    launch: Launch


class WgradGeometry(NamedTuple):
    """Geometry of `matmul_{tile}_wgrad`: launch, rows per partial sum, and bytes of its workspaces."""

    tile: str
    launch: Launch
    rows_per_part: int
    partials_bytes: int
    counters_bytes: int


class BackwardGeometry(NamedTuple):
    """Geometry of `matmul_32x32_backward`: as `WgradGeometry`, with the number of blocks that compute dW."""

    launch: Launch
    rows_per_part: int
    dw_blocks: int
    partials_bytes: int
    counters_bytes: int


@lru_cache(maxsize=4096)
def product_geometry(
    rows: int, columns: int, depth: int, multiprocessors: int, precision: Precision = "fp32"
) -> MatmulGeometry:
    """Return the tile and launch of a product (rows, depth) x (depth, columns).

    The tile is the one with the shortest estimated time, in waves of blocks over the multiprocessors. Large tiles
    read less; small tiles spread a small product over more multiprocessors.

    >>> product_geometry(950, 64, 64, 132).tile, product_geometry(950, 64, 64, 132).launch.grid
    ('16x32', (60, 2, 1))
    >>> product_geometry(1850, 512, 512, 132).tile, product_geometry(1850, 512, 512, 132).launch.grid
    ('128x64', (15, 8, 1))
    """

    def cost(tile: Tile) -> float:
        blocks = ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)
        return ceil_div(blocks, multiprocessors) * tile.rows * tile.columns * depth / tile.speed

    tile = min(TILES[precision], key=cost)
    grid = (ceil_div(rows, tile.rows), ceil_div(columns, tile.columns), 1)
    return MatmulGeometry(tile.name, Launch(grid, (tile.threads, 1, 1)))


@lru_cache(maxsize=4096)
def wgrad_geometry(N: int, F: int, P: int, multiprocessors: int, precision: Precision = "fp32") -> WgradGeometry:
    """Return tile and launch of the gradient (F, N) x (N, P): split-K, to give every multiprocessor work.

    >>> wgrad_geometry(950, 64, 64, 132)[:3]
    ('32x32', Launch(grid=(2, 2, 15), block=(128, 1, 1), shared=0), 64)
    """
    plans = [wgrad_plan(tile, N, F, P, multiprocessors) for tile in WGRAD_TILES[precision]]
    return min(plans, key=lambda plan: plan[0])[1]


def wgrad_plan(
    tile: Tile, N: int, F: int, P: int, multiprocessors: int, side_by_side: int = PARTS_SIDE_BY_SIDE
) -> tuple[float, WgradGeometry]:
    """Return estimated time and geometry of a weight gradient in this tile.

    A multiprocessor computes up to `side_by_side` long partial sums at once.
    """
    grid = ceil_div(F, tile.rows), ceil_div(P, tile.columns)
    tiles, sums = grid[0] * grid[1], tile.rows * tile.columns
    wanted = max(min(multiprocessors // max(tiles, 1), ceil_div(N, ROWS_PER_PART)), 1)
    if tiles <= multiprocessors and LONG_PART * side_by_side * wanted <= N:
        wanted *= side_by_side
    rows_per_part = max(ceil_div(ceil_div(N, wanted), tile.depth), 1) * tile.depth
    parts = max(ceil_div(N, rows_per_part), 1)
    groups = ceil_div(parts, GROUP_PARTS) if parts > UNGROUPED_PARTS else 0
    reduction = (GROUP_PARTS + groups if groups else parts) * REDUCTION_COST if parts > 1 else 0
    cost = ceil_div(tiles * parts, multiprocessors) * sums * (rows_per_part / tile.speed + reduction)
    launch = Launch((*grid, parts), (tile.threads, 1, 1))
    partials = tiles * parts * sums * FLOAT_BYTES if parts > 1 else 0
    return cost, WgradGeometry(tile.name, launch, rows_per_part, partials, tiles * (1 + groups) * COUNTER_BYTES)


@lru_cache(maxsize=4096)
def backward_geometry(
    N: int, F: int, P: int, multiprocessors: int, need_dx: bool, precision: Precision = "fp32"
) -> BackwardGeometry | None:
    """Return the launch of all gradients at once; None if each fills the device alone, or for tensor cores.

    >>> backward_geometry(950, 64, 64, 132, True)[:3]
    (Launch(grid=(150, 1, 1), block=(128, 1, 1), shared=0), 64, 90)
    >>> backward_geometry(1850, 512, 512, 132, True) is None
    True
    """
    if precision != "fp32":
        return None
    tile = WGRAD_TILES["fp32"][-1]
    _, plan = wgrad_plan(tile, N, F + 1, P, multiprocessors)  # one row more: the gradient of the bias
    dw_blocks = plan.launch.blocks
    dx_blocks = ceil_div(N, tile.rows) * ceil_div(F, tile.columns) if need_dx else 0
    if dw_blocks + dx_blocks > BLOCKS_AT_ONCE * multiprocessors or plan.rows_per_part > ROWS_AT_ONCE:
        return None
    launch = Launch((dw_blocks + dx_blocks, 1, 1), (tile.threads, 1, 1))
    return BackwardGeometry(launch, plan.rows_per_part, dw_blocks, plan.partials_bytes, plan.counters_bytes)


class MatmulOps(BiasOps):
    """`matmul` and `linear` of `gcnbatch.backends.ops.Ops` and their gradients.

    Parameters
    ----------
    device : Device
    precision : "fp32" or "tf32"
        Precision of products: "tf32" rounds the inputs to 11 bits and multiplies on the tensor cores.

    Raises
    ------
    InputError
        When the device does not support TF32.
    """

    def __init__(self, device: Device, precision: Precision = "fp32") -> None:
        if precision == "tf32" and device.compute_capability < TF32_SINCE:
            raise InputError(
                "precision",
                f"'tf32' on {device.name} (compute capability {'.'.join(map(str, device.compute_capability))})",
                "a GPU of compute capability 8.0 or newer",
                "Set precision = 'fp32'.",
            )
        super().__init__(device)
        self.precision = precision

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

    def matmul_dx(self, dy: DeviceArray, w: DeviceArray, graphs: Any = None, kept: Kept | None = None) -> DeviceArray:
        (F, P), N = w.shape, dy.shape[0]
        dx = self.device.empty((N, F))
        self.multiply_dgrad(dx, dy, w, (N, F, P), (F, P, P), kept)
        return dx

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
        """Write dW and db, and return dX: in one launch if the product is small, else in one launch each."""
        (N, F), P = x.shape, w.shape[1]
        dx = self.device.empty((N, F)) if need_dx else None
        plan = self.all_gradients((N, F, P), need_dx)
        if plan is not None:
            partials, counters = self.workspaces(plan.partials_bytes, plan.counters_bytes)
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

    def all_gradients(self, sizes: tuple[int, int, int], need_dx: bool) -> BackwardGeometry | None:
        """Return the launch of all gradients at once; None if separate launches are faster."""
        return backward_geometry(*sizes, self.device.multiprocessors, need_dx, self.precision)

    def multiply(
        self,
        y: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        sizes: tuple[int, int, int],
        strides: tuple[int, int, int],
        bias: DeviceArray | None = None,
    ) -> None:
        """Y = X W (+ bias) for `sizes` (N, F, P) and leading dimensions `strides` (ldy, ldx, ldw)."""
        (N, F, P), (ldy, ldx, ldw) = sizes, strides
        tile, launch = product_geometry(N, P, F, self.device.multiprocessors, self.precision)
        self.device.launch(FORWARD[tile], launch, y=y, x=x, w=w, bias=bias, ldy=ldy, ldx=ldx, ldw=ldw, N=N, F=F, P=P)

    def multiply_dgrad(
        self,
        dx: DeviceArray,
        dy: DeviceArray,
        w: DeviceArray,
        sizes: tuple[int, int, int],
        strides: tuple[int, int, int],
        kept: Kept | None = None,
        first: int = 0,
    ) -> None:
        """dX = dY Wᵀ for `sizes` (N, F, P) and `strides` (lddx, lddy, ldw).

        With `kept`, dX is the gradient before ReLU and dropout; it begins with their element `first`.
        """
        (N, F, P), (lddx, lddy, ldw) = sizes, strides
        tile, launch = product_geometry(N, F, P, self.device.multiprocessors, self.precision)
        self.device.launch(
            DGRAD[tile],
            launch,
            dx=dx,
            dy=dy,
            w=w,
            kept=ALL_KEPT if kept is None else kept.from_element(first),
            lddx=lddx,
            lddy=lddy,
            ldw=ldw,
            N=N,
            F=F,
            P=P,
        )

    def multiply_wgrad(
        self,
        dw: DeviceArray,
        x: DeviceArray,
        dy: DeviceArray,
        sizes: tuple[int, int, int],
        strides: tuple[int, int, int],
        accumulate: bool = False,
    ) -> None:
        """dW = Xᵀ dY (dW += with `accumulate`) for `sizes` (N, F, P) and `strides` (lddw, ldx, lddy)."""
        plan = wgrad_geometry(*sizes, self.device.multiprocessors, self.precision)
        self.launch_wgrad(WGRAD[plan.tile], plan, dw, x, dy, sizes, strides, accumulate)

    def launch_wgrad(
        self,
        entry: str,
        plan: WgradGeometry,
        dw: DeviceArray,
        x: DeviceArray,
        dy: DeviceArray,
        sizes: tuple[int, int, int],
        strides: tuple[int, int, int],
        accumulate: bool,
    ) -> None:
        """Launch the kernel `entry` of a weight gradient; see `multiply_wgrad`."""
        partials, counters = self.workspaces(plan.partials_bytes, plan.counters_bytes)
        (N, F, P), (lddw, ldx, lddy) = sizes, strides
        self.device.launch(
            entry,
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
