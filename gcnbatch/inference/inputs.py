"""Inputs of predictions: a data set as one part, or a large one and molecules in parts.

A user names a file, a SMILES in its place, or lines on standard input; a caller in Python gives graphs or SMILES.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.blas import shared_processors
from gcnbatch.config_sections import DataConfig
from gcnbatch.data.endings import DATASETS, KNOWN, is_dataset, is_table
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.featurizer_options import is_molecular
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.molecule_graphs import guarded
from gcnbatch.data.schema import Header
from gcnbatch.data.shards import is_sharded
from gcnbatch.data.store import Dataset
from gcnbatch.data.tables.smi import about_extensions, without_extension
from gcnbatch.data.writer import check_graphset
from gcnbatch.errors import GcnbatchError, InputError, MachineError
from gcnbatch.fileio import StrPath
from gcnbatch.inference import molecules
from gcnbatch.inference.columns import Remarks, featurizer_notes, stored_labels
from gcnbatch.inference.models import Model, input_header
from gcnbatch.inference.molecules import SMILES, CsvOptions
from gcnbatch.inference.parts import ALL, Input, InputForm, Part, RowBlock, Share
from gcnbatch.machine import cores
from gcnbatch.mixture import Members, Preparation
from gcnbatch.ranks import world
from gcnbatch.text import quoted
from gcnbatch.training.trained import check_fit, other_outputs, same_outputs
from gcnbatch.workers.pool import Workers, ahead

PART_ROWS = 4096  # rows whose table is made at once, and molecules of a part, unless a batch is larger
WHOLE_BYTES = 1 << 27  # a larger set of graphs is read in parts
PART_BYTES = 1 << 25
PROCESS_ROWS = 1 << 14  # a process that makes tables starts as long as it makes so many rows
Data = Path | GraphSet | list[str]  # a file, graphs or SMILES
Say = Callable[[str], object]


@contextmanager
def open_input(
    data: Data,
    members: Sequence[Model],
    options: CsvOptions,
    say: Say = lambda line: None,
    *,
    batch_size: int = 0,
    skip: int = 0,
    share: Share = ALL,
    batches: bool = False,
    workers: Workers | None = None,
    mixtures: tuple[Members | Preparation | None, ...] = (),
) -> Iterator[Input]:
    """Open a file by its ending, or data in memory, and check that they fit every member; say what was detected.

    A folder is that of shards, if it has an index, or of files of molecules. The parts begin after the first `skip`
    rows of a file. Those of the share are read. With `batches`, parts of molecules have those that the members read,
    else graphs. In the block, other processes may use the processors. `workers` read a file of molecules, and give what
    the members of `mixtures` do; see `gcnbatch.inference.molecules.open_molecules`.

    Raises
    ------
    InputError
        For an unknown ending, a damaged file, data that do not fit, and a file of molecules if the models were not
        trained on SMILES.
    """
    forms = tuple({member.input_form: None for member in members}) if batches else ()
    with ExitStack() as stack:
        if isinstance(data, GraphSet):
            source = _given(data, members, options, stack)
        elif isinstance(data, Path) and (is_dataset(data) or is_sharded(data)):
            source = _stored(data, members, options, skip, share, forms, stack)
        else:
            header = _header_of(data, members)
            about = (header, forms, options, max(PART_ROWS, batch_size), skip, share, workers, mixtures)
            source = stack.enter_context(molecules.open_molecules(data, *about))
        if source.featurised or source.workers:
            stack.enter_context(shared_processors())
        for note in source.notes:
            say(note)
        yield source


def _header_of(data: Path | list[str], members: Sequence[Model]) -> Header:
    """Return the header of the graphs to make of molecules.

    Raises
    ------
    InputError
        See `open_input`.
    """
    if isinstance(data, Path):
        if not data.is_dir() and not is_table(data):
            known = ", ".join((*DATASETS, KNOWN))
            raise InputError(str(data), "unknown ending", f"{known}; the data come last, after the runs")
        return check_smiles(members, str(data), "a file of molecules", "an HDF5 data set")
    header = check_smiles(members, "data", "SMILES", "graphs")
    for row, text in enumerate(data):
        if not isinstance(text, str):
            raise InputError(f"data, row {row + 1}", type(text).__name__, "a SMILES")
    return header


def _check_members(members: Sequence[Model], place: str, header: Header) -> None:
    for member in members:
        check_fit(member, place, header, "Prepare the data as for the run.", outputs=False)


def check_smiles(members: Sequence[Model], place: str, got: str, expected: str) -> Header:
    """Refuse molecules for models that were not trained on any; return the header of the graphs to make."""
    header = input_header(members)
    if not is_molecular(header.featurizer):
        raise InputError(place, got, f"{expected}, as {members[0].place} was not trained on a set made from SMILES")
    _check_members(members, place, header)
    return header


def _given(data: GraphSet, members: Sequence[Model], options: CsvOptions, stack: ExitStack) -> Input:
    """Return the Input of graphs in memory: one part."""
    check_graphset("data", data)
    _check_members(members, "data", data.header)
    notes = _other_labels("data", data.header, members[0].header, data.y)
    y, remarks = _labels(data, members[0].header)
    smiles = None if data.smiles is None else data.smiles.tolist()
    part = Part(_blocks(data.ids, y), data, smiles_of=lambda: smiles)
    workers = stack.enter_context(_workers(data.n_graphs, options.processes, ALL))
    return Input(data.n_graphs, iter([part]), notes=notes, workers=workers, remarks=remarks)


def _stored(
    path: Path,
    members: Sequence[Model],
    options: CsvOptions,
    skip: int,
    share: Share,
    forms: Sequence[InputForm],
    stack: ExitStack,
) -> Input:
    """Return the Input of a data set: one part, or parts of about PART_BYTES."""
    if options.keep_columns:
        raise InputError("--keep-columns", f"{path} has no columns", "a file of molecules")
    dataset = stack.enter_context(Dataset(path, DataConfig().memory_mb, check=False))
    by_parts = dataset.header.level == "graph" and dataset.nbytes > WHOLE_BYTES
    if by_parts:
        dataset.check_targets()  # the graphs are checked when they are read
    else:
        dataset.check()
    _check_members(members, str(path), dataset.header)
    workers = stack.enter_context(_workers(dataset.n_graphs - skip, options.processes, share))
    trained = input_header(members)
    y, remarks = _labels(dataset, trained)
    texts = cache(dataset.smiles)

    def smiles_of(rows: slice) -> list[str] | None:
        return None if (found := texts()) is None else found[rows]

    def part(first: int, data: GraphSet | Dataset) -> Part:
        rows = slice(first, first + data.n_graphs if by_parts or skip else None)
        about = dataset.ids[rows], None if y is None else y[rows]
        return Part(_blocks(*about), data, smiles_of=partial(smiles_of, rows))

    def prepared(first: int, stop: int) -> Part:
        found = part(first, dataset.read_checked(first, stop))
        for form in forms:
            found.source(*form)
        return found

    def parts() -> Iterator[Part]:
        if by_parts:
            ranges = [(max(first, skip), stop) for first, stop in dataset.block_ranges(PART_BYTES) if stop > skip]
            own = ranges[share.first :: share.every]
            with ThreadPoolExecutor(1) as thread:
                for call in ahead((thread.submit(prepared, *rows) for rows in own), 1):
                    yield call.result()
        elif not share.has(0):
            return
        elif not skip:
            yield part(0, dataset.load() if dataset.fits_in_memory else dataset)
        elif skip < dataset.n_graphs:
            yield part(skip, dataset.read(np.arange(skip, dataset.n_graphs)))

    source, notes = dataset.header.source, featurizer_notes(trained, dataset.header.featurizer)
    notes += _other_labels(str(dataset.path), dataset.header, trained, dataset.y)
    trained_on = bool(source) and source == trained.source
    return Input(dataset.n_graphs, parts(), trained_on, notes, workers=workers, remarks=remarks)


def _labels(data: GraphSet | Dataset, trained: Header) -> tuple[NDArray[Any] | None, Remarks]:
    """Return the targets (R, K) of data if they are those of a model, and what there is to say of them."""
    return (
        stored_labels(data.header, trained, data.y, data.censored) if same_outputs(data.header, trained) else (None, {})
    )


def _other_labels(place: str, header: Header, trained: Header, y: NDArray[Any]) -> tuple[str, ...]:
    """Return a note if data have labels that are not those of the model."""
    known = y >= 0 if header.target == "multiclass" else ~np.isnan(y)
    if not known.any() or not (other := other_outputs(header, trained)):
        return ()
    return (f"no metrics: {place} has {other} of the model",)


def _blocks(ids: NDArray[np.str_], y: NDArray[Any] | None) -> tuple[RowBlock, ...]:
    """Return the blocks of rows that all could be read."""
    ranges = [slice(first, first + PART_ROWS) for first in range(0, len(ids), PART_ROWS)] or [slice(0)]
    return tuple(
        RowBlock(ids[rows], np.arange(len(ids[rows]), dtype=np.int64), y=None if y is None else y[rows])
        for rows in ranges
    )


def _workers(rows: int, processes: int, share: Share) -> AbstractContextManager[Workers | None]:
    """Start the processes that make the tables of so many rows; None where one is enough."""
    count = min(processes or max(cores() // share.beside, 1), rows // PROCESS_ROWS)
    return Workers(count, quiet=True) if count > 1 else nullcontext()


STDIN = "-"
_STDIN_NAME = "standard input"
_HEAD_BYTES = 1 << 16  # of standard input, in which its format is detected
_NOT_TEXT = (b"\x89HDF", b"PK\x03\x04", b"PAR1", b"\x1f\x8b")  # HDF5, Excel, Parquet, gzip
_SDF = re.compile(rb"^M  END|V[23]000\s*$", re.MULTILINE)
_DELIMITER = re.compile(r"[,;\t|]")


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
        path = _stdin_file(Path(folder), options)
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
    if os.path.exists(text) or isinstance(name, Path) or is_dataset(text) or is_table(text):
        return Path(text)
    if (smiles := without_extension(text.strip())) != text.strip():
        say(about_extensions(1)[0])
        text = smiles
    if reason := _why_no_molecule(text):
        raise InputError(
            quoted(text),
            f"no such file, and not a SMILES ({reason})",
            f"a data set or file of molecules, a SMILES, or {STDIN} for standard input; it comes last, after the runs",
        )
    say(f"{quoted(text)} is not a file: it is read as a SMILES")
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


def _stdin_file(folder: Path, options: CsvOptions) -> Path:
    """Copy standard input to a file whose ending is that of its format."""
    if sys.stdin is None:
        raise InputError(_STDIN_NAME, "closed", "a table or lines of SMILES")
    stream = sys.stdin.buffer
    head = stream.read(_HEAD_BYTES)
    if head.startswith(_NOT_TEXT):
        raise InputError(
            _STDIN_NAME, "not text", "a table or lines of SMILES", f"Give the file's name in place of {STDIN}."
        )
    path = folder / f"input{_ending(head, options)}"
    with path.open("wb") as copy:
        copy.write(head)
        shutil.copyfileobj(stream, copy)
    return path


def _ending(head: bytes, options: CsvOptions) -> str:
    """Return .sdf, .csv, or .smi where the first line begins with a SMILES and is no header line of a table."""
    if _SDF.search(head):
        return ".sdf"
    first = next((line.strip() for line in head.decode("utf-8", "replace").splitlines() if line.strip()), "")
    if not first or options.smiles_column or (SMILES in first.lower() and _DELIMITER.search(first)):
        return ".csv"
    word = first.split()[0]
    return ".smi" if word.lower() == SMILES or not _why_no_molecule(word) else ".csv"
