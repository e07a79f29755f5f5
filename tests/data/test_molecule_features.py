"""Features of molecules and richer graphs at import: values by hand, columns, missing ones, refusals, crashes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data import descriptors
from gcnbatch.data.atom_features import EXTENDED, FEATURE_NAMES, random_walks
from gcnbatch.data.featurizer import featurize_chunk
from gcnbatch.data.featurizer_options import ATOM_PAIR, CHIRAL, FEATURE, MORGAN, RDKIT2D, FeaturizerOptions
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.molecule_features import graph_feature_names
from gcnbatch.data.molecule_graphs import featurize
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from tests.cli.conftest import call

__all__ = ["call"]
MOLECULES = FeaturizerOptions(descriptors=RDKIT2D, fingerprints=(MORGAN,), size=64)
EXTRA = ("ring", "rings", *(f"ring_size={n}" for n in range(3, 9)), "chirality=R", "chirality=S", "mass")
WITHOUT = FeaturizerOptions()


def one(smiles: str, options: FeaturizerOptions) -> dict[str, np.ndarray]:
    """Return the atom features of a molecule by name, (N,)."""
    x = featurize_chunk([smiles], 0, options, scaffolds=False).x
    assert x.shape[1] == len(options.feature_names)
    return dict(zip(options.feature_names, x.T, strict=True))


def test_extended_atoms_add_rings_chirality_and_mass_to_the_75() -> None:
    options = replace(WITHOUT, atom_features=EXTENDED)
    assert options.feature_names == (*FEATURE_NAMES, *EXTRA)
    spiro = one("C1CCC2(C1)CC2", options)
    assert spiro["rings"].tolist() == [1, 1, 1, 2, 1, 1, 1]
    assert spiro["ring_size=3"].tolist() == [0, 0, 0, 1, 0, 1, 1]
    assert spiro["ring_size=5"].tolist() == [1, 1, 1, 1, 1, 0, 0]
    turned = [one(text, options) for text in ("C[C@H](O)F", "C[C@@H](O)F", "CC(O)F")]
    assert [(atoms["chirality=R"][1], atoms["chirality=S"][1]) for atoms in turned] == [(1, 0), (0, 1), (0, 0)]
    assert turned[0]["ring"].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(one("[13CH3]O", options)["mass"], [0.13003, 0.15999], atol=1e-5)
    plain = one("C[C@H](O)F", WITHOUT)
    for name, column in plain.items():
        np.testing.assert_array_equal(turned[0][name], column)


def test_random_walks_by_hand() -> None:
    assert replace(WITHOUT, walk=3).feature_names[75:] == ("walk=2", "walk=3", "walk=4")
    chain = one("CCC", replace(WITHOUT, walk=3))  # the middle returns after every second step, an end half the time
    assert [chain[f"walk={steps}"].tolist() for steps in (2, 3, 4)] == [[0.5, 1, 0.5], [0, 0, 0], [0.5, 1, 0.5]]
    triangle = one("C1CC1", replace(WITHOUT, walk=2))
    assert [triangle[f"walk={steps}"].tolist() for steps in (2, 3)] == [[0.5] * 3, [0.25] * 3]
    assert one("[Na+].[Cl-]", replace(WITHOUT, walk=1))["walk=2"].tolist() == [0, 0]


def test_random_walks_equal_powers_of_the_dense_matrix_whatever_the_other_graphs() -> None:
    rng = np.random.default_rng(0)
    sizes, edges = [7, 1, 12], []
    node_ptr = np.concatenate([[0], np.cumsum(sizes)])
    for first, end in pairwise(node_ptr):
        pairs = [(i, j) for i in range(first, end) for j in range(i + 1, end) if rng.random() < 0.4]
        edges += pairs
    ends = np.array(edges, np.int64)
    found = random_walks(node_ptr, ends, 5)
    for first, end in pairwise(node_ptr):
        own = ends[(ends[:, 0] >= first) & (ends[:, 0] < end)] - first
        np.testing.assert_array_equal(random_walks(np.array([0, end - first]), own, 5), found[first:end])
        a = np.zeros((end - first, end - first))
        a[own[:, 0], own[:, 1]] = a[own[:, 1], own[:, 0]] = 1
        step = a / np.maximum(a.sum(axis=1, keepdims=True), 1)
        powers = [np.diag(np.linalg.matrix_power(step, k)) for k in range(2, 7)]
        np.testing.assert_allclose(found[first:end], np.stack(powers, axis=1), atol=1e-7)


VARIED = (  # rings of all kinds, stereochemistry, isotopes, metals, labels, several parts, and no bond at all
    *(
        "C12C3C4C1C5C2C3C45",
        "C1CC2CCC1C2",
        "c1ccc2c(c1)Cc1ccccc12",
        "C1CCCCCCCCC1",
        "C1CC1.C1CCC1",
        "[235U]",
        "*CC",
        "[H][H]",
    ),
    *("F/C=C/[C@H](C)Cl", "F/C=C\\C", "C/C=C/C=C\\C#N", "[2H]O[C@@]([13CH3])(N)CC", "C[C@H]1C[C@@H]1C(=O)NC(C)C"),
    *("O=C(Nc1ccccc1)/C(C#N)=C/c1cccc2ccccc12", "[Na+].[O-]C(=O)c1ccccc1", "C[Fe]C", "C[C@H](O)[C@@H](O)[C@H](C)O"),
)


def test_properties_of_atoms_and_bonds_are_those_that_rdkit_says() -> None:
    from rdkit import Chem

    options = replace(
        WITHOUT, atom_features=EXTENDED, bond_properties=("ring", "conjugated", "stereo"), self_loops=False
    )
    found = featurize_chunk(VARIED, 0, options, scaffolds=False)
    assert not found.bad
    for row, name in enumerate(found.names):
        molecule = Chem.MolFromSmiles(name)
        rings = molecule.GetRingInfo()
        atoms = found.x[found.node_ptr[row] : found.node_ptr[row + 1], -len(EXTRA) :]
        for atom, values in zip(molecule.GetAtoms(), atoms, strict=True):
            number, turn = atom.GetIdx(), atom.GetPropsAsDict().get("_CIPCode")
            sizes = [rings.IsAtomInRingOfSize(number, size) for size in range(3, 9)]
            expected = [atom.IsInRing(), rings.NumAtomRings(number), *sizes, turn == "R", turn == "S"]
            assert values.tolist() == [*expected, np.float32(atom.GetMass() / 100)], (name, number)
        edges = slice(found.edge_ptr[row], found.edge_ptr[row + 1])
        bonds = [(bond, sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))) for bond in molecule.GetBonds()]
        turned = [(ends, str(bond.GetStereo()).removeprefix("STEREO")) for bond, ends in bonds]
        said = {
            "ring": [ends for bond, ends in bonds if bond.IsInRing()],
            "conjugated": [ends for bond, ends in bonds if bond.GetIsConjugated()],
            "Z": [ends for ends, turn in turned if turn == "Z"],
            "E": [ends for ends, turn in turned if turn == "E"],
        }
        for channel, kind in enumerate(options.channel_names):
            here = found.channel[edges] == channel
            pairs = np.stack([found.src[edges][here], found.dst[edges][here]], axis=1).tolist()
            assert kind not in said or pairs[::2] == sorted(said[kind]), (name, kind)


@pytest.mark.parametrize("bond_channels", [False, True])
def test_properties_of_bonds_are_further_channels(bond_channels: bool) -> None:
    options = replace(WITHOUT, bond_channels=bond_channels, bond_properties=("ring", "conjugated", "stereo"))
    plain = replace(options, bond_properties=())
    base = len(plain.channel_names)
    assert options.channel_names[base:] == ("ring", "conjugated", "Z", "E")
    text = "F/C=C\\C1CC1"
    found, without = (featurize_chunk([text], 0, one, scaffolds=False) for one in (options, plain))
    pairs = {
        name: {(int(a), int(b)) for a, b in zip(found.src[here], found.dst[here], strict=True) if a < b}
        for name, here in ((name, found.channel == channel) for channel, name in enumerate(options.channel_names))
    }
    assert pairs["ring"] == {(3, 4), (4, 5), (3, 5)}
    assert (pairs["conjugated"], pairs["Z"], pairs["E"]) == (set(), {(1, 2)}, set())
    kept = found.channel < base
    for name in ("src", "dst", "channel"):
        np.testing.assert_array_equal(getattr(found, name)[kept], getattr(without, name))
    np.testing.assert_array_equal(found.x, without.x)
    assert (found.channel == base + 3).sum() == 0
    turned = featurize_chunk([text.replace("\\", "/")], 0, options, scaffolds=False)
    assert [(turned.channel == base + place).sum() for place in (2, 3)] == [0, 2]


def test_descriptors_and_counts_are_those_of_rdkit() -> None:
    from rdkit import Chem
    from rdkit.Chem import Descriptors

    names = graph_feature_names(MOLECULES)
    assert names[-64:] == tuple(f"morgan2={column}" for column in range(64))
    table = featurize_chunk(["CCCCO", "c1ccccc1"], 0, MOLECULES, scaffolds=False).graph_features
    assert table is not None
    assert (table.measured.dtype, table.counts.data.dtype) == (np.float32, np.uint32)
    found = table.dense()
    for row, text in zip(found, ("CCCCO", "c1ccccc1"), strict=True):
        molecule = Chem.MolFromSmiles(text)
        for name in ("MolWt", "TPSA", "MolLogP"):
            assert row[names.index(name)] == np.float32(getattr(Descriptors, name)(molecule))
    assert found[0, -64:].max() == 3  # carbons with two neighbours


def test_chirality_tells_fragments_apart_on_demand() -> None:
    turned = ["C[C@H](O)F", "C[C@@H](O)F", "OC(F)C"]

    def counts(kind: str) -> list[bytes]:
        options = replace(WITHOUT, fingerprints=(kind,), size=64)
        assert graph_feature_names(options)[0] == f"{kind}2=0"
        assert FeaturizerOptions.from_header(options.to_header()) == options
        found = featurize_chunk(turned, 0, options, scaffolds=False).graph_features
        assert found is not None
        return [row.tobytes() for row in found.dense()]

    assert len(set(counts(MORGAN))) == 1
    assert len(set(counts(CHIRAL))) == 3


def test_atoms_of_equal_role_are_equal_in_the_feature_fingerprint() -> None:
    from rdkit import Chem
    from rdkit.Chem import rdFingerprintGenerator

    texts = ["c1ccccc1F", "c1ccccc1Cl", "c1ccccc1O"]
    found = featurize_chunk(
        texts, 0, replace(WITHOUT, fingerprints=(FEATURE,), size=64), scaffolds=False
    ).graph_features
    generator = rdFingerprintGenerator.GetMorganGenerator(
        2, fpSize=64, atomInvariantsGenerator=rdFingerprintGenerator.GetMorganFeatureAtomInvGen()
    )
    counts = [generator.GetCountFingerprintAsNumPy(Chem.MolFromSmiles(text)) for text in texts]
    np.testing.assert_array_equal(found, counts)
    rows = np.asarray(found)
    assert (rows[0] == rows[1]).all()
    assert (rows[0] != rows[2]).any()


def test_fingerprints_follow_each_other_in_the_order_of_the_options() -> None:
    from rdkit import Chem
    from rdkit.Chem import rdFingerprintGenerator

    options = replace(WITHOUT, fingerprints=(MORGAN, ATOM_PAIR), size=64)
    assert graph_feature_names(options) == graph_feature_names(replace(options, fingerprints=(MORGAN,))) + tuple(
        f"atompair={column}" for column in range(64)
    )
    texts = ["CC(C)CNC(=O)c1ccccc1", "CCCCO", "C.C"]
    found = featurize_chunk(texts, 0, options, scaffolds=False).graph_features
    turned = featurize_chunk(texts, 0, replace(options, fingerprints=(ATOM_PAIR, MORGAN)), scaffolds=False)
    generator = rdFingerprintGenerator.GetAtomPairGenerator(fpSize=64)
    pairs = np.array([generator.GetCountFingerprintAsNumPy(Chem.MolFromSmiles(text)) for text in texts])
    rows = np.asarray(found)
    np.testing.assert_array_equal(rows[:, 64:], pairs)
    assert rows[1, 64:].sum() == 5 * 4 / 2
    np.testing.assert_array_equal(turned.graph_features, np.roll(rows, 64, axis=1))


def test_a_fingerprint_of_an_older_header_is_a_list_of_one() -> None:
    options = replace(MOLECULES, fingerprints=(MORGAN, ATOM_PAIR))
    header = options.to_header()
    assert header["fingerprint"] == "morgan,atompair"
    assert FeaturizerOptions.from_header(header) == options
    assert FeaturizerOptions.from_header(header | {"fingerprint": "morgan"}) == MOLECULES


def table(folder: Path, text: str) -> Path:
    path = folder / "m.csv"
    path.write_text(text)
    return path


def load(path: Path) -> GraphSet:
    with Dataset(path) as dataset:
        return dataset.load()


def test_own_columns_come_first_and_missing_values_are_told(tmp_path: Path, monkeypatch) -> None:
    failing = lambda molecule: 1 / (molecule.GetNumAtoms() - 1)
    monkeypatch.setattr(descriptors, "_functions", lambda: (("Inverse", failing), ("Huge", lambda _: 1e300)))
    source = table(tmp_path, "smiles,y,b,a\nCC,1,2.5,1\nC,0,,3\nCCC,1,4,5\n")
    about = import_smiles(
        source, tmp_path / "m.h5", replace(MOLECULES, fingerprints=()), feature_columns=["a", "b"], processes=1
    )
    graphs = load(tmp_path / "m.h5")
    assert graphs.header.graph_feature_names == ("a", "b", "Inverse", "Huge")
    assert graphs.header.graph_feature_counts == 0
    huge = np.float32(1e30)
    np.testing.assert_array_equal(
        graphs.graph_features, np.float32([[1, 2.5, 1, huge], [3, np.nan, np.nan, huge], [5, 4, 0.5, huge]])
    )
    line = "missing features, taken as the mean of the training rows: b in 1 row, Inverse in 1 row"
    assert line in about.notes
    assert [role[:2] for role in about.columns] == [
        *(("smiles", "smiles"), ("y", "target"), ("b", "feature"), ("a", "feature"))
    ]


@pytest.mark.usefixtures("rows_in_forks")
def test_a_molecule_whose_descriptors_crash_or_hang_costs_its_row(tmp_path: Path, monkeypatch) -> None:
    def fatal(molecule):
        import os
        import signal

        if molecule.GetNumAtoms() == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if molecule.GetNumAtoms() == 4:
            raise KeyError("no such table")
        return 1.0

    monkeypatch.setattr(descriptors, "_functions", lambda: (("Fatal", fatal),))
    options = replace(MOLECULES, fingerprints=())
    chunks = list(featurize(["C", "CCC", "CC", "CCCC", "CN"], options, processes=1))
    assert np.concatenate([chunk.rows for chunk in chunks]).tolist() == [0, 2, 4]
    assert sum(len(chunk.graph_features) for chunk in chunks if chunk.graph_features is not None) == 3
    assert {bad.index: bad.reason for chunk in chunks for bad in chunk.bad} == {
        1: "crashes RDKit (SIGSEGV)",
        3: "RDKit: 'no such table'",
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["c"], "no column 'c'"),
        (["y"], "--feature-columns: 'y' is a target"),
        (["a", "a"], "--feature-columns: 'a' twice"),
        (["MolWt"], "--feature-columns: 'MolWt' is a descriptor, too; expected another name in the table"),
        (["t"], r"m\.csv, row 2, column 't': 'x'; expected a finite number, or blank"),
        (["l"], r"m\.csv, row 1, column 'l': '1e99'; expected a 32-bit floating-point number"),
    ],
)
def test_feature_columns_that_cannot_be_used_are_refused(columns: list[str], message: str, tmp_path: Path) -> None:
    source = table(tmp_path, "smiles,y,a,MolWt,t,l\nC,1,1,2,1,1e99\nCC,0,2,3,x,2\n")
    with pytest.raises(InputError, match=message):
        import_smiles(source, tmp_path / "m.h5", MOLECULES, target_columns=["y"], feature_columns=columns, processes=1)
    assert not (tmp_path / "m.h5").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bond_properties", ["ring", "ring"], "different ones of ring, conjugated, stereo"),
        ("bond_properties", "ring", "different ones"),
        ("positional", "rw0", "rw1 to rw32"),
        ("positional", "rw33", "rw1 to rw32"),
        ("descriptors", "all", "expected rdkit2d"),
        ("fingerprint", "maccs", "expected different ones of morgan, morgan-chiral, morgan-feature, atompair"),
        ("fingerprint", "morgan,morgan", "expected different ones of"),
        ("fingerprint", "morgan,", "expected different ones of"),
        ("fingerprint", ["morgan"], "expected different ones of"),
        ("radius", 11, "expected 0 to 10"),
        ("size", True, "expected 16 to 65536"),
        ("atom_features", "mine", "atom features 'mine'; expected kind molecule or smiles, atom features deepchem75"),
    ],
)
def test_options_of_a_header_that_are_unknown_are_refused(key: str, value: object, message: str) -> None:
    full = replace(MOLECULES, bond_properties=("stereo",), walk=7, atom_features=EXTENDED)
    assert FeaturizerOptions.from_header(full.to_header()) == full
    assert FeaturizerOptions.from_header(WITHOUT.to_header()) == WITHOUT
    with pytest.raises(InputError, match=message):
        FeaturizerOptions.from_header(full.to_header() | {key: value})


def test_the_command_stores_features_and_info_shows_them(tmp_path: Path, call) -> None:
    source = table(tmp_path, "smiles,y,a\nCC,1,1\nC,0,\nCCC,1,5\n")
    options = ["--fingerprint", "morgan,atompair", "--fingerprint-size", 16, "--feature-columns", "a"]
    options += ["--positional", "rw2"]
    options += ["--atom-features", "extended86", "--bond-properties", "ring,stereo", "--target-columns", "y"]
    code, printed, errors = call("data", "import", "smiles", source, "-o", tmp_path / "m.h5", *options)
    assert code == 0, errors
    assert "of graphs     33 features" in printed
    assert load(tmp_path / "m.h5").x.shape == (6, 88)
    code, printed, _ = call("data", "info", tmp_path / "m.h5")
    assert "graph features  1 (a) and 32 counts of fragments (morgan2=0, …); 1 missing value" in printed
    code, _, errors = call("data", "import", "smiles", source, "-o", tmp_path / "n.h5", "--positional", "rw99")
    assert (code, errors.strip()) == (2, "error: featurizer, positional: 'rw99'; expected rw1 to rw32")
