"""Why a SMILES gives no graph: limits of its size, checked before RDKit sees it, and RDKit's complaints in one line."""

from __future__ import annotations

import re
from typing import Any

from gcnbatch.text import QUOTED, printable

MAX_ATOMS = 2000  # RDKit takes up to a second for so many, minutes and gigabytes for 10,000
UNREADABLE = "record that RDKit cannot read"  # stands for the SMILES of such a record of an SDF file
_CHARS_PER_ATOM = 16
_ATOM = re.compile(r"\[(?!H\])[^][]*\]|Br|Cl|[BCNOPSFIbcnops*]")  # explicit hydrogens join their atom


def excess(text: str, max_nodes: int) -> str:
    """Return the reason why a SMILES is too large to be parsed, "" for usual ones.

    The limit is MAX_ATOMS, or `max_nodes` if that is larger; `max_nodes` 0: none.
    """
    most = max_nodes and max(max_nodes, MAX_ATOMS)
    if not most or len(text) <= most:
        return ""
    if len(text) > _CHARS_PER_ATOM * most:
        return f"{len(text)} characters, more than {_CHARS_PER_ATOM * most}"
    atoms = len(_ATOM.findall(text))
    return f"{atoms} atoms, more than {most}" if atoms > most else ""


def first_line(error: Exception) -> str:
    """Return the first line with words of an error of RDKit, which can be a page."""
    lines = (line for line in str(error).splitlines() if any(map(str.isalpha, line)))
    return f"RDKit: {printable(next(lines, type(error).__name__).strip(), QUOTED)}"


def complaint(chem: Any, text: str) -> str:
    """Return the reason why RDKit, as ``rdkit.Chem``, makes no molecule of `text`."""
    if not text:
        return "blank SMILES"
    if text == UNREADABLE:
        return text
    if len(text.split()) > 1:
        return "an extension of CXSMILES (|…|) after it" if text.endswith("|") else "a blank inside the SMILES"
    raw = chem.MolFromSmiles(text, sanitize=False)
    if raw is None:
        return "not valid SMILES"
    if raw.GetNumAtoms() == 0:
        return "no atoms"
    problems = chem.DetectChemistryProblems(raw)
    return printable(str(problems[0].Message()), QUOTED) if problems else "RDKit cannot sanitize it"
