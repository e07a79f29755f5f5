"""Checks of the path of a new data set, before any work."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath

ENDINGS = (".h5", ".hdf5")


def output_path(path: StrPath, inputs: Iterable[StrPath] = ()) -> Path:
    """Check that `path` can become a data set and is not one of the `inputs`; return it.

    Raises
    ------
    InputError
        For a folder, another ending, a missing folder, and the path (or a link to it) of an input.
    """
    out = Path(path)
    if out.is_dir():
        raise InputError(str(out), "is a folder", "a file name such as molecules.h5")
    if out.suffix.lower() not in ENDINGS:
        raise InputError(f"output {out}", "unknown ending", " or ".join(ENDINGS))
    if not out.parent.is_dir():
        raise InputError(str(out), f"no folder '{out.parent}'", hint="Make the folder first.")
    keep_inputs(out, inputs)
    return out


def keep_inputs(out: Path, inputs: Iterable[StrPath]) -> None:
    """Refuse to write `out` over an input, also through a link.

    Raises
    ------
    InputError
        When both paths lead to the same file.
    """
    for source in map(Path, inputs):
        if out.resolve() == source.resolve() or (out.exists() and source.exists() and out.samefile(source)):
            raise InputError(f"output {out}", f"the same file as the input {source}", "another file")
