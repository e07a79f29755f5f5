"""Locks of files and folders. A lock ends with the processes that hold the open file, however they end."""

from __future__ import annotations

import fcntl
import os

from gcnbatch.errors import InputError

StrPath = str | os.PathLike[str]


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; return False when another one holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def is_at(path: StrPath, descriptor: int) -> bool:
    """Return whether an open file or folder still has this name: nobody has renamed, removed or replaced it.

    Whoever locks a file that the lock's holder may rename or remove must ask this afterwards.
    """
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def in_use(name: StrPath) -> InputError:
    """Return the error for an output that another process writes."""
    hint = "Wait until it ends, or choose another name."
    return InputError(str(name), "another process writes it", "a file that none writes", hint)
