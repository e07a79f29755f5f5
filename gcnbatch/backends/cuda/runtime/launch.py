"""Launch geometry (blocks, threads, shared memory): pure arithmetic, tested without a GPU.

Every kernel has a function that returns its `Launch`. This module holds the functions that several kernels share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.errors import InputError

BLOCK_THREADS: int = declared("common/common.cuh").constant("BLOCK_THREADS")
PHILOX_ELEMENTS: int = declared("common/philox.cuh").constant("PHILOX_ELEMENTS")  # of a block of random bits
FLOAT_BYTES = 4
WARP_BITS = 5  # log2 of the threads of a warp
MAX_THREADS = 1024
MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65_535

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """The geometry of one kernel launch.

    Parameters
    ----------
    grid : (x, y, z)
        Number of blocks. If one of them is 0, `Device.launch` launches nothing.
    block : (x, y, z)
        Threads per block, at most 1024 in total.
    shared : int
        Bytes of dynamic shared memory per block.

    Attributes
    ----------
    blocks : int
        Total number of blocks.

    Raises
    ------
    InputError
        When the grid is larger than CUDA allows.
    ValueError
        When no CUDA device could run the block.
    """

    grid: Dim3
    block: Dim3
    shared: int = 0
    blocks: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        x, y, z = self.grid
        if x > MAX_GRID_X or max(y, z) > MAX_GRID_YZ:
            raise InputError(
                "model and batch",
                f"a grid of {x:,} x {y:,} x {z:,} blocks",
                f"at most {MAX_GRID_X:,} x {MAX_GRID_YZ:,} x {MAX_GRID_YZ:,}",
                "Lower the batch size, the widths or the number of features, or use --backend cpu.",
            )
        if min(self.grid) < 0:
            raise ValueError(f"grid {self.grid}: below 0")
        if min(self.block) < 1 or self.threads > MAX_THREADS:
            raise ValueError(f"block {self.block}: outside 1 to {MAX_THREADS} threads")
        if self.shared < 0:
            raise ValueError(f"shared memory of {self.shared} bytes")
        object.__setattr__(self, "blocks", x * y * z)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.block[0] * self.block[1] * self.block[2]


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up, for a >= 0 and b > 0."""
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least `n`, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def log2(power_of_two: int) -> int:
    """Return the exponent of a power of two.

    >>> log2(next_power_of_two(48))
    6
    """
    return power_of_two.bit_length() - 1


@lru_cache(maxsize=4096)
def elementwise(n: int, per_thread: int = 1) -> Launch:
    """Return the launch for `n` elements, with `per_thread` elements per thread.

    >>> elementwise(1850 * 64, per_thread=4).grid
    (116, 1, 1)
    """
    return Launch((ceil_div(n, BLOCK_THREADS * per_thread), 1, 1), (BLOCK_THREADS, 1, 1))


def thread_per_output(rows: int, columns: int) -> Launch:
    """Return the launch of the naive kernels: a thread per element of a (rows, columns) result.

    >>> thread_per_output(950, 64)
    Launch(grid=(119, 2, 1), block=(32, 8, 1), shared=0)
    """
    x, y = 32, BLOCK_THREADS // 32
    return Launch((ceil_div(rows, y), ceil_div(columns, x), 1), (x, y, 1))
