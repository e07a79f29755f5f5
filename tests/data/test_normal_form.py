"""Every notation of a molecule gives the same graph, features, scaffold and name, to the bit."""

from __future__ import annotations

import csv
import gzip
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gcnbatch.baselines.molecule_features import molecule_features
from gcnbatch.data.atom_features import EXTENDED, FEATURE_NAMES, SYMBOLS
from gcnbatch.data.featurizer import FeaturizerOptions, featurize_chunk, load_rdkit
from gcnbatch.data.featurizer_options import CHIRAL, FINGERPRINTS, RDKIT2D
from gcnbatch.data.molecule_drawings import layouts
from gcnbatch.data.normal_form import has_unique_rings, normal_form
from gcnbatch.data.similarity import KnownMolecules

PLAIN = FeaturizerOptions(max_nodes=0)
RICH = replace(PLAIN, bond_channels=True, bond_properties=("ring", "conjugated", "stereo"), atom_features=EXTENDED)
OPTIONS = {
    "plain": PLAIN,
    "channels": replace(PLAIN, bond_channels=True, self_loops=False, walk=4),
    "properties": replace(PLAIN, bond_properties=("ring", "conjugated")),
    "rich": RICH,
    "standardised": replace(PLAIN, largest_fragment=True, neutralize=True),
    **{f"fingerprint {kind}": replace(PLAIN, fingerprints=(kind,)) for kind in FINGERPRINTS},
}
DESCRIPTORS = replace(PLAIN, descriptors=RDKIT2D)
# The same in fewer conversions: fingerprints that see no stereochemistry together.
KINDS = (CHIRAL,), tuple(kind for kind in FINGERPRINTS if kind != CHIRAL)
TOGETHER = [one for one in OPTIONS.values() if not one.fingerprints]
TOGETHER += [replace(PLAIN, fingerprints=kinds) for kinds in KINDS]
MOLECULES = (
    *("CCO", "c1ccncc1", "[O-]C(=O)C[NH3+]", "C[N+](=O)[O-]", "CN=[N+]=[N-]", "[CH3]", "[CH2]C", "[O][O]", "[Fe+2]"),
    *("FS(F)(F)(F)(F)F", "c1cc[nH]c1", "Cc1c[nH]cn1", "C[n+]1ccccc1", "O=C1C=CC(=O)C=C1", "Cn1cnc2c1c(=O)n(C)c(=O)n2C"),
    *("C1=CC2=CC=C1C2", "c1ccc2cccc-2cc1", "CC1=C(C)C=CC=CC=C1", "Cc1ccccc1C", "CC(C)=C=C(C)F", "C[PH](C)=O"),
    *("C[C@H](O)F", "C[C@H](F)[C@H](O)[C@@H](F)C", "C[C@H]1CC[C@@H](C)CC1", "C/C=C/C(O)/C=C\\C", "C[S@](=O)CC"),
    *("[H]/N=C/C", "[H]/N=C(C)/C(C)=N\\[H]", "F/C=C/C=C/F", "C[Si@](F)(Cl)Br", "O=[Pt@SP1](Cl)(Cl)Br"),
    *("[2H]C([2H])[2H]", "[2H][2H]", "[H][H]", "[H+]", "[H-].[Na+]", "[BH4-].[Na+]", "[MgH2]", "[FeH]", "[*H]", "*CC"),
    *("[13CH3]C[18OH]", "[2H][C@H](C)O", "C->[Fe]", "[NH3]->[Pt](<-[NH3])(Cl)Cl", "C~C", "[Cr]$[Cr]", "[U].[He].[Ru]"),
    *("CC[NH3+].[Cl-]", "[NH4+].[NH4+].[O-]S(=O)(=O)[O-]", "CC(=O)O[Hg]c1ccccc1", "[Fe+2].c1cc[cH-]c1.c1cc[cH-]c1"),
    "[SbH6+3]",
)
# RDKit's ranks of atoms leave ties between atoms that no symmetry exchanges: rings of several parts, polyethers, cages.
# Some have several smallest sets of rings.
TIES = (
    *("C1CCCCC1.C1CC1.C1CC1", "C1CN(CCOCCN2CCOCC2)CCO1", "C12C3C4C5C1C6C7C2C8C3C9C4C1C5C6C2C7C8C9C12"),
    *("C1CCC2CCCCC2C1.C1CCC(C1)C1CCCC1", "C1COCCOCCN2CCOCCOCCN1CCOCCOCC2", "OC1C(O)C(O)C(O)C(O)C1O"),
    *("C[C@H]1CC[C@@H](O)CC1", "C[C@H]1C[C@H](C)C[C@@H](O)C1", "O[C@H]1[C@@H](O)[C@H](C)[C@@H](C)[C@H]1/C=C/Cl"),
    *("C1CCCCCc2ccc(cc2)CCCC1", "C12C3C1C1C2C31", "C1CC2CCC1CC2", "c1cc2cccc3C=CCc(c1)c23"),
    *("C12C3C4C1C5C4C3C25", "C1C2CC3CC1CC(C2)C3", "C(c1ccccc1)(c1ccccc1)(c1ccccc1)c1ccccc1"),
)


