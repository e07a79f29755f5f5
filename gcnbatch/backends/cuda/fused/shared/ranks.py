"""The ranks that train one model together, as a fused engine sees them, and a rank's plan of an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gcnbatch.backends.cuda.batches.batch import Int32, Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan, plan_epoch
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.data.partition import partition_batches

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.ranks.mailboxes import Mailboxes

PART = declared("fused/wide/ranks.cuh").enum("Part::Field")


@dataclass(frozen=True)
class Ranks:
    """The ranks, seen from one of them.

    Parameters
    ----------
    rank, size : int
        This rank, and how many there are.
    sync : bool
        Whether batch norm uses the rows of all ranks (``train.sync_batch_norm``).
    batch_size : int
        Graphs of a global batch (``train.batch_size``).
    mailboxes : Mailboxes
    """

    rank: int
    size: int
    sync: bool
    batch_size: int
    mailboxes: Mailboxes

    @property
    def part_length(self) -> int:
        """Numbers of a Part (fused/wide/ranks.cuh)."""
        return PART["NODES"] + self.size


@dataclass(frozen=True)
class PartPlan(EpochPlan):
    """A rank's parts of the batches of an epoch.

    Parameters
    ----------
    parts : int32, (n, NODES + ranks)
        A Part (fused/wide/ranks.cuh) of each batch.
    graphs_of_all : int
        Graphs of all ranks, in all batches.
    """

    parts: Int32
    graphs_of_all: int

    @property
    def tables(self) -> dict[str, Int32]:
        return {"parts": self.parts.ravel()}

    @property
    def capacity(self) -> int:
        return self.graphs_of_all


def plan_part(batches: Sequence[Int64], sizes: Mapping[str, Int64], ranks: Ranks) -> PartPlan:
    """Return the plan of a rank's parts of global batches, divided by nodes; `sizes` as for `plan_epoch`."""
    rank, graphs = ranks.rank, np.concatenate(batches)
    batch_ptr = np.cumsum([0, *map(len, batches)])
    of_ranks = partition_batches(sizes["nodes"][graphs], batch_ptr, ranks.size)
    parts = np.zeros((len(batches), ranks.part_length), np.int32)
    parts[:, PART["FIRST_NODE"]], parts[:, PART["FIRST_GRAPH"]] = of_ranks.nodes[:, rank], of_ranks.graphs[:, rank]
    parts[:, PART["NODES"] :] = np.diff(of_ranks.nodes)
    bounds = (batch_ptr[:-1, np.newaxis] + of_ranks.graphs[:, rank : rank + 2]).tolist()
    own = [graphs[first:end] for first, end in bounds]
    return PartPlan(**vars(plan_epoch(own, sizes)), parts=parts, graphs_of_all=len(graphs))
