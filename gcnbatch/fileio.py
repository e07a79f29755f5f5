"""Writing files so that a crash leaves either the old file or the new one, never a part; locks; digests of files.

A lock of a file or folder ends with the processes that hold the open file, however they end.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gcnbatch.errors import InputError, MachineError
from gcnbatch.machine import blame, disk_hint

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Output:
    """The path of a file that the user has named for writing, as `gcnbatch.outputs.check` has found it usable."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


_TEMPORARY = re.compile(r"\..{1,40}\.[0-9a-f]{12}\.tmp", re.DOTALL)


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


def cannot_write(target: StrPath, reason: str | None) -> MachineError:
    """Return the error for a folder in which `target` cannot be written."""
    hint = "Check that the folder exists and is writable."
    return MachineError(str(target), f"cannot write here ({reason})", hint=hint)


def write_error(target: StrPath, error: OSError) -> MachineError:
    """Return the error for a write that failed."""
    return MachineError(str(target), f"could not be written ({error.strerror or error})", hint=disk_hint(error))


@contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """Yield a temporary file in the folder of `path`; on success sync it and rename it to `path`, else remove it.

    Errors in the block pass through, except those of the disk. What a killed process has left for `path` is removed.

    Parameters
    ----------
    path : path
        For an `Output`, a symbolic link is followed, and only one process may write the file at a time. For any other
        path, a link is replaced, so that a folder from a stranger cannot lead outside, and of several writers the last
        one wins.

    Raises
    ------
    InputError
        When `path` is a folder or a device, or another process writes an output.
    MachineError
        When the folder cannot be written or the disk is full. `path` is then unchanged.
    """
    output = isinstance(path, Output)
    target = Path(os.path.realpath(path) if output else path)
    try:
        kind = target.stat(follow_symlinks=output).st_mode
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(str(path), f"cannot be a file ({error.strerror})", "the name of a file") from error
    else:
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            raise InputError(str(path), "a folder or a device", "the name of a file")
    remove_abandoned(target.parent, _start(target))
    try:
        temporary, lock = _create_only(target, path) if output else _create_any(target)
    except OSError as error:
        raise cannot_write(path, error.strerror) from error
    try:
        yield temporary
        try:
            _publish(temporary, target)
        except OSError as error:
            raise write_error(target, error) from error
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and disk_hint(error):
            raise write_error(target, error) from error
        raise
    finally:
        os.close(lock)


@contextmanager
def write_errors(target: Path) -> Iterator[None]:
    """Raise MachineError where the disk or the folder of `target` fails in the block."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR):
            raise cannot_write(target, error.strerror) from error
        if disk_hint(error):
            raise write_error(target, error) from error
        if error.errno == errno.EISDIR:
            raise InputError(str(target), "a folder or a device", "the name of a file") from error
        raise


def _start(target: Path) -> str:
    return f".{target.name[:40]}."


def _create_any(target: Path) -> tuple[Path, int]:
    """Create a temporary file for `target`; return its path and a descriptor that holds its lock."""
    temporary = target.parent / f"{_start(target)}{os.urandom(6).hex()}.tmp"
    return temporary, _create_locked(temporary)


def _create_only(target: Path, name: StrPath) -> tuple[Path, int]:
    """As `_create_any`, but processes that write `target` want the same temporary file: the first one gets it."""
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()
    temporary = target.parent / f"{_start(target)}{digest[:12]}.tmp"
    for _ in range(3):  # another process may have created it, but not locked it yet
        try:
            return temporary, _create_locked(temporary)
        except FileExistsError:
            if _is_locked(temporary):
                raise in_use(name) from None
            remove_abandoned(target.parent, _start(target))
    return _create_any(target)  # a file that this process may not remove must not block the output


def _is_locked(path: Path) -> bool:
    try:
        with open_regular(path, follow=False) as stream:
            return not try_lock(stream.fileno())
    except InputError:
        return False


def _create_locked(path: Path) -> int:
    """Create a file with a lock that ends with this process; return its descriptor."""
    while True:
        lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks: nothing is removed there either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)  # another process took it for abandoned before it was locked


def remove_abandoned(folder: Path, start: str = ".") -> None:
    """Remove temporary files of `atomic_path` whose process has ended: nobody holds their lock.

    `start` is how their names begin.
    """
    try:
        names = [name for name in os.listdir(folder) if name.startswith(start) and _TEMPORARY.fullmatch(name)]
    except OSError:
        return
    for name in names:
        with suppress(OSError, InputError), open_regular(folder / name, follow=False) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(folder / name, stream.fileno()):  # not what another process has made in its place
                os.unlink(folder / name)


def _publish(temporary: Path, target: Path) -> None:
    with temporary.open("rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(temporary, target)
    with suppress(OSError):  # some network file systems cannot sync a folder
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def open_regular(path: StrPath, expected: str = "a file", follow: bool = True) -> io.FileIO:
    """Open a regular file for reading; a pipe or a device, which could keep the program waiting for ever, is refused.

    Parameters
    ----------
    path : path
    expected : str
        What should be there, for messages.
    follow : bool
        Follow a symbolic link at the end of the path; False refuses it.

    Raises
    ------
    InputError
        When there is no file, something else, or a file that cannot be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        stream = io.FileIO(path, opener=lambda name, _: os.open(name, flags))
        kind = os.fstat(stream.fileno()).st_mode
    except FileNotFoundError as error:
        raise InputError(str(path), "no such file", expected) from error
    except ValueError as error:  # a NUL character, or a text that is no file's name
        raise InputError(str(path), f"cannot be read ({error})", expected) from error
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise InputError(str(path), "a symbolic link", expected) from error
        blame(error)
        got = "is a folder" if error.errno == errno.EISDIR else f"cannot be read ({error.strerror})"
        raise InputError(str(path), got, expected) from error
    if not stat.S_ISREG(kind):
        stream.close()
        raise InputError(str(path), "not a regular file", expected)
    return stream


