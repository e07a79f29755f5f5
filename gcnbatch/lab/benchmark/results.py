"""Results of a benchmark: test scores of each run, beside the published figures, as a table, a plot and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from gcnbatch import environment, fileio, metrics, tables
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.figures import BLUE, GREY, panels, plain, save
from gcnbatch.lab.benchmark.suite import SPLITS, Suite
from gcnbatch.pages.document import REPORT, document
from gcnbatch.pages.elements import MISSING, Cell, Pictures, facts, paragraph, section, table
from gcnbatch.pages.origin import software, started
from gcnbatch.training.finished import FinishedFit, read_fits
from gcnbatch.training.reports import evaluate
from gcnbatch.training.run import ENVIRONMENT
from gcnbatch.training.summary import Pooled, pooled

JSON, CSV, PLOT = "results.json", "results.csv", "results.png"
HEADER = ("set", "split", "model", "metric", "test score", "deviation", "n", "validation", "source")


@dataclass(frozen=True)
class Result:
    """Scores of a model on a set and a split.

    Parameters
    ----------
    set, split, model : str
    metric : str
    test : list of float
        Per split seed, or per model on the scaffold split; of an ensemble, of the mean of its outputs.
    valid : float or None
        Mean score of the validation rows.
    seconds : float
    """

    set: str
    split: str
    model: str
    metric: str
    test: list[float]
    valid: float | None
    seconds: float

    @property
    def mean(self) -> float | None:
        """Mean test score; None if no score is defined."""
        return fmean(self.test) if self.test else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation; None of a single score."""
        return stdev(self.test) if len(self.test) > 1 else None


def read(folder: Path, data: Path, name: str, split: str, model: str, ensemble: bool, first: int = 0) -> Result:
    """Return the result of a finished run on this data set.

    Parameters
    ----------
    ensemble : bool
        Whether the score of a split is that of the mean output of its models.
    first : int
        Read only so many models of each split; 0: all.
    """
    blocks = _blocks(folder, first)
    fits = [fit for block in blocks.values() for fit in block]
    with Dataset(data, check=False) as dataset:
        header, y = dataset.header, dataset.measured
    metric = metrics.default_monitor(header.target, len(header.task_names))
    if ensemble:
        pools = [_pool(header, block) for block in blocks.values()]
        test = [evaluate(header, pool.labels(y), pool.mean)[metric] for pool in pools]
    else:
        test = [fit.metrics.get("test", {}).get(metric) for fit in fits]
    valid = [fit.metrics.get("valid", {}).get(metric) for fit in fits]
    known = [value for value in valid if value is not None]
    seconds = sum(float(fit.metrics["seconds"]) for fit in fits)
    scores = [float(value) for value in test if value is not None]
    return Result(name, split, model, metric, scores, fmean(known) if known else None, round(seconds, 1))


def read_mean(runs: Sequence[tuple[Path, Path]], name: str, split: str, model: str) -> Result:
    """Return the result of the mean output of several finished runs on the same splits.

    The mean output of each run has the same weight. There is no score where the runs tested different molecules.

    Parameters
    ----------
    runs : sequence of (Path, Path)
        Folder and data set of each.
    """
    pools, tested = [], []
    for folder, data in runs:
        with Dataset(data, check=False) as dataset:
            header, y, ids = dataset.header, dataset.measured, dataset.ids
        pools.append([_pool(header, block) for block in _blocks(folder).values()])
        tested.append([ids[pool.rows].tolist() for pool in pools[-1]])
    metric, test = metrics.default_monitor(header.target, len(header.task_names)), []
    if all(own == tested[0] for own in tested):
        for block in zip(*pools, strict=True):
            mean = np.stack([pool.mean for pool in block]).mean(axis=0)
            test.append(evaluate(header, block[-1].labels(y), mean)[metric])
    return Result(name, split, model, metric, [float(value) for value in test if value is not None], None, 0.0)


def _blocks(folder: Path, first: int = 0) -> dict[tuple[int, int], list[FinishedFit]]:
    """Return the fits of a run by their split; of each split, only so many (0: all)."""
    blocks: dict[tuple[int, int], list[FinishedFit]] = {}
    for fit in read_fits(folder):
        blocks.setdefault(fit.block, []).append(fit)
    return {block: fits[: first or None] for block, fits in blocks.items()}


def _pool(header: Header, block: Sequence[FinishedFit]) -> Pooled:
    """Return the mean output of the models of a split."""
    return pooled([fit.split.test for fit in block], [fit.outputs(header) for fit in block])


