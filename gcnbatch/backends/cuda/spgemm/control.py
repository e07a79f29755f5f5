"""Counters that the kernels of ``cuda_src/spgemm`` share: statistics, cursors, tickets and states of scans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spgemm import geometry

_BEFORE_STATES = 512  # bytes of the block before the states of the scans


@dataclass
class Control:
    """Counters of the kernels in one block of memory, cleared once per product.

    Parameters
    ----------
    whole : DeviceArray
    tiles : (int, int)
        Blocks of the scans over A's rows: that of bounds, and that of pointers. Each has a state.
    """

    whole: DeviceArray
    tiles: tuple[int, int]
    stats: DeviceArray
    nnz: DeviceArray
    cursors: DeviceArray
    sampled: DeviceArray
    tickets: tuple[DeviceArray, DeviceArray]
    n_overflow: DeviceArray
    filled: DeviceArray
    states: tuple[DeviceArray, DeviceArray]

    @staticmethod
    def bytes_of(tiles: tuple[int, int]) -> int:
        """Return the size of the block."""
        return _BEFORE_STATES + 8 * sum(tiles)

    @classmethod
    def of(cls, whole: DeviceArray, tiles: tuple[int, int]) -> Control:
        """Return the counters in a block of `bytes_of(tiles)` bytes."""

        def part(start: int, count: int, dtype: Any) -> DeviceArray:
            kind = np.dtype(dtype)
            return DeviceArray(whole.ptr + start, (count,), kind, whole.owner)

        return cls(
            whole=whole,
            tiles=tiles,
            stats=part(0, geometry.STAT["ROWS_OF_GROUP"] + geometry.LONG + 1, np.uint64),
            nnz=part(192, 1, np.uint64),
            cursors=part(200, 2, np.uint64),
            sampled=part(216, 2, np.uint64),
            tickets=(part(256, 1, np.uint32), part(260, 1, np.uint32)),
            n_overflow=part(264, 1, np.uint32),
            filled=part(320, geometry.LONG + 1, np.uint32),
            states=(
                part(_BEFORE_STATES, tiles[0], np.uint64),
                part(_BEFORE_STATES + 8 * tiles[0], tiles[1], np.uint64),
            ),
        )
