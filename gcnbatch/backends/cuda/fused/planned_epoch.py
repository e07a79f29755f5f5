"""The next epoch of a fused engine as it is planned, and how it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import BegunEpoch, Rates
from gcnbatch.backends.cuda.fused.shared.form import Form
from gcnbatch.backends.cuda.fused.shared.step import Workspace


class EngineEpoch(NamedTuple):
    """A member's epoch.

    Parameters
    ----------
    epoch : int
        Its number, which keys dropout.
    batches : list of int64
    rates : Rates
    first : int
        The first step to run.
    """

    epoch: int
    batches: Sequence[Int64]
    rates: Rates
    first: int

    def begins_as(self, other: EngineEpoch) -> bool:
        """Return whether another epoch of the same batches has the same number, first step and rates."""
        mine, theirs = self.rates, other.rates
        return (self.epoch, self.first, mine.learning_rate) == (
            other.epoch,
            other.first,
            theirs.learning_rate,
        ) and (mine.corrections is theirs.corrections or np.array_equal(mine.corrections, theirs.corrections))


Epochs = Sequence[EngineEpoch | None]  # by member; None: the member is idle
Batches = Sequence[Sequence[Int64] | None]  # of an epoch


def members_of(epochs: Epochs) -> tuple[int, ...]:
    """Return the members that run in an epoch."""
    return tuple(member for member, one in enumerate(epochs) if one)


def first_step(epochs: Epochs) -> int:
    """Return the first step of any member."""
    return min(one.first for one in epochs if one)


def write_begin(
    workspace: Workspace, packed: NDArray[np.int32], epochs: Epochs, turn: Callable[[int], int] = lambda first: 0
) -> None:
    """Write how an epoch begins to its packed upload, (members, …), or the front of it.

    `turn` returns the number of step 0 among the turns of all ranks, for an epoch that begins now with step `first`.
    """
    running = ((member, one) for member, one in enumerate(epochs) if one)
    begun = {
        member: BegunEpoch(one.first, len(one.batches), one.epoch, one.rates, turn(one.first))
        for member, one in running
    }
    workspace.plan.begin(packed, first_step(epochs), begun)


@dataclass(frozen=True)
class PlannedEpoch:
    """The next epoch, planned while the device still runs the current one.

    Epoch numbers, learning rates and first steps are not known yet.

    Parameters
    ----------
    batches : list of (list of int64, or None)
    plans : list of (EpochPlan or None)
    form : Form
        The form that trains the epoch.
    needed : Capacity
        The capacity that its largest batch needs.
    steps, graphs : int
        Those of the members with the most.
    rows : int
        Nodes of the largest batch.
    weights : list of float32, (steps,)
        Weights of the labels of each member's batches.
    """

    batches: Batches
    plans: Sequence[EpochPlan | None]
    form: Form
    needed: Capacity
    steps: int
    graphs: int
    rows: int
    weights: Sequence[NDArray[np.float32]]

    def pack(self, workspace: Workspace) -> NDArray[np.int32]:
        """Return the upload to a workspace, (members, …), without what `begin_epoch` fills in."""
        packed = np.zeros((len(self.plans), *workspace.plan.array.shape), np.int32)
        for row, plan, weights in zip(packed, self.plans, self.weights, strict=True):
            if plan:
                workspace.pack_plan(row, plan, weights)
        return packed


class Upload(NamedTuple):
    """A planned epoch, packed for a workspace: (members, …); only the front if the rest is sent."""

    workspace: Workspace
    packed: NDArray[np.int32]
