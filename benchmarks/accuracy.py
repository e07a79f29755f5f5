"""Train a configuration with several seeds and print mean and deviation of its test score as a JSON row.

    python benchmarks/accuracy.py configs/tox21.toml tox21.h5 --seeds 5 [--set split.kind=scaffold]...

The seed of a run decides its split (unless the file's own is used), first weights, shuffles and dropout. The score is
that of the best validation epoch: ROC-AUC (mean over tasks), accuracy or RMSE, depending on the target.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from shared import config_of, options_of_training

from gcnbatch import environment
from gcnbatch.metrics import main_metric
from gcnbatch.training import run


def main() -> None:
    """Train with every seed and print one JSON row."""
    parser = options_of_training(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    valid, test, seconds = [], [], []
    metrics: dict[str, Any] = {}
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as folder:
            _, metrics = run.start(config_of(given, seed=seed), Path(folder) / "run", quiet=True)
        figure = main_metric(metrics["test"])
        valid.append(metrics["valid"][figure])
        test.append(metrics["test"][figure])
        seconds.append(metrics["seconds"])
        print(f"seed {seed}: {figure} {test[-1]:.4f}", file=sys.stderr, flush=True)
    row = {
        "config": Path(given.config).name,
        "set": given.assignments,
        "split": {key: value for key, value in metrics["split"].items() if key != "seed"},
        "figure": figure,
        "seeds": given.seeds,
        "test": [round(value, 4) for value in test],
        "test_mean": round(float(np.mean(test)), 4),
        "test_std": round(float(np.std(test, ddof=1)), 4),
        "valid_mean": round(float(np.mean(valid)), 4),
        "seconds_median": round(float(np.median(seconds)), 2),
        "commit": environment.commit(),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
