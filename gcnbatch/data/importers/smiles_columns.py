"""The column of SMILES of a table, by its name, else by its contents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from gcnbatch.data import guard
from gcnbatch.data.featurizer import load_rdkit
from gcnbatch.data.tables.layout import names_smiles, plain_name
from gcnbatch.data.tables.smi import without_extension
from gcnbatch.errors import InputError, nearest
from gcnbatch.text import listed, quoted

_NAMES = ("smiles", "canonicalsmiles", "isomericsmiles", "smilesstring", "structuresmiles")
_MOLECULES = ("mol", "mols", "molecule", "molecules", "drug", "structure", "structures", "compound", "ligand", "smi")
_SAMPLE, _CHARS = 100, 2000  # values of a column that are looked at, and their length
_SHARE = 0.9  # of them, that must be SMILES
_STRUCTURE = re.compile(r"[=#()\[\]]|[A-Za-z]\d")  # what words and formulas seldom have, and SMILES often


def find_smiles_column(path: Path, columns: Mapping[str, Sequence[str]], name: str) -> tuple[str, list[str]]:
    """Return the name of the column of SMILES, and notes for the user.

    An empty `name`: the column called ``smiles`` in any case, else by a longer name such as ``Canonical SMILES``, else
    the only one whose values RDKit reads as SMILES.

    Raises
    ------
    InputError
        When there is no such column, or several.
    """
    if name:
        if name not in columns:
            hint = nearest(name, columns) + " See --smiles-column."
            raise InputError(str(path), f"no column {quoted(name)}", hint=hint)
        return name, []
    ranks = (
        [column for column in columns if column.lower() == "smiles"],
        [column for column in columns if plain_name(column) in _NAMES],
        [column for column in columns if names_smiles(column)],
    )
    found, notes = next(filter(None, ranks), []), []
    if not found:
        found = [column for column, texts in columns.items() if _holds_smiles(column, texts)]
        named = [column for column in found if plain_name(column) in _MOLECULES]
        found = named if len(named) == 1 else found
        notes = [f"SMILES are read from column {quoted(column)}, by its values" for column in found]
    if not found:
        hint = f"{nearest('smiles', columns)} Name it with --smiles-column, or the separator with --delimiter."
        raise InputError(str(path), "no column 'smiles'", hint=hint)
    if len(found) > 1:
        got = f"several columns of SMILES: {listed(map(quoted, found))}"
        raise InputError(str(path), got, "one", "Name it with --smiles-column.")
    return found[0], notes


def _holds_smiles(name: str, texts: Sequence[str]) -> bool:
    """Whether the values of a column are SMILES; of a name that says nothing of molecules, more than letters."""
    sample = [text for text in map(str.strip, islice(texts, _SAMPLE)) if text]
    if not sample or any(text.isdecimal() or len(text) > _CHARS for text in sample):
        return False
    if plain_name(name) not in _MOLECULES and 2 * sum(bool(_STRUCTURE.search(text)) for text in sample) < len(sample):
        return False
    found = guard.run(_readable, [without_extension(text) for text in sample], "RDKit")
    return sum(sum(part) for part in found if not isinstance(part, guard.Lost)) >= _SHARE * len(sample)


def _readable(texts: Iterable[str], _: int) -> list[bool]:
    """Return whether RDKit reads each text, in a forked process."""
    chem = load_rdkit()
    return [" " not in text and chem.MolFromSmiles(text) is not None for text in texts]
