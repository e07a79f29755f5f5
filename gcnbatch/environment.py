"""The environment of a run outside its configuration: versions, processor, BLAS, NVIDIA devices."""

from __future__ import annotations

import csv
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import Any

from gcnbatch import __version__
from gcnbatch.machine import cores

_PLAIN = ("numpy", "scipy", "h5py", "scikit-learn", "matplotlib")
EXTRAS = {
    "rdkit": "chem",
    "numba": "fast",
    "mpi4py": "mpi",
    "pycuda": "cuda",
    "cuda-bindings": "cuda",
}  # package -> the extra of gcnbatch that installs it
PACKAGES = (*_PLAIN, *EXTRAS)
_CPU_INFO = Path("/proc/cpuinfo")
_GPU_FIELDS = {
    "name": "name",
    "memory": "memory.total",
    "driver": "driver_version",
    "compute_capability": "compute_cap",
    "clock": "clocks.sm",  # now: clocks drop when the device idles, is hot or lacks power
    "memory_clock": "clocks.mem",
}
GPU_SECONDS = 20.0  # time limit of nvidia-smi


def collect() -> dict[str, Any]:
    """Return the environment as plain values for JSON: `host` and the devices that the NVIDIA driver lists."""
    devices, note = gpus()
    return {**host(), "gpus": devices, "gpu_note": note}


def host() -> dict[str, Any]:
    """Return versions and machine, without GPUs; a package that is not installed has version None."""
    return {
        "gcnbatch": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages(),
        "cpu": {"model": cpu_model(), "cores": os.cpu_count(), "usable_cores": cores()},
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "blas": blas(),
    }


def look_up() -> None:
    """Find in a thread what `host` keeps once it is known: the versions of packages, and the commit."""

    def find() -> None:
        with suppress(Exception):  # `host` raises it again
            packages()
            commit()

    Thread(target=find, daemon=True).start()


def command() -> list[str]:
    """Return the arguments of the ``gcnbatch`` command that this process runs; none in a Python program."""
    program = Path(sys.argv[0] if sys.argv else "")
    ours = program.name == "gcnbatch" or program == Path(__file__).with_name("__main__.py")
    return sys.argv[1:] if ours else []


def packages() -> dict[str, str | None]:
    """Return the versions of the packages that results may depend on; None: not installed."""
    return {name: _version(name) for name in PACKAGES}


@cache  # of the code that this process has loaded
def commit() -> str | None:
    """Return the commit of the checkout that the package runs from, ``+`` added if files differ; None outside one."""
    root = Path(__file__).resolve().parent.parent
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None

    def ask(*question: str) -> str:
        answer = subprocess.run([git, "-C", root, *question], capture_output=True, text=True, check=False)
        return "" if answer.returncode else answer.stdout.strip()

    name = ask("rev-parse", "HEAD")
    return f"{name}+" if name and ask("status", "--porcelain", "--untracked-files=no") else name or None


def cpu_model() -> str:
    """Return the processor's name from /proc/cpuinfo, else the machine type."""
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def blas() -> list[dict[str, Any]]:
    """Return NumPy's BLAS and other loaded ones: name, version, architecture, threads."""
    import numpy as np  # noqa: F401  loads its BLAS
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    found = []
    for library in threadpool_info():
        entry = {
            "name": library["internal_api"],
            "version": library["version"],
            "architecture": library.get("architecture"),
            "threads": library["num_threads"],
        }
        if library["user_api"] == "blas" and entry not in found:
            found.append(entry)
    return sorted(found, key=str)


def gpus() -> tuple[list[dict[str, str]], str]:
    """Return the devices that nvidia-smi lists and, if there are none, the reason.

    Each device has name, memory, driver, compute_capability, and the current clock and memory_clock. CUDA is not loaded
    into this process.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], "no nvidia-smi: no NVIDIA driver, or not on the PATH"
    query = [tool, f"--query-gpu={','.join(_GPU_FIELDS.values())}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=GPU_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi failed ({error})"
    if answer.returncode:
        said = (answer.stdout.strip() or answer.stderr.strip() or f"exit code {answer.returncode}").splitlines()[0]
        return [], f"nvidia-smi failed ({said})"
    rows = csv.reader(answer.stdout.splitlines(), skipinitialspace=True)
    devices = [dict(zip(_GPU_FIELDS, row, strict=False)) for row in rows if row]
    return devices, "" if devices else "the NVIDIA driver lists no device"


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
