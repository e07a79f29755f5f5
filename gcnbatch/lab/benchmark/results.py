"""Results of finished runs: their test scores, those of members of a mixture, and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from gcnbatch import metrics, resampling
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.lab.benchmark.suite import GIVEN
from gcnbatch.ranking import Float64
from gcnbatch.resampling import Interval
from gcnbatch.training.finished import FinishedFit, read_fits
from gcnbatch.training.reports import evaluate
from gcnbatch.training.summary import Pooled, pooled


class Place(NamedTuple):
    """Where a finished run and its data set are, and how many models of each split count (0: all)."""

    folder: Path
    data: Path
    first: int = 0


@dataclass(frozen=True)
class Result:
    """Scores of a model on a set and a split.

    Parameters
    ----------
    set, split, model : str
        `set` is empty for means over sets.
    metric : str
        "rank" for the mean rank over sets of different metrics.
    test : list of float
        Per split seed, or per model on the scaffold split and a given one; of an ensemble, of the mean of its outputs.
    valid : float or None
        Mean score of the validation rows.
    seconds : float or None
        Of training and testing.
    member : str
        The member of the model's mixture whose scores these are; empty: the model's.
    weight : float or None
        Its weight, the mean over tasks and seeds.
    sets : int
        Sets that it is the mean of.
    resampled : float64 array
        Mean test score in each resample of the test rows; empty: not computed.
    """

    set: str
    split: str
    model: str
    metric: str
    test: list[float]
    valid: float | None
    seconds: float | None
    member: str = ""
    weight: float | None = None
    sets: int = 1
    resampled: Float64 = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    @property
    def mean(self) -> float | None:
        """Mean test score; None if no score is defined."""
        return fmean(self.test) if self.test else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation; None of a single score."""
        return stdev(self.test) if len(self.test) > 1 else None

    @property
    def interval(self) -> Interval:
        """95 % interval of the mean test score: other test rows from the same source."""
        return resampling.interval(self.resampled) if len(self.resampled) else None


def read(
    runs: Sequence[Place], name: str, split: str, model: str, ensemble: bool = False, metric: str = ""
) -> list[Result]:
    """Return the result of a model, and those of the members of its mixture.

    Parameters
    ----------
    runs : sequence of Place
        Its finished run, or, of a recipe, one for each seed. On a given split, all of them test the same rows, and the
        score has an interval.
    ensemble : bool
        Whether the score of a split is that of the mean output of its models.
    metric : str
        Empty: the usual one of the target.
    """
    blocks = [block for place in runs for block in _blocks(place).values()]
    fits, resampled = [fit for block in blocks for fit in block], []
    with Dataset(runs[0].data, check=False) as dataset:
        header, y = dataset.header, dataset.measured
    metric = metric or metrics.default_monitor(header.target, len(header.task_names))
    test, valid = ([fit.metrics.get(part, {}).get(metric) for fit in fits] for part in ("test", "valid"))
    if ensemble:
        pools = [_pool(header, block) for block in blocks]
        test = [evaluate(header, pool.labels(y), pool.mean)[metric] for pool in pools]
    for fit in fits if split == GIVEN else ():
        about = header.target, y[fit.split.test], fit.outputs(header)
        draws = resampling.figures(*about, resampling.RESAMPLES, (metric,))[metric]
        resampled.append(metrics.mean_over_tasks(*about, draws))

    def result(test: list[float | None], valid: list[float | None], seconds: float | None, **more: Any) -> Result:
        return Result(name, split, model, metric, known_scores(test), mean_score(valid), seconds, **more)

    seconds = round(sum(float(fit.metrics["seconds"]) for fit in fits), 1)
    results = [result(test, valid, seconds, resampled=np.mean(resampled, axis=0) if resampled else np.empty(0))]
    for rows in zip(*(fit.metrics.get("members", []) for fit in fits), strict=True):
        test, valid, weights = ([row[key] for row in rows] for key in ("test", "out_of_fold", "weight"))
        results.append(result(test, valid, None, member=rows[0]["name"], weight=fmean(weights)))
    return results


def read_mean(runs: Sequence[Place], name: str, split: str, model: str) -> Result:
    """Return the result of the mean output of several finished runs on the same splits.

    The mean output of each run has the same weight. There is no score where the runs tested different molecules.
    """
    pools, tested = [], []
    for place in runs:
        with Dataset(place.data, check=False) as dataset:
            header, y, ids = dataset.header, dataset.measured, dataset.ids
        pools.append([_pool(header, block) for block in _blocks(Place(place.folder, place.data)).values()])
        tested.append([ids[pool.rows].tolist() for pool in pools[-1]])
    metric, test = metrics.default_monitor(header.target, len(header.task_names)), []
    if all(own == tested[0] for own in tested):
        for block in zip(*pools, strict=True):
            mean = np.stack([pool.mean for pool in block]).mean(axis=0)
            test.append(evaluate(header, block[-1].labels(y), mean)[metric])
    return Result(name, split, model, metric, known_scores(test), None, None)


def known_scores(scores: Iterable[Any]) -> list[float]:
    """Return the scores that are defined."""
    return [float(score) for score in scores if score is not None]


def mean_score(scores: Iterable[Any]) -> float | None:
    """Return the mean of the scores that are defined; None if there is none."""
    return fmean(known) if (known := known_scores(scores)) else None


def _blocks(place: Place) -> dict[tuple[int, int], list[FinishedFit]]:
    """Return the fits of a run by their split."""
    blocks: dict[tuple[int, int], list[FinishedFit]] = {}
    for fit in read_fits(place.folder):
        blocks.setdefault(fit.block, []).append(fit)
    return {block: fits[: place.first or None] for block, fits in blocks.items()}


def _pool(header: Header, block: Sequence[FinishedFit]) -> Pooled:
    """Return the mean output of the models of a split."""
    return pooled([fit.split.test for fit in block], [fit.outputs(header) for fit in block])
