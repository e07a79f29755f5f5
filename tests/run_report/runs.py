"""Runs whose reports are tested."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.writer import write_graphset
from gcnbatch.run_report.files import write
from gcnbatch.training import run
from tests.builders import build_graphset
from tests.inference.runs import import_table, molecule_table, train_on
from tests.training.runs import configure

HOSTILE = ("<img src=x onerror=alert(1)>", "a-very-long-name-without-any-space-" * 3)


def with_data(folder: Path, data: Path) -> None:
    """Let the configuration of a run name another data set."""
    config = folder / "config.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(re.sub('(?m)^path = ".*"$', f'path = "{data}"', text), encoding="utf-8")


def write_runs(place: Path) -> None:
    """Train on molecules, with plots; on a set with hostile names; in folds; on one graph; and write their reports."""
    pytest.importorskip("rdkit", reason="needs RDKit")
    import_table(molecule_table(place / "molecules.csv"), place / "molecules.h5", FeaturizerOptions())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        keys = (f"data.path={place / 'molecules.h5'}", "split.test=0.4", "name=molecules")
        run.start(configure(*keys), place / "molecules", quiet=True)
    graphs = build_graphset(60, missing=0.0)
    write_graphset(
        place / "hostile.h5", replace(graphs, header=graphs.header.model_copy(update={"task_names": HOSTILE}))
    )
    train_on(place / "hostile.h5", place / "hostile")
    write_graphset(place / "values.h5", build_graphset(60, target="regression", missing=0.0))
    train_on(place / "values.h5", place / "folds", split={"folds": 3})
    write_graphset(place / "nodes.h5", build_graphset(1, level="node", target="multiclass", max_nodes=60, missing=0.0))
    train_on(place / "nodes.h5", place / "nodes")
    for name in ("molecules", "hostile", "folds", "nodes"):
        write(place / name)
