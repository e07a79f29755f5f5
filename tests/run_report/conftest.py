"""Runs with reports, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run_report.runs import write_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the runs of `write_runs`."""
    place = tmp_path_factory.mktemp("runs")
    write_runs(place)
    return place
