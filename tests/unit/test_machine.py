"""Faults of the machine while a file is read: they are the machine's, not the file's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scipy.io

from gcnbatch import fileio, machine
from gcnbatch.config_tree import read_toml
from gcnbatch.data import audit, chunks
from gcnbatch.data.tables import binary
from gcnbatch.errors import InputError, MachineError
from gcnbatch.lab.bench.spgemm import matrices
from gcnbatch.lab.bench.spmm import records
from gcnbatch.training import checkpoint


def opened(path: Path) -> None:
    fileio.open_regular(path).close()


def chunk(path: Path) -> None:
    with chunks.reading(path):
        path.read_bytes()


def parquet(path: Path) -> None:
    class Answer:
        def result(self) -> None:
            path.read_bytes()

    binary._answer(path, Answer())  # type: ignore[arg-type]


# What reads a file, and the call of the system or of a library that fails.
READERS: dict[str, tuple[Callable[[Path], object], Any, str]] = {
    "a file of a run": (opened, os, "open"),
    "a configuration": (read_toml, os, "open"),
    "a data set": (lambda path: audit._check_start(path, follow=True), Path, "open"),
    "a chunk": (chunk, Path, "read_bytes"),
    "a checkpoint": (checkpoint.load, checkpoint, "safe_open"),
    "a Parquet file": (parquet, Path, "read_bytes"),
    "old records": (records.read, os, "open"),
    "a matrix": (matrices.of_file, scipy.io, "mminfo"),
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("name", READERS)
def test_a_fault_of_the_machine_is_not_blamed_on_the_file(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, place, call = READERS[name]
    path = tmp_path / "file"
    path.write_bytes(b"x")

    def fail(*about: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(place, call, fail)
        with pytest.raises(MachineError):
            read(path)


@pytest.mark.parametrize("name", READERS)
def test_a_fault_of_the_file_is_the_users(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, place, call = READERS[name]
    path = tmp_path / "file"
    path.write_bytes(b"x")

    def fail(*about: object, **options: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(place, call, fail)
        with pytest.raises(InputError):
            read(path)


def test_blame_passes_other_errors_on() -> None:
    machine.blame(ValueError("a wrong value"))
    machine.blame(OSError(errno.ENOENT, "no such file"))
    with pytest.raises(MachineError, match="out of memory"):
        machine.blame(MemoryError())
