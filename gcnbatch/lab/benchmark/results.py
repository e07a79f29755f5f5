"""Results of a benchmark: test scores of each run, beside the published figures, as a table, a plot and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from gcnbatch import environment, fileio, metrics, philox, resampling, tables
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.figures import BLUE, GREY, panels, plain, save
from gcnbatch.lab.benchmark.suite import GIVEN, Published, Suite, is_better
from gcnbatch.pages.document import REPORT, document
from gcnbatch.pages.elements import MISSING, Pictures, facts, paragraph, section, table
from gcnbatch.pages.origin import software, started
from gcnbatch.resampling import Interval
from gcnbatch.training.finished import FinishedFit, read_fits
from gcnbatch.training.reports import evaluate
from gcnbatch.training.run import ENVIRONMENT
from gcnbatch.training.summary import Pooled, pooled

JSON, CSV, PLOT = "results.json", "results.csv", "results.png"
HEADER = (
    *("set", "split", "model", "metric", "test score", "deviation", "n", "low", "high"),
    *("validation", "weight", "rank", "seconds", "source"),
)
WORDS = ("set", "split", "model", "metric", "source")
AGAINST = ("model", "beside", "source", "sets", "better", "ours", "theirs", "difference", "low", "high")


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
    resampled: metrics.Float64 = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

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


def read(place: Place, name: str, split: str, model: str, ensemble: bool) -> Result:
    """Return the result of a finished run.

    Parameters
    ----------
    ensemble : bool
        Whether the score of a split is that of the mean output of its models.
    """
    blocks = _blocks(place)
    fits = [fit for block in blocks.values() for fit in block]
    with Dataset(place.data, check=False) as dataset:
        header, y = dataset.header, dataset.measured
    metric = metrics.default_monitor(header.target, len(header.task_names))
    if ensemble:
        pools = [_pool(header, block) for block in blocks.values()]
        test = [evaluate(header, pool.labels(y), pool.mean)[metric] for pool in pools]
    else:
        test = [fit.metrics.get("test", {}).get(metric) for fit in fits]
    valid = [fit.metrics.get("valid", {}).get(metric) for fit in fits]
    seconds = sum(float(fit.metrics["seconds"]) for fit in fits)
    return Result(name, split, model, metric, _known(test), _mean(valid), round(seconds, 1))


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
    return Result(name, split, model, metric, _known(test), None, None)


def read_given(runs: Sequence[Place], name: str, model: str, metric: str) -> list[Result]:
    """Return the results of a model that is one finished run for each seed, and of the members of its mixture."""
    fits = [fit for place in runs for fit in read_fits(place.folder)]
    resampled = []
    for place, fit in zip(runs, fits, strict=True):
        with Dataset(place.data, check=False) as dataset:
            header, y = dataset.header, dataset.measured[fit.split.test]
        outputs = fit.outputs(header)
        found = resampling.figures(header.target, y, outputs, resampling.RESAMPLES, (metric,))[metric]
        resampled.append(metrics.mean_over_tasks(header.target, y, outputs, found))

    def result(test: list[float | None], valid: list[float | None], seconds: float | None, **more: Any) -> Result:
        return Result(name, GIVEN, model, metric, _known(test), _mean(valid), seconds, **more)

    scores = {part: [fit.metrics.get(part, {}).get(metric) for fit in fits] for part in ("test", "valid")}
    seconds = round(sum(float(fit.metrics["seconds"]) for fit in fits), 1)
    results = [result(scores["test"], scores["valid"], seconds, resampled=np.mean(resampled, axis=0))]
    for rows in zip(*(fit.metrics.get("members", []) for fit in fits), strict=True):
        test, valid, weights = ([row[key] for row in rows] for key in ("test", "out_of_fold", "weight"))
        results.append(result(test, valid, None, member=rows[0]["name"], weight=fmean(weights)))
    return results


def means(suite: Suite, found: Sequence[Result]) -> list[Result]:
    """Return the mean over sets of each model and member that has several; of different metrics, the mean rank."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for one in found:
        groups.setdefault((one.split, one.model, one.member), []).append(one)
    return [_over_sets(suite, own) for own in groups.values() if len(own) > 1]


