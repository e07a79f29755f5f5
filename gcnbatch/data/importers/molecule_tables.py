"""Tables of molecules in memory: which column holds SMILES and ids, and the texts of all columns.

The column of SMILES is found by its name, else by its contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gcnbatch.data import guard
from gcnbatch.data.featurizer import load_rdkit
from gcnbatch.data.importers.number_format import NumberFormat
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.layout import TableFormat, names_smiles, plain_name
from gcnbatch.data.tables.smi import about_extensions, without_extension
from gcnbatch.data.tables.table import with_numbers
from gcnbatch.errors import InputError, closest
from gcnbatch.fileio import StrPath
from gcnbatch.text import listed, quoted, some_of

ID_NAMES = ("id", "molid", "moleculeid", "compoundid")
DATABASE_ID_NAMES = ("moleculechemblid", "chemblid", "pubchemcid", "cid", "pubchemsid", "sid", "zincid")
_SMILES_NAMES = ("smiles", "canonicalsmiles", "isomericsmiles", "smilesstring", "structuresmiles")
_MOLECULES = ("mol", "mols", "molecule", "molecules", "drug", "structure", "structures", "compound", "ligand", "smi")
_COLUMNS, _SAMPLE, _CHARS = 100, 100, 2000  # columns that are looked at, values of each, and their length
_SHARE = 0.9  # of them, that must be SMILES
_STRUCTURE = re.compile(r"[=#()\[\]]|[A-Za-z]\d")  # what words and formulas seldom have, and SMILES often


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
        Empty: see `find_smiles_column`.
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
        raise _lacking(path, id_column, columns, "--id-column")
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


def find_smiles_column(path: Path, columns: Mapping[str, Sequence[str]], name: str) -> tuple[str, list[str]]:
    """Return the name of the column of SMILES, and notes for the user.

    An empty `name`: the column called ``smiles`` in any case, else by a longer name such as ``Canonical SMILES``, else
    the only one whose values RDKit reads as SMILES. Of several with such a name, the only one with such values counts.

    Raises
    ------
    InputError
        When there is no such column, or several.
    """
    if name:
        if name not in columns:
            raise _lacking(path, name, columns, "--smiles-column")
        return name, []
    ranks = (
        [column for column in columns if column.lower() == "smiles"],
        [column for column in columns if plain_name(column) in _SMILES_NAMES],
        [column for column in columns if names_smiles(column)],
    )
    named = next(filter(None, ranks), [])
    if len(named) == 1:
        return named[0], []
    held = _with_smiles({column: columns[column] for column in named or columns})
    molecules = [column for column in held if _names_molecules(column)]
    found = molecules if len(molecules) == 1 else held or named
    if not found:
        got = f"no column of SMILES; there {'is' if len(columns) == 1 else 'are'} {listed(map(quoted, columns))}"
        raise InputError(str(path), got, hint="Name it with --smiles-column, or the separator with --delimiter.")
    if len(found) > 1:
        got = f"several columns of SMILES: {listed(map(quoted, found))}"
        raise InputError(str(path), got, "one", "Name it with --smiles-column.")
    return found[0], [f"SMILES are read from column {quoted(found[0])}, by its values"]


def _lacking(path: StrPath, name: str, columns: Iterable[str], option: str) -> InputError:
    """Return the error for a column that the user named with an option and that is not there."""
    hint = f"{closest(name, columns)} See {option}.".lstrip()
    return InputError(str(path), f"no column {quoted(name)}", listed(map(quoted, columns)), hint)


def _names_molecules(name: str) -> bool:
    return plain_name(name) in _MOLECULES or names_smiles(name)


def _with_smiles(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns whose first values are SMILES."""
    samples = {name: sample for name, texts in columns.items() if (sample := _sample(name, texts))}
    samples = dict(islice(samples.items(), _COLUMNS))
    readable = iter(guard.each(_is_smiles, [text for sample in samples.values() for text in sample], "RDKit", False))
    counts = {name: sum(islice(readable, len(sample))) for name, sample in samples.items()}
    return [name for name, count in counts.items() if count >= _SHARE * len(samples[name])]


def _sample(name: str, texts: Sequence[str]) -> list[str]:
    """Return the first values of a column; none where they cannot be SMILES.

    A name that says nothing of molecules must have structures of more than letters.
    """
    sample = [without_extension(text) for text in map(str.strip, islice(texts, _SAMPLE)) if text]
    if any(text.isdecimal() or len(text) > _CHARS for text in sample):
        return []
    shaped = sum(bool(_STRUCTURE.search(text)) for text in sample)
    return sample if _names_molecules(name) or 2 * shaped >= len(sample) else []


def _is_smiles(text: str) -> bool:
    """Return whether RDKit reads a text, in a forked process."""
    return " " not in text and load_rdkit().MolFromSmiles(text) is not None
