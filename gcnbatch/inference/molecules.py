"""Molecules as an input: rows are read here, and worker processes make graphs and batches of them, chunk by chunk.

A folder of files of molecules is read as one table.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice, starmap
from pathlib import Path
from typing import NamedTuple

from gcnbatch.data import guard, molecule_graphs
from gcnbatch.data.endings import KNOWN, is_table
from gcnbatch.data.featurizer import load_rdkit
from gcnbatch.data.importers.molecule_tables import MoleculeColumns, about_blank_ids, find_columns
from gcnbatch.data.schema import Header
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.smi import about_extensions, without_extension
from gcnbatch.data.tables.table import Block, Table
from gcnbatch.errors import InputError, nearest
from gcnbatch.fileio import sha256
from gcnbatch.inference import conversion
from gcnbatch.inference.columns import FeatureColumns, LabelColumns
from gcnbatch.inference.conversion import Columns, Converter, convert_guarded, convert_timed
from gcnbatch.inference.parts import Input, Part, Reading, Share
from gcnbatch.machine import cores
from gcnbatch.text import quoted
from gcnbatch.worker import Shared, Workers


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


@contextmanager
def open_smiles(
    smiles: list[str], header: Header, readings: tuple[Reading, ...], options: CsvOptions, part_rows: int
) -> Iterator[Input]:
    """Open SMILES in memory: a table of one column, whose rows are numbered."""
    names = (SMILES,)
    converter, size = smiles_converter(header, readings, _kept(names, "", options)), _size(part_rows)
    given = Table(Path("data"), names, [Block(0, {SMILES: smiles})])
    with _workers(len(smiles), options.processes) as workers:
        parts, notes = _parts(given.chunks(molecule_graphs.CHUNK, names), converter, workers, size), converter.notes
        several = len(smiles) > molecule_graphs.CHUNK
        yield Input(len(smiles), parts, False, notes, several, workers if len(smiles) > size else None)


def smiles_converter(header: Header, readings: tuple[Reading, ...], kept: tuple[str, ...] = ()) -> Converter:
    """Return what converts chunks of a table with the column of SMILES alone.

    Raises
    ------
    InputError
        When the models read features from columns.
    """
    return Converter(header, Columns(SMILES, "", kept, None, FeatureColumns.of("data", (), header)), readings)


class Rows(NamedTuple):
    """Rows of a file of molecules: which columns are read, how many rows there are, notes for the user, the chunks."""

    columns: Columns
    total: int
    notes: tuple[str, ...]
    chunks: Iterator[Block]


@contextmanager
def open_rows(path: Path, header: Header, options: CsvOptions, skip: int = 0) -> Iterator[Rows]:
    """Open a file or a folder of molecules, after its first `skip` rows; a first pass counts rows and checks the table.

    Raises
    ------
    InputError
        For a table that cannot be read, has no row, or lacks a column.
    """
    columns, total, notes = _checked(path, header, options)
    with open_tables(path, options.format) as source:
        yield Rows(columns, total, notes, source.chunks(molecule_graphs.CHUNK, columns.names(), skip))


@contextmanager
def open_file(
    path: Path,
    header: Header,
    readings: tuple[Reading, ...],
    options: CsvOptions,
    part_rows: int,
    skip: int,
    share: Share,
) -> Iterator[Input]:
    """Open a file or a folder of molecules; a first pass counts the rows and checks the table."""
    processes = options.processes or max(cores() // share.beside, 1)
    with (
        _workers(_bytes(path) // ROW_BYTES, processes) as workers,  # they start during the first pass
        open_rows(path, header, options, skip) as rows,
    ):
        alone = rows.columns.labels is not None and not path.is_dir()
        trained_on = alone and header.source.get("sha256") == sha256(path)
        converter, size = Converter(header, rows.columns, readings), _size(part_rows)
        own = (chunk for chunk in rows.chunks if share.has((chunk.before - skip) // size))
        parts = _parts(own, converter, workers, size)
        yield Input(rows.total, parts, trained_on, rows.notes, True, workers if rows.total - skip > size else None)


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


def _size(part_rows: int) -> int:
    """Return the rows of a part: whole chunks."""
    return -(-part_rows // molecule_graphs.CHUNK) * molecule_graphs.CHUNK


@contextmanager
def _workers(rows: int, processes: int) -> Iterator[Workers | None]:
    """Start the processes that convert about so many rows; None for one process, or for a single chunk."""
    count = min(processes or cores(), -(-rows // molecule_graphs.CHUNK))
    if count <= 1:
        load_rdkit()
        yield None
        return
    with Workers(count, conversion.prepare, quiet=True) as workers:
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
