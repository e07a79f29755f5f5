"""Counter-based random bits: a value depends only on (seed, purpose, epoch, step, element).

The generator is NumPy's Philox4x64-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
SC 2011) with explicit keys and counters, so a kernel can compute any element without the ones before it:

    key     = (seed, purpose)            counter = (block + 1, step, epoch, 0)
    block b gives four 64-bit words = eight 32-bit values; element e reads value e % 8 of block e // 8,
    the low half of a word before its high half. (NumPy increments the counter before a block: hence the + 1.)

Resuming a run needs no saved generator state: the counters are the epoch and step of the run.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray


def purpose_key(name: str) -> int:
    """Return the 32-bit key word of a purpose such as ``"conv1.dropout"`` (CRC-32 of its UTF-8 bytes)."""
    return zlib.crc32(name.encode("utf-8"))


def bits(seed: int, purpose: str, epoch: int, step: int, count: int, first: int = 0) -> NDArray[np.uint32]:
    """Return `count` uniform 32-bit values, shape ``(count,)``, for elements first … first+count-1."""
    key = np.array([seed, purpose_key(purpose)], dtype=np.uint64)
    block, before = divmod(first, 8)
    counter = np.array([block, step, epoch, 0], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw((before + count + 1) // 2)
    # In little-endian words the low half comes first on every machine.
    return np.ascontiguousarray(words, dtype="<u8").view("<u4")[before : before + count]


def generator(seed: int, purpose: str, epoch: int = 0) -> np.random.Generator:
    """Return a NumPy generator for host-side draws (initial weights, shuffles, splits) of one purpose and epoch."""
    key = np.array([seed, purpose_key(purpose)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, epoch, 1], dtype=np.uint64)))
