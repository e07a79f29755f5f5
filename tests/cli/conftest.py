"""Fixtures of the tests of the command line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gcnbatch import progress
from gcnbatch.data import synthetic
from tests.cli.calls import write_inputs


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of `calls.write_inputs`, which tests leave as it is."""
    for library in ("rdkit", "optuna", "pyarrow"):
        pytest.importorskip(library)
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep stderr to what commands say, also on a machine so busy that short work takes long."""
    monkeypatch.setattr(progress, "LINE_SECONDS", math.inf)


@pytest.fixture
def call(command):
    return command


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    synthetic.write("quickstart", tmp_path / "quick.h5", graphs=40)
    return tmp_path / "quick.h5"
