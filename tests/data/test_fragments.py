"""Counts of fragments of a chunk against RDKit's fingerprints, molecule by molecule."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.featurizer import featurize_chunk
from gcnbatch.data.featurizer_options import ATOM_PAIR, CHIRAL, FEATURE, MORGAN, FeaturizerOptions
from gcnbatch.data.molecule_features import generator
from gcnbatch.data.normal_form import normal_molecule
from tests.data.test_descriptors import DRUGS, PEPTIDE
from tests.data.test_normal_form import MOLECULES, TIES

KINDS = (MORGAN, ATOM_PAIR, FEATURE, CHIRAL)
# More than 64 bonds, two equal parts; ylides and acids whose hydrogens are written; atoms of rare elements; chains
LARGE = "O=C(O)c1cc2ccccc2c(Cc2c(O)c(C(=O)O)cc3ccccc23)c1O"
ODD = (
    *(f"{LARGE}.{LARGE}", f"{LARGE}.CC(C)C[C@H](NC(=O)[C@@H](Cc1c[nH]c2ccccc12)NC(=O)CN){'C(=O)NCC' * 9}"),
    *("CCc1c(C)[n+]([NH-])c(-c2ccccc2)c2ccccc12", "C[NH2+]C", "NC(N)=[NH2+]", "[CH2]C", "[Na+].[Cl-]", "C", "CC", "II"),
    *("C[Se]C", "[Xe]", "C[Hg]C", "O=[As](O)O", "F[P-](F)(F)(F)(F)F", "FS(F)(F)(F)(F)F", "C" * 60, "C#N", "C=C=C"),
    *("[13CH3]O", "[2H]OC", "[H][H]", "C" * 200, PEPTIDE),
)


def counts(texts: Sequence[str], options: FeaturizerOptions) -> np.ndarray:
    found = featurize_chunk(texts, 0, options, scaffolds=False)
    assert not found.bad
    return np.asarray(found.graph_features)


def same(texts: Sequence[str], options: FeaturizerOptions) -> None:
    molecules = [normal_molecule(text, options) for text in texts]
    made = [generator(kind, options.radius, options.size) for kind in options.fingerprints]
    expected = [np.concatenate([one.GetCountFingerprintAsNumPy(molecule) for one in made]) for molecule in molecules]
    unequal = (counts(texts, options) != np.array(expected)).any(axis=1)
    assert not [texts[row] for row in np.flatnonzero(unequal)]


@pytest.mark.parametrize(("radius", "size"), [(0, 2048), (1, 2048), (2, 2048), (3, 1000), (5, 64)])
def test_all_counts_are_those_of_rdkit(radius: int, size: int) -> None:
    options = FeaturizerOptions(max_nodes=0, fingerprints=KINDS, radius=radius, size=size)
    same([*DRUGS, *MOLECULES, *TIES, *ODD], options)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_do_not_depend_on_the_other_molecules_of_a_chunk(kind: str) -> None:
    options = FeaturizerOptions(max_nodes=0, fingerprints=(kind,))
    together = counts(ODD, options)
    for text, row in zip(ODD, together, strict=True):
        np.testing.assert_array_equal(counts([text], options)[0], row, text)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", ["lipo", "tox21", "clintox", "bace"])
def test_counts_of_published_molecules_are_those_of_rdkit(name: str) -> None:
    folder = os.environ.get("GCNBATCH_TEST_DATA")
    if not folder:
        pytest.skip("GCNBATCH_TEST_DATA is not set")
    with gzip.open(Path(folder) / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as stream:
        texts = [row.get("smiles") or row["mol"] for row in csv.DictReader(stream)][:2000]
    options = FeaturizerOptions(max_nodes=0, fingerprints=KINDS)
    readable = [text for text in texts if normal_molecule(text, options) is not None]
    assert len(readable) > 0.98 * len(texts)
    for first in range(0, len(readable), 250):
        same(readable[first : first + 250], options)
