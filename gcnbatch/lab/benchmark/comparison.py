"""Results beside published scores: ranks, means over sets, and differences paired over sets."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from gcnbatch import metrics, philox, resampling
from gcnbatch.lab.benchmark.results import Result, known_scores, mean_score
from gcnbatch.lab.benchmark.suite import GIVEN, Published, Suite


class Against(NamedTuple):
    """A model beside a published one, paired over the sets that both have.

    Parameters
    ----------
    model, beside, source : str
    sets, better : int
        Sets, and those where our score is better.
    ours, theirs, difference : float or None
        Mean scores; None where sets have different metrics.
    low, high : float or None
        95 % interval of the mean difference: other sets from the same source.
    """

    model: str
    beside: str
    source: str
    sets: int
    better: int
    ours: float | None
    theirs: float | None
    difference: float | None
    low: float | None
    high: float | None


def means(suite: Suite, found: Sequence[Result]) -> list[Result]:
    """Return the mean over sets of each model and member that has several; of different metrics, the mean rank."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for one in found:
        groups.setdefault((one.split, one.model, one.member), []).append(one)
    return [_over_sets(suite, own) for own in groups.values() if len(own) > 1]


def _over_sets(suite: Suite, found: Sequence[Result]) -> Result:
    first, metric = found[0], _common_metric(suite)
    if metric is None:
        scores = [float(rank[0]) for one in found if (rank := rank_of(suite, one))]
        valid, resampled = None, []
    else:
        scores, valid = known_scores([one.mean for one in found]), mean_score([one.valid for one in found])
        resampled = [one.resampled for one in found if len(one.resampled)]
    return Result(
        "",
        first.split,
        first.model,
        metric or "rank",
        [fmean(scores)] if scores else [],
        valid,
        None if first.member else round(sum(one.seconds or 0.0 for one in found), 1),
        first.member,
        mean_score([one.weight for one in found]),
        len(found),
        np.mean(resampled, axis=0) if len(resampled) == len(found) else np.empty(0),
    )


def _common_metric(suite: Suite) -> str | None:
    """Return the metric of all sets of the suite; None if they have different ones."""
    named = {one.metric for one in suite.sets.values()}
    return named.pop() if len(named) == 1 else None


def rank_of(suite: Suite, one: Result) -> tuple[int, int] | None:
    """Return rank and number of scores of a result among the published ones of its set; None without any."""
    scores = [published.score for published in suite.scores(one.set, one.split)] if one.split == GIVEN else []
    if one.mean is None or not scores:
        return None
    return 1 + sum(_is_better(one.metric, score, one.mean) for score in scores), 1 + len(scores)


def against(suite: Suite, found: Sequence[Result]) -> list[Against]:
    """Return each model of a given split beside each published one that has scores of several of its sets."""
    lines = []
    for model in dict.fromkeys(one.model for one in found):
        own = {one.set: one for one in found if one.model == model and one.set and not one.member}
        theirs: dict[tuple[str, str], dict[str, Published]] = {}
        for name, one in own.items():
            for published in suite.scores(name, GIVEN) if one.mean is not None else ():
                theirs.setdefault((published.model, published.source), {})[name] = published
        lines += [
            _paired(suite, model, *key, [(own[name], of.score) for name, of in scores.items()])
            for key, scores in theirs.items()
            if len(scores) > 1
        ]
    return lines


def _paired(suite: Suite, model: str, beside: str, source: str, pairs: Sequence[tuple[Result, float]]) -> Against:
    ours, theirs = np.array([(one.mean, score) for one, score in pairs], float).T
    better = sum(_is_better(one.metric, float(mean), score) for (one, score), mean in zip(pairs, ours, strict=True))
    if _common_metric(suite) is None:
        return Against(model, beside, source, len(pairs), better, None, None, None, None, None)
    drawn = philox.generator(0, "benchmark.sets").integers(len(pairs), size=(resampling.RESAMPLES, len(pairs)))
    low, high = resampling.interval((ours - theirs)[drawn].mean(axis=1)) or (None, None)
    difference = float((ours - theirs).mean())
    return Against(
        model, beside, source, len(pairs), better, float(ours.mean()), float(theirs.mean()), difference, low, high
    )


def _is_better(metric: str, one: float, other: float) -> bool:
    return one > other if metrics.higher_is_better(metric) else one < other
