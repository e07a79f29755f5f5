"""Copies, salts, stereochemistry, elements: what an import tells about its molecules; and RDKit's standardisation."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data import copies
from gcnbatch.data.add_splits import SplitTable, add_splits
from gcnbatch.data.atom_features import EXTENDED
from gcnbatch.data.featurizer import FeaturizerOptions, featurize_chunk
from gcnbatch.data.featurizer_options import MORGAN, RDKIT2D
from gcnbatch.data.featurizer_worker import SMALL_FILE
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.scaffolds import MAX_MURCKO_ATOMS
from gcnbatch.data.store import Dataset, write_graphset

PLAIN = FeaturizerOptions()


def notes(folder: Path, text: str, options: FeaturizerOptions = PLAIN, **more: object) -> list[str]:
    path = folder / "m.csv"
    path.write_text(text)
    return list(import_smiles(path, folder / "out.h5", options, processes=1, **more).notes)  # type: ignore[arg-type]


def test_copies_are_counted_with_contradictions_and_parts(tmp_path: Path) -> None:
    text = "smiles,y,z,part\nCCO,1,,train\nOCC,0,1,test\nC,1,0,train\nC,,0,train\nCC,1,1,valid\n"
    assert notes(tmp_path, text, split_column="part") == [
        "copies: 2 molecules appear more than once, in 4 rows; 1 of them with different targets; "
        "1 of them in different parts of split 'part'"
    ]
    assert notes(tmp_path, text)[0].endswith("a random split without cross-fitting may put copies into different parts")


@pytest.mark.usefixtures("rows_in_forks")
def test_processes_find_the_copies_that_a_fork_finds(tmp_path: Path) -> None:
    smiles = [
        f"{'C' * (1 + number % 40)}{tail}" for number in range(400) for tail in ("O", "[C@H](F)Cl", "[C@@H](F)Cl")
    ]
    text = "smiles,y,remark\n" + "".join(f"{one},1,{'x' * 60}\n" for one in smiles)
    assert len(text) > SMALL_FILE
    found = notes(tmp_path, text)
    options = {"target_columns": ["y"], "processes": 2}
    assert list(import_smiles(tmp_path / "m.csv", tmp_path / "two.h5", PLAIN, **options).notes) == found  # type: ignore[arg-type]
    assert found[0].startswith("copies: 120 molecules appear more than once, in 1,200 rows")


def test_stereo_isotopes_and_salts_are_counted(tmp_path: Path) -> None:
    text = "smiles,y\nC[C@H](O)N,1\nC[C@@H](O)N,0\n[13CH4],1\nCC.Cl,1\n"
    assert notes(tmp_path, text) == [
        "stereochemistry: 2 molecules differ from another only in it",
        "salts: 1 row has several molecules in one SMILES; --largest-fragment keeps the largest",
        "not seen by the features: 2 with stereochemistry and 1 with isotopes",
    ]


STEREO = FeaturizerOptions(atom_features=EXTENDED, bond_properties=("stereo",))


@pytest.mark.parametrize("options", [PLAIN, STEREO, FeaturizerOptions(fingerprints=(MORGAN,))])
def test_copies_are_found_however_they_are_written(tmp_path: Path, options: FeaturizerOptions) -> None:
    rows = [
        "C[C@H](O)N,1,train",
        "[NH2:3][C@@H:2]([OH:4])[CH3:1],1,test",
        "[H]OC([H])(N)C,1,valid",
        "C[C@@H](O)N,1,test",
    ]
    rows += ["c1ccccc1C,1,train", "CC1=CC=CC=C1,0,test", "[CH3][c]1[cH][cH][cH][cH][cH]1,1,train"]
    assert notes(tmp_path, "\n".join(["smiles,y,part", *rows]), options, split_column="part")[:2] == [
        "copies: 2 molecules appear more than once, in 5 rows; 1 of them with different targets; "
        "2 of them in different parts of split 'part'",
        "stereochemistry: 3 molecules differ from another only in it; 1 of them in different parts of split 'part'",
    ]


def test_copies_are_found_after_standardisation(tmp_path: Path) -> None:
    text = "smiles,y\nCCN,1\nCC[NH3+].[Cl-],1\n"
    assert notes(tmp_path, text) == [
        "salts: 1 row has several molecules in one SMILES; --largest-fragment keeps the largest"
    ]
    options = FeaturizerOptions(largest_fragment=True, neutralize=True)
    assert notes(tmp_path, text, options)[0].startswith("copies: 1 molecule appears more than once, in 2 rows")


def test_elements_that_look_alike_are_named_with_the_option_that_helps(tmp_path: Path) -> None:
    text = "smiles,y\nCl[Ru]Cl,1\n[U],0\n[He],1\n*CC,1\nC*,0\n[Fe],1\n"
    assert notes(tmp_path, text) == [
        "equal features: 2 molecules differ from another in what no feature shows, such as '[U]' and '[He]'; an import "
        "with --atom-features extended86 tells these apart",
        "elements without a feature of their own: * in 2 molecules, He in 1 molecule, Ru in 1 molecule, U in 1 "
        "molecule; a model sees all such elements as the same one; an import with --atom-features extended86 tells "
        "them apart by mass",
    ]
    assert notes(tmp_path, text, FeaturizerOptions(atom_features=EXTENDED)) == []


@pytest.mark.parametrize(("one", "other"), [("[13CH4]", "C"), ("Cl[Ru]Cl", "Cl[Os]Cl")])
def test_molecules_that_no_feature_tells_apart_are_no_copies(tmp_path: Path, one: str, other: str) -> None:
    rows = [f"{one},1,train", f"{other},0,test", f"{other},0,train", "CCO,1,train", "OCC,1,train"]
    found = notes(tmp_path, "\n".join(["smiles,y,part", *rows]) + "\n", split_column="part")
    copies_line = "copies: 2 molecules appear more than once, in 4 rows; 1 of them in different parts of split 'part'"
    alike = (
        f"equal features: 2 molecules differ from another in what no feature shows, such as '{one}' and '{other}'"
        "; an import with --atom-features extended86 tells these apart; 1 of them in different parts of split 'part'"
    )
    assert found[:2] == [copies_line, alike]
    with Dataset(tmp_path / "out.h5") as dataset:
        stored = copies.stored_copies(dataset)
        assert stored is not None
        assert stored.lines(dataset.y, dataset.splits) == [copies_line, alike]


def test_descriptors_that_differ_tell_molecules_apart(tmp_path: Path) -> None:
    text = "smiles,y\nCl[Ru]Cl,1\nCl[Os]Cl,0\n"
    assert any("equal features" in line for line in notes(tmp_path, text))
    assert not any("equal features" in line for line in notes(tmp_path, text, FeaturizerOptions(descriptors=RDKIT2D)))


def test_bonds_that_count_as_single_bonds_are_named(tmp_path: Path) -> None:
    text = "smiles,y\nC->[Fe],1\nC~C,0\nC$C,1\n[Cr]$[Cr],1\nCC,1\n"
    assert notes(tmp_path, text) == [
        "bonds that count as single bonds: quadruple in 2 molecules, dative in 1 molecule, unspecified in 1 molecule"
    ]


def test_an_ordinary_table_has_no_notes(tmp_path: Path) -> None:
    assert notes(tmp_path, "smiles,y\nCCO,1\nCOC,0\nCCN,1\n") == []


@pytest.mark.parametrize(
    ("options", "atoms"),
    [
        (PLAIN, [6, 3]),
        (FeaturizerOptions(largest_fragment=True), [5, 3]),
        (FeaturizerOptions(neutralize=True), [6, 3]),
    ],
)
def test_fragments_and_charges_are_standardised_and_repeated(
    tmp_path: Path, options: FeaturizerOptions, atoms: list[int]
) -> None:
    notes(tmp_path, "smiles,y\nCCCC[NH3+].[Cl-],1\nCC[O-],0\n", options)
    with Dataset(tmp_path / "out.h5") as dataset:
        graphs = dataset.load()
        assert np.diff(graphs.node_ptr).tolist() == atoms
        charges = graphs.x[:, graphs.header.feature_names.index("formal_charge")]
        assert (charges[-3:] == 0).all() == options.neutralize
        assert FeaturizerOptions.from_header(dataset.header.featurizer) == options


def test_older_files_have_no_standardisation() -> None:
    header = {key: value for key, value in PLAIN.to_header().items() if key not in ("largest_fragment", "neutralize")}
    assert FeaturizerOptions.from_header(header) == PLAIN


def scaffold(smiles: str) -> str:
    return featurize_chunk([smiles], 0, replace(PLAIN, max_nodes=4000), scaffolds=True).scaffolds[0]


def test_scaffolds_of_huge_molecules_take_little_time() -> None:
    begin = time.process_time()
    assert scaffold("C" * 3000) == ""
    assert scaffold("c1ccccc1" + "C" * 3000) == "c1ccccc1"
    assert time.process_time() - begin < 20  # RDKit's decomposition takes a minute for each


@pytest.mark.parametrize(
    "core", ["O=C1CCCC({})C1", "c1ccc(CCc2ccccc2{})cc1", "C=C1CCC(C2CC2{})CC1", "O=C(c1ccccc1{})C1CC1"]
)
def test_scaffolds_of_large_and_small_molecules_agree(core: str) -> None:
    large, small = (core.format("C" * length) for length in (MAX_MURCKO_ATOMS, 1))
    assert scaffold(large) == scaffold(small) != ""


def split_notes(folder: Path, options: FeaturizerOptions, **header: object) -> list[str]:
    rows = ["CCO,train", "[CH3][CH2]O,test", "C,train", "C,train", "CC,valid"]
    rows += ["C[C@H](O)N,train", "C[C@@H](O)N,valid"]
    chain = "C" * 12
    rows += [f"{chain[:6]}O{chain[6:]},train", f"{chain[:5]}O{chain[5:]},test"]  # alike but for their ends
    table = folder / "split.csv"
    table.write_text("\n".join(["smiles,part", *rows]) + "\n")
    import_smiles(table, folder / "out.h5", options, no_targets=True, processes=1)
    with Dataset(folder / "out.h5") as dataset:
        return add_splits(dataset, folder / "out.h5", SplitTable(table))[1]


@pytest.mark.parametrize("options", [PLAIN, STEREO, FeaturizerOptions(as_written=True)])
def test_a_split_that_is_added_later_counts_copies_too(tmp_path: Path, options: FeaturizerOptions) -> None:
    assert split_notes(tmp_path, options) == [
        "copies: 2 molecules appear more than once, in 4 rows; 1 of them in different parts of split 'part'",
        "stereochemistry: 2 molecules differ from another only in it; 1 of them in different parts of split 'part'",
    ]


def test_a_file_of_another_program_counts_equal_graphs(tmp_path: Path) -> None:
    split_notes(tmp_path, PLAIN)
    with Dataset(tmp_path / "out.h5") as dataset:
        graphs = dataset.load()
    header = graphs.header.model_copy(update={"featurizer": {"kind": "molecule"}})
    write_graphset(tmp_path / "other.h5", replace(graphs, header=header))
    with Dataset(tmp_path / "other.h5") as dataset:
        found = copies.stored_copies(dataset)
    assert found is not None
    assert [len(found.same), found.stereo] == [3, []]


def test_without_rdkit_equal_graphs_count_as_copies(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(copies, "find_spec", lambda name: None)
    assert split_notes(tmp_path, PLAIN) == [
        "equal graphs: 3 graphs appear more than once, in 6 rows: copies of a molecule, or different ones with equal "
        "features; 2 of them in different parts of split 'part'"
    ]
