"""The plan of an epoch on the device: each step's graphs, their offsets in the batch, and the learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.runtime.sources import declared

PROGRESS = declared("fused/shared/fused.cuh").enum("Progress::Field")
RATE = declared("dense/optimizer.cuh").layout("Rate")


class StagedEpoch:
    """The plan of an epoch on the device, in one array for up to `steps` steps and `graphs` graphs.

    `tiles` is the maximum number of tiles in a batch (`fused.fp16.tiles`); 0: the form has no tiles.

    Attributes
    ----------
    array : DeviceArray
        The whole plan.
    progress : DeviceArray, int32 (8,)
        Its elements are named by Progress (fused/shared/fused.cuh).
    rates : DeviceArray, (steps,)
        Rate (dense/optimizer.cuh).
    front : DeviceArray
        Both: the beginning of `array`, which `begin` writes.
    views : dict of DeviceArray
        Parts of `array`, by the names of the fields of Stage (fused/shared/stage.cuh).
    """

    def __init__(self, memory: Memory, steps: int, graphs: int, tiles: int = 0) -> None:
        self.steps, self.graphs = steps, graphs
        lengths = {
            "progress": PROGRESS["FIELDS"],
            "rates": RATE.size // 4 * steps,
            "batch_ptr": steps + 1,
            "graphs": graphs,
        }
        lengths |= dict.fromkeys(("nodes", "edges", "t_edges"), graphs + steps)
        if tiles:
            lengths |= {"tile_starts": steps * (tiles + 1), "tile_counts": steps}
        self._starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
        self.array = memory.empty(sum(lengths.values()), np.int32)
        self.views = {name: self.array.view(self._starts[name], length) for name, length in lengths.items()}
        self.progress = self.views["progress"]
        self.rates = self.views["rates"].astype_view(RATE.dtype)
        self.front = self.array.view(0, self._starts["batch_ptr"])

    def holds(self, steps: int, graphs: int) -> bool:
        """Return whether the array is large enough for an epoch of `steps` steps and `graphs` graphs."""
        return self.steps >= steps and self.graphs >= graphs

    def pack(self, host: NDArray[np.int32], plan: EpochPlan, weights: NDArray[np.float32]) -> None:
        """Write a plan to `host`, which has the length of `array`; `weights` (steps,) are those of the labels."""
        self._part_of(host, "rates").view(RATE.dtype)["label_weight"][: len(weights)] = weights
        arrays: dict[str, NDArray[Any]] = {
            "batch_ptr": plan.batch_ptr,
            "graphs": plan.graphs,
            **plan.pointers,
            **plan.tables,
        }
        for name, values in arrays.items():
            host[self._starts[name] : self._starts[name] + len(values)] = values

    def begin(
        self, host: NDArray[np.int32], now: int, first: int, end: int, epoch: int, rates: NDArray[np.float32]
    ) -> None:
        """Write to `host` the next step, the first and end of the steps to run, the epoch, and rates (steps, 3)."""
        progress = self._part_of(host, "progress")
        progress[:] = 0
        for name, value in (("NEXT", now), ("FIRST", first), ("END", end), ("EPOCH", epoch)):
            progress[PROGRESS[name]] = value
        of_steps = self._part_of(host, "rates").view(RATE.dtype)[: len(rates)]
        for name, values in zip(("learning_rate", "correction1", "correction2"), rates.T, strict=True):
            of_steps[name] = values

    def _part_of(self, host: NDArray[np.int32], name: str) -> NDArray[np.int32]:
        start = self._starts[name]
        return host[start : start + self.views[name].size]
