"""A device that records launches and runs nothing, and assertions about geometry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.resources import cuda_sources

H200 = 132
NARROW = st.sampled_from([1, 2, 3, 12, 31, 32, 33, 64, 75, 130, 512, 602])
ROWS = st.one_of(st.sampled_from([0, 1, 33, 257, 950, 1850, 232_965]), st.integers(0, 5000))
CHIPS = st.sampled_from([1, 16, 82, H200])
quickly = settings(max_examples=60)
SOURCES = Sources(cuda_sources())


@dataclass
class Recorder:
    """A device that checks launches against the kernels' declarations and records them."""

    multiprocessors: int = 132
    compute_capability: tuple[int, int] = (9, 0)
    name: str = "recorder"
    top: int = 256
    launched: list[tuple[str, Launch, dict[str, Any]]] = field(default_factory=list)

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float32) -> DeviceArray:
        array = DeviceArray(self.top, shape, np.dtype(dtype))
        self.top += -(-array.nbytes // 256) * 256 + 256
        return array

    def workspace(self, name: str, nbytes: int) -> DeviceArray:
        return self.empty((nbytes,), np.uint8)

    def launch(self, entry: str, launch: Launch, **arguments: Any) -> None:
        if launch.blocks:
            SOURCES.entries[entry].pack(arguments)
            self.launched.append((entry, launch, arguments))

    @property
    def entries(self) -> list[str]:
        return [entry for entry, *_ in self.launched]


def of(device: Recorder, *shapes: tuple[int, ...]) -> list[DeviceArray]:
    return [device.empty(shape) for shape in shapes]


def covers(blocks: int, each: int, n: int) -> bool:
    """Return whether a launch covers all elements and no block is idle."""
    return (blocks - 1) * each < n <= blocks * each or (n == 0 and blocks == 0)
