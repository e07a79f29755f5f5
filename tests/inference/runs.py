"""Small trained runs and tables of predictions for the tests of `infer`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.config import resolve
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.writer import write_graphset
from gcnbatch.training import run
from tests.training.runs import lighten

SMILES = ("CCO", "c1ccccc1", "CC(=O)O", "CCN", "C1CCCCC1", "CC#N", "OCC(O)CO", "c1ccncc1", "CCCl", "CC(C)C=O")
Rows = dict[str, dict[str, str]]


def train_on(path: Path, folder: Path, **sections: Any) -> Path:
    """Train two small epochs on a data set file; sections override those of the configuration."""
    tree: dict[str, Any] = {
        "data": {"path": str(path)},
        "model": {"kind": "chemgcn", "widths": [8]},
        "train": {"epochs": 2, "batch_size": 8},
        "split": {"valid": 0.2, "test": 0.3},
        "backend": "cpu",
    }
    for name, values in sections.items():
        tree[name] = {**tree[name], **values} if isinstance(values, dict) else values
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        return run.start(resolve(tree), folder, quiet=True)[0]


def stored(path: Path, graphs: GraphSet) -> Path:
    write_graphset(path, graphs)
    return path


def molecule_table(path: Path, count: int = 40) -> Path:
    """Write a CSV file of `count` molecules with two binary tasks."""
    lines = [f"M{i},{'C' * (i // len(SMILES))}{SMILES[i % len(SMILES)]},{i % 2},{i % 3 % 2}" for i in range(count)]
    path.write_text("\n".join(["mol_id,structure,even,third", *lines]) + "\n")
    return path


def import_table(table: Path, out: Path, options: FeaturizerOptions) -> Path:
    import_smiles(table, out, options, smiles_column="structure", target_columns=["even", "third"], processes=1)
    return out


def read_rows(path: Path | str) -> Rows:
    """Return the rows of a CSV file of predictions by id, in order."""
    with open(path, encoding="utf-8", newline="") as stream:
        return {row["id"]: row for row in csv.DictReader(stream)}


def numbers(rows: Rows, names: list[str] | None = None) -> NDArray[np.float64]:
    """Return the number columns (or `names`) of all rows, NaN where blank."""
    first = next(iter(rows.values()))
    names = names or [name for name, cell in first.items() if name != "id" and _is_number(cell)]
    return np.array([[float(row[name] or "nan") for name in names] for row in rows.values()])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
