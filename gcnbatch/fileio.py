"""Writing files so that a crash leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gcnbatch.errors import MachineError


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary name beside `path`; on a clean exit sync it and rename it to `path`, else remove it.

    Raises
    ------
    MachineError
        When the folder cannot be written or the disk is full. `path` is then as it was before.
    """
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise MachineError(
            str(target), f"cannot write here ({error.strerror})", hint="Check that the folder exists and is writable."
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise MachineError(
            str(target), f"could not be written ({error.strerror or error})", hint="Free some disk space and run again."
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` in one step (UTF-8)."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON; NaN and infinities are refused, so a reader in any language can parse it."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_with(path: str | os.PathLike[str], save: Callable[[Path], object]) -> None:
    """Let `save(temporary_path)` write a file, then move it to `path`."""
    with atomic_path(path) as temporary:
        save(temporary)