def _over_sets(suite: Suite, found: Sequence[Result]) -> Result:
    first, metric = found[0], _common_metric(suite)
    if metric is None:
        scores = [float(rank[0]) for one in found if (rank := place_of(suite, one))]
        valid, resampled = None, []
    else:
        scores, valid = _known([one.mean for one in found]), _mean([one.valid for one in found])
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
        _mean([one.weight for one in found]),
        len(found),
        np.mean(resampled, axis=0) if len(resampled) == len(found) else np.empty(0),
    )


def _common_metric(suite: Suite) -> str | None:
    """Return the metric of all sets of the suite; None if they have different ones."""
    named = {one.metric for one in suite.sets.values()}
    return named.pop() if len(named) == 1 else None


def place_of(suite: Suite, one: Result) -> tuple[int, int] | None:
    """Return rank and number of scores of a result among the published ones of its set; None without any."""
    scores = [published.score for published in suite.scores(one.set, one.split)] if one.split == GIVEN else []
    if one.mean is None or not scores:
        return None
    return 1 + sum(is_better(one.metric, score, one.mean) for score in scores), 1 + len(scores)


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
    better = sum(is_better(one.metric, float(mean), score) for (one, score), mean in zip(pairs, ours, strict=True))
    if _common_metric(suite) is None:
        return Against(model, beside, source, len(pairs), better, None, None, None, None, None)
    drawn = philox.generator(0, "benchmark.sets").integers(len(pairs), size=(resampling.RESAMPLES, len(pairs)))
    low, high = resampling.interval((ours - theirs)[drawn].mean(axis=1)) or (None, None)
    difference = float((ours - theirs).mean())
    return Against(
        model, beside, source, len(pairs), better, float(ours.mean()), float(theirs.mean()), difference, low, high
    )


def _known(scores: Sequence[Any]) -> list[float]:
    return [float(score) for score in scores if score is not None]


def _mean(scores: Sequence[Any]) -> float | None:
    return fmean(known) if (known := _known(scores)) else None


def _blocks(place: Place) -> dict[tuple[int, int], list[FinishedFit]]:
    """Return the fits of a run by their split."""
    blocks: dict[tuple[int, int], list[FinishedFit]] = {}
    for fit in read_fits(place.folder):
        blocks.setdefault(fit.block, []).append(fit)
    return {block: fits[: place.first or None] for block, fits in blocks.items()}


def _pool(header: Header, block: Sequence[FinishedFit]) -> Pooled:
    """Return the mean output of the models of a split."""
    return pooled([fit.split.test for fit in block], [fit.outputs(header) for fit in block])


def write(folder: Path, suite: Suite, found: Sequence[Result]) -> None:
    """Write results.json, results.csv, results.png, env.json and the page."""
    fileio.write_json(folder / JSON, [_entry(suite, one, found) for one in found])
    header, lines = table_of(suite, found, str)
    tables.write(folder / CSV, {name: [line[column] for line in lines] for column, name in enumerate(header)})
    if found:
        _draw(folder / PLOT, suite, found)
    about = {**environment.host(), "command": environment.command()}
    fileio.write_json(folder / ENVIRONMENT, about)
    fileio.write_text(folder / REPORT, _page(folder, suite, found, about))


def _entry(suite: Suite, one: Result, found: Sequence[Result]) -> dict[str, Any]:
    """Return a result for results.json."""
    entry = {key: value for key, value in asdict(one).items() if key != "resampled"}
    entry |= {"mean": one.mean, "std": one.deviation, "interval": one.interval}
    if one.set:
        rank = place_of(suite, one)
        return entry | {"rank": rank[0] if rank else None}
    beside = [line._asdict() for line in against(suite, found) if line.model == one.model and not one.member]
    return entry | {"against": beside}


def table_of(
    suite: Suite, found: Sequence[Result], name_of: Callable[[str], str] = metrics.label
) -> tuple[list[str], list[list[Any]]]:
    """Return header and rows of the table, without columns that no row has.

    For each set and split that was run, our models come first and then the published figures; means over sets are last.
    `name_of` gives the name of a metric: that for readers, or its key.
    """
    lines: list[dict[str, Any]] = []
    for name, split in _places(suite, found):
        own = [one for one in found if (one.set, one.split) == (name, split)]
        lines += [_line(suite, one, name_of) for one in own]
        published = suite.scores(name, split) if name else suite.mean_scores(split)
        start = {"set": _title(suite, own[0]) if name else f"mean of {len(suite.sets)} sets", "split": split}
        start["metric"] = name_of(own[0].metric)
        lines += [start | {"model": of.model, "test score": of.score, "source": of.source} for of in published]
    header = [name for name in HEADER if any(line.get(name) is not None for line in lines)]
    return header, [[line.get(name) for name in header] for line in lines]


