"""Inputs of predictions: a data set file as one part, or a file of molecules in parts."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import DataConfig
from gcnbatch.data.featurizer import MoleculeArrays
from gcnbatch.data.graphs import GraphSet, Int64, concatenate
from gcnbatch.data.importers.dialect import DECIMAL_COMMA, TableFormat
from gcnbatch.data.importers.molecule_files import ENDINGS as MOLECULE_ENDINGS
from gcnbatch.data.importers.molecule_tables import find_columns
from gcnbatch.data.molecule_graphs import CHUNK, featurize, graph_part, missing_targets
from gcnbatch.data.outputs import ENDINGS as HDF5_ENDINGS
from gcnbatch.data.schema import Header
from gcnbatch.data.shards import is_sharded
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import check_graphset
from gcnbatch.errors import InputError, nearest
from gcnbatch.fileio import sha256
from gcnbatch.inference.folders import open_tables
from gcnbatch.inference.graph_features import FeatureColumns, input_header, version_notes
from gcnbatch.inference.labels import LabelColumns
from gcnbatch.inference.members import Member
from gcnbatch.predictions import Predictions
from gcnbatch.text import QUOTED, printable, quoted
from gcnbatch.training.trained import check_fit, same_outputs

PART_ROWS = 4096  # molecules in memory at a time, unless a batch is larger
SAMPLE_ROWS = 1000  # in which a decimal comma is detected
WHOLE_BYTES = 1 << 27  # a larger set of graphs is read in parts
PART_BYTES = 1 << 25
ALL_COLUMNS = "all"
Data = Path | GraphSet | list[str]  # a file, graphs or SMILES


@dataclass(frozen=True)
class Part:
    """Consecutive rows of the input.

    Parameters
    ----------
    ids : (R,) str
        Ids of all rows.
    data : GraphSet or Dataset
        The rows that could be read.
    rows : (M,) int64
        Position among the R rows of each row of `data`.
    errors : (R,) str or None
        Reason why a row could not be read; None if the input has no such rows.
    y : (R, K) or None
        Targets of all rows, if the input has those of the models.
    kept : dict of (R,) str
        Columns of the input that go to the output.
    smiles : callable
        Returns the SMILES of the rows of `data`; None if the input has none.
    """

    ids: NDArray[np.str_]
    data: GraphSet | Dataset
    rows: Int64
    errors: NDArray[np.str_] | None = None
    y: NDArray[Any] | None = None
    kept: dict[str, NDArray[np.str_]] = field(default_factory=dict)
    smiles: Callable[[], list[str] | None] = lambda: None


@dataclass(frozen=True)
class Input:
    """An opened input.

    Parameters
    ----------
    n_graphs : int
        Number of its graphs.
    parts : iterator of Part
        All rows, in order.
    trained_on : bool
        Whether the models were trained on it.
    notes : tuple of str
        What was detected, for the user.
    featurised : bool
        Whether other processes make the graphs while the models predict.
    """

    n_graphs: int
    parts: Iterator[Part]
    trained_on: bool = False
    notes: tuple[str, ...] = ()
    featurised: bool = False


@dataclass(frozen=True)
class CsvOptions:
    """Options of a file of molecules; empty columns: as in training, else detected; see `featurize`.

    `keep_columns` are copied to the output; ``("all",)`` means all but the ids.
    """

    smiles_column: str = ""
    id_column: str = ""
    processes: int = 0
    keep_columns: tuple[str, ...] = ()
    format: TableFormat = field(default_factory=TableFormat)


@dataclass(frozen=True)
class Share:
    """The parts with the numbers `first`, `first + every`, … of an input.

    Parameters
    ----------
    first, every : int
    beside : int
        Processes of this host that take shares.
    """

    first: int = 0
    every: int = 1
    beside: int = 1

    def has(self, number: int) -> bool:
        """Return whether the part of this number belongs to the share."""
        return number % self.every == self.first


@contextmanager
def open_input(
    data: Data,
    members: Sequence[Member],
    options: CsvOptions,
    batch_size: int,
    skip: int = 0,
    share: Share = Share(),
) -> Iterator[Input]:
    """Open a file by its ending, or data in memory, and check that they fit every member.

    A folder is that of shards, if it has an index, or of files of molecules. The parts begin after the first `skip`
    rows of a file. Those of the share are read.

    Raises
    ------
    InputError
        For an unknown ending, a damaged file, data that do not fit, and a file of molecules if the models were not
        trained on SMILES.
    """
    if not isinstance(data, Path):
        yield _given(data, members, options, max(PART_ROWS, batch_size))
        return
    path, name = data, data.name.lower()
    if name.endswith(HDF5_ENDINGS) or is_sharded(path):
        if options.keep_columns:
            raise InputError("--keep-columns", f"{path} has no columns", "a file of molecules")
        with Dataset(path, DataConfig().memory_mb, check=False) as dataset:
            by_parts = dataset.header.level == "graph" and dataset.nbytes > WHOLE_BYTES
            dataset.check(load=not by_parts)
            _check_members(members, str(path), dataset.header)
            trained = input_header(members)
            notes = version_notes(trained, dataset.header.featurizer)
            yield replace(_stored(dataset, trained, by_parts, skip, share), notes=notes)
    elif path.is_dir() or name.endswith(MOLECULE_ENDINGS):
        header = _check_smiles(members, str(path), "a file of molecules", "an HDF5 data set")
        yield from _molecules(path, header, options, max(PART_ROWS, batch_size), skip, share)
    else:
        known = ", ".join((*HDF5_ENDINGS, *MOLECULE_ENDINGS))
        raise InputError(str(path), "unknown ending", f"{known}; the data come last, after the runs")


def _check_members(members: Sequence[Member], place: str, header: Header) -> None:
    for member in members:
        check_fit(member, place, header, "Prepare the data as for the run.", outputs=False)


def _check_smiles(members: Sequence[Member], place: str, got: str, expected: str) -> Header:
    """Refuse molecules for models that were not trained on any; return the header of the graphs to make."""
    header = input_header(members)
    if (header.featurizer or {}).get("kind") != "smiles":
        raise InputError(place, got, f"{expected}, as {members[0].place} was not trained on a set made from SMILES")
    _check_members(members, place, header)
    return header


def _given(data: GraphSet | list[str], members: Sequence[Member], options: CsvOptions, part_rows: int) -> Input:
    """Return the Input of graphs or SMILES in memory."""
    if isinstance(data, GraphSet):
        check_graphset("data", data)
        _check_members(members, "data", data.header)
        y = data.y if same_outputs(data.header, members[0].header) else None
        smiles = None if data.smiles is None else data.smiles.tolist()
        part = Part(data.ids, data, np.arange(len(data.ids), dtype=np.int64), y=y, smiles=lambda: smiles)
        return Input(data.n_graphs, iter([part]))
    header = _check_smiles(members, "data", "SMILES", "a GraphSet")
    for row, text in enumerate(data):
        if not isinstance(text, str):
            raise InputError(f"data, row {row + 1}", type(text).__name__, "a SMILES")

    features = FeatureColumns.of("data", (), header)

    def parts() -> Iterator[Part]:
        chunks = featurize(data, features.options, processes=options.processes, ahead=part_rows)
        first = 0
        while group := list(islice(chunks, -(-part_rows // CHUNK))):
            rows = sum(len(chunk.rows) + len(chunk.bad) for chunk in group)
            records = [[data[row], str(row + 1)] for row in range(first, first + rows)]
            yield _part(header, group, records, first, _Columns(0, -1, {}, None, features))
            first += rows

    return Input(len(data), parts(), notes=features.notes, featurised=len(data) > CHUNK)


def _stored(dataset: Dataset, trained: Header, by_parts: bool, skip: int, share: Share) -> Input:
    """Return the Input of a data set: one part, or parts of about PART_BYTES."""
    known = same_outputs(dataset.header, trained)
    texts = cache(dataset.smiles)

    def smiles_of(rows: slice) -> list[str] | None:
        return None if (found := texts()) is None else found[rows]

    def part(first: int, data: GraphSet | Dataset) -> Part:
        rows = slice(first, first + data.n_graphs if by_parts or skip else None)
        ids = dataset.ids[rows]
        y = dataset.y[rows] if known else None
        return Part(ids, data, np.arange(len(ids), dtype=np.int64), y=y, smiles=partial(smiles_of, rows))

    def parts() -> Iterator[Part]:
        if by_parts:
            ranges = [rows for rows in dataset.block_ranges(PART_BYTES) if rows[1] > skip]
            for first, stop in ranges[share.first :: share.every]:
                yield part(max(first, skip), dataset.read(np.arange(max(first, skip), stop)))
        elif not share.has(0):
            return
        elif not skip:
            yield part(0, dataset.load() if dataset.fits_in_memory else dataset)
        elif skip < dataset.n_graphs:
            yield part(skip, dataset.read(np.arange(skip, dataset.n_graphs)))

    source = dataset.header.source
    return Input(dataset.n_graphs, parts(), bool(source) and source == trained.source)


def refuse_bad_row(part: Part | Predictions, first: int) -> None:
    """Refuse a part with a row that could not be read; `first` is the number of rows before it.

    Raises
    ------
    InputError
        Names the first such row.
    """
    if part.errors is not None and (bad := np.flatnonzero(part.errors != "")).size:
        at = int(bad[0])
        raise InputError(
            f"row {first + at + 1}, id {printable(str(part.ids[at]), QUOTED)}",
            str(part.errors[at]),
            hint="Fix the row, or keep such rows blank with --on-bad-row keep.",
        )


# ------------------------------------------------------------------------------------------------ molecules


@dataclass(frozen=True)
class _Columns:
    """Positions of the columns that are read; -1: row numbers as ids."""

    smiles: int
    id: int
    kept: dict[str, int]
    labels: LabelColumns | None
    features: FeatureColumns


def _molecules(
    path: Path, header: Header, options: CsvOptions, part_rows: int, skip: int, share: Share
) -> Iterator[Input]:
    """Yield the Input of a file of molecules; a first pass counts the rows and checks the table."""
    recorded = header.featurizer or {}
    with open_tables(path, options.format) as source:
        wished = {
            key: getattr(options, key) or (recorded.get(key, "") if recorded.get(key) in source.names else "")
            for key in ("smiles_column", "id_column")
        }
        found = find_columns(path, source.names, **wished)
        smiles_at, id_at = (source.names.index(name) if name else -1 for name in found)
        rows, labels = iter(source.rows), LabelColumns.of(source.names, header)
        sample = list(islice(rows, SAMPLE_ROWS))
        notes = source.notes
        if labels is not None:
            labels = labels.with_decimal(path, options.format.decimal, sample)
            notes += (DECIMAL_COMMA,) if labels.decimal != (options.format.decimal or ".") else ()
        features = FeatureColumns.of(path, source.names, header).with_decimal(path, options.format.decimal, sample)
        notes += features.notes
        columns = _Columns(smiles_at, id_at, _kept(source.names, found[1], options), labels, features)
        total = len(sample) + sum(1 for _ in rows)
    if total == 0:
        raise InputError(str(path), "no row below the header line", "at least one molecule")
    trained_on = columns.labels is not None and not path.is_dir() and header.source.get("sha256") == sha256(path)
    with closing(_parts(path, header, columns, (skip, total), options, part_rows, share)) as parts:
        yield Input(total, parts, trained_on, notes, featurised=True)


def _kept(names: Sequence[str], id_name: str, options: CsvOptions) -> dict[str, int]:
    """Return the columns that go to the output, with their positions."""
    if options.keep_columns == (ALL_COLUMNS,) and ALL_COLUMNS not in names:
        return {name: at for at, name in enumerate(names) if name != id_name}
    for name in options.keep_columns:
        if name not in names:
            raise InputError(
                "--keep-columns", f"no column {quoted(name)}", "columns of the input", nearest(name, names)
            )
    return {name: names.index(name) for name in options.keep_columns}


def _parts(
    path: Path,
    header: Header,
    columns: _Columns,
    between: tuple[int, int],
    options: CsvOptions,
    part_rows: int,
    share: Share,
) -> Generator[Part]:
    """Yield the share's parts of the rows from the first to before the second number in `between`."""
    skip, total = between
    size = -(-part_rows // CHUNK) * CHUNK
    numbers = [number for number in range(-(-(total - skip) // size)) if share.has(number)]
    lengths = [min(size, total - skip - number * size) for number in numbers]
    waiting: deque[list[str]] = deque()  # records that are read but not yet yielded, with the id behind
    with open_tables(path, options.format) as source:

        def smiles() -> Iterator[str]:
            for number, record in islice(enumerate(source.rows, 1), skip, None):
                if share.has((number - 1 - skip) // size):
                    record.append(record[columns.id] if columns.id >= 0 else str(number))
                    waiting.append(record)
                    yield record[columns.smiles]

        featurizer = columns.features.options
        processes = options.processes or max(len(os.sched_getaffinity(0)) // share.beside, 1)
        chunks = featurize(smiles(), featurizer, processes=processes, total=sum(lengths), ahead=part_rows)
        first = 0
        for length in lengths:
            group: list[MoleculeArrays] = []
            rows = 0
            while rows < length:
                group.append(next(chunks))
                rows += len(group[-1].rows) + len(group[-1].bad)
            yield _part(header, group, [waiting.popleft() for _ in range(rows)], first, columns)
            first += rows


def _part(
    header: Header, chunks: list[MoleculeArrays], records: list[list[str]], first: int, columns: _Columns
) -> Part:
    """Join chunks into a part; `first` is the position of its first row in the file."""
    errors = [""] * len(records)
    ids = np.array([record[-1] for record in records], dtype=np.str_)
    values, wrong = columns.features.read(records)
    graphs = []
    for chunk in chunks:
        places = chunk.rows - first
        own = None if values is None else values[places]
        graphs.append(graph_part(chunk, header, missing_targets(header, len(places)), ids[places], columns=own))
        for bad in chunk.bad:
            errors[bad.index - first] = bad.reason
    data, rows = concatenate(graphs), np.concatenate([chunk.rows - first for chunk in chunks])
    if wrong:
        left = np.flatnonzero(~np.isin(rows, list(wrong)))
        data, rows = data.take(left), rows[left]
        for row, reason in wrong.items():
            errors[row] = errors[row] or reason
    return Part(
        ids,
        data,
        rows,
        np.array(errors),
        None if columns.labels is None else columns.labels.read(records),
        {name: np.array([record[at] for record in records]) for name, at in columns.kept.items()},
        lambda: [records[place][columns.smiles].strip() for place in rows.tolist()],
    )
