"""The plan of an epoch on the device: each step's graphs, their offsets in the batch, and the learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.arena import Memory


class StagedEpoch:
    """The plan of an epoch on the device, in one array for up to `steps` steps and `graphs` graphs.

    `tiles` is the maximum number of tiles in a batch (`fused.fp16.tiles`); 0: the form has no tiles.

    Attributes
    ----------
    array : DeviceArray
        The whole plan.
    progress : DeviceArray, (8,)
    rates : DeviceArray, (steps, 4)
    views : dict of DeviceArray
        Parts of `array`, by the names of the fields of Stage (fused/shared/stage.cuh).
    """

    def __init__(self, memory: Memory, steps: int, graphs: int, tiles: int = 0) -> None:
        self.steps, self.graphs = steps, graphs
        lengths = {"progress": 8, "rates": 4 * steps, "batch_ptr": steps + 1, "graphs": graphs}
        lengths |= dict.fromkeys(("nodes", "edges", "t_edges"), graphs + steps)
        if tiles:
            lengths |= {"tile_starts": steps * (tiles + 1), "tile_counts": steps}
        self._starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
        self.array = memory.empty(sum(lengths.values()), np.int32)
        self.views = {name: self.array.view(self._starts[name], length) for name, length in lengths.items()}
        self.progress = self.views["progress"]
        self.rates = self.views["rates"].astype_view(np.float32)

    def holds(self, steps: int, graphs: int) -> bool:
        """Return whether the array is large enough for an epoch of `steps` steps and `graphs` graphs."""
        return self.steps >= steps and self.graphs >= graphs

    def pack(self, host: NDArray[np.int32], plan: EpochPlan, weights: NDArray[np.float32]) -> None:
        """Write a plan to `host`, which has the length of `array`; `weights` (steps,) are those of the labels."""
        self._rates_in(host)[: len(weights), 3] = weights
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
        host[:8] = now, 0, 0, 0, first, end, epoch, 0
        self._rates_in(host)[: len(rates), :3] = rates

    def _rates_in(self, host: NDArray[np.int32]) -> NDArray[np.float32]:
        start = self._starts["rates"]
        return host[start : start + 4 * self.steps].view(np.float32).reshape(-1, 4)
