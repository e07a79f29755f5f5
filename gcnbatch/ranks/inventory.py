"""The MPI of this installation, for ``gcnbatch info``; it is not initialised."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gcnbatch.ranks.world import LIBRARY, MPI4PY


def collect() -> dict[str, Any]:
    """Return `mpi`, the library that mpi4py loads, and `missing`: the reason under the same name."""
    library, reason = _mpi()
    return {"mpi": library, "missing": {"mpi": reason}}


def _mpi() -> tuple[str | None, str]:
    try:
        import_module("mpi4py").rc.initialize = False
        mpi = import_module("mpi4py.MPI")
    except ModuleNotFoundError:
        return None, f"mpi4py is not installed. {MPI4PY}"
    except (ImportError, RuntimeError) as error:
        return None, f"{str(error).splitlines()[0]}. {LIBRARY}"
    return " ".join(mpi.Get_library_version().split(",")[0].splitlines()[0].split()), ""
