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
_COLUMNS, _SAMPLE, _CHARS = 100, 100, 2000  # columns that are looked at, their values, and the length of these
_SHARE = 0.9  # of them, that must be SMILES
_STRUCTURE = re.compile(r"[=#()\[\]]|[A-Za-z]\d")  # what words and formulas seldom have, and SMILES often


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
            hint = nearest(name, columns) + " See --smiles-column."
            raise InputError(str(path), f"no column {quoted(name)}", hint=hint)
        return name, []
    ranks = (
        [column for column in columns if column.lower() == "smiles"],
        [column for column in columns if plain_name(column) in _NAMES],
        [column for column in columns if names_smiles(column)],
    )
    named = next(filter(None, ranks), [])
    if len(named) == 1:
        return named[0], []
    held = _with_smiles({column: columns[column] for column in named or columns})
    molecules = [column for column in held if _names_molecules(column)]
    found = molecules if len(molecules) == 1 else held or named
    if not found:
        hint = f"{nearest('smiles', columns)} Name it with --smiles-column, or the separator with --delimiter."
        raise InputError(str(path), "no column 'smiles'", hint=hint)
    if len(found) > 1:
        got = f"several columns of SMILES: {listed(map(quoted, found))}"
        raise InputError(str(path), got, "one", "Name it with --smiles-column.")
    return found[0], [f"SMILES are read from column {quoted(found[0])}, by its values"]


def _names_molecules(name: str) -> bool:
    return plain_name(name) in _MOLECULES or names_smiles(name)


def _with_smiles(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns whose first values are SMILES."""
    samples = {name: sample for name, texts in columns.items() if (sample := _sample(name, texts))}
    samples = dict(islice(samples.items(), _COLUMNS))
    parts = guard.run(_readable, [text for sample in samples.values() for text in sample], "RDKit")
    readable = iter([one for part in parts for one in ([False] if isinstance(part, guard.Lost) else part)])
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


def _readable(texts: Iterable[str], _: int) -> list[bool]:
    """Return whether RDKit reads each text, in a forked process."""
    chem = load_rdkit()
    return [" " not in text and chem.MolFromSmiles(text) is not None for text in texts]
