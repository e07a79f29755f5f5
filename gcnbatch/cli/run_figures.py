"""The figures of a run as text: of each part, or mean ± deviation over folds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gcnbatch.cli.text_tables import by_task, table
from gcnbatch.data.splits import title
from gcnbatch.metrics import common_unit, label
from gcnbatch.text import counted, figure, printable

_Figures = dict[str, dict[str, Any]]  # by part and name


def lines(metrics: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of each part, those of the test rows by task, and what else is known of them."""
    cross_fitted = "parts" in metrics
    shown = _cross_fitted if cross_fitted else _mean if metrics.get("folds") or metrics.get("members") else _single
    first, figures, test = shown(metrics, f"{printable(metrics['backend'])}, {title(metrics['split'])}")
    yield first
    yield from _defined(metrics)
    names = list(dict.fromkeys(name for of in figures.values() for name in of))
    header = ["", *(label(name, common_unit(test)) for name in names)]
    yield from table(header, [[part, *map(of.get, names)] for part, of in figures.items()])
    if cross_fitted and metrics.get("members"):
        yield from _members(metrics, "test" in figures)
    yield from by_task(test, "test, by task" if not cross_fitted or "test" in figures else "by task")
    yield from _uncertainty(metrics)
    if metrics.get("baseline"):
        yield printable(metrics["baseline"]["verdict"])


def _single(metrics: dict[str, Any], named: str) -> tuple[str, _Figures, dict[str, Any]]:
    """Return the first line, the figures of a model by part, and those of the test rows."""
    figures: _Figures = {part: _numbers(metrics[part]) for part in ("train", "valid", "test") if part in metrics}
    sizes = " / ".join(str(size) for size in metrics["split"]["sizes"])
    course = printable(metrics.get("model", "")) or f"best epoch {metrics['best_epoch']} of {metrics['epochs']}"
    return f"{named}: {sizes} rows; {course}", figures, metrics.get("out_of_fold", metrics.get("test", {}))


def _mean(metrics: dict[str, Any], named: str) -> tuple[str, _Figures, dict[str, Any]]:
    """As `_single`, of folds or the models of an ensemble."""
    mean, std = metrics["mean"], metrics["std"]
    figures = {
        part: {n: _spread(of[n], std[part][n]) for n in of} for part, of in mean.items() if part != "uncertainty"
    }
    count = f"{len(metrics.get('folds') or metrics['members'])} {_kind(metrics)}"
    test = metrics.get("out_of_fold", metrics.get("test", {}))
    return f"{count}, {named}: mean ± standard deviation", figures, test


def _cross_fitted(metrics: dict[str, Any], named: str) -> tuple[str, _Figures, dict[str, Any]]:
    """As `_single`, of networks that are each trained without a part of the rows."""
    trained, _, tested = metrics["split"]["sizes"]
    sizes = f"{trained:,} training and {counted(tested, 'test row')}" if tested else counted(trained, "training row")
    first = f"{counted(len(metrics['parts']), 'network')}, each trained without its part; {named}: {sizes}"
    parts = {"out of fold": metrics["valid"], "test": metrics.get("test")}
    return first, {part: _numbers(of) for part, of in parts.items() if of}, metrics.get("test") or metrics["valid"]


def _members(metrics: dict[str, Any], tested: bool) -> list[str]:
    """Return the table of the members of a mixture."""
    name = label(metrics["metric"], common_unit(metrics["valid"]))
    columns = {"weight": "weight", f"{name}, out of fold": "out_of_fold", f"{name}, test": "test"}
    keys = list(columns.values())[: 3 if tested else 2]
    rows = [[printable(of["name"]), *(of[key] for key in keys)] for of in metrics["members"]]
    return table(["member alone", *list(columns)[: len(keys)]], rows)


def _numbers(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if value is None or type(value) is float}


def _kind(metrics: dict[str, Any]) -> str:
    return "folds" if "folds" in metrics else "models"


def _spread(mean: float, deviation: float | None) -> str:
    return f"{figure(mean)} ± {'–' if deviation is None else figure(deviation)}"


def _defined(metrics: dict[str, Any]) -> Iterator[str]:
    """Yield a line per part on metrics that not all members have: their means leave members out."""
    members = len(metrics.get("folds") or metrics.get("members") or ())
    for part, counts in metrics.get("defined", {}).items():
        if part != "uncertainty":
            by_count: dict[int, list[str]] = {}
            for name, count in counts.items():
                by_count.setdefault(count, []).append(label(name))
            shown = "; ".join(f"{', '.join(names)} of {count} of {members}" for count, names in by_count.items())
            yield f"{part}, means over {_kind(metrics)} that have a value: {shown}"


def _uncertainty(metrics: dict[str, Any]) -> Iterator[str]:
    """Yield calibration error and coverage of the test rows, and whether something could not be computed."""
    mean = metrics.get("mean")
    found = (mean if isinstance(mean, dict) else metrics).get("uncertainty") or {}
    before, after, level, coverage = (found.get(name) for name in ("ece", "ece_calibrated", "level", "coverage"))
    shown = []
    if before is not None and after is not None:
        shown.append(f"ECE {before:.3f} before and {after:.3f} after calibration")
    if level is not None and coverage is not None:
        shown.append(f"{level:.0%} {'intervals' if 'ence' in found else 'sets'} cover {coverage:.1%}")
    if shown:
        yield f"test, {'; '.join(shown)}"
    if notes := found.get("notes"):
        more = f" (and {counted(len(notes) - 1, 'more note')} in metrics.json)" if len(notes) > 1 else ""
        yield f"note: {printable(notes[0])}{more}"
