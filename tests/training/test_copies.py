"""Training tells of copies of a molecule in different parts of its split."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.config import resolve
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.training import run

TEXTS = ["CCO", "CC(O)F", "c1ccccc1", "CCN", "OCC", "C[C@H](O)F", "C1=CC=CC=C1", "CCC", "[CH3][CH2]OC", "CC(=O)C"]
PARTS = ["train"] * 4 + ["test"] * 4 + ["valid"] * 2
NOTE = (
    "copies: 3 molecules stand in different parts of the split, as equal graphs in 6 rows; test figures are then too "
    "good; merge these rows, or split by scaffold"
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
    return [line for line in said if line.startswith("copies")]


@pytest.mark.parametrize("options", [FeaturizerOptions(), FeaturizerOptions(bond_channels=True, walk=2)])
def test_copies_in_several_parts_are_told_once(tmp_path: Path, options: FeaturizerOptions) -> None:
    assert said_by_training(tmp_path, TEXTS, options) == [NOTE]


def test_a_split_without_copies_in_several_parts_has_no_note(tmp_path: Path) -> None:
    texts = ["CCO", "OCC", "C", "CC", "CCC", "CCCC", "C(CC)C", "CN", "CF", "CCl"]
    assert said_by_training(tmp_path, texts, FeaturizerOptions()) == []
