"""Folders that a command writes its results into: new or empty, named after the work and the time."""

from __future__ import annotations

import time
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