def notations(text: str, draws: random.Random, rounds: int = 1) -> Iterator[str]:
    """Yield SMILES of a molecule: in random orders, all hydrogens in brackets or atoms, Kekulé form, atom maps."""
    chem = load_rdkit()
    molecule = chem.MolFromSmiles(text)
    kekulized, mapped = chem.Mol(molecule), chem.Mol(molecule)
    chem.Kekulize(kekulized, clearAromaticFlags=True)
    for atom in mapped.GetAtoms():
        atom.SetAtomMapNum(draws.randint(1, 99))
    for _ in range(rounds):
        for one, how in (
            (molecule, {}),
            (molecule, {"allHsExplicit": True}),
            (kekulized, {"kekuleSmiles": True}),
            (chem.AddHs(molecule), {}),
            (mapped, {}),
        ):
            order = list(range(one.GetNumAtoms()))
            draws.shuffle(order)
            yield chem.MolToSmiles(chem.RenumberAtoms(one, order), canonical=False, **how)


def graphs(texts: Sequence[str], options: FeaturizerOptions, scaffolds: bool = True) -> list[tuple[object, ...]]:
    """Return the bits of each molecule's graph and features, with its name and, if asked for, its scaffold."""
    found = featurize_chunk(texts, 0, options, scaffolds)
    assert [bad.reason for bad in found.bad] == []
    listed = []
    for graph in range(len(texts)):
        nodes = slice(*found.node_ptr[graph : graph + 2])
        edges = slice(*found.edge_ptr[graph : graph + 2])
        arrays = [found.x[nodes], found.src[edges], found.dst[edges], found.channel[edges]]
        arrays += [] if found.graph_features is None else [found.graph_features.dense()[graph]]
        listed.append((*(one.tobytes() for one in arrays), *found.scaffolds[graph:][:1], found.names[graph]))
    return listed


