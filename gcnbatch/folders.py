"""Folders that a command writes its results into: new or empty, locked against other processes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import NamedTuple

from gcnbatch import fileio, outputs
from gcnbatch.errors import InputError
from gcnbatch.machine import blame

_OTHER = "Choose another -o."
UNFINISHED = ".unfinished"
ORPHANS_SECONDS = 10.0  # time for the processes of a killed command to end


class Held(NamedTuple):
    """A folder whose lock this process holds; `lock` is its file descriptor, which child processes may hold, too."""

    folder: Path
    lock: int


class _Taken(InputError):
    """A folder that is there already, or a file in its place."""


@contextmanager
def results(
    folder: Path | None,
    stem: str,
    hint: str = _OTHER,
    *,
    whole: bool = False,
    parts: re.Pattern[str] | None = None,
    replaced: Sequence[str] = (),
) -> Iterator[Held]:
    """Yield a new or empty folder; hold its lock in the block. If it is still empty at the end, remove what was made.

    Parameters
    ----------
    folder : Path or None
        None: ``runs/<stem>-<time>``, with a number after it if that exists.
    stem, hint : str
        `hint` says what to do about a folder that holds something.
    whole : bool
        The result is of use as a whole only: after an error in the block, all that is in the folder is removed.
    parts : pattern, optional
        Names of such a result's files. Those that a killed call has left are removed: a file UNFINISHED is among them.
    replaced : sequence of str
        Names of an earlier result of the command, which the folder may hold.

    Raises
    ------
    InputError
        For a folder that holds something or cannot be made or written, and for one that another process writes to.
    """
    with ExitStack() as stack:
        held = _take(folder, stem, stack)
        fileio.remove_abandoned(held.folder)  # a start that was killed at once
        if parts and (held.folder / UNFINISHED).exists():
            for place in held.folder.iterdir():
                if parts.fullmatch(place.name) and place.is_file():
                    place.unlink()
            (held.folder / UNFINISHED).unlink()
        if any(place.name not in replaced for place in held.folder.iterdir()):
            raise InputError(str(held.folder), "already exists", "a new or empty folder", hint)
        if whole:
            stack.enter_context(_empty_after_error(held.folder))
        if parts:
            (held.folder / UNFINISHED).touch()
        yield held
        if parts:
            (held.folder / UNFINISHED).unlink()


@contextmanager
def _empty_after_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        empty(folder)
        raise


def empty(folder: Path) -> None:
    """Remove all that a command has written into a folder, which was empty before."""
    for place in folder.iterdir():
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()


def _take(folder: Path | None, stem: str, stack: ExitStack) -> Held:
    """Make and lock a folder; `stack` then removes what was made, if it is empty, and gives the lock back."""
    while True:
        made = make(folder) if folder else _make_default(stem)
        place = folder or made[0]
        with ExitStack() as taken, suppress(FileNotFoundError):
            lock = taken.enter_context(locked(place, f"Wait until it ends. {_OTHER}"))
            if fileio.is_at(place, lock):  # else a process that has ended since has removed it
                taken.callback(_remove_empty, made)  # with the lock: another process may wait to use it
                stack.enter_context(taken.pop_all())
                return Held(place, lock)


def _remove_empty(places: Sequence[Path]) -> None:
    for place in places:
        with suppress(OSError):  # it holds something
            place.rmdir()


@contextmanager
def locked(folder: Path, hint: str = "Wait until it ends.", wait: float = 0.0) -> Iterator[int]:
    """Hold the lock of a folder and yield its file descriptor. It ends with the processes that hold the descriptor.

    Parameters
    ----------
    folder : Path
    hint : str
        What to do when another process holds it.
    wait : float
        Seconds to wait for such a process.

    Raises
    ------
    InputError
        When another process holds it.
    """
    holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + wait
        while not fileio.try_lock(holder):
            if time.monotonic() >= deadline:
                raise InputError(str(folder), "another process writes there", "a folder that none uses", hint)
            time.sleep(0.05)
        yield holder
    finally:
        os.close(holder)


def make(folder: Path, may_exist: bool = True) -> list[Path]:
    """Make a folder and its parents; return those that were not there, the deepest first.

    Raises
    ------
    InputError
        When it cannot be made or written, or is there and may not be.
    """
    outputs.refuse_stdout(folder, "several files", "the name of a folder")
    missing = list(takewhile(lambda place: not place.exists(), (folder, *folder.parents)))
    made: list[Path] = []
    try:
        for place in reversed(missing[1:]):  # one by one: `Path.mkdir` makes parents by recursion, which has a limit
            place.mkdir(exist_ok=True)
            made.insert(0, place)
        try:
            folder.mkdir(exist_ok=may_exist)
        except FileNotFoundError:  # another process has removed a parent, because it was empty
            folder.mkdir(parents=True, exist_ok=may_exist)
    except FileExistsError as error:
        raise _Taken(str(folder), "already exists", "a new or empty folder", _OTHER) from error
    except OSError as error:
        _remove_empty(made)
        if error.errno != errno.EROFS:  # another folder may be on another disk
            blame(error)
        raise InputError(str(folder), f"cannot be made ({error.strerror})", "a writable place", _OTHER) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(str(folder), "cannot be written", "a writable place", _OTHER)
    return missing


def _make_default(stem: str) -> list[Path]:
    """Make ``runs/<stem>-<time>`` as `make`; no two processes get the same, also if the clock is set back."""
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if folder.exists():
            continue
        with suppress(_Taken):
            return make(folder, may_exist=False)
    raise AssertionError
