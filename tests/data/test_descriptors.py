"""Descriptors of a chunk against RDKit's own functions, and the search for SMARTS patterns against RDKit's."""

from __future__ import annotations

import csv
import gzip
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.data import descriptors, smarts, substructures
from gcnbatch.data.featurizer import featurize_chunk, load_rdkit
from gcnbatch.data.featurizer_options import RDKIT2D, FeaturizerOptions
from gcnbatch.data.normal_form import normal_molecule
from tests.data.test_normal_form import MOLECULES, TIES

OPTIONS = FeaturizerOptions(max_nodes=0, descriptors=RDKIT2D)
DRUGS = (
    *("Cn1c(CN2CCN(CC2)c3ccc(Cl)cc3)nc4ccccc14", "COc1cc(OC)c(cc1NC(=O)CSCC(=O)O)S(=O)(=O)N2C(C)CCc3ccccc23"),
    *("COc1cc2ncc(C#N)c(N[C@@H]3C[C@H]3c3ccccc3)c2cc1OC", "O=C1CC2(CCCC2)CC(=O)N1CCCCN1CCN(c2ncccn2)CC1"),
    *("CC(=O)OCC(COC(C)=O)OC(C)=O", "FC(F)(F)c1cc(C(F)(F)F)cc(C(=O)O)c1", "OO", "O", "[OH-].[Na+]", "CC(=O)OO"),
    *("CCCCCCCC(=O)[O-].CCCCCCCC(=O)[O-].[Zn+2]", "C1=CC=C2C(=C1)C(=O)C(=O)N2", "N#CC(=C)C(=O)C=CC=CC", "c1cc[nH]c1"),
    *("OB(O)c1ccccc1", "C[Si](C)(C)O", "NNC(=O)c1ccncc1", "CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O"),
    *("[O-][N+](=O)c1ccc(N=Nc2ccccc2)cc1", "CP(=O)(O)OC", "CSC#N", "C1CC1C1CC1", "C12C3C4C1C5C2C3C45"),
    *("FP(F)(F)(F)F", "[C-]#[O+]", "C[Al](C)C", "NC(=[NH2+])c1ccccc1", "CC(=O)C([O-])=C", "C[S+](C)[O-]", "S=S(=O)=O"),
    *("OS(=O)(=O)c1ccc2cc3ccccc3cc2c1", "CC(C)(C)c1cc(O)c(O)c(C=O)c1", "C[N+]1(C)CCCC1", "c1ccc2c(c1)oc1ccccc12"),
)
PEPTIDE = "N[C@@H](CCCNC(=N)N)C(=O)N[C@@H](Cc1ccccc1)C(=O)N" * 5 + "CC(=O)O"


def computed(texts: Sequence[str]) -> np.ndarray:
    found = featurize_chunk(texts, 0, OPTIONS, scaffolds=False)
    assert not found.bad
    assert found.graph_features is not None
    return found.graph_features.dense()


def expected(text: str) -> np.ndarray:
    """Return what RDKit's functions, one by one, say of a molecule."""
    from rdkit.Chem import Descriptors

    molecule = normal_molecule(text, OPTIONS)
    values = []
    for _, function in Descriptors.descList:
        try:
            values.append(float(function(molecule)))
        except (ValueError, RuntimeError, ZeroDivisionError, OverflowError):
            values.append(math.nan)
    return np.clip(values, -1e30, 1e30)


