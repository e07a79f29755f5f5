"""Recognition of launchers by their variables, and the device of a rank."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gcnbatch.ranks.launch import launched
from tests.training.runs import environment


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, (2, 4, 0)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 1)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, (3, 8, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script: one process
    ],
)
def test_launchers_are_recognised_by_their_variables(variables, expected) -> None:
    found = launched(variables)
    assert (found and found[:3]) == expected


def test_without_a_launcher_no_module_of_ranks_or_mpi_is_imported() -> None:
    code = (
        "import sys, gcnbatch.cli.app as app; sys.argv = ['gcnbatch', 'train', '--keys']\n"
        "try: app.main()\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if 'mpi4py' in name or 'ranks.world' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == "[]"
