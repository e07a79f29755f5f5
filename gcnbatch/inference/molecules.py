"""Molecules as an input: rows are read here, and worker processes make graphs and batches of them, chunk by chunk.

A folder of files of molecules is read as one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gcnbatch.data import featurizer_worker, guard, molecule_graphs
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.endings import KNOWN, is_table
from gcnbatch.data.featurizer import MoleculeArrays, featurize_chunk, load_rdkit
from gcnbatch.data.graphs import GraphSet, concatenate
from gcnbatch.data.importers.molecule_tables import MoleculeColumns, about_blank_ids, find_columns
from gcnbatch.data.molecule_graphs import graph_part, guarded, missing_targets
from gcnbatch.data.schema import Header
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.smi import about_extensions, without_extension
from gcnbatch.data.tables.table import Block, Table, with_numbers
from gcnbatch.errors import InputError, nearest
from gcnbatch.fileio import sha256
from gcnbatch.inference import WORKER_MODULES
from gcnbatch.inference.columns import FeatureColumns, LabelColumns
from gcnbatch.inference.parts import Input, InputForm, OfMembers, Part, RowBlock, Share
from gcnbatch.machine import cores
from gcnbatch.mixture import Members, Preparation
from gcnbatch.text import quoted
from gcnbatch.timeline import span
from gcnbatch.training import mixed
from gcnbatch.workers.pool import Workers
from gcnbatch.workers.shared import Shared


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


@contextmanager
def open_tables(path: Path, requested: TableFormat) -> Iterator[Table]:
    """Open a file, or all files of molecules in a folder in the order of their names.

    The files of a folder have the columns of the first one, in any order.

    Raises
    ------
    InputError
        As `open_table`; for a folder without such files, and a file that lacks a column.
    """
    if not path.is_dir():
        with open_table(path, requested, index=True) as table:
            yield table
        return
    files = sorted(file for file in path.iterdir() if is_table(file))
    if not files:
        raise InputError(str(path), "no file of molecules in it", f"files that end with {KNOWN}")
    with open_table(files[0], requested, index=True) as table:
        names = table.names
    with ExitStack() as stack:
        yield _Folder(path, names, files, requested, stack)


class _Folder(Table):
    """The files of a folder; `stack` closes the one that is open."""

    def __init__(
        self, path: Path, names: tuple[str, ...], files: list[Path], requested: TableFormat, stack: ExitStack
    ) -> None:
        super().__init__(path, names)
        self._files, self._requested, self._stack = files, requested, stack

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of all files; add what was detected to the notes."""
        blocks = self._read()
        self._stack.callback(blocks.close)
        return blocks

    def _read(self) -> Generator[Block]:
        before = 0
        for file in self._files:
            with open_table(file, self._requested, index=True) as table:
                if missing := [name for name in self.names if name not in table.names]:
                    raise InputError(str(file), f"no column {quoted(missing[0])}", f"the columns of {self._files[0]}")
                for block in table.blocks():
                    yield Block(before, {name: block.columns[name] for name in self.names})
                    before += len(block)
                self.notes += [note for note in table.notes if note not in self.notes]


