"""Score a variant of a configuration on rows that the configuration's split does not test, and print a JSON row.

    python benchmarks/variants.py configs/bace_tuned.toml bace.h5 --splits 10 --models 5 [--set train.epochs=100]...

The rows that the configuration's split tests lose their labels. Random splits of the others train, validate and test
the models of each split. ``one`` is the mean test score of single models, ``many`` that of the mean output of a split's
models; ``valid`` is the mean validation score. So variants can be compared before any row that counts is tested.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shared import config_of, emit, options_of_training

from gcnbatch import environment, metrics
from gcnbatch.config import Config
from gcnbatch.data.splits import make_split
from gcnbatch.data.store import Dataset
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.training import warm_start
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fits import Fits
from gcnbatch.training.plan import Planned, seeded
from gcnbatch.training.reports import Report, ReportWriter, evaluate

FIRST_SEED = 1000  # of the splits


class _Outputs(ReportWriter):
    """Keeps labels and outputs of each model in place of its report."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, Any]] = {}

    def write(self, report: Report) -> dict[str, Any]:
        self.found[report.folder.name] = {
            part: (report.labels[part], report.outputs[part]) for part in ("valid", "test")
        }
        return {}


def planned(experiment: Experiment, count: int, models: int) -> Iterator[Planned]:
    """Yield the models of `count` random splits of the rows that the configuration's split does not test."""
    config, rows = experiment.config, experiment.split_rows
    y = rows.y.copy()
    y[make_split(config.split, config.seed, rows).test] = -1 if y.dtype.kind == "i" else np.nan
    random = config.split.model_copy(update={"kind": "random", "name": "", "seed": FIRST_SEED})
    for number in range(count):
        for model in range(models):
            own = seeded(config.model_copy(update={"split": random}), number, model)
            split = make_split(own.split, own.seed, replace(rows, y=y))
            yield Planned(f"repeat{number + 1}-model{model + 1}", "", experiment.like(own), split, number)


def score(config: Config, count: int, models: int) -> dict[str, Any]:
    """Train all models and return the scores."""
    with Dataset(Path(config.data.path)) as dataset, tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(config, dataset, warm_start.weights(config, dataset.header))
        members = list(planned(experiment, count, models))
        backend = BackendChoice(config.backend, config.device, config.cuda).backend_for(
            [one.experiment.task(one.split)[0] for one in members]
        )
        writer = _Outputs()
        Fits(Path(folder), backend, config.jobs, True, lambda line: None, writer).fit(members)
        header = dataset.header
    name = metrics.default_monitor(header.target, len(header.task_names))

    def mean_score(part: str, together: int) -> float:
        """Return the mean score of a part by the mean output of so many models."""
        all_of = [writer.found[one.name][part] for one in members]
        blocks = [all_of[start : start + together] for start in range(0, len(all_of), together)]
        means = [(block[0][0], np.mean([outputs for _, outputs in block], axis=0)) for block in blocks]
        return float(np.mean([evaluate(header, y, outputs)[name] for y, outputs in means]))

    return {
        "figure": name,
        "valid": mean_score("valid", 1),
        "one": mean_score("test", 1),
        "many": mean_score("test", models),
        "backend": backend.name,
    }


def main() -> None:
    """Print the row."""
    parser = options_of_training(__doc__)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--models", type=int, default=5)
    given = parser.parse_args()
    about = {"config": Path(given.config).name, "data": Path(given.data).name, "set": given.assignments}
    sizes = {"splits": given.splits, "models": given.models}
    emit({**about, **sizes, **score(config_of(given), given.splits, given.models), "commit": environment.commit()}, 4)


if __name__ == "__main__":
    main()