def _line(suite: Suite, one: Result, name_of: Callable[[str], str]) -> dict[str, Any]:
    rank, (low, high) = place_of(suite, one), one.interval or (None, None)
    return {
        "set": _title(suite, one),
        "split": one.split,
        "model": _model(suite, one),
        "metric": name_of(one.metric),
        "test score": one.mean,
        "deviation": one.deviation,
        "n": len(one.test) if one.set else None,
        "low": low,
        "high": high,
        "validation": one.valid,
        "weight": one.weight,
        "rank": f"{rank[0]} of {rank[1]}" if rank else None,
        "seconds": one.seconds,
        "source": "this run",
    }


def _title(suite: Suite, one: Result) -> str:
    return suite.sets[one.set].title if one.set else f"mean of {one.sets} sets"


def _model(suite: Suite, one: Result) -> str:
    title = suite.models[one.model].title if one.model in suite.models else one.model
    return f"{title}: {one.member}" if one.member else title


def _places(suite: Suite, found: Sequence[Result]) -> list[tuple[str, str]]:
    there = {(one.set, one.split) for one in found}
    return [(name, split) for name in (*suite.sets, "") for split in suite.splits if (name, split) in there]


def _draw(path: Path, suite: Suite, found: Sequence[Result]) -> None:
    """Draw a panel per set and split: our scores with mean and interval, and the published figures as open points."""
    places = [place for place in _places(suite, found) if place[0]]
    most = max(sum((one.set, one.split) == place for one in found) + len(suite.scores(*place)) for place in places)
    columns = min(len(places), 2)
    figure, axes = panels(-(-len(places) // columns), columns, width=5.5, height=0.24 * most + 1.0)
    for axis in axes[len(places) :]:
        axis.set_visible(False)
    for axis, (name, split) in zip(axes, places, strict=False):
        own = [one for one in found if (one.set, one.split) == (name, split)]
        labels = [_model(suite, one) for one in own]
        for row, one in enumerate(own):
            axis.plot(one.test, [row] * len(one.test), "o", color=BLUE, markersize=4, alpha=0.4)
            if one.mean is not None:
                axis.plot(one.mean, row, "D", color=BLUE, markersize=7)
            if one.interval:
                axis.plot(one.interval, [row, row], "-", color=BLUE)
        for published in suite.scores(name, split):
            axis.plot(published.score, len(labels), "o", color=GREY, markerfacecolor="none", markersize=7)
            labels.append(f"{published.model} ({published.source})")
        axis.set_yticks(range(len(labels)), [plain(label, 40) for label in labels], fontsize=8)
        axis.set(ylim=(len(labels) - 0.5, -0.5), xlabel=f"test {metrics.label(own[0].metric)}")
        better = "higher" if metrics.higher_is_better(own[0].metric) else "lower"
        axis.set_title(f"{suite.sets[name].title}, {split} split ({better} is better)", loc="left", fontsize=9)
    save(figure, path)


def _page(folder: Path, suite: Suite, found: Sequence[Result], about: dict[str, Any]) -> str:
    header, lines = table_of(suite, found)
    beside = against(suite, found)
    body = [
        paragraph(suite.about.strip(), "lead"),
        section(
            "Scores",
            Pictures(4_000_000).show(folder / PLOT, "Scores of all sets"),
            table(header, _cells(lines), [column for column, name in enumerate(header) if name in WORDS]),
        ),
        *([section("Beside published models", table(AGAINST, _cells(beside), (0, 1, 2)))] if beside else []),
        section("Sources", facts((name, f"{one.title}. {one.url}") for name, one in suite.sources.items())),
        section("Environment", facts(software(about))),
        *([section("Repeat it", *repeat)] if (repeat := started(about, "benchmark")) else []),
    ]
    return document(suite.title, body)


def _cells(lines: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [[_text(cell) for cell in line] for line in lines]


def _text(cell: Any) -> str:
    if cell is None:
        return MISSING
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
