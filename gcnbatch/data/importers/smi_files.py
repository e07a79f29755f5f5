"""Files of SMILES: a SMILES a line, then its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from gcnbatch.data.importers.binary_tables import MoleculeRows
from gcnbatch.data.importers.smiles_columns import about_extensions, names_smiles

_LINE = re.compile(r"\s*(?P<smiles>\S+)(?:\s+(?P<extension>\|[^|]*\|))?(?:\s+(?P<rest>.*))?")


def has_header(line: str) -> bool:
    """Whether the first line of a file of SMILES is a header line."""
    return names_smiles(line.split(maxsplit=1)[0].lstrip("#")) if line.strip() else False


def read_smi(stream: Iterable[str]) -> MoleculeRows:
    """Read lines of a SMILES, its extension, and after a blank the name of the molecule; a header line is left out.

    Of fields between tabs the first after the SMILES is the name. The id of a molecule without one is blank.
    """
    notes: list[str] = []
    return MoleculeRows(("smiles", "id"), _rows(stream, notes), notes)


def _rows(stream: Iterable[str], notes: list[str]) -> Iterator[list[str]]:
    lines = (line for line in stream if line.strip())
    first = next(lines, "")
    extended = longer = 0
    for line in lines if not first or has_header(first) else chain([first], lines):
        found = _LINE.match(line)
        assert found is not None  # the line is not blank
        name, _, more = (found["rest"] or "").strip().partition("\t")
        extended += found["extension"] is not None
        longer += bool(more.strip())
        yield [found["smiles"], name.strip()]
    notes += about_extensions(extended)
    if longer:
        what = "1 line has" if longer == 1 else f"{longer:,} lines have"
        notes.append(f"{what} more fields after the name, which are left out; a header line would name them")