def same(texts: Sequence[str], most_atoms: int = 60) -> None:
    """Check all descriptors to 1e-6; Ipc only of molecules that RDKit computes so well."""
    names = descriptors.names()
    wanted = np.stack([expected(text) for text in texts])
    ipc = [names.index("Ipc"), names.index("AvgIpc")]
    large = wanted[:, names.index("HeavyAtomCount")] > most_atoms
    found = computed(texts).astype(np.float64)
    wanted[np.ix_(large, ipc)] = found[np.ix_(large, ipc)]
    close = np.isclose(found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert not [
        (texts[row], names[column], found[row, column], wanted[row, column]) for row, column in np.argwhere(~close)
    ]


def test_all_descriptors_are_those_of_rdkit() -> None:
    same([*DRUGS, *MOLECULES, *TIES])


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("fifth", range(5))
def test_descriptors_of_5000_published_molecules_are_those_of_rdkit(fifth: int) -> None:
    folder = os.environ.get("GCNBATCH_TEST_DATA")
    if not folder:
        pytest.skip("GCNBATCH_TEST_DATA is not set")
    texts: list[str] = []
    for name in ("lipo", "tox21", "clintox"):
        with gzip.open(Path(folder) / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as stream:
            texts += [row["smiles"] for row in csv.DictReader(stream)][:2000]
    readable = [text for text in texts[fifth::5] if normal_molecule(text, OPTIONS) is not None][:1000]
    assert len(readable) == 1000
    for first in range(0, 1000, 250):
        same(readable[first : first + 250])


def test_descriptors_do_not_depend_on_the_other_molecules_of_a_chunk() -> None:
    together = computed(DRUGS)
    for place, text in enumerate(DRUGS):
        np.testing.assert_array_equal(computed([text])[0], together[place], text)


@pytest.mark.parametrize("text", ["c1ccccc1", "C1CC1C(C)(C)C1CCCC1", PEPTIDE, "C" * 120])
def test_ipc_is_that_of_the_exact_polynomial(text: str) -> None:
    matrix = load_rdkit().GetAdjacencyMatrix(normal_molecule(text, OPTIONS))
    size = len(matrix)
    sizes, power = [1], matrix.astype(object)
    for order in range(1, size + 1):  # Le Verrier's and Faddeev's recurrence, in whole numbers
        coefficient = int(np.trace(power)) // order
        sizes.append(abs(coefficient))
        rest = power - coefficient * np.identity(size, dtype=object)
        power = np.stack([rest[np.flatnonzero(row)].sum(axis=0) for row in matrix])
    total = sum(sizes)
    average = -sum(one / total * math.log2(one / total) for one in sizes if one)
    row = dict(zip(descriptors.names(), computed([text])[0].tolist(), strict=True))
    assert row["AvgIpc"] == pytest.approx(average, rel=1e-7)
    assert row["Ipc"] == pytest.approx(min(total * average, 1e30), rel=1e-7)


# ------------------------------------------------------------------------------------------------ search


def chunk(plan: substructures.Plan, molecules: Sequence[Any]) -> substructures.Search:
    starts = np.cumsum([0, *(one.GetNumAtoms() for one in molecules)])
    atoms = [(number, atom) for number, one in enumerate(molecules) for atom in one.GetAtoms()]
    bonds = []
    for start, one in zip(starts.tolist(), molecules, strict=False):
        for bond in one.GetBonds():
            ends = start + bond.GetBeginAtomIdx(), start + bond.GetEndAtomIdx()
            kind = 4 if bond.GetIsAromatic() else int(bond.GetBondType())
            bonds += [(*ends, kind, bond.IsInRing()), (*ends[::-1], kind, bond.IsInRing())]
    table = np.array(sorted(bonds), np.int64).reshape(-1, 4)
    return substructures.Search(
        plan,
        len(molecules),
        np.array([number for number, _ in atoms]),
        np.array([atom.GetAtomicNum() for _, atom in atoms]),
        np.array([atom.GetFormalCharge() for _, atom in atoms]),
        np.array([atom.GetTotalNumHs() for _, atom in atoms]),
        np.array([atom.GetIsAromatic() for _, atom in atoms]),
        *table.T[:3],
        table[:, 3] > 0,
        np.array([molecules[number].GetRingInfo().NumAtomRings(atom.GetIdx()) for number, atom in atoms]),
    )


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "C",
            "[CH3]",
            "c:c",
            "[#6]~[!#6]",
            "C(=O)O",
            "[C;R]",
            "[R2][R2]",
            "[r]",
            "C-!@C",
            "[X3;H0]",
            "[Nv3]",
            "[D3,D4]",
        ),
        *(
            "c1ccccc1",
            "C1CC1",
            "*1**1",
            "[$(CO),$(CN)]=*",
            "[!$(C=O)]-[OH]",
            "[O-,o]",
            "[+]",
            "[+0;N]",
            "[++,--]",
            "[-1]",
        ),
        *("C(C)(C)C", "A=,#A", "a-A", "[N&!H0&v3,O&H1]", "[C,c]:,-[#7]", "C=1CC1", "[13C]", "Cl", "[Si,Br,Zn]"),
        *("a21aa3a(aa1aaaa2)aaaa3", "[cR2]1[cR2]cccc1", "[$([OX2H]),$([OX1-])]", "[H1]", "[#8;!$(*=*)]~[#6,#7]"),
    ],
)
def test_patterns_match_as_in_rdkit(pattern: str) -> None:
    chem = load_rdkit()
    molecules = [chem.MolFromSmiles(text) for text in DRUGS]
    query = chem.MolFromSmarts(pattern)
    wanted = [len(molecule.GetSubstructMatches(query)) for molecule in molecules]
    plan = substructures.Plan()
    texts = {"rare": "[#92]-C", "given": pattern}
    patterns = substructures.Patterns({name: plan.add(smarts.compiled(text)) for name, text in texts.items()})
    searched = chunk(plan, molecules)
    possible = [*searched.possible(patterns)]
    among = searched.number == 6
    first, count = np.zeros(0, np.int64), np.zeros(len(molecules), np.int64)
    if possible:
        assert possible == ["given"]
        first = np.unique(searched.matches(patterns["given"], among)[0])
        count = searched.count(patterns["given"])
    assert count.tolist() == wanted
    starts = np.cumsum([0, *(one.GetNumAtoms() for one in molecules)])
    every = [
        start + match[0]
        for start, one in zip(starts.tolist(), molecules, strict=False)
        for match in one.GetSubstructMatches(query, uniquify=False)
    ]
    assert first.tolist() == sorted({atom for atom in every if among[atom]})


@pytest.mark.parametrize(
    "pattern", ["", "C.C", "[C", "C(C", "C1CC", "C=", "[]", "[!]", "[C^2]", "[r5]", "C%12CC%12", "[$(C]"]
)
def test_patterns_of_another_language_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"unknown|incomplete|no closing|sizes of rings"):
        smarts.compiled(pattern)


def test_molecules_as_they_are_written_get_rdkits_values_one_by_one() -> None:
    from rdkit.Chem import Descriptors

    found = featurize_chunk(["OCC"], 0, replace(OPTIONS, as_written=True), scaffolds=False).graph_features
    assert found is not None
    molecule = load_rdkit().MolFromSmiles("OCC")
    np.testing.assert_array_equal(
        found.dense()[0], np.float32([function(molecule) for _, function in Descriptors.descList])
    )
