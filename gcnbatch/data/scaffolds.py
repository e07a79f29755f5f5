"""Murcko scaffolds: rings and the chains between them, as SMILES without stereochemistry."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gcnbatch.data.normal_form import NormalForm, load_rdkit, read_again

MAX_MURCKO_ATOMS = 300  # RDKit decomposes larger molecules too slowly
_MARKED = re.compile(r"[@/\\]|\[\d")  # stereochemistry and isotopes


def scaffold(form: NormalForm) -> str:
    """Return the scaffold of a molecule; "" for one without rings."""
    chem = load_rdkit()
    if not form.molecule.GetRingInfo().NumRings():
        return ""
    # Brackets decide which hydrogens RDKit counts, so the molecule is read from its canonical SMILES.
    name = form.name
    if not name or _MARKED.search(name):
        name = chem.MolToSmiles(form.molecule, isomericSmiles=False)
    molecule = read_again(name)
    if molecule.GetNumAtoms() > MAX_MURCKO_ATOMS:
        return _large_scaffold(chem, molecule)
    return str(chem.MolToSmiles(chem.MurckoDecompose(molecule), isomericSmiles=False))


def _large_scaffold(chem: Any, molecule: Any) -> str:
    """Return rings, the chains between them and atoms multiply bonded to them, in linear time.

    RDKit's decomposition takes cubic time: a minute for 3,000 atoms.
    """
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]).reshape(-1, 2)
    multiple = np.array([bond.GetBondTypeAsDouble() >= 2.0 for bond in molecule.GetBonds()], bool)
    left = ends
    while True:  # leaves are taken away again and again
        core = np.bincount(left.ravel(), minlength=molecule.GetNumAtoms()) > 1
        stay = core[left].all(axis=1)
        if stay.all():
            break
        left = left[stay]
    kept = core.copy()
    kept[ends[multiple & core[ends].any(axis=1)]] = True
    return str(chem.MolFragmentToSmiles(molecule, atomsToUse=np.flatnonzero(kept).tolist(), isomericSmiles=False))
