"""The plan of an epoch on the device: each step's graphs, their offsets in the batch, and the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


class StagedEpoch:
    """The plan of an epoch on the device, in one array for `steps` steps and `graphs` graphs.

    `tiles` is the maximum number of tiles in a batch (`fused.fp16.tiles`); 0: the form has no tiles.

    Attributes
    ----------
    array : DeviceArray
        The whole plan.
    progress : DeviceArray, (4,)
    rates : DeviceArray, (steps, 4)
    views : dict of DeviceArray
        Parts of `array`, by the names of the fields of Stage (fused/shared/stage.cuh).
    """

    def __init__(self, device: Device, steps: int, graphs: int, tiles: int = 0) -> None:
        self.steps, self.graphs = steps, graphs
        lengths = {"progress": 4, "rates": 4 * steps, "batch_ptr": steps + 1, "graphs": graphs}
        lengths |= dict.fromkeys(("nodes", "edges", "t_edges"), graphs + steps)
        if tiles:
            lengths |= {"tile_starts": steps * (tiles + 1), "tile_counts": steps}
        self._starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
        self.array = device.empty(sum(lengths.values()), np.int32)
        self.views = {name: self.array.view(self._starts[name], length) for name, length in lengths.items()}
        self.progress = self.views["progress"]
        self.rates = self.views["rates"].astype_view(np.float32)

    def holds(self, steps: int, graphs: int) -> bool:
        """Return whether the array is the right one for an epoch of `steps` steps and `graphs` graphs."""
        return self.steps == steps and self.graphs >= graphs

    def packed(self, plan: EpochPlan, weights: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the contents of `array` without what `begun` fills in; `weights` (steps,) are those of the labels."""
        host = np.zeros(self.array.shape, np.int32)
        self._rates_in(host)[:, 3] = weights
        arrays: dict[str, NDArray[Any]] = {
            "batch_ptr": plan.batch_ptr,
            "graphs": plan.graphs,
            **plan.pointers,
            **plan.tables,
        }
        for name, values in arrays.items():
            host[self._starts[name] : self._starts[name] + len(values)] = values
        return host

    def begun(self, packed: NDArray[np.int32], rates: NDArray[np.float32], first: int) -> NDArray[np.int32]:
        """Fill the rates, (steps, 3), and the step to stage first into `packed`, and return it."""
        packed[0] = first
        self._rates_in(packed)[:, :3] = rates
        return packed

    def _rates_in(self, host: NDArray[np.int32]) -> NDArray[np.float32]:
        start = self._starts["rates"]
        return host[start : start + 4 * self.steps].view(np.float32).reshape(-1, 4)
