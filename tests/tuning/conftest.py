"""A data set with a space, a study of it, and studies without pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.tuning import page
from tests.training.runs import write_set
from tests.tuning.studies import SPACE, search


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data set and a space."""
    folder = tmp_path_factory.mktemp("tune")
    write_set(folder / "set.h5", missing=0.0)
    (folder / "space.toml").write_text(SPACE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def study(place: Path) -> Path:
    """Return the folder of a study of six trials."""
    search(place, place / "study")
    return place / "study"


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no page: it takes most of a small study's time."""
    monkeypatch.setattr(page, "render", lambda *about: "")
