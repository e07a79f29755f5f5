"""The comparison: scores by block, differences of all pairs, and the files of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from gcnbatch import environment, fileio, folders, metrics, tables
from gcnbatch.errors import InputError, nearest
from gcnbatch.pages.document import REPORT
from gcnbatch.predictions import read_outputs
from gcnbatch.run_comparison import paired
from gcnbatch.run_comparison.paired import Difference
from gcnbatch.run_comparison.report import draw, render
from gcnbatch.run_comparison.runs import Block, ComparedRun, overlap, read_runs, scores_by_block
from gcnbatch.text import figure
from gcnbatch.training import run_files
from gcnbatch.training.finished import block_name
from gcnbatch.training.reports import PREDICTIONS
from gcnbatch.training.run import ENVIRONMENT
from gcnbatch.training.run_files import Number

CONTENT, PLOT = "comparison.json", "comparison.png"
FOLDS = "Differences within folds; joint intervals of all pairs by Tukey's HSD, corrected for rows that folds share"
ONE_SPLIT = (
    "One split: intervals by resampling its test rows; they do not cover another split or seed (see train --folds)"
)


class _Run(BaseModel):
    name: str
    model: str
    folder: str
    scores: list[Number]
    mean: Number
    std: Number | None


class _Pair(BaseModel):
    first: str
    second: str
    difference: Number
    interval: tuple[Number, Number]
    joint_interval: tuple[Number, Number]
    p: Number | None
    verdict: str


class _Content(BaseModel):
    """What comparison.json holds, which may be damaged."""

    metric: str
    level: Number
    method: str
    runs: list[_Run] = Field(min_length=2)
    blocks: list[str] = Field(min_length=1)
    pairs: list[_Pair]

    @model_validator(mode="after")
    def _has_every_score(self) -> _Content:
        if any(len(run.scores) != len(self.blocks) for run in self.runs):
            raise ValueError("a run has not one score per block")
        return self


@dataclass(frozen=True)
class Comparison:
    """Scores and differences of runs.

    Parameters
    ----------
    metric : str
    level : float
        Confidence level of all intervals.
    method : str
        How the intervals were computed.
    runs : list of ComparedRun
    blocks : list of n (repeat, fold)
    scores : float64, (n, M)
    pairs : list of Difference
    """

    metric: str
    level: float
    method: str
    runs: list[ComparedRun]
    blocks: list[Block]
    scores: NDArray[np.float64]
    pairs: list[Difference]

    def verdict(self, pair: Difference) -> str:
        """Return what a pair's joint interval shows, as a sentence."""
        one, other = self.runs[pair.first].name, self.runs[pair.second].name
        mean, low, high = (figure(value, signed=True) for value in (pair.mean, pair.joint_low, pair.joint_high))
        figures = f"{metrics.label(self.metric)} {mean}, {self.level:.0%} from {low} to {high}"
        if not pair.shown:
            return f"no difference shown between {one} and {other} ({figures})"
        if (pair.mean > 0) != metrics.higher_is_better(self.metric):
            one, other = other, one
        return f"{one} is better than {other} ({figures})"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as values for JSON."""
        many = len(self.blocks) > 1
        return {
            "metric": self.metric,
            "level": self.level,
            "method": self.method,
            "runs": [
                {
                    "name": run.name,
                    "model": run.model,
                    "folder": str(run.folder),
                    "scores": self.scores[:, number].tolist(),
                    "mean": float(self.scores[:, number].mean()),
                    "std": float(self.scores[:, number].std(ddof=1)) if many else None,
                }
                for number, run in enumerate(self.runs)
            ],
            "blocks": [block_name(*block) for block in self.blocks],
            "pairs": [
                {
                    "first": self.runs[pair.first].name,
                    "second": self.runs[pair.second].name,
                    "difference": pair.mean,
                    "interval": [pair.low, pair.high],
                    "joint_interval": [pair.joint_low, pair.joint_high],
                    "p": pair.p,
                    "verdict": self.verdict(pair),
                }
                for pair in self.pairs
            ],
        }


def compare(
    folders_of_runs: Sequence[Path],
    out: Path | None = None,
    metric: str = "",
    level: float = 0.95,
    parquet: bool = False,
) -> tuple[Path, Comparison]:
    """Compare finished runs and write ``comparison.json``, ``scores.csv``, a plot and a page; return the folder.

    Parameters
    ----------
    metric : str
        A metric of the test rows; empty: the one that picks the best epoch by default.
    level : float
        Confidence level, between 0 and 1.
    parquet : bool
        Also write ``scores.parquet``.

    Raises
    ------
    InputError
        When the runs cannot be compared, or a score is not defined.
    """
    if parquet:
        tables.check_parquet("--parquet")
    runs = read_runs(folders_of_runs)
    with folders.results(out, "compare-runs", whole=True) as (target, _):
        chosen = _metric(runs, metric)
        blocks = sorted({fit.block for fit in runs[0].fits})
        scores = np.array([_column(run, blocks, chosen) for run in runs]).T
        if len(blocks) > 1:
            pairs, method = paired.differences(scores, overlap(runs[0].fits), level), FOLDS
        else:
            pairs, method = _one_split(runs, chosen, level), ONE_SPLIT
        found = Comparison(chosen, level, method, runs, blocks, scores, pairs)
        fileio.write_json(target / CONTENT, found.as_dict())
        about = {**environment.host(), "command": environment.command()}
        fileio.write_json(target / ENVIRONMENT, about)
        tables.write(target / "scores.csv", _scores(found), parquet)
        draw(found.scores, [run.name for run in runs], pairs, chosen, level, target / PLOT)
        fileio.write_text(target / REPORT, render(found.as_dict(), target / PLOT, about))
    return target, found


def report(folder: Path) -> Path:
    """Write the page of a comparison again from its files; return its path.

    Raises
    ------
    InputError
        When a file is missing or damaged.
    """
    place = folder / CONTENT
    found = run_files.read_as(place, _Content, "a comparison")
    about = run_files.read_json(folder / ENVIRONMENT, "a JSON object") if (folder / ENVIRONMENT).exists() else {}
    content = render(found.model_dump(), folder / PLOT, about if isinstance(about, dict) else {})
    fileio.write_text(folder / REPORT, content)
    return folder / REPORT


def _metric(runs: Sequence[ComparedRun], name: str) -> str:
    tables = [fit.metrics.get("test", {}) for run in runs for fit in run.fits]
    known = [key for key, value in tables[0].items() if isinstance(value, float) and all(key in of for of in tables)]
    if name and name not in known:
        raise InputError(f"--metric {name}", "no such figure of the test rows", hint=nearest(name, known))
    if name:
        return name
    kinds = {"pr_auc": "roc_auc", "accuracy": "accuracy", "rmse": "rmse", "r2": "r2"}
    for key, chosen in kinds.items():
        if key in known and chosen in known:
            return chosen
    raise InputError(str(runs[0].folder), "no figure of the test rows that all runs have", "runs with test rows")


def _column(run: ComparedRun, blocks: Sequence[Block], metric: str) -> list[float]:
    values = scores_by_block(run.fits, metric)
    for block in blocks:
        if values[block] is None:
            place = run.folder / block_name(*block)
            raise InputError(str(place), f"no {metric} of the test rows", "a number", "Choose another --metric.")
    return [float(values[block] or 0.0) for block in blocks]


def _one_split(runs: Sequence[ComparedRun], metric: str, level: float) -> list[Difference]:
    with runs[0].data.open() as data:
        if metric not in metrics.METRICS[data.header.target]:
            raise InputError(f"--metric {metric}", "given for one split", "a metric of the target")
        rows = runs[0].fits[0].split.test
        outputs = [
            np.mean([read_outputs(fit.folder / PREDICTIONS, data.header, len(rows)) for fit in run.fits], axis=0)
            for run in runs
        ]
        return paired.resampled(metric, data.header.target, data.measured[rows], outputs, level)


def _scores(found: Comparison) -> tables.Columns:
    """Return the columns of scores.csv: a row for each run and block."""
    n, runs = len(found.blocks), found.runs
    return {
        "run": [run.name for run in runs for _ in range(n)],
        "repeat": [repeat or None for repeat, _ in found.blocks] * len(runs),
        "fold": [fold or None for _, fold in found.blocks] * len(runs),
        found.metric: found.scores.T.ravel().tolist(),
    }
