"""Training tells of copies of a molecule in different parts of its split, and of molecules that look alike to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.config import resolve
from gcnbatch.data import copies
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.training import run

TEXTS = ["CCO", "CC(O)F", "c1ccccc1", "CCN", "OCC", "C[C@H](O)F", "C1=CC=CC=C1", "CCC", "[CH3][CH2]OC", "CC(=O)C"]
PARTS = ["train"] * 4 + ["test"] * 4 + ["valid"] * 2
MERGE = "test figures are then too good; merge these rows, or split by scaffold"
COPIES = f"copies: 2 molecules stand in different parts of the split, in 4 rows; {MERGE}"
ALIKE = (
    "equal features in different parts of the split: 2 molecules differ from another in what no feature shows, such as "
    "'CC(O)F' and 'C[C@H](O)F'; an import with --atom-features extended86 tells these apart"
)
EITHER = (
    "equal graphs: 3 graphs stand in different parts of the split, in 6 rows: copies of a molecule, or different ones "
    f"with equal features; {MERGE}"
)


def said_by_training(folder: Path, texts: list[str], options: FeaturizerOptions) -> list[str]:
    rows = [f"{text},{number % 2},{part}" for number, (text, part) in enumerate(zip(texts, PARTS, strict=True))]
    table = folder / "m.csv"
    table.write_text("\n".join(["smiles,y,part", *rows]) + "\n")
    import_smiles(table, folder / "m.h5", options, split_column="part", processes=1)
    tree = {
        "data": {"path": str(folder / "m.h5")},
        "model": {"widths": [4]},
        "train": {"epochs": 1},
        "split": {"kind": "predefined"},
        "backend": "cpu",
    }
    said: list[str] = []
    run.start(resolve(tree), folder / "run", quiet=True, say=said.append)
    return [line for line in said if line.startswith(("copies", "equal"))]


@pytest.mark.slow
@pytest.mark.parametrize("options", [FeaturizerOptions(), FeaturizerOptions(bond_channels=True, walk=2)])
def test_copies_in_several_parts_are_told_once(tmp_path: Path, options: FeaturizerOptions) -> None:
    assert said_by_training(tmp_path, TEXTS, options) == [COPIES, ALIKE]


def test_without_rdkit_equal_graphs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "find_spec", lambda name: None)
    assert said_by_training(tmp_path, TEXTS, FeaturizerOptions()) == [EITHER]


def test_features_that_show_the_difference_end_the_note(tmp_path: Path) -> None:
    options = FeaturizerOptions(atom_features="extended86")
    assert said_by_training(tmp_path, TEXTS, options) == [COPIES]


def test_a_split_without_copies_in_several_parts_has_no_note(tmp_path: Path) -> None:
    texts = ["CCO", "OCC", "C", "CC", "CCC", "CCCC", "C(CC)C", "CN", "CF", "CCl"]
    assert said_by_training(tmp_path, texts, FeaturizerOptions()) == []
