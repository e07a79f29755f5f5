"""The featuriser's short way (RDKit's binary form) gives what RDKit's calls give, its scaffolds are RDKit's."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data import rdkit_binary
from gcnbatch.data.atom_features import FEATURE_NAMES
from gcnbatch.data.featurizer import FeaturizerOptions, MoleculeArrays, featurize_chunk, load_rdkit
from gcnbatch.data.featurizer_options import ATOM_PAIR, FEATURE, MORGAN

ODD = (
    *("CCO", "c1ccncc1", "[O-]C(=O)C[NH3+]", "CN(=O)=O", "[CH3]", "[CH2]C", "[O][O]", "[Fe+2]", "[U]", "C[Si](C)(C)C"),
    *("FS(F)(F)(F)F", "C1=CNC=C1", "c1cc2ccccc2[nH]1", "C[n+]1ccccc1", "O=C1C=CC(=O)C=C1", "C[N+]#[C-]", "*CC", "C~C"),
    *("[2H]C", "[13CH3]c1ccccc1", "[CH3:7]c1ccccc1", "[H]C", "[H][H]", "[H]/C=C/F", "[#1]C", "[Na+].[Cl-]"),
    *("F/C=C/F", "F/C=C\\C1CC1", "C[C@H](O)F", "CC[C@@H](CC)O", "OCC[C@@H]1CCNCC1", "C[C@]1(F)CC[C@H](O)C1"),
    *("C[C@@H](C)O", "C[C@H]=C", "[C@H](F)(Cl)Br", "C[S@](=O)CC", "C[N@@H+](F)O", "[2H][C@H](C)O", "C[13C@H](C)F"),
    *(
        "C[C@H]1CC[C@@H](C)CC1",
        "N[C@@H](Cc1ccccc1)C(=O)O",
        "C[Si@H](F)Cl",
        "[CH-]=[N@H+]",
        "C[P@@H]CC",
        "[Zn+2].[C@H](C)(F)O",
    ),
    *("O=[Pt@SP1](Cl)(Cl)Br", "C->[Fe]", "Cl[Cr](=O)(=O)Cl", "C" * 300, "C1CCCCC1" + "C" * 260),
)
OPTIONS = (
    FeaturizerOptions(),
    FeaturizerOptions(bond_channels=True, self_loops=False),
    FeaturizerOptions(as_written=True),
    FeaturizerOptions(fingerprints=(MORGAN, FEATURE, ATOM_PAIR), size=64),
)


def arrays(chunk: MoleculeArrays) -> dict[str, object]:
    return {
        name: np.asarray(value).tolist() if hasattr(value, "__array__") else value
        for name, value in vars(chunk).items()
    }


@pytest.mark.parametrize("options", OPTIONS)
def test_the_binary_form_gives_what_calls_of_rdkit_give(options: FeaturizerOptions, monkeypatch) -> None:
    short = featurize_chunk(list(ODD), 0, options, True)
    assert len(short.bad) == 0
    monkeypatch.setattr(rdkit_binary, "_VERSION", b"another version")
    assert arrays(featurize_chunk(list(ODD), 0, options, True)) == arrays(short)


@pytest.mark.parametrize("text", ODD)
def test_files_of_older_versions_get_the_atoms_that_rdkit_reads(text: str) -> None:
    chem = load_rdkit()
    molecule = chem.MolFromSmiles(text)
    found = featurize_chunk([text], 0, FeaturizerOptions(as_written=True, self_loops=False), False)
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    pairs = list(zip(found.src.tolist(), found.dst.tolist(), strict=True))
    assert pairs == [pair for begin, end in ends for pair in ((begin, end), (end, begin))]
    x = found.x
    first = {name: FEATURE_NAMES.index(name) for name in ("degree=0", "implicit_valence=0", "hydrogens=0")}
    for row, atom in zip(x, molecule.GetAtoms(), strict=True):
        assert row[first["degree=0"] + min(atom.GetDegree(), 10)]
        assert row[first["implicit_valence=0"] + atom.GetValence(chem.ValenceType.IMPLICIT)]
        assert row[first["hydrogens=0"] + atom.GetTotalNumHs()]
        assert row[FEATURE_NAMES.index("formal_charge")] == atom.GetFormalCharge()
        assert row[FEATURE_NAMES.index("radical_electrons")] == atom.GetNumRadicalElectrons()
        assert row[FEATURE_NAMES.index("aromatic")] == atom.GetIsAromatic()


def rdkit_scaffold(text: str) -> str:
    chem = load_rdkit()
    molecule = chem.MolFromSmiles(text)
    if not molecule.GetRingInfo().NumRings():
        return ""
    return str(chem.MolToSmiles(chem.MurckoDecompose(molecule), isomericSmiles=False))


def test_scaffolds_are_those_of_rdkit() -> None:
    # Pairs share rings and chains, but not the hydrogens that RDKit counts in the scaffold.
    same = ["Cc1ccccc1", "c1ccccc1", "CCc1ccccc1O", "Cn1cccc1", "[nH]1cccc1", "C[n+]1ccccc1", "c1cc[nH+]cc1"]
    same += ["O=C1CCCCC1", "CC1CCCCC1", "ON=C1CCCCC1", "C[N+]1(C)CCCC1", "C[NH+]1CCCC1", "C1CC1C#CC1CC1", "C1CC1C#C"]
    same += ["[CH]1CC1", "C[C]1CC1", "C[C@H]1CC[C@@H](O)CC1", "CS1(=O)CC1", "C1CC1.CC", "CCO", "[13CH3]c1ccccc1"]
    found = featurize_chunk(same, 0, FeaturizerOptions(), True).scaffolds
    assert list(found) == [rdkit_scaffold(text) for text in same]


@pytest.mark.real
@pytest.mark.parametrize(("name", "column"), [("tox21.csv.gz", "smiles"), ("bbbp.csv.gz", "smiles")])
def test_published_molecules_get_the_features_of_the_longer_way(name: str, column: str, monkeypatch) -> None:
    folder = os.environ.get("GCNBATCH_TEST_DATA")
    if not folder:
        pytest.skip("GCNBATCH_TEST_DATA is not set")
    with gzip.open(Path(folder) / name, "rt", encoding="utf-8", newline="") as stream:
        smiles = [row[column] for row in csv.DictReader(stream)][:500]
    options = FeaturizerOptions(bond_channels=True, fingerprints=(MORGAN,), size=64)
    short = featurize_chunk(smiles, 0, options, False)
    monkeypatch.setattr(rdkit_binary, "_VERSION", b"another version")
    assert arrays(featurize_chunk(smiles, 0, options, False)) == arrays(short)
