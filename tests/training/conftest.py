"""A data set of 40 graphs for each test to train on, and a run without a stop, trained once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.kills import THOROUGH
from tests.training.runs import fit, lighten, write_set


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_set(tmp_path / "set.h5")
    return tmp_path / "set.h5"


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with `THOROUGH` on data that equal those of `data`."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        write_set(folder / "set.h5")
        fit(folder / "set.h5", folder / "run", *THOROUGH)
    return folder / "run"
