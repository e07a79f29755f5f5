"""Folders that a command writes its results into: new or empty, named after the work and the time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gcnbatch import fileio
from gcnbatch.errors import InputError


def default_folder(stem: str) -> Path:
    """Return ``runs/<stem>-<time>``, with a number behind it if that exists."""
    first = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = first, 2
    while folder.exists():
        folder, number = first.with_name(f"{first.name}-{number}"), number + 1
    return folder


def check_new(folder: Path, hint: str = "Choose another -o.") -> None:
    """Refuse a folder that holds something, or a file.

    Raises
    ------
    InputError
    """
    if folder.is_dir():
        fileio.remove_abandoned(folder)  # a start that was killed at once
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(str(folder), "already exists", "a new or empty folder", hint)


def make(folder: Path) -> None:
    """Make a folder and its parents.

    Raises
    ------
    InputError
        When it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            str(folder), f"cannot be made ({error.strerror})", "a writable place", "Choose another -o."
        ) from error


_WAIT_SECONDS = 10.0  # for the end of processes whose caller was killed


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold a folder for this process and those that inherit the yielded file descriptor.

    Raises
    ------
    InputError
        When another process holds it.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not _lock(number):
            if time.monotonic() > deadline:
                raise InputError(str(folder), "another process writes to it", "a folder of its own", "Wait for it.")
            time.sleep(0.05)
        yield number
    finally:
        os.close(number)


def _lock(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True
