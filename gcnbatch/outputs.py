"""Files that the user has named for writing: none that the command reads, and none of another product.

`check` is the only maker of an `Output`, and the functions that write a file of the user take nothing else. A file that
is there may be replaced if it is what the command writes; anything else could be somebody's only copy. An empty file
loses nothing.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gcnbatch.errors import InputError
from gcnbatch.fileio import Output, StrPath, cannot_write, open_regular

STDOUT = "-"  # standard output, where an option can write there

# Folders of results: files by which they are known, and those names in them that look like outputs of other commands.
_OWNERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("data.sha256", "env.json"), ".*"),  # a run, a baseline or a study
    (("best.safetensors",), ".*"),  # a model of a run, which lies deeper where folds are cross-fitted
    (("benchmark.json",), ".*"),
    (("shards.json",), r"(shard|splits)-.*\.h5"),
    (("comparison.json",), r"comparison\.png"),
    (("report.json", "report.md"), r"(training|inference|operations|timeline)\.png"),
    (("rows.jsonl",), r"spmm\.png"),
    (("spgemm.json",), r"spgemm\.png"),
    (("campaign.csv", "campaign.png"), r"molecules\.h5|campaign\..*"),
)


@dataclass(frozen=True)
class Kind:
    """What an option writes.

    Parameters
    ----------
    name : str
        With its article: "a figure".
    is_one : callable
        Whether a regular file that is not empty is one. It may raise InputError for a file that it cannot read.
    endings : tuple of str
        Endings of its names; none: any name.
    """

    name: str
    is_one: Callable[[Path], bool]
    endings: tuple[str, ...] = ()


def begins_with(pattern: bytes, first: int = 256) -> Callable[[Path], bool]:
    """Return whether a file begins with a match of `pattern` in its `first` bytes, as a function for `Kind`."""

    def is_one(path: Path) -> bool:
        with open_regular(path) as stream:
            return re.match(pattern, stream.read(first)) is not None

    return is_one


def standard_output() -> TextIO:
    """Return standard output.

    Raises
    ------
    InputError
        When it is closed.
    """
    if sys.stdout is None:
        raise InputError(f"output {STDOUT}", "standard output is closed", "an open one", "Give -o FILE.")
    return sys.stdout


def check(path: StrPath, kind: Kind, reads: Iterable[StrPath] = (), what: str = "output") -> Output:
    """Check that a command may write a file; return it.

    Parameters
    ----------
    path : path
    kind : Kind
    reads : iterable of path
        Files that the command reads, and folders of such files.
    what : str
        The option in messages.

    Raises
    ------
    InputError
        For STDOUT, another ending, a folder or a device, a missing folder; and for a file that is there and is one of
        `reads`, by whatever link, belongs to a folder of results, or is not of this kind.
    MachineError
        When the folder cannot be written.
    """
    out = Path(path)
    example = f" such as new{kind.endings[0]}" if kind.endings else ""
    refuse_stdout(out, kind.name, f"the name of a file{example and f',{example}'}", what)
    try:
        found = out.stat()
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise InputError(str(out), f"cannot be a file ({error.strerror})", "the name of a file") from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise InputError(str(out), "is a folder", f"a file name{example}")
    if kind.endings and not out.name.lower().endswith(kind.endings):
        raise InputError(f"{what} {out}", "unknown ending", " or ".join(kind.endings))
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise InputError(str(out), "not a regular file", "the name of a file")
    folder = Path(os.path.realpath(out)).parent
    if not folder.is_dir():
        raise InputError(str(out), f"no folder '{folder}'", hint="Make the folder first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        reason = os.strerror(errno.EROFS if read_only else errno.EACCES)
        raise cannot_write(out, reason)
    if found is not None:
        _check_replaceable(out, found, kind, reads, what)
    return Output(out)


def refuse_stdout(path: Path, name: str, expected: str, what: str = "output") -> None:
    """Refuse STDOUT for what only a file or a folder can hold.

    Parameters
    ----------
    path : Path
    name : str
        What is written, with its article.
    expected : str
        What to name in its place.
    what : str
        The option in messages.

    Raises
    ------
    InputError
    """
    if str(path) == STDOUT:
        raise InputError(f"{what} {STDOUT}", f"{name} cannot go to standard output", expected)


def check_beside(path: Path, kind: Kind) -> None:
    """Refuse as `check` a file under a name that a command needs beside an output; a link is not followed.

    No command gives such a file a second name, so one that has two is somebody else's. One that another process removes
    meanwhile is in nobody's way.

    Raises
    ------
    InputError
    """
    if not path.is_file() or path.is_symlink():
        return
    try:
        found = path.stat()
        if found.st_nlink > 1:
            raise InputError(f"output {path}", "a file that has another name, too", "a free name", "Remove it.")
        _check_replaceable(path, found, kind, (), "output")
    except (FileNotFoundError, InputError) as error:
        if not isinstance(error.__cause__ or error, FileNotFoundError):
            raise


def _check_replaceable(out: Path, found: os.stat_result, kind: Kind, reads: Iterable[StrPath], what: str) -> None:
    """Refuse a file that is there and must stay."""
    for source, file in _files(reads):
        if os.path.samestat(found, file):
            raise InputError(f"{what} {out}", f"the same file as the input {source}", "another file")
    if owner := _owner(Path(os.path.realpath(out))):
        raise InputError(f"{what} {out}", f"a file of the results in {owner}", "another file")
    if found.st_size and not kind.is_one(out):
        hint = "It is kept; choose another name, or remove it."
        raise InputError(f"{what} {out}", "something else is there", f"a new file, or {kind.name}", hint)


def _files(reads: Iterable[StrPath]) -> Iterator[tuple[StrPath, os.stat_result]]:
    """Yield the files that are read, and those below folders that are read."""
    for source in reads:
        if os.path.isdir(source):
            for place, _, names in os.walk(source):
                yield from _states(os.path.join(place, name) for name in names)
        else:
            yield from _states([source])


def _states(paths: Iterable[StrPath]) -> Iterator[tuple[StrPath, os.stat_result]]:
    for path in paths:
        try:
            yield path, os.stat(path)
        except OSError:  # it cannot be read, either
            continue


def _owner(path: Path) -> Path | None:
    """Return the folder of results that a file belongs to, directly or in a folder of a member; else None."""
    for folder in (path.parent, path.parent.parent):
        for marks, names in _OWNERS:
            if all((folder / mark).is_file() for mark in marks) and re.fullmatch(names, path.name, re.DOTALL):
                return folder
    return None
