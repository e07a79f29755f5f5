"""Results of a benchmark beside the published figures: results.json, results.csv, a plot and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gcnbatch import fileio, metrics, tables
from gcnbatch.figures import BLUE, GREY, panels, plain, save
from gcnbatch.lab.benchmark.comparison import Against, against, rank_of
from gcnbatch.lab.benchmark.results import Result
from gcnbatch.lab.benchmark.suite import Suite
from gcnbatch.pages.document import REPORT, document
from gcnbatch.pages.elements import MISSING, Pictures, facts, paragraph, section, table
from gcnbatch.pages.origin import software, started
from gcnbatch.training import run_files

JSON, CSV, PLOT = "results.json", "results.csv", "results.png"
HEADER = (
    *("set", "split", "model", "metric", "test score", "deviation", "n", "low", "high"),
    *("validation", "weight", "rank", "seconds", "source"),
)
WORDS = ("set", "split", "model", "metric", "source")


def write(folder: Path, suite: Suite, found: Sequence[Result]) -> None:
    """Write results.json, results.csv, results.png, env.json and the page."""
    fileio.write_json(folder / JSON, [_entry(suite, one, found) for one in found])
    header, lines = table_of(suite, found, str)
    tables.write(folder / CSV, {name: [line[column] for line in lines] for column, name in enumerate(header)})
    if found:
        _draw(folder / PLOT, suite, found)
    about = run_files.write_environment(folder)
    fileio.write_text(folder / REPORT, _page(folder, suite, found, about))


def _entry(suite: Suite, one: Result, found: Sequence[Result]) -> dict[str, Any]:
    """Return a result for results.json."""
    entry = {key: value for key, value in asdict(one).items() if key != "resampled"}
    entry |= {"mean": one.mean, "std": one.deviation, "interval": one.interval}
    if one.set:
        rank = rank_of(suite, one)
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
        start = {"set": _title(suite, own[0]) if name else f"mean of {len(suite.sets)} sets", "split": split}
        start["metric"] = name_of(own[0].metric)
        for of in suite.scores(name, split):
            lines.append(start | {"model": of.model, "test score": of.score, "source": of.source})
    header = [name for name in HEADER if any(line.get(name) is not None for line in lines)]
    return header, [[line.get(name) for name in header] for line in lines]


def _line(suite: Suite, one: Result, name_of: Callable[[str], str]) -> dict[str, Any]:
    rank, (low, high) = rank_of(suite, one), one.interval or (None, None)
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
        *([section("Beside published models", table(Against._fields, _cells(beside), (0, 1, 2)))] if beside else []),
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