def sha256(path: StrPath) -> str:
    """Return the SHA-256 of a regular file as hexadecimal digits."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: StrPath, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8; bytes of a path that are not UTF-8 become escape sequences."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def open_append(path: StrPath, buffering: int = -1) -> IO[bytes]:
    """Open a file to append to it; make it if there is none. `buffering` is that of `open`.

    Raises
    ------
    InputError
        When the path is a symbolic link, which could lead outside a folder, a pipe or a device.
    """

    def regular(name: str, flags: int) -> int:
        # A pipe that nobody reads is refused by the system, one that has a reader below.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))

    try:
        return open(path, "ab", buffering, opener=regular)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            got = "a symbolic link" if error.errno == errno.ELOOP else "not a regular file"
            raise InputError(str(path), got, "a file", "Remove it, or choose another place.") from error
        raise


def open_append_only(path: StrPath, name: StrPath) -> IO[bytes]:
    """Open a file as `open_append`, and hold its lock until it is closed.

    Parameters
    ----------
    path : path
        The file may be renamed, replaced and removed by the process that holds its lock.
    name : path
        The output in the message.

    Raises
    ------
    InputError
        As `open_append`, and when another process holds the lock.
    """
    while True:
        stream = open_append(path)
        if not try_lock(stream.fileno()):
            stream.close()
            raise in_use(name)
        if is_at(path, stream.fileno()):
            return stream
        stream.close()  # it became the output of a process that has ended since


class AppendedFile:
    """A file that grows. It is opened for the first append; whatever is appended survives the end of this process.

    Parameters
    ----------
    path : path
    """

    def __init__(self, path: StrPath) -> None:
        self._path = path
        self._stream: IO[bytes] | None = None

    def append(self, data: bytes) -> None:
        """Append to the file.

        Raises
        ------
        InputError
            As `open_append`.
        MachineError
            When the disk is full or not writable; the file may end with a part of the data.
        """
        try:
            if self._stream is None:
                self._stream = open_append(self._path, buffering=0)
            left = memoryview(data)
            while left:
                left = left[self._stream.write(left) :]
        except OSError as error:
            if disk_hint(error):
                raise write_error(self._path, error) from error
            raise

    def close(self) -> None:
        """Close the file; another append opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def write_json(path: StrPath, value: Any) -> None:
    """Write `value` as indented JSON; NaN and infinities are refused, so that every JSON reader can parse it.

    NumPy's scalars, which a caller from Python may give, are numbers.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False, default=_number) + "\n")


def _number(value: Any) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def write_with(path: StrPath, save: Callable[[Path], object]) -> None:
    """Call `save(temporary_path)`, then move that file to `path`."""
    with atomic_path(path) as temporary:
        save(temporary)
