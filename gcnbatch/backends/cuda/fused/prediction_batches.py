"""The predictions of a fused engine: one batch of each member, outside of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.arena import arena_of
from gcnbatch.backends.cuda.fused.shared.epoch import BegunEpoch, Rates
from gcnbatch.backends.cuda.fused.shared.step import Workspace
from gcnbatch.backends.cuda.runtime.device import Device

Rows = Sequence[Int64 | None]


class PredictionBatches:
    """A workspace of predictions. Its launches are prepared once, and graphs that are staged already stay.

    Parameters
    ----------
    device : Device
    workspace : Workspace
    """

    def __init__(self, device: Device, workspace: Workspace) -> None:
        self.workspace, self._device = workspace, device
        self._staged: dict[int, Int64] = {}  # copies of the graphs whose batch each member holds
        self._launches: list[Callable[[], None]] = []  # staging, then the kernels of the logits

    def work_for(self, members: tuple[int, ...]) -> None:
        """Launch for these members from now on."""
        if self.workspace.launched != members:
            self.workspace.launched, self._launches = members, []

    def stage(self, rows: Rows, plan: Callable[[Int64], EpochPlan]) -> None:
        """Stage the graphs of each launched member, unless it holds their batch; `plan` plans a member's graphs."""
        asked = {member: own for member, own in enumerate(rows) if own is not None}
        if all(member in self._staged and np.array_equal(self._staged[member], own) for member, own in asked.items()):
            return
        self.forget()
        upload_batches(self.workspace, rows, [None if own is None else plan(own) for own in rows])
        self._prepared()[0]()
        self._staged = {member: own.copy() for member, own in asked.items()}

    def forget(self) -> None:
        """Stage the next graphs in any case: numbers that staging uses have changed."""
        self._staged = {}

    def logits(self, rows: Rows) -> list[NDArray[np.float32] | None]:
        """Return the logits of the staged batches, (graphs, n_outputs) for each member."""
        for launch in self._prepared()[1:]:
            launch()
        most = max(len(own) for own in rows if own is not None)
        found = arena_of(self.workspace.logits).fetch(
            self.workspace.logits.view(0, (most, self.workspace.logits.shape[1]))
        )
        return [None if own is None else found[member, : len(own)] for member, own in enumerate(rows)]

    def _prepared(self) -> list[Callable[[], None]]:
        if not self._launches:
            calls = [self.workspace.stage(), *(call for call in self.workspace.forward() if call.launch.blocks)]
            self._launches = [self._device.prepared(call.entry, call.launch, **call.arguments) for call in calls]
        return self._launches


def upload_batches(
    workspace: Workspace,
    rows: Rows,
    plans: Sequence[EpochPlan | None],
    weights_of: Callable[[int, Int64], NDArray[np.float32]] = lambda member, graphs: np.zeros(1, np.float32),
    turn: int = 0,
) -> None:
    """Upload an epoch of one step of each member that has graphs.

    `weights_of` are the label weights of its step, `turn` its number among the turns of all ranks.
    """
    packed, begun = np.zeros((len(rows), *workspace.plan.array.shape), np.int32), dict[int, BegunEpoch]()
    for member, (own, plan) in enumerate(zip(rows, plans, strict=True)):
        if own is not None and plan is not None:
            workspace.pack_plan(packed[member], plan, weights_of(member, own))
            begun[member] = BegunEpoch(0, 1, 0, Rates(0.0, np.zeros((1, 2), np.float32)), turn)
    workspace.plan.begin(packed, 0, begun)
    workspace.begin_epoch(packed)