SAMPLE_ROWS = 1000  # in which a decimal comma is detected
ROW_BYTES = 32  # of a molecule, roughly, to start processes before the rows are counted
ALL_COLUMNS = "all"
SMILES = "smiles"  # the column of SMILES in memory


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are read; an empty `id`: row numbers."""

    smiles: str
    id: str
    kept: tuple[str, ...]
    labels: LabelColumns | None
    features: FeatureColumns

    def names(self) -> list[str]:
        """Return each name once."""
        labels = () if self.labels is None else self.labels.names.values()
        return list(dict.fromkeys((self.smiles, *filter(None, [self.id]), *self.kept, *labels, *self.features.names)))


@dataclass(frozen=True)
class Converter:
    """Converts chunks of rows into parts.

    Parameters
    ----------
    header : Header
    columns : Columns
    forms : tuple of InputForm
        The parts have batches for these forms, or graphs if there is none.
    mixtures : tuple of Members, Preparation or None
        For each run, the members of its mixture beside the networks, or the maps to what they read: the parts have what
        they give or read, and what networks read alone. Empty: the parts have all features.
    """

    header: Header
    columns: Columns
    forms: tuple[InputForm, ...]
    mixtures: tuple[Members | Preparation | None, ...] = ()

    def smiles(self, rows: Block) -> list[str]:
        """Return the SMILES without blanks around them and extensions of CXSMILES."""
        return list(map(without_extension, rows[self.columns.smiles]))

    def part(self, chunks: Sequence[MoleculeArrays], rows: Block) -> Part:
        """Join the graphs of consecutive rows."""
        columns, errors, first = self.columns, dict[int, str](), rows.before
        ids = with_numbers(rows.texts(columns.id) if columns.id else [""] * len(rows), first)
        names = np.array(ids, dtype=np.str_)
        values, wrong = columns.features.read(rows)
        graphs = []
        for chunk in chunks:
            places = chunk.rows - first
            own = None if values is None else values[places]
            targets = missing_targets(self.header, len(places))
            graphs.append(graph_part(chunk, self.header, targets, names[places], columns=own))
            errors |= {bad.index - first: bad.reason for bad in chunk.bad}
        data, readable = concatenate(graphs), np.concatenate([chunk.rows - first for chunk in chunks])
        if wrong:
            left = np.flatnonzero(~np.isin(readable, list(wrong)))
            data, readable = data.take(left), readable[left]
            errors = wrong | errors
        smiles = self.smiles(rows)
        y, remarks = (None, {}) if columns.labels is None else columns.labels.read(rows)
        block = RowBlock(
            ids,
            readable,
            errors,
            y,
            {name: rows.texts(name) for name in columns.kept},
            [smiles[row] for row in readable.tolist()],
            remarks,
            sum((chunk.alike for chunk in chunks), Counter[str]()),
        )
        sources = {form: BatchSource(data, *form) for form in self.forms}
        for source in sources.values():
            if self.mixtures and source.prepared is not None:
                source.prepared.compact()
        of_members = tuple(map(partial(self._of_members, data), self.mixtures))
        return Part((block,), None if sources else data, sources, of_members=of_members)

    def _of_members(self, data: GraphSet, of: Members | Preparation | None) -> OfMembers | None:
        """Return what the members of a mixture beside the networks give for these molecules, or what they read."""
        if of is None:
            return None
        assert data.graph_features is not None
        molecules = mixed.molecules(self.header, [data.graph_features])
        return of.predict(molecules) if isinstance(of, Members) else of.apply(molecules)


def convert_timed(seconds: float, rows: Block, converter: Shared) -> Part:
    """Convert a chunk in a worker process, which ends if a molecule takes too long."""
    own: Converter = converter.load()
    arrays = featurize_chunk(guard.timed(own.smiles(rows), seconds), rows.before, own.columns.features.options, False)
    return own.part([arrays], rows)


def convert_guarded(rows: Block, converter: Shared) -> list[Part]:
    """Convert a chunk, its graphs in forks; a molecule that crashes RDKit is a bad row."""
    own: Converter = converter.load()
    return [own.part(guarded(own.smiles(rows), rows.before, own.columns.features.options, False), rows)]


def smiles_columns(header: Header, kept: tuple[str, ...] = ()) -> Columns:
    """Return the columns of a table with the column of SMILES alone.

    Raises
    ------
    InputError
        When the models read features from columns.
    """
    return Columns(SMILES, "", kept, None, FeatureColumns.of("data", (), header))


class Rows(NamedTuple):
    """Rows of a table of molecules: which columns are read, how many rows there are, notes for the user, the chunks."""

    columns: Columns
    total: int
    notes: tuple[str, ...]
    chunks: Iterator[Block]


@contextmanager
def open_rows(given: Path | list[str], header: Header, options: CsvOptions, skip: int = 0) -> Iterator[Rows]:
    """Open SMILES, a file or a folder of molecules, after the first `skip` rows.

    A first pass over a file counts its rows and checks the table.

    Raises
    ------
    InputError
        For a table that cannot be read, has no row, or lacks a column.
    """
    if isinstance(given, list):
        columns = smiles_columns(header, _kept((SMILES,), "", options))
        chunks = Table(Path("data"), (SMILES,), [Block(0, {SMILES: given})]).chunks(molecule_graphs.CHUNK, (SMILES,))
        yield Rows(columns, len(given), columns.features.notes, chunks)
        return
    columns, total, notes = _checked(given, header, options)
    with open_tables(given, options.format) as source:
        yield Rows(columns, total, notes, source.chunks(molecule_graphs.CHUNK, columns.names(), skip))


@contextmanager
def open_molecules(
    given: Path | list[str],
    header: Header,
    forms: tuple[InputForm, ...],
    options: CsvOptions,
    part_rows: int,
    skip: int,
    share: Share,
    workers: Workers | None = None,
    mixtures: tuple[Members | Preparation | None, ...] = (),
) -> Iterator[Input]:
    """Open SMILES, a file or a folder of molecules; the parts have `part_rows`, rounded up to whole chunks.

    `forms` and `mixtures` are those of `Converter`; processes work for the mixtures only if there are several parts.
    `workers` are processes of `early_workers`; None: they are started here.
    """
    processes = options.processes or max(cores() // share.beside, 1)
    about = len(given) if isinstance(given, list) else _bytes(given) // ROW_BYTES
    with (
        nullcontext(workers) if workers else _workers(about, processes) as own_workers,  # start during the first pass
        open_rows(given, header, options, skip) as rows,
    ):
        trained_on = False
        if isinstance(given, Path) and rows.columns.labels is not None and not given.is_dir():
            trained_on = header.source.get("sha256") == sha256(given)
        size = -(-part_rows // molecule_graphs.CHUNK) * molecule_graphs.CHUNK
        shared = own_workers if rows.total - skip > size else None
        members = [of for of in mixtures if isinstance(of, Members)]
        if not shared or (members and not shared.shares_memory):  # a copy of them in each process may take gigabytes
            mixtures, members = (), []
        with span("prepare the mixtures"):
            for of in members:
                of.get_ready()
        own = (chunk for chunk in rows.chunks if share.has((chunk.before - skip) // size))
        parts = _parts(own, Converter(header, rows.columns, forms, mixtures), own_workers, size)
        yield Input(rows.total, parts, trained_on, rows.notes, True, shared)


def _bytes(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder; 0 if there is none."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def columns_of(path: Path, sample: Mapping[str, Sequence[str]], header: Header, options: CsvOptions) -> MoleculeColumns:
    """Return the columns of SMILES and ids of a table, of which `sample` has the first values of each column.

    They are those of the options, else those of the training set if the table has them, else detected.
    """
    recorded = header.featurizer or {}
    requested = {
        key: getattr(options, key) or (recorded.get(key, "") if recorded.get(key) in sample else "")
        for key in ("smiles_column", "id_column")
    }
    return find_columns(path, sample, **requested)


def _checked(path: Path, header: Header, options: CsvOptions) -> tuple[Columns, int, tuple[str, ...]]:
    """Return the columns of a table, the number of its rows, and notes for the user."""
    with open_tables(path, options.format) as source:
        blocks, labels = source.blocks(), LabelColumns.of(source.names, header)
        first = next(blocks, Block.of(0, source.names, ()))
        sample = {name: first[name][:SAMPLE_ROWS] for name in source.names}
        found, notes = columns_of(path, sample, header, options), []
        if labels is not None:
            labels = labels.with_format(path, options.format, sample)
            notes += [*labels.notes, *labels.written.notes]
        features = FeatureColumns.of(path, source.names, header).with_format(path, options.format, sample)
        columns = Columns(found.smiles, found.id, _kept(source.names, found.id, options), labels, features)
        total = extended = blank = 0
        for block in chain([first], blocks):
            total += len(block)
            extended += sum(without_extension(text) is not text for text in block[found.smiles])
            blank += sum(not text for text in block[found.id]) if found.id else 0
        notes = [*source.notes, *found.notes, *notes, *about_extensions(extended), *features.notes]
        notes += about_blank_ids(blank, total)
    if total == 0:
        raise InputError(str(path), "no row below the header line", "at least one molecule")
    return columns, total, tuple(notes)


def _kept(names: Sequence[str], id_name: str, options: CsvOptions) -> tuple[str, ...]:
    """Return the columns that go to the output."""
    if options.keep_columns == (ALL_COLUMNS,) and ALL_COLUMNS not in names:
        return tuple(name for name in names if name != id_name)
    for name in options.keep_columns:
        if name not in names:
            raise InputError(
                "--keep-columns", f"no column {quoted(name)}", "columns of the input", nearest(name, names)
            )
    return tuple(dict.fromkeys(options.keep_columns))


@contextmanager
def _workers(rows: int, processes: int) -> Iterator[Workers | None]:
    """Start the processes that convert about so many rows; None for one process, or for a single chunk."""
    count = min(processes, -(-rows // molecule_graphs.CHUNK))
    if count <= 1:
        load_rdkit()
        yield None
        return
    with Workers(count, featurizer_worker.prepare, WORKER_MODULES, quiet=True) as workers:
        load_rdkit()  # while the processes do so, too
        yield workers


def _parts(chunks: Iterator[Block], converter: Converter, workers: Workers | None, size: int) -> Iterator[Part]:
    """Yield parts of `size` rows; processes convert chunks ahead of them."""
    shared, of_part = Shared(converter), size // molecule_graphs.CHUNK
    calls = ((chunk, shared) for chunk in chunks)
    converted: Iterator[Part]
    if workers is None:
        converted = chain.from_iterable(starmap(convert_guarded, calls))
    else:
        converted = guard.in_workers(workers, convert_timed, convert_guarded, calls, 2 * workers.count + of_part)
    while parts := list(islice(converted, of_part)):
        yield Part.joined(parts)
