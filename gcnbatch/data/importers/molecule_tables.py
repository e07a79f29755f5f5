"""Tables of molecules in memory: which column holds SMILES and ids, and the texts of all columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gcnbatch.data.importers.dialect import NumberFormat, TableFormat
from gcnbatch.data.importers.molecule_files import open_molecules
from gcnbatch.errors import InputError, nearest
from gcnbatch.fileio import StrPath
from gcnbatch.text import quoted

SMILES_NAMES = ("smiles", "canonicalsmiles", "isomericsmiles", "smilesstring", "structuresmiles")
ID_NAMES = ("id", "molid", "moleculeid", "compoundid")
DATABASE_ID_NAMES = ("moleculechemblid", "chemblid", "pubchemcid", "cid", "pubchemsid", "sid", "zincid")


@dataclass(frozen=True)
class MoleculeTable:
    """A file of molecules in memory: one text per row and column, without surrounding blanks.

    `ids` are the values of `id_column`, or row numbers from 1 where that is empty; `others` holds the other columns,
    `names` all in their order, `notes` what was detected.
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
    path: StrPath, smiles_column: str = "", id_column: str = "", wished: TableFormat | None = None
) -> MoleculeTable:
    """Read a file of molecules.

    Parameters
    ----------
    path : path
        See `gcnbatch.data.importers.molecule_files.ENDINGS`; text is UTF-8 with RFC 4180 quoting.
    smiles_column : str
        Empty: the column named ``smiles`` in any case, or like ``Canonical SMILES``.
    id_column : str
        Empty: a column named like ``id``, ``mol_id`` or ``Compound ID``, else like ``CID`` or ``ChEMBL ID``; without
        one, rows are numbered from 1.
    wished : TableFormat or None
        Delimiter and decimal sign; None: detected.

    Raises
    ------
    InputError
        For a file that is missing, empty, damaged or not UTF-8, and a column that is not there.
    """
    path, wished = Path(path), wished or TableFormat()
    with open_molecules(path, wished) as source:
        names, notes = source.names, source.notes
        smiles_name, id_name = find_columns(path, names, smiles_column, id_column)
        columns: dict[str, list[str]] = {name: [] for name in names}
        lists = list(columns.values())
        for record in source.rows:
            for texts, text in zip(lists, record, strict=True):
                texts.append(text.strip())
    smiles = columns.pop(smiles_name)
    if not smiles:
        raise InputError(str(path), "no row below the header line", "at least one molecule")
    ids = columns.pop(id_name) if id_name else [str(row + 1) for row in range(len(smiles))]
    columns = {name: list(wished.without_missing(texts)) for name, texts in columns.items()}
    written = NumberFormat.of(path, columns.items(), wished.decimal)
    columns = {name: list(written.plain(name, texts)) for name, texts in columns.items()}
    return MoleculeTable(path, smiles_name, id_name, smiles, ids, columns, names, (*notes, *written.notes))


def find_columns(path: StrPath, names: Sequence[str], smiles_column: str = "", id_column: str = "") -> tuple[str, str]:
    """Return the names of the columns of SMILES and of ids ("" if there is none); see `read_molecules`."""
    smiles_name = _smiles_column(Path(path), names, smiles_column)
    if id_column and id_column not in names:
        raise InputError(
            str(path), f"no column {quoted(id_column)}", hint=nearest(id_column, names) + " See --id-column."
        )
    id_name = id_column or find_id_column([name for name in names if name != smiles_name])
    if id_name == smiles_name:
        raise InputError("--id-column", f"{quoted(id_name)} is the column of SMILES", "another column")
    return smiles_name, id_name


def find_id_column(names: Sequence[str]) -> str:
    """Return the column named like ids of molecules, else like those of a database; "" if there is none or several."""
    for known in (ID_NAMES, DATABASE_ID_NAMES):
        if candidates := [name for name in names if _plain(name) in known]:
            return candidates[0] if len(candidates) == 1 else ""
    return ""


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _smiles_column(path: Path, names: Iterable[str], name: str) -> str:
    if name:
        if name not in names:
            raise InputError(
                str(path), f"no column {quoted(name)}", hint=nearest(name, names) + " See --smiles-column."
            )
        return name
    found = [column for column in names if column.lower() == "smiles"]
    found = found or [column for column in names if _plain(column) in SMILES_NAMES]
    if len(found) != 1:
        got = "several columns 'smiles'" if found else "no column 'smiles'"
        hint = f"{nearest('smiles', names)} Name it with --smiles-column, or the separator with --delimiter."
        raise InputError(str(path), got, hint=hint)
    return found[0]
