from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.run_folders import write_bases
from tests.training.runs import lighten


@pytest.fixture(scope="session")
def written_bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        write_bases(folder)
    return folder


@pytest.fixture(scope="module")
def bases(written_bases: Path) -> Iterator[Path]:
    """Return a folder with a run of each kind; what goes on with them draws no plots."""
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        yield written_bases
