"""A small study that tests of searches share."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from gcnbatch.config import Config
from gcnbatch.tuning import search as searches
from gcnbatch.tuning.search import Limits
from tests.training.runs import configure

SPACE = """
[model]
widths = { choices = [4, 8], repeat = { low = 1, high = 2 } }
dropout = { low = 0.0, high = 0.3 }
[train]
learning_rate = { low = 1e-3, high = 1e-1, log = true }
"""
TIMES = ("seconds",)


def base(place: Path, *assignments: str) -> Config:
    about = ("train.epochs=2", "split.valid=0.2", "split.test=0.2", "jobs=1", *assignments)
    return configure(f"data.path={place / 'set.h5'}", *about)


def search(place: Path, folder: Path, *assignments: str, trials: int = 6) -> dict[str, Any]:
    config, space = base(place, *assignments), place / "space.toml"
    return searches.start(config, folder, space, Limits(trials), quiet=True)[1]


def table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of trials.csv without times."""
    with (folder / "trials.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [{name: row[name] for name in row if name not in TIMES} for row in rows]