def bits(texts: Sequence[str], options: FeaturizerOptions) -> set[tuple[object, ...]]:
    """Return the different ones of `graphs`."""
    return set(graphs(texts, options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_notation_gives_the_same_graph(options: FeaturizerOptions) -> None:
    draws = random.Random(1)
    for text in MOLECULES:
        texts = [text, *notations(text, draws)]
        assert len(bits(texts, options)) == 1, texts


@pytest.mark.parametrize("text", TIES)
def test_atoms_that_look_alike_are_in_one_order(text: str) -> None:
    texts = list(notations(text, random.Random(2), rounds=10))
    assert len(bits(texts, PLAIN)) == len(bits(texts, RICH)) == len(bits(texts, DESCRIPTORS)) == 1


def test_signs_of_stereochemistry_that_is_none_do_not_matter() -> None:
    for text, plain in (
        ("C/C(C)=C(/C)CC(O)CN", "CC(C)=C(C)CC(O)CN"),
        ("C[C@@H](C)CC(F)=CC", "CC(C)CC(F)=CC"),
        # The signs of the second double bond contradict each other; those of its neighbours give it a side in the name.
        ("F/C=C/C(\\C)=C/C=C/Cl", "CC(=C/C=C/Cl)/C=C/F"),
        ("C/C=C/C(\\C)=C/C=C/C", "C/C=C/C=C(C)/C=C/C"),
    ):
        assert len(bits([text, plain], RICH)) == len(bits([text, plain], DESCRIPTORS)) == 1, text


@pytest.mark.parametrize(
    ("text", "unique"),
    [("c1ccc2ccccc2c1", True), ("C1CCC2(CC1)CCCC2", True), ("C1CC2CCC1CC2", False), ("c1cc2cccc3C=CCc(c1)c23", False)],
)
def test_rings_are_unique_unless_they_share_more_than_a_bond(text: str, unique: bool) -> None:
    assert has_unique_rings(load_rdkit().MolFromSmiles(text)) is unique


@pytest.mark.parametrize("text", ["C[C@H](O)c1ccc(N)cc1.Cl", "CC1=C(C)C=CC=C1", "OC(=O)/C=C/[N+](=O)[O-]"])
def test_descriptors_are_equal_to_the_bit(text: str) -> None:
    texts = [text, *notations(text, random.Random(3))]
    assert len(bits(texts, DESCRIPTORS)) == 1
    assert len({row.tobytes() for row in molecule_features(texts, PLAIN, processes=1).x}) == 1


@pytest.mark.slow
@pytest.mark.real
def test_every_notation_of_2000_published_molecules_gives_the_same_graph() -> None:
    folder = os.environ.get("GCNBATCH_TEST_DATA")
    if not folder:
        pytest.skip("GCNBATCH_TEST_DATA is not set")
    smiles: list[str] = []
    for name, column in (
        ("tox21", "smiles"),
        ("bbbp", "smiles"),
        ("lipo", "smiles"),
        ("bace", "mol"),
        ("clintox", "smiles"),
    ):
        with gzip.open(Path(folder) / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as stream:
            smiles += [row[column] for row in csv.DictReader(stream)]
    draws = random.Random(4)
    draws.shuffle(smiles)
    readable = [text for text in smiles if load_rdkit().MolFromSmiles(text) is not None][:2000]
    assert len(readable) == 2000
    for first in range(0, 2000, 50):
        written = [[text, *notations(text, draws)] for text in readable[first : first + 50]]
        for options in (*TOGETHER, *([DESCRIPTORS] if first < 100 else [])):
            scaffolds = options in (PLAIN, RICH, OPTIONS["standardised"])  # they see each kind of normal form
            found = iter(graphs([text for texts in written for text in texts], options, scaffolds))
            for texts in written:
                assert len({next(found) for _ in texts}) == 1, texts


def test_stereochemistry_does_not_change_a_graph_that_does_not_show_it() -> None:
    texts = ["CC(O)F", "C[C@H](O)F", "C[C@@H](O)F", "[CH3:1][C@@:2]([H])([OH])F"]
    assert len(bits(texts, PLAIN)) == 1
    assert len(bits(texts, RICH)) == 3  # the last two are the same molecule


@pytest.mark.parametrize(
    ("text", "symbols", "hydrogens"),
    [
        ("[2H]C", "HC", [0, 3]),
        ("[H][H]", "HH", [0, 0]),
        ("[H+]", "H", [0]),
        ("[H-].[Na+]", ("H", "Na"), [0, 0]),
        ("[H][Mg][H]", ("Mg",), [2]),
        ("[H][B-]([H])([H])[H]", "B", [4]),
        ("[H]*", ("other",), [1]),
        ("[H]/N=C/C", "CCN", [3, 1, 1]),
        ("[CH3][NH2:5]", "CN", [3, 2]),
    ],
)
def test_hydrogens_are_a_number_of_their_atom_where_they_can(
    text: str, symbols: Sequence[str], hydrogens: list[int]
) -> None:
    x = featurize_chunk([text], 0, PLAIN, scaffolds=False).x
    assert [SYMBOLS[row.argmax()] for row in x[:, : len(SYMBOLS)]] == list(symbols)
    for first in ("implicit_valence=0", "hydrogens=0"):
        at = FEATURE_NAMES.index(first)
        assert [int(row[at : at + 5].argmax()) for row in x] == hydrogens


def test_a_salt_equals_its_base_after_standardisation() -> None:
    options = replace(PLAIN, largest_fragment=True, neutralize=True)
    for texts in (["CCN", "CC[NH3+].[Cl-]"], ["Nc1ccccc1", "[NH3+]c1ccccc1.[Br-]"], ["CC(=O)O", "CC(=O)[O-].[Na+]"]):
        assert len(bits(texts, options)) == 1
        assert len(bits(texts, replace(options, atom_features=EXTENDED))) == 1


def test_older_featurisers_still_depend_on_the_notation() -> None:
    texts = ["CCO", "[CH3][CH2][OH]"]
    old = replace(PLAIN, as_written=True)
    assert len(bits(texts, PLAIN)) == 1
    assert len(bits(texts, old)) == 2
    assert FeaturizerOptions.from_header(old.to_header()) == old


def test_another_notation_has_similarity_1() -> None:
    known = KnownMolecules(["C[C@H](O)c1ccccc1"], PLAIN)
    assert known.nearest(["O[C@@H](C)C1=CC=CC=C1", "[CH3:1][C@H:2]([OH])[c]1[cH][cH][cH][cH][cH]1"]).tolist() == [1, 1]


@pytest.mark.parametrize("options", [PLAIN, RICH, replace(PLAIN, as_written=True)])
def test_a_drawing_has_the_atoms_of_the_graph_in_its_order(options: FeaturizerOptions) -> None:
    texts = ["OCC[C@H](N)F", "[H]OC(=O)c1ccccc1Cl", "[2H]C", "[Na+].[O-]CC"]
    found = featurize_chunk(texts, 0, options, scaffolds=False)
    for graph, layout in enumerate(layouts(texts, options)):
        assert layout is not None
        x = found.x[found.node_ptr[graph] : found.node_ptr[graph + 1]]
        assert [SYMBOLS[int(row.argmax())] for row in x[:, : len(SYMBOLS)]] == list(layout.symbols)


@pytest.mark.parametrize("text", ["", "C(", "C C", "C1CC", "c1cccc1"])
def test_what_is_no_molecule_has_no_normal_form(text: str) -> None:
    assert normal_form(text, PLAIN, stereo=True) is None
    assert normal_form(text, PLAIN, stereo=False) is None
