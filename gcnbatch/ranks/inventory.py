"""The MPI and NCCL of this installation, for ``gcnbatch info``; neither is initialised."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any

from gcnbatch.ranks.world import LIBRARY, MPI4PY

_NCCL = ("nccl4py", "nvidia-nccl-cu13", "nvidia-nccl-cu12")


def collect() -> dict[str, Any]:
    """Return `mpi`, the library that mpi4py loads, `nccl`, the installed packages by name, and `missing`: reasons."""
    library, reason = _mpi()
    nccl = {name: version for name in _NCCL if (version := _version(name))}
    missing = {"mpi": reason, "nccl": "" if nccl else "not installed"}
    return {"mpi": library, "nccl": nccl, "missing": missing}


def _mpi() -> tuple[str | None, str]:
    try:
        import_module("mpi4py").rc.initialize = False
        mpi = import_module("mpi4py.MPI")
    except ModuleNotFoundError:
        return None, f"mpi4py is not installed. {MPI4PY}"
    except (ImportError, RuntimeError) as error:
        return None, f"{str(error).splitlines()[0]}. {LIBRARY}"
    return " ".join(mpi.Get_library_version().split(",")[0].splitlines()[0].split()), ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
