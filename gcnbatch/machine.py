"""What the machine refuses: memory, threads, processes, open files, disk. `check` looks before libraries need them.

OpenBLAS waits for ever, aborts or interrupts the process when it gets no memory or no thread, and a library that cannot
be mapped seems not to be installed. So `check` asks the system for what they need, and gives it back at once.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
from contextlib import suppress
from pathlib import Path

from gcnbatch.errors import MachineError

LEAST_FILES = 32
# Beyond the started interpreter. Training a small set on the CPU with two threads takes 360 and 762 MiB in all.
DATA_MB, ADDRESS_MB, MB_PER_THREAD = 320, 720, 48
_MOST_BLAS_THREADS = 64
_CGROUP = "/sys/fs/cgroup"
_PLENTY_OF_PROCESSES = 4096  # the default limits of Linux are higher; starting threads to see takes milliseconds
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SUBJECTS = {errno.EMFILE: "ulimit -n", errno.ENFILE: "ulimit -n", errno.EAGAIN: "ulimit -u"}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def free_bytes() -> int:
    """Return the bytes of memory that are available on the machine, or in its container (cgroup v2)."""
    with open("/proc/meminfo") as lines:
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):  # a container without a limit has no file, or the word max
        most, taken = (int(Path(_CGROUP, f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, max(most - taken, 0))
    return free


def check() -> None:
    """Refuse limits that the libraries of a command do not survive.

    Raises
    ------
    MachineError
        Names the limit and how to raise it.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < LEAST_FILES:
        raise MachineError("open files", f"a limit of {files}", f"at least {LEAST_FILES}", "Raise ulimit -n.")
    threads = _blas_threads()
    _check_memory(threads)
    _check_threads(2 * threads + 2)  # NumPy and SciPy have an OpenBLAS each; a progress bar and a confined call


def disk_hint(error: OSError) -> str:
    """Return what to do about an error of the disk, or an empty text for any other error."""
    if error.errno in _FULL:
        return "Free some disk space and run again."
    return "Check the folder and its disk." if error.errno in (errno.EIO, errno.EROFS) else ""


def explain(error: BaseException) -> MachineError | None:
    """Return an exception that the machine has caused as the user's error, or None for any other exception."""
    if isinstance(error, MachineError):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        hint = "Use a smaller batch, or lower data.memory_mb so that the set is read in slices."
        return MachineError("out of memory", hint=hint)
    if isinstance(error, OSError):
        if hint := disk_hint(error):
            return MachineError(str(error.filename or "disk"), str(error.strerror), hint=hint)
        if error.errno in _SUBJECTS:
            return _refused(str(error.strerror), _SUBJECTS[error.errno])
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return _refused(str(error), "ulimit -u")
    return None


def blame(error: BaseException) -> None:
    """Raise the user's error for an exception that the machine has caused; return for any other.

    Whoever takes an exception for a fault of a file asks this first: a full or failing disk does not damage the file.
    """
    if (explained := explain(error)) is not None:
        raise explained from error


def _refused(what: str, limit: str) -> MachineError:
    return MachineError(what, hint=f"Raise {limit}, or end other programs.")


def _blas_threads() -> int:
    """Return the number of threads of OpenBLAS."""
    threads = cores()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if (said := os.environ.get(name, "")).isdecimal() and int(said):
            threads = min(threads, int(said))
            break
    return min(threads, _MOST_BLAS_THREADS)


def _check_memory(threads: int) -> None:
    """Refuse a limit that leaves too little: of data (`ulimit -d`), or of data and mapped files (`ulimit -v`)."""
    more = threads * MB_PER_THREAD
    for needed, access, limits in (
        (DATA_MB + more, mmap.PROT_READ | mmap.PROT_WRITE, ("-d", "-v")),
        (ADDRESS_MB + more, 0, ("-v",)),
    ):
        try:
            mmap.mmap(-1, needed << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=access).close()
        except OSError as error:
            hint = f"Raise {_lowest(limits)}." if _lowest(limits) else "End other programs."
            raise MachineError(
                "memory", "too little is free or allowed", f"{needed} MiB for this program and its libraries", hint
            ) from error


def _lowest(options: tuple[str, ...]) -> str:
    """Return the option of `ulimit` with the lowest limit; empty if none of `options` is limited."""
    which = {"-d": resource.RLIMIT_DATA, "-v": resource.RLIMIT_AS}
    limits = {option: resource.getrlimit(which[option])[0] for option in options}
    limited = {option: limit for option, limit in limits.items() if limit != resource.RLIM_INFINITY}
    return f"ulimit {min(limited, key=limited.__getitem__)}" if limited else ""


def _check_threads(needed: int) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY or limit >= _PLENTY_OF_PROCESSES:
        return
    go, started = threading.Event(), []
    try:
        for _ in range(needed):
            thread = threading.Thread(target=go.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise MachineError(
            "threads",
            f"{len(started)} can be started",
            f"{needed}",
            "Raise ulimit -u, end other programs, or set OPENBLAS_NUM_THREADS=1.",
        ) from error
    finally:
        go.set()
        for thread in started:
            thread.join()
