"""A file of molecules, or a folder of them that is read as one table."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gcnbatch.data.importers.binary_tables import MoleculeRows
from gcnbatch.data.importers.dialect import TableFormat
from gcnbatch.data.importers.molecule_files import ENDINGS, KNOWN, open_molecules
from gcnbatch.errors import InputError
from gcnbatch.text import quoted


@contextmanager
def open_tables(path: Path, wished: TableFormat) -> Generator[MoleculeRows]:
    """Open a file, or all files of molecules in a folder in the order of their names.

    The files of a folder have the columns of the first one, in any order.

    Raises
    ------
    InputError
        As `open_molecules`; for a folder without such files, and a file that lacks a column.
    """
    if not path.is_dir():
        with open_molecules(path, wished) as source:
            yield source
        return
    files = sorted(file for file in path.iterdir() if file.name.lower().endswith(ENDINGS))
    if not files:
        raise InputError(str(path), "no file of molecules in it", f"files that end with {KNOWN}")
    with open_molecules(files[0], wished) as source:
        names, notes = source.names, list[str]()
    with closing(_rows(files, names, notes, wished)) as rows:
        yield MoleculeRows(names, rows, notes)


def _rows(files: list[Path], names: tuple[str, ...], notes: list[str], wished: TableFormat) -> Generator[list[str]]:
    """Yield the rows of all files; add what was detected to `notes`."""
    for file in files:
        with open_molecules(file, wished) as source:
            if missing := [name for name in names if name not in source.names]:
                raise InputError(str(file), f"no column {quoted(missing[0])}", f"the columns of {files[0]}")
            yield from _ordered(source.rows, [source.names.index(name) for name in names])
            notes += [note for note in source.notes if note not in notes]


def _ordered(rows: Iterator[list[str]], places: list[int]) -> Iterator[list[str]]:
    if places == list(range(len(places))):
        yield from rows
    else:
        yield from ([row[place] for place in places] for row in rows)
