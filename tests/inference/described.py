"""Molecules with descriptors, counts of fragments and a column of measured values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcnbatch.data.featurizer_options import MORGAN, RDKIT2D, FeaturizerOptions
from gcnbatch.data.importers.smiles import import_smiles

OPTIONS = FeaturizerOptions(
    atom_features="extended86",
    walk=4,
    bond_properties=("ring", "stereo"),
    descriptors=RDKIT2D,
    fingerprints=(MORGAN,),
    radius=1,
    size=32,
)


def with_assay(table: Path) -> Path:
    """Add a column of measured values, some missing."""
    lines = table.read_text().splitlines()
    cells = ["assay", *("" if row % 5 == 0 else f"{row / 7:.3f}" for row in range(len(lines) - 1))]
    table.write_text("".join(f"{line},{cell}\n" for line, cell in zip(lines, cells, strict=True)))
    return table


def converted(
    table: Path, out: Path, options: FeaturizerOptions = OPTIONS, features: tuple[str, ...] = ("assay",)
) -> Path:
    columns: Any = {"smiles_column": "structure", "target_columns": ["even", "third"], "feature_columns": features}
    import_smiles(table, out, options, processes=1, **columns)
    return out
