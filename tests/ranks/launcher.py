"""Commands under mpirun, if an MPI library, its launcher and mpi4py are here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.training.runs import command, environment

SECONDS = 240.0  # of a command, on a loaded machine
# The launcher's child runs the rank as its own child and lives on when that is killed.
OUTLIVE = f"""
import subprocess, sys, time
code = subprocess.call(sys.argv[1:], close_fds=False)
if code < 0:
    time.sleep({SECONDS})
sys.exit(abs(code))
"""


def find_launcher() -> str | None:
    """Return the mpirun beside the interpreter, else the one on the path; None without mpi4py."""
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return shutil.which("mpirun", path=places) if find_spec("mpi4py") else None


@cache
def launcher() -> tuple[str, ...]:
    """Return the words that start ranks here."""
    found = find_launcher()
    if found is None:
        pytest.skip("no mpirun or no mpi4py; pip install 'gcnbatch[mpi]' mpich")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    return (found, "--oversubscribe", "--bind-to", "none") if "Open MPI" in said else (found,)


def ranks_environment() -> dict[str, str]:
    """Return the environment of ranks; Open MPI refuses root, as whom containers run, without the last two."""
    return {**environment(), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(
    ranks: int, *arguments: object, cwd: Path | None = None, code: str = "", ends_others: bool = True
) -> subprocess.Popen[str]:
    """Start ``mpirun -n RANKS gcnbatch …`` in a session of its own; `code` is a program in place of gcnbatch.

    With `ends_others` false, the launcher does not see that a rank was killed, so it leaves the others alone. (MPICH's
    option for that, -disable-auto-cleanup, does not always keep it from killing them.)
    """
    program = [sys.executable, "-c", code, *map(str, arguments)] if code else command(*arguments)
    own = [] if ends_others else [sys.executable, "-c", OUTLIVE]
    words = [*launcher(), "-n", str(ranks), *own, *program]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        words, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=ranks_environment(), start_new_session=True
    )


def mpirun(ranks: int, *arguments: object, cwd: Path | None = None, code: str = "", check: int = 0) -> tuple[str, str]:
    """Run ``mpirun -n RANKS gcnbatch …``; return stdout and stderr. `check` is the expected exit code."""
    with start(ranks, *arguments, cwd=cwd, code=code) as process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    assert process.returncode == check, err
    return out, err
