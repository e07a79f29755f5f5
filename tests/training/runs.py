"""Runs for the tests of training: small data sets on disk, runs in this process, the command line in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

import gcnbatch as package
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import parse_assignment, put
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.store import write_graphset
from gcnbatch.training import plots, run
from gcnbatch.training.checkpoint import load
from gcnbatch.uncertainty import plot as uncertainty_plot
from tests.builders import build_graphset

SMALL = ("model.widths=[8]", "train.batch_size=8", "train.epochs=3", "train.learning_rate=0.01")


def write_set(path: Path, n_graphs: int = 40, **options: Any) -> GraphSet:
    """Write a small set with labels in every part, and return it."""
    graphs = build_graphset(n_graphs, **{"missing": 0.1, "max_nodes": 6, **options})
    write_graphset(path, graphs)
    return graphs


def write_molecules(path: Path, smiles: Sequence[str], y: ArrayLike, task_names: Sequence[str]) -> Path:
    """Write a set of molecules with what a mixture reads; return its path."""
    about = {"descriptors": "rdkit2d", "fingerprint": "morgan", "fingerprint_size": 256}
    package.write(path, package.from_smiles(smiles, y, task_names=list(task_names), **about))
    return path


def lighten(patch: pytest.MonkeyPatch) -> None:
    """Skip plots, which have their own tests and take most of a small run's time; and syncing, in a fresh process."""
    for name in ("learning_curves", "roc_pr", "confusion", "parity"):
        patch.setattr(plots, name, lambda *about: None)
    patch.setattr(uncertainty_plot, "draw", lambda *about: None)
    patch.setattr(os, "fsync", lambda file: None)


def configure(*assignments: str) -> Config:
    """Return the configuration of a small model with these keys set."""
    tree: dict[str, Any] = {}
    for text in (*SMALL, *assignments):
        put(tree, *parse_assignment(text))
    return resolve(tree)


def fit(data: Path, folder: Path, *assignments: str, **options: Any) -> dict[str, Any]:
    """Train to the end in this process, with options of `run.start`; return the metrics."""
    return run.start(configure(f"data.path={data}", *assignments), folder, quiet=True, **options)[1]


def command(*arguments: object) -> list[str]:
    """Return the command line ``gcnbatch …`` for this interpreter."""
    return [sys.executable, "-m", "gcnbatch", *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return the environment of a process with one BLAS thread, like this process, to which tests compare its bits."""
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}


def gcnbatch(*arguments: object, cwd: Path | None = None, check: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line; `check` is the expected exit code."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=cwd, env=environment(), timeout=240, check=False
    )
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


def options(*assignments: str) -> list[str]:
    """Return ``--set`` options for a small model with these keys set."""
    return [part for text in (*SMALL, *assignments) for part in ("--set", text)]


def history(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of history.jsonl without their timings."""
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: row[key] for key in row if key not in ("seconds", "graphs_per_second")} for row in rows]


def without_timings(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics without the entries that differ between equal runs."""
    kept = {key: metrics[key] for key in metrics if key not in ("seconds", "step_us", "graphs_per_second")}
    for members in kept.keys() & {"folds", "members"}:
        kept[members] = [without_timings(member) for member in kept[members]]
    return kept


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return metrics.json without its timings."""
    return without_timings(json.loads((folder / "metrics.json").read_text(encoding="utf-8")))


def assert_same_weights(one: Path, other: Path) -> None:
    """Assert that best and last checkpoints of two run folders are equal to the bit."""
    for name in ("best.safetensors", "last.safetensors"):
        left, right = load(one / name).arrays, load(other / name).arrays
        assert left.keys() == right.keys()
        for key, value in left.items():
            assert value.dtype == right[key].dtype
            np.testing.assert_array_equal(value.view(np.uint8), right[key].view(np.uint8), err_msg=key)


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that two run folders are equal, except for measured times."""
    assert_same_weights(one, other)
    assert history(one) == history(other)
    assert read_metrics(one) == read_metrics(other)
    for name in ("best.safetensors", "predictions.csv", "splits.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
