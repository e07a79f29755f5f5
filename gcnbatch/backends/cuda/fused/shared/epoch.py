"""The plan of an epoch on the device: each step's graphs, their offsets in the batch, and the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.runtime.sources import declared

PROGRESS = declared("fused/shared/fused.cuh").enum("Progress::Field")
RATE = declared("dense/optimizer.cuh").layout("Rate")


class Rates(NamedTuple):
    """Numbers of the optimiser for the steps of an epoch.

    Parameters
    ----------
    learning_rate : float
    corrections : float32, (steps, 2)
        Adam's 1 / (1 - beta^t) of both moments.
    """

    learning_rate: float
    corrections: NDArray[np.float32]


class BegunEpoch(NamedTuple):
    """The first and end of the steps to run, the number of the epoch, and the rates of its steps.

    `turn`, on ranks: the number of step 0 among the turns of all ranks.
    """

    first: int
    end: int
    epoch: int
    rates: Rates
    turn: int = 0


class StagedEpoch:
    """The plan of an epoch on the device, in one array for up to `steps` steps and `graphs` graphs.

    `tiles` is the maximum number of tiles in a batch (`fused.fp16.tiles`); 0: the form has no tiles. `part` is the
    length of a rank's Part of a batch (fused/wide/ranks.cuh); 0: the model is on one rank.

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

    def __init__(self, memory: Memory, steps: int, graphs: int, tiles: int = 0, part: int = 0) -> None:
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
        if part:
            lengths |= {"parts": steps * part}
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
        host[self._slice("rates")].view(RATE.dtype)["label_weight"][: len(weights)] = weights
        arrays: dict[str, NDArray[Any]] = {
            "batch_ptr": plan.batch_ptr,
            "graphs": plan.graphs,
            **plan.pointers,
            **plan.tables,
        }
        for name, values in arrays.items():
            host[self._starts[name] : self._starts[name] + len(values)] = values

    def begin(self, host: NDArray[np.int32], now: int, members: Mapping[int, BegunEpoch]) -> None:
        """Write to `host` (members, …) the next step `now` and, for some members, the rest of their epoch's begin."""
        places, begun = list(members), list(members.values())
        progress = np.zeros((len(begun), PROGRESS["FIELDS"]), np.int32)
        progress[:, PROGRESS["NEXT"]] = now
        for name, values in (
            ("FIRST", [one.first for one in begun]),
            ("END", [one.end for one in begun]),
            ("EPOCH", [one.epoch for one in begun]),
            ("TURN", [one.turn for one in begun]),
        ):
            progress[:, PROGRESS[name]] = values
        host[places, self._slice("progress")] = progress
        of_steps = host[:, self._slice("rates")].view(RATE.dtype)
        of_steps["learning_rate"][places] = np.array([one.rates.learning_rate for one in begun])[:, np.newaxis]
        groups: dict[int, list[int]] = {}
        for place, one in members.items():
            groups.setdefault(id(one.rates.corrections), []).append(place)
        for of_group in groups.values():
            corrections = members[of_group[0]].rates.corrections
            for name, values in zip(("correction1", "correction2"), corrections.T, strict=True):
                of_steps[name][of_group, : len(corrections)] = values

    def _slice(self, name: str) -> slice:
        return slice(self._starts[name], self._starts[name] + self.views[name].size)