def write(folder: Path, suite: Suite, found: Sequence[Result]) -> None:
    """Write results.json, results.csv, results.png, env.json and the page."""
    fileio.write_json(folder / JSON, [asdict(one) | {"mean": one.mean, "std": one.deviation} for one in found])
    lines = rows(suite, found, str)
    tables.write(folder / CSV, {name: [line[column] for line in lines] for column, name in enumerate(HEADER)})
    if found:
        _draw(folder / PLOT, suite, found)
    about = {**environment.host(), "command": environment.command()}
    fileio.write_json(folder / ENVIRONMENT, about)
    fileio.write_text(folder / REPORT, _page(folder, suite, rows(suite, found), about))


def rows(suite: Suite, found: Sequence[Result], name_of: Callable[[str], str] = metrics.label) -> list[list[Any]]:
    """Return the table: for each set and split that was run, our models and then the published figures.

    `name_of` gives the name of a metric: that for readers, or its key.
    """
    lines: list[list[Any]] = []
    for name, split in _places(suite, found):
        own = [one for one in found if (one.set, one.split) == (name, split)]
        start = [suite.sets[name].title, split]
        for one in own:
            title = suite.models[one.model].title
            lines.append(
                [*start, title, name_of(one.metric), one.mean, one.deviation, len(one.test), one.valid, "this run"]
            )
        for source, model, value in _published(suite, name, split):
            lines.append([*start, model, name_of(own[0].metric), value, None, None, None, source])
    return lines


def _places(suite: Suite, found: Sequence[Result]) -> list[tuple[str, str]]:
    there = {(one.set, one.split) for one in found}
    return [(name, split) for name in suite.sets for split in SPLITS if (name, split) in there]


def _published(suite: Suite, name: str, split: str) -> list[tuple[str, str, float]]:
    """Return source, model and score of each published figure of a set and split."""
    return [
        (source, model, value)
        for source, splits in suite.published.items()
        for model, value in splits.get(split, {}).get(name, {}).items()
    ]


def _draw(path: Path, suite: Suite, found: Sequence[Result]) -> None:
    """Draw a panel per set and split: our scores with their mean, and the published figures as open points."""
    places = _places(suite, found)
    most = max(sum((one.set, one.split) == place for one in found) + len(_published(suite, *place)) for place in places)
    columns = min(len(places), 2)
    figure, axes = panels(-(-len(places) // columns), columns, width=5.5, height=0.24 * most + 1.0)
    for axis in axes[len(places) :]:
        axis.set_visible(False)
    for axis, (name, split) in zip(axes, places, strict=False):
        own = [one for one in found if (one.set, one.split) == (name, split)]
        labels = [suite.models[one.model].title for one in own]
        for row, one in enumerate(own):
            axis.plot(one.test, [row] * len(one.test), "o", color=BLUE, markersize=4, alpha=0.4)
            if one.mean is not None:
                axis.plot(one.mean, row, "D", color=BLUE, markersize=7)
        for source, model, value in _published(suite, name, split):
            axis.plot(value, len(labels), "o", color=GREY, markerfacecolor="none", markersize=7)
            labels.append(f"{model} ({source})")
        axis.set_yticks(range(len(labels)), [plain(label, 40) for label in labels], fontsize=8)
        axis.set(ylim=(len(labels) - 0.5, -0.5), xlabel=f"test {metrics.label(own[0].metric)}")
        better = "higher" if metrics.higher_is_better(own[0].metric) else "lower"
        axis.set_title(f"{suite.sets[name].title}, {split} split ({better} is better)", loc="left", fontsize=9)
    save(figure, path)


def _page(folder: Path, suite: Suite, lines: list[list[Any]], about: dict[str, Any]) -> str:
    cells: list[list[Cell]] = [[_text(cell) for cell in line] for line in lines]
    how = (
        "Random: 80/10/10 with a seed per score. Scaffold: one split of whole Murcko scaffolds, a model per score. "
        "Diamonds and scores are means, n is the number of scores; an ensemble's score is that of its mean output. "
        "Published figures have other random splits, and scaffold splits of other rules: compare within a split only."
    )
    body = [
        paragraph(how, "lead"),
        section(
            "Scores",
            Pictures(4_000_000).show(folder / PLOT, "Scores of all sets"),
            table(HEADER, cells, (0, 1, 2, 3, 8)),
        ),
        section("Sources", facts((name, f"{one.title}. {one.url}") for name, one in suite.sources.items())),
        section("Environment", facts(software(about))),
        *([section("Repeat it", *repeat)] if (repeat := started(about, "benchmark")) else []),
    ]
    return document("MoleculeNet", body)


def _text(cell: Any) -> str:
    if cell is None:
        return MISSING
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
