"""Fixtures of the tests of the command line."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from gcnbatch import progress
from gcnbatch.cli import app
from gcnbatch.data import synthetic


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep stderr to what commands say, also on a machine so busy that short work takes long."""
    monkeypatch.setattr(progress, "LINE_SECONDS", math.inf)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gcnbatch", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            app.main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    synthetic.write("quickstart", tmp_path / "quick.h5", graphs=40)
    return tmp_path / "quick.h5"
