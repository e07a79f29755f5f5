"""Runs of one configuration, twice, on two GPUs: what a backend that ranks share must show."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ranks.launcher import mpirun
from tests.training.runs import assert_same_weights, history, write_set


def train_on_two(folder: Path, backend: str, to_run: tuple[str, ...], chosen: tuple[str, ...]) -> str:
    """Write the runs `two` and `again`; return what `two` said, whose backend the options `chosen` choose."""
    write_set(folder / "set.h5", missing=0.0)
    data, named = ("train", "--data", folder / "set.h5", *to_run), ("--backend", backend)
    _, said = mpirun(2, *data, *chosen, "-o", folder / "two")
    mpirun(2, *data, *named, "-o", folder / "again")
    return said


def assert_two_train_together(folder: Path, said: str, backend: str) -> None:
    """Check what `two` said and noted; `tests.ranks.processes` compares its steps with those of one process."""
    assert "2 ranks train one model together" in said
    metrics = json.loads((folder / "two" / "metrics.json").read_text(encoding="utf-8"))
    assert (metrics["backend"], metrics["ranks"]) == (backend, 2)


def assert_two_repeat(folder: Path) -> None:
    """Compare `two` with `again`, to the bit."""
    assert_same_weights(folder / "two", folder / "again")
    assert history(folder / "two") == history(folder / "again")
