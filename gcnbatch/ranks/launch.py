"""Launchers of ranks, recognised by the variables that they set. This module imports nothing large."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


class LaunchedProcess(NamedTuple):
    """A process, as its launcher describes it.

    Parameters
    ----------
    rank, size : int
        Number of this process, from 0, and of all processes.
    local_rank : int
        Number of this process among those of its host.
    launcher : str
        For users.
    """

    rank: int
    size: int
    local_rank: int
    launcher: str


# Name, and the variables of rank, size and local rank. Slurm sets SLURM_NTASKS in batch scripts, too, whose commands
# are not ranks; SLURM_STEP_NUM_TASKS it sets for srun alone.
_LAUNCHERS = (
    ("mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpirun of MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def launched(environment: Mapping[str, str] = os.environ) -> LaunchedProcess | None:
    """Return this process as its launcher describes it; None unless it started several."""
    for launcher, *names in _LAUNCHERS:
        rank, size, local = (_number(environment.get(name)) for name in names)
        if rank is not None and size is not None:
            return LaunchedProcess(rank, size, rank if local is None else local, launcher) if size > 1 else None
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
