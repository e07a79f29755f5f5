"""Trained runs, and a server of two of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gcnbatch.data.importers.smiles import import_smiles
from tests.inference.conftest import chemistry, described, trained
from tests.serving.servers import Server, serving
from tests.training.runs import fit, lighten
from tests.training.test_cross_fit import MIXED, RICH, table

__all__ = ["chemistry", "described", "trained"]


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose networks are mixed with a kernel and trees."""
    folder = tmp_path_factory.mktemp("mixture")
    import_smiles(table(folder / "table.csv"), folder / "set.h5", RICH, target_columns=["y"])
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        fit(folder / "set.h5", folder / "mixture", *MIXED)
    return folder / "mixture"


@pytest.fixture(scope="session")
def runs(chemistry: tuple[Path, Path, Path], mixture: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of the models "plain", of two tasks, and "mixture"."""
    plain = tmp_path_factory.mktemp("served") / "plain"
    shutil.copytree(chemistry[0], plain)
    return [plain, mixture]


@pytest.fixture(scope="session")
def server(runs: list[Path]) -> Iterator[Server]:
    with serving(runs) as found:
        yield found
