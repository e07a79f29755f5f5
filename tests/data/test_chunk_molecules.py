"""The flat arrays of the molecules of a chunk."""

import numpy as np
from rdkit import Chem

from gcnbatch.data.chunk_molecules import FAR, ChunkMolecules
from gcnbatch.data.rdkit_binary import MoleculeReader

SMILES = (
    "C",
    "CC",
    "C#N",
    "CC(C)(C)C",
    "CC(=O)Oc1ccccc1C(=O)O",
    "C1CC2CCC1C2",
    "[NH4+].[Cl-]",
    "C=CC#CC=O.CCO",
    "c1ccc2c(c1)[nH]c1ccccc12",
    "C" * 40 + "=O",
)


def test_distances_are_those_of_rdkit_also_between_parts() -> None:
    molecules = sorted(map(Chem.MolFromSmiles, SMILES), key=Chem.Mol.GetNumAtoms)
    reader = MoleculeReader(Chem, as_written=False)
    structures = reader.read([reader.begin(one) for one in molecules]).in_order([""] * len(molecules))
    chunk = ChunkMolecules(structures, reader.table.atoms)
    for number, one in enumerate(molecules):
        size = one.GetNumAtoms()
        bonds, sixths = chunk.distances[:, chunk.squares[number] : chunk.squares[number + 1]].reshape(2, size, size)
        expected = Chem.GetDistanceMatrix(one)
        np.testing.assert_array_equal(bonds, np.where(expected > size, FAR, expected))
        expected = Chem.GetDistanceMatrix(one, useBO=True, force=True, prefix="Orders")
        np.testing.assert_allclose(np.where(sixths == FAR, 1e8, sixths / 6), expected, rtol=1e-14)
