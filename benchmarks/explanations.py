"""Measure explanations: integrated gradients of a run on molecules of a data set, all tasks.

usage: python benchmarks/explanations.py RUN DATA.h5 [--molecules N] [--backend B] [--steps S] [--batch-nodes N …]

Prints a JSON row per number of nodes in a batch: medians of wall and processor time over the runs, after one that warms
up (kernels, caches), the steps that molecules took, and the largest completeness error. The time is that of
`Explainer.explain` for graphs in memory; ``time gcnbatch explain RUN DATA.csv -o DIR`` adds reading, tables, drawings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from gcnbatch.data.store import Dataset
from gcnbatch.explanation.integrated import Explainer
from gcnbatch.inference.models import load_models
from gcnbatch.runners.choice import BackendChoice


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(usage=(__doc__ or "").partition("usage: ")[2].partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--molecules", type=int, default=1000)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch-nodes", type=int, nargs="+", default=[0])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    members = load_models([options.run], print)
    with Dataset(options.data, check=False) as dataset:
        graphs = dataset.read(np.arange(min(options.molecules, dataset.n_graphs)))
    choice = BackendChoice(options.backend, say=print)
    for batch_nodes in options.batch_nodes:
        explainer = Explainer(members, choice, steps=options.steps, batch_nodes=batch_nodes)
        found = explainer.explain(graphs)
        times = []
        for _ in range(options.runs):
            begin = time.perf_counter(), time.process_time()
            found = explainer.explain(graphs)
            times.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        steps, counts = np.unique(found.steps, return_counts=True)
        row = {
            "backend": explainer.backend,
            "molecules": graphs.n_graphs,
            "outputs": len(explainer.names),
            "batch_nodes": batch_nodes or "chosen",
            "seconds": round(wall, 3),
            "cpu_seconds": round(cpu, 3),
            "steps": dict(zip(steps.tolist(), counts.tolist(), strict=True)),
            "largest_error": round(float(np.abs(found.errors).max()), 4),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
