"""Partial charges of a chunk against RDKit's, molecule by molecule."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.data.charges import charges, polynomials
from gcnbatch.data.chunk_molecules import ChunkMolecules
from gcnbatch.data.normal_form import load_rdkit
from gcnbatch.data.rdkit_binary import MoleculeReader
from tests.data.test_descriptors import DRUGS

IONS = (
    *("CC(=O)[O-]", "C[N+](=O)[O-]", "O=[N+]([O-])c1ccc([N+](=O)[O-])cc1", "NC(N)=[NH2+]", "CC(=[NH+]C)NC"),
    *("C[n+]1ccccc1", "[O-]c1ccccc1[O-]", "[CH2-]C=C", "C[N-]C=O", "COP(=O)([O-])[O-]", "[O-][Cl+3]([O-])([O-])O"),
    *("c1ccc[cH+]cc1", "C[B-](F)(F)F", "[NH4+].[Cl-]", "C[S+](C)C", "[CH3]", "[C-]#N"),
)
RARE = ("C[Mg]Br", "C[Al](C)C", "C[SiH3]", "CB(O)O", "FS(F)(F)(F)(F)F", "CS(C)=O", "CS(C)(=O)=O", "CI(=O)=O", "S=C=S")
WITHOUT = ("FP(F)(F)(F)F", "[C-]#[O+]", "C[Be]C", "CC(=O)[O][Na]")
SALTS = ("[Na+].CC(=O)[O-]", "[Zn+2].[Cl-].[Cl-]", "[K].Oc1ccccc1")


def computed(texts: tuple[str, ...]) -> tuple[ChunkMolecules, np.ndarray]:
    chem = load_rdkit()
    reader = MoleculeReader(chem, as_written=False)
    structures = reader.read([reader.begin(chem.MolFromSmiles(text)) for text in texts])
    molecules = ChunkMolecules(structures.in_order([""] * len(texts)), reader.table.atoms)
    with np.errstate(invalid="ignore"):
        return molecules, charges(molecules, polynomials(molecules))


def test_charges_are_those_of_rdkit() -> None:
    from rdkit.Chem.rdPartialCharges import ComputeGasteigerCharges

    texts = (*IONS, *RARE, *SALTS, *(text for text in DRUGS if text not in WITHOUT))
    molecules, found = computed(texts)
    for number, text in enumerate(texts):
        molecule = load_rdkit().MolFromSmiles(text)
        ComputeGasteigerCharges(molecule, 12, False)
        wanted = [atom.GetDoubleProp("_GasteigerCharge") for atom in molecule.GetAtoms()]
        assert np.isfinite(wanted).all(), text
        np.testing.assert_allclose(found[molecules.molecule == number], wanted, rtol=0, atol=1e-13, err_msg=text)


@pytest.mark.parametrize("text", WITHOUT)
def test_a_molecule_with_an_atom_without_coefficients_has_no_charges(text: str) -> None:
    molecules, found = computed((text, "CCO"))
    assert np.isnan(found[molecules.molecule == 0]).any()
    assert np.isfinite(found[molecules.molecule == 1]).all()
