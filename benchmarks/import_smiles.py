"""Measure the molecules per second of ``gcnbatch data import smiles``, with scaffolds and writing.

usage: python benchmarks/import_smiles.py CSV [PROCESSES] [RUNS]

Prints one JSON row: median and best of the runs, versions and CPU. Each run reads the input from disk.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import rdkit

import gcnbatch
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.importers.molecule_tables import read_molecules
from gcnbatch.data.importers.smiles import import_smiles


def measure(source: Path, processes: int, runs: int) -> dict[str, object]:
    """Import `source` `runs` times into a temporary folder and return the record of the measurement."""
    table = read_molecules(source)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs):
            start = time.perf_counter()
            import_smiles(
                source,
                Path(folder) / "out.h5",
                FeaturizerOptions(),
                skip_bad_rows=True,
                processes=processes,
            )
            seconds.append(time.perf_counter() - start)
    return {
        "file": source.name,
        "molecules": len(table.smiles),
        "processes": processes,
        "runs": runs,
        "molecules_per_second": round(len(table.smiles) / statistics.median(seconds)),
        "molecules_per_second_best": round(len(table.smiles) / min(seconds)),
        "gcnbatch": gcnbatch.__version__,
        "rdkit": rdkit.__version__,
        "python": platform.python_version(),
        "cpu": platform.processor() or platform.machine(),
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(__doc__)
    count = int(arguments[1]) if len(arguments) > 1 else len(os.sched_getaffinity(0))
    print(json.dumps(measure(Path(arguments[0]), count, int(arguments[2]) if len(arguments) > 2 else 3)))
