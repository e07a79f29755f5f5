"""The wide form for a model on several ranks, each of which computes a part of every batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.shared.ranks import plan_part
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.wide import geometry
from gcnbatch.backends.cuda.fused.wide.form import Wide, WideTf32, has_residuals
from gcnbatch.backends.cuda.fused.wide.ranks_step import RanksWorkspace
from gcnbatch.backends.cuda.runtime.launch import ceil_div

GRAPHS_AT_ONCE = 16  # a capacity is a multiple of it, so most epochs can use the workspace of the epoch before


class WideOverRanks(Wide):
    """The wide kernels with exchanges; they train models of any width."""

    name = "wide over ranks"
    condition = ""
    over_ranks = True

    @classmethod
    def prefers(cls, stack: Stack) -> bool:
        """Return True: no other form trains on several ranks."""
        return True

    @classmethod
    def predicts(cls, stack: Stack, capability: tuple[int, int], precision: str) -> bool:
        """Return False: a rank predicts as a model alone does."""
        return False

    def plans(self, of_members: Sequence[Sequence[Int64]]) -> list[EpochPlan]:
        assert self._cohort.ranks is not None
        return [plan_part(own, self._data.sizes, self._cohort.ranks) for own in of_members]

    def capacity(self, plans: Sequence[EpochPlan], graphs: int) -> Capacity:
        """Return the need of the largest part of this rank in the epoch."""
        (plan,) = plans
        most = int(np.diff(plan.batch_ptr).max(initial=1))
        return self._data.capacity_of(plan, min(graphs, GRAPHS_AT_ONCE * ceil_div(most, GRAPHS_AT_ONCE)))

    def _made(self, memory: Memory, capacity: Capacity, steps: int, graphs: int) -> RanksWorkspace:
        assert self._cohort.ranks is not None
        plan = StagedEpoch(memory, steps, graphs, part=self._cohort.ranks.part_length)
        return RanksWorkspace(self._cohort, memory, capacity, plan, self.training, self.products)


class WideTf32OverRanks(WideOverRanks):
    """The same with products in TF32."""

    name = "wide over ranks (TF32)"
    products, precision = WideTf32.products, WideTf32.precision
    rounds_to_tf32 = True


OVER_RANKS: tuple[type[Form], ...] = (WideTf32OverRanks, WideOverRanks)


def refusal(setting: Setting) -> str:
    """Return why no form trains a model on several ranks, or ""."""
    if any(form.trains(setting) for form in OVER_RANKS):
        return ""
    if has_residuals(setting.stack):
        return "residual connections on several ranks (model.residual)"
    where = ".".join(map(str, setting.capability))
    (known,) = geometry.CAPABILITIES
    return f"several ranks on compute capability {where}, only on {'.'.join(map(str, known))}"
