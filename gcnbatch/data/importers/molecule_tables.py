"""Tables of molecules in memory: which column holds SMILES and ids, and the texts of all columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gcnbatch.data.importers.number_format import NumberFormat
from gcnbatch.data.importers.smiles_columns import find_smiles_column
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.layout import TableFormat, plain_name
from gcnbatch.data.tables.smi import about_extensions, without_extension
from gcnbatch.data.tables.table import with_numbers
from gcnbatch.errors import InputError, nearest
from gcnbatch.fileio import StrPath
from gcnbatch.text import quoted, some_of

ID_NAMES = ("id", "molid", "moleculeid", "compoundid")
DATABASE_ID_NAMES = ("moleculechemblid", "chemblid", "pubchemcid", "cid", "pubchemsid", "sid", "zincid")


@dataclass(frozen=True)
class MoleculeTable:
    """A file of molecules in memory: one text per row and column, without surrounding blanks except for ids.

    `ids` are the values of `id_column` as they are, row numbers from 1 where it is empty or has none; `others` holds
    the other columns, `names` all in their order, `notes` what was detected.
    """

    path: Path
    smiles_column: str
    id_column: str
    smiles: list[str]
    ids: list[str]
    others: dict[str, list[str]]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def describe(self, index: int) -> str:
        """Return the row at `index` for a message: its number, id and SMILES."""
        identity = f", id {self.ids[index]}" if self.id_column else ""
        return f"row {index + 1}{identity}, SMILES {quoted(self.smiles[index])}"


def read_molecules(
    path: StrPath, smiles_column: str = "", id_column: str = "", asked: TableFormat | None = None
) -> MoleculeTable:
    """Read a file of molecules.

    Parameters
    ----------
    path : path
        See `gcnbatch.data.endings.TABLES`; text has RFC 4180 quoting.
    smiles_column : str
        Empty: see `gcnbatch.data.importers.smiles_columns`.
    id_column : str
        Empty: a column named like ``id``, ``mol_id`` or ``Compound ID``, else like ``CID`` or ``ChEMBL ID``; without
        one, rows are numbered from 1.
    asked : TableFormat or None
        Delimiter, decimal sign and encoding; None: detected.

    Raises
    ------
    InputError
        For a file that is missing, empty, damaged or in another encoding, and a column that is not there.
    """
    path, asked = Path(path), asked or TableFormat()
    with open_table(path, asked, index=True) as source:
        columns, names, notes = source.columns(), source.names, source.notes
    found = find_columns(path, columns, smiles_column, id_column)
    given = columns.pop(found.id) if found.id else [""] * len(columns[found.smiles])
    ids = with_numbers(given, 0)
    columns = {name: list(map(str.strip, texts)) for name, texts in columns.items()}
    smiles = columns.pop(found.smiles)
    if not smiles:
        raise InputError(str(path), "no row below the header line", "at least one molecule")
    plain = list(map(without_extension, smiles))
    columns = {name: list(asked.without_missing(texts)) for name, texts in columns.items()}
    written = NumberFormat.of(path, columns.items(), asked.decimal)
    columns = {name: list(written.plain(name, texts)) for name, texts in columns.items()}
    notes += found.notes + about_extensions(sum(map(str.__ne__, smiles, plain)))
    notes += [*about_blank_ids(sum(map(str.__ne__, ids, given)), len(ids)), *written.notes]
    return MoleculeTable(path, found.smiles, found.id, plain, ids, columns, names, tuple(notes))


@dataclass(frozen=True)
class MoleculeColumns:
    """The names of the columns of SMILES and of ids ("" if there is none), and what was detected, for the user."""

    smiles: str
    id: str
    notes: list[str]


def find_columns(
    path: StrPath, columns: Mapping[str, Sequence[str]], smiles_column: str = "", id_column: str = ""
) -> MoleculeColumns:
    """Return the columns of SMILES and of ids; see `read_molecules`. Of each column, the first values are enough."""
    smiles_name, notes = find_smiles_column(Path(path), columns, smiles_column)
    if id_column and id_column not in columns:
        raise InputError(
            str(path), f"no column {quoted(id_column)}", hint=nearest(id_column, columns) + " See --id-column."
        )
    id_name = id_column or find_id_column([name for name in columns if name != smiles_name])
    if id_name == smiles_name:
        raise InputError("--id-column", f"{quoted(id_name)} is the column of SMILES", "another column")
    return MoleculeColumns(smiles_name, id_name, notes)


def about_blank_ids(blank: int, rows: int) -> list[str]:
    """Return the note for blank ids; none where all are."""
    what = f"{some_of(blank, rows, 'row', 'has', 'have')} no id: the number of the row stands for it"
    return [what] if 0 < blank < rows else []


def find_id_column(names: Sequence[str]) -> str:
    """Return the column named like ids of molecules, else like those of a database; "" if there is none or several."""
    for known in (ID_NAMES, DATABASE_ID_NAMES):
        if candidates := [name for name in names if plain_name(name) in known]:
            return candidates[0] if len(candidates) == 1 else ""
    return ""
