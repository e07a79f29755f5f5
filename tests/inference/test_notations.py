"""Predictions do not depend on how a molecule is written; models of older versions do, and it is said once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.errors import InputError
from gcnbatch.explanation.command import explain
from gcnbatch.inference.columns import NOTATION
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.molecules import CsvOptions
from tests.explanation.test_explain import table
from tests.inference.runs import import_table, numbers, read_rows, train_on

ETHANOL = ("CCO", "[CH3][CH2][OH]", "[CH3:1][CH2:2][OH:3]", "[H]OCC")
ALIKE = (
    "elements without a feature of their own: * in 1 molecule, Os in 1 molecule, Ru in 1 molecule; a model sees all "
    "such elements as the same one; an import with --atom-features extended86 tells them apart by mass"
)


@pytest.fixture(scope="module")
def older(chemistry: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a data set as older versions wrote it."""
    folder = tmp_path_factory.mktemp("older")
    data = import_table(chemistry[1], folder / "older.h5", FeaturizerOptions(bond_channels=True, as_written=True))
    return train_on(data, folder / "run")


def predicted(runs: list[Path], smiles: tuple[str, ...], folder: Path) -> tuple[np.ndarray, list[str]]:
    source = folder / "new.csv"
    source.write_text("\n".join(["structure", *smiles]) + "\n")
    said: list[str] = []
    infer(runs, source, str(folder / "out.csv"), backend="cpu", batch_size=1, quiet=True, say=said.append)
    return numbers(read_rows(folder / "out.csv")), [line for line in said if not line.startswith("no sets")]


def test_notations_have_equal_predictions(chemistry: tuple[Path, Path, Path], tmp_path: Path) -> None:
    found, said = predicted([chemistry[0]], ETHANOL, tmp_path)
    assert len(np.unique(found, axis=0)) == 1
    assert said == []


def test_an_older_model_keeps_its_features_and_says_once_what_they_depend_on(older: Path, tmp_path: Path) -> None:
    found, said = predicted([older], ETHANOL, tmp_path)
    assert len(np.unique(found, axis=0)) > 1
    assert said == [NOTATION]


def test_a_file_of_another_kind_of_featuriser_is_refused(
    older: Path, chemistry: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    message = "featurizer, kind: molecule; expected smiles, as in .* Give the molecules as a table, or import and train"
    with pytest.raises(InputError, match=message):
        infer([older], chemistry[2], str(tmp_path / "out.csv"), backend="cpu", quiet=True)


@pytest.mark.parametrize("processes", [1, 2])
def test_elements_that_look_alike_are_named(
    chemistry: tuple[Path, Path, Path], older: Path, tmp_path: Path, processes: int
) -> None:
    smiles = ["Cl[Ru]Cl", "Cl[Os]Cl", "*CC", *["CCO"] * 600]
    source, said = tmp_path / "new.csv", list[str]()
    source.write_text("\n".join(["structure", *smiles]) + "\n")
    for run in (chemistry[0], older):
        csv = CsvOptions(processes=processes)
        infer([run], source, str(tmp_path / "out.csv"), backend="cpu", quiet=True, csv=csv, say=said.append)
    assert [line for line in said if "elements" in line] == [ALIKE, ALIKE]


def test_explanations_number_atoms_as_in_the_smiles_that_they_give(
    chemistry: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    source = tmp_path / "new.csv"
    source.write_text("structure\nxx\n[OH:1][CH2:2]N\n")
    explain([chemistry[0]], source, tmp_path / "why", steps=4, backend="cpu", quiet=True)
    assert [row["smiles"] for row in table(tmp_path / "why" / "molecules.csv")] == ["", "NCO", "NCO"]
    assert [row["symbol"] for row in table(tmp_path / "why" / "atoms.csv")] == ["N", "C", "O"]
