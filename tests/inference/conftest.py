"""Trained runs for several tests, trained once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.data.featurizer import FeaturizerOptions
from tests.builders import build_graphset
from tests.inference.described import converted, with_assay
from tests.inference.runs import import_table, molecule_table, stored, train_on


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run and the binary set of 24 graphs it was trained on."""
    folder = tmp_path_factory.mktemp("trained")
    data = stored(folder / "data.h5", build_graphset(24, seed=3))
    return train_on(data, folder / "run"), data


@pytest.fixture(scope="session")
def second(trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run on the same data: other widths, other seed, adjacency as stored."""
    model = {"widths": [5, 6], "adjacency": "stored"}
    return train_on(trained[1], tmp_path_factory.mktemp("second") / "run", seed=1, model=model)


@pytest.fixture(scope="session")
def chemistry(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A run on molecules of at most 14 atoms, the CSV file and the data set it was made from."""
    folder = tmp_path_factory.mktemp("chemistry")
    table = molecule_table(folder / "molecules.csv")
    data = import_table(table, folder / "molecules.h5", FeaturizerOptions(bond_channels=True, max_nodes=14))
    return train_on(data, folder / "run"), table, data


@pytest.fixture(scope="session")
def described(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A run on molecules with descriptors, counts of fragments and a column; the table; the data set."""
    folder = tmp_path_factory.mktemp("described")
    table = with_assay(molecule_table(folder / "molecules.csv"))
    data = converted(table, folder / "molecules.h5")
    return train_on(data, folder / "run"), table, data
