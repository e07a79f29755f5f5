"""Data that a user names for a prediction: a file, a SMILES in its place, or lines on standard input."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.molecule_graphs import guarded
from gcnbatch.data.outputs import ENDINGS as HDF5_ENDINGS
from gcnbatch.data.tables.formats import ENDINGS as MOLECULE_ENDINGS
from gcnbatch.data.tables.smi import about_extensions, without_extension
from gcnbatch.errors import GcnbatchError, InputError, MachineError
from gcnbatch.fileio import StrPath
from gcnbatch.inference.inputs import SMILES, Data
from gcnbatch.inference.options import CsvOptions
from gcnbatch.ranks import world
from gcnbatch.text import quoted

STDIN = "-"
_STDIN_NAME = "standard input"
_HEAD_BYTES = 1 << 16  # of standard input, in which its format is detected
_NOT_TEXT = (b"\x89HDF", b"PK\x03\x04", b"PAR1", b"\x1f\x8b")  # HDF5, Excel, Parquet, gzip
_SDF = re.compile(rb"^M  END|V[23]000\s*$", re.MULTILINE)
_DELIMITER = re.compile(r"[,;\t|]")
Say = Callable[[str], object]


class Given(NamedTuple):
    """Data for `open_input`, their options, and what receives messages about them."""

    data: Data
    options: CsvOptions
    say: Say


@contextmanager
def opened(name: StrPath, options: CsvOptions, say: Say) -> Iterator[Given]:
    """Yield the data that a command line names; a SMILES comes back in the output, standard input is kept in a file.

    Raises
    ------
    InputError
        As `find`; for anything but a file on several ranks, and input that is no text.
    """
    if name != STDIN:
        data = find(name, say)
        if not isinstance(data, Path):
            _refuse_ranks(str(name))
            options = replace(options, keep_columns=options.keep_columns or (SMILES,))
        yield Given(data, options, say)
        return
    _refuse_ranks(_STDIN_NAME)
    with TemporaryDirectory(prefix="gcnbatch-") as folder:
        path = _kept(Path(folder), options)
        try:
            yield Given(path, options, lambda line: say(line.replace(str(path), _STDIN_NAME)))
        except GcnbatchError as error:
            error.rename(str(path), _STDIN_NAME)
            raise


def find(name: Any, say: Say = lambda line: None) -> Data:
    """Return the file of this name; where there is none, a text that is a SMILES is one molecule.

    Raises
    ------
    InputError
        For a text that is neither, and does not end as files of data do; for other types.
    """
    if not isinstance(name, str | os.PathLike):
        hint = "Run.predict and Run.explain take graphs and lists of SMILES."
        raise InputError("data", type(name).__name__, "the name of a file, or a SMILES", hint)
    text = os.fspath(name)
    if os.path.exists(text) or isinstance(name, Path) or text.lower().endswith((*HDF5_ENDINGS, *MOLECULE_ENDINGS)):
        return Path(text)
    if (smiles := without_extension(text.strip())) != text.strip():
        say(about_extensions(1)[0])
        text = smiles
    if reason := _why_no_molecule(text):
        raise InputError(
            quoted(text),
            f"no such file, and no SMILES ({reason})",
            f"a data set or file of molecules, a SMILES, or {STDIN} for standard input; it comes last, after the runs",
        )
    say(f"{quoted(text)} is no file: it is read as a SMILES")
    return [text]


def _why_no_molecule(text: str) -> str:
    """Return why RDKit makes no molecule of a text, "" if it does."""
    try:
        parts = guarded([text], 0, FeaturizerOptions(), scaffolds=False)
    except MachineError as error:
        return str(error)
    return next((row.reason for part in parts for row in part.bad), "")


def _refuse_ranks(name: str) -> None:
    if world.current() is not None:
        raise InputError(name, "given to several ranks", "a file that all of them can read")


def _kept(folder: Path, options: CsvOptions) -> Path:
    """Copy standard input to a file whose ending is that of its format."""
    if sys.stdin is None:
        raise InputError(_STDIN_NAME, "closed", "a table or lines of SMILES")
    stream = sys.stdin.buffer
    head = _head(stream)
    if head.startswith(_NOT_TEXT):
        raise InputError(
            _STDIN_NAME, "not text", "a table or lines of SMILES", f"Give the file's name in place of {STDIN}."
        )
    path = folder / f"input{_ending(head, options)}"
    with path.open("wb") as copy:
        copy.write(head)
        shutil.copyfileobj(stream, copy)
    return path


def _head(stream: BinaryIO) -> bytes:
    parts, size = [], 0
    while size < _HEAD_BYTES and (part := stream.read(_HEAD_BYTES - size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _ending(head: bytes, options: CsvOptions) -> str:
    """Return .sdf, .csv, or .smi where the first line begins with a SMILES and is no header line of a table."""
    if _SDF.search(head):
        return ".sdf"
    first = next((line.strip() for line in head.decode("utf-8", "replace").splitlines() if line.strip()), "")
    if not first or options.smiles_column or (SMILES in first.lower() and _DELIMITER.search(first)):
        return ".csv"
    word = first.split()[0]
    return ".smi" if word.lower() == SMILES or not _why_no_molecule(word) else ".csv"
