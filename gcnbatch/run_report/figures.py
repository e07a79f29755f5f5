"""Figures of a run as texts, with their intervals or spread over models, and facts about data, model and machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcnbatch.config import Config
from gcnbatch.data.splits import title
from gcnbatch.metrics import common_unit, higher_is_better, label, main_metric, of_kind
from gcnbatch.model.gcn import build, joins_graph_features
from gcnbatch.pages.elements import MISSING, Cell
from gcnbatch.pages.origin import software
from gcnbatch.resampling import Interval, Intervals
from gcnbatch.run_report.record import Record
from gcnbatch.run_report.tested import HeldOut
from gcnbatch.text import counted, listed
from gcnbatch.training import reports
from gcnbatch.training.mixed import NETWORK


def number(value: float | None, metric: str = "") -> str:
    """Return a number for a table; a dash for None."""
    if value is None:
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if metric and higher_is_better(metric) else f"{value:.4g}"


def deviation(value: float | None, metric: str) -> str:
    """Return a standard deviation for the small line of a cell: two digits of an error, three places of a score."""
    return f"± {number(value, metric)}" if value is None or higher_is_better(metric) else f"± {value:.2g}"


@dataclass(frozen=True)
class Figures:
    """Figures of a run with their uncertainty: intervals by resampling, or the spread over folds or models."""

    record: Record

    @property
    def intervals(self) -> Intervals | None:
        """Intervals of the figures of the test rows; None if these are not resampled."""
        return self.record.examined.intervals if self.record.examined else None

    @property
    def metrics(self) -> list[str]:
        """Metrics of the test rows, or of the other rows if there are none, in their usual order."""
        found = self.record.test or self._of_part("train") or self._of_part("valid")
        return [name for name in of_kind(found) if name in found]

    @property
    def labels(self) -> list[str]:
        """Names of the metrics, with the unit that all tasks share."""
        return [label(name, common_unit(self.record.test)) for name in self.metrics]

    @property
    def task_metrics(self) -> list[str]:
        """Metrics that each task has."""
        found = {key for table in self.tasks().values() for key in table}
        return [name for name in of_kind(found) if name in found]

    @property
    def spread(self) -> str:
        """What the smaller lines of a table are, as a sentence."""
        several = f"±: standard deviation over {self.record.models}." if len(self.record.fits) > 1 else ""
        if self.intervals:
            return (
                f"95 % intervals from {self.intervals.resamples:,} resamples of the test rows. They cover other test "
                f"rows from the same source, not another split or another seed. {several}"
            ).rstrip()
        if several:
            return several
        if self.record.tested:
            return "No intervals: there are too many test rows to resample."
        return f"No intervals: {self.record.why_not}."

    def tasks(self) -> dict[str, Any]:
        """Return the figures of the test rows by task."""
        return self.record.test.get("tasks", {})

    def parts(self) -> list[tuple[str, list[Cell]]]:
        """Return a line of the averaged metrics per part; of several models the means, then all test rows together."""
        lines = []
        for part in ("train", "valid", "test"):
            values, spread = self._mean(part) or (self._of_part(part), None)
            if values:
                name = "out of fold" if part == "valid" and self.record.networks else part
                lines.append((name if spread is None else f"{name}, mean", self._cells(part, values, spread)))
        if self._mean("test") and self.record.test:
            name = "test, mean of outputs" if self.record.one_split else "test rows together"
            lines.append((name, self._cells("test", self.record.test, None)))
        return lines

    def of_task(self, task: str, metric: str) -> Cell:
        """Return a metric of a task's test rows."""
        value = number(self.tasks()[task].get(metric), metric)
        if self.intervals:
            return value, interval(self.intervals.tasks.get(task, {}).get(metric), metric)
        values = self._by_fit(task, metric)
        return (value, deviation(float(np.std(values, ddof=1)), metric)) if len(values) > 1 else value

    def headline(self) -> str:
        """Return the main figure of the test rows, else of left-out rows, as a sentence; "" if there is none."""
        figures = self.record.test or (self._of_part("valid") if self.record.networks else {})
        if not (name := main_metric(figures)):
            return ""
        if not self.record.test:
            return f"Out-of-fold {label(name, common_unit(figures))} {number(figures[name], name)}; no test rows."
        tasks = len(self.tasks())
        end = f", mean of {tasks:,} tasks" if tasks > 1 else ""
        if not self.record.one_split and (found := self._mean("test")):
            value, spread = (of.get(name) for of in found)
            return f"Test {label(name)} {number(value, name)} {deviation(spread, name)} over {self.record.models}{end}."
        small = self._small("test", name)
        between = f" (95 % from {small.replace(MISSING, 'to')})" if small else ""
        unit = common_unit(self.record.test)
        unit = f" {unit}" if label(name, unit) != label(name) else ""
        return f"Test {label(name)} {number(self.record.test.get(name), name)}{unit}{between}{end}."

    def _of_part(self, part: str) -> dict[str, Any]:
        return self.record.metrics.get(part, {})

    def _mean(self, part: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return mean and standard deviation of a part over models; None if there is one."""
        mean, std = (self.record.metrics.get(key, {}).get(part) for key in ("mean", "std"))
        return (mean, std) if mean and std else None

    def _cells(self, part: str, values: dict[str, Any], spread: dict[str, Any] | None) -> list[Cell]:
        return [
            (number(values.get(name), name), deviation(spread.get(name), name) if spread else self._small(part, name))
            for name in self.metrics
        ]

    def _small(self, part: str, metric: str) -> str:
        return interval(self.intervals.mean.get(metric), metric) if self.intervals and part == "test" else ""

    def _by_fit(self, task: str, metric: str) -> Sequence[float]:
        tables = [fit.metrics.get("test", {}).get("tasks", {}).get(task, {}) for fit in self.record.fits]
        return [value for table in tables if (value := table.get(metric)) is not None]


def interval(of: Interval, metric: str) -> str:
    """Return an interval for the small line of a cell."""
    return f"{number(of[0], metric)} {MISSING} {number(of[1], metric)}" if of else ""


def training_facts(record: Record) -> list[tuple[str, str]]:
    """Return facts about data, split, model and training."""
    file = f"{record.data}, sha256 {record.digest}"
    about = [("Data", _data(record)), ("File", file), ("Split", _split(record))]
    return [*about, ("Model", _model(record)), ("Trained", _course(record))]


def _data(record: Record) -> str:
    """Return name, size and targets of the data set."""
    tested = record.tested
    if tested is None:
        return record.data.name
    header = tested.header
    size = counted(tested.graphs, "graph") if header.level == "graph" else "one graph, a row per node"
    tasks = counted(len(header.task_names), f"{header.target} task")
    return f"{header.name}: {size}, {tasks} ({listed(header.task_names)})"


def _split(record: Record) -> str:
    """Return kind, name, seed and sizes of the split."""
    found = record.metrics["split"]
    if len(record.fits) > 1:
        return f"{title(found)}, {record.models}"
    sizes = list(zip(("training", "validation", "test"), found["sizes"], strict=False))
    if record.networks:
        crossed = f", cross-fitted by {counted(record.networks, 'network')}"
        return f"{title(found)}: {sizes[0][1]:,} training{crossed}, {sizes[2][1]:,} test"
    return f"{title(found)}: " + ", ".join(f"{count:,} {part}" for part, count in sizes)


def environment(record: Record) -> Iterator[tuple[str, str]]:
    """Yield facts about the machine and the software."""
    yield "Backend", _backend(record)
    yield from software(record.environment)
    finished = (record.folder / reports.METRICS).stat().st_mtime
    yield "Finished", time.strftime("%Y-%m-%d %H:%M", time.localtime(finished))


def _model(record: Record) -> str:
    if record.config is None:
        return str(record.metrics.get("model", "unknown"))
    model = record.config.model
    shape = f"{_mixture(record)}{model.kind}, widths {', '.join(map(str, model.widths))}, {model.adjacency} adjacency"
    return shape + (_parameters(record.config, record.tested) if record.tested else "")


def _mixture(record: Record) -> str:
    """Return the beginning of a sentence on a mixture: its members with their weights."""
    shares = [f"{of['name']} {of['weight']:.2f}" for of in record.members]
    return f"mixture of {listed(shares)}; {NETWORK}: " if shares else ""


def _parameters(config: Config, tested: HeldOut) -> str:
    header = tested.header
    joined = joins_graph_features(config.model, header)
    features = f"; {counted(header.n_joined, 'feature')} of graphs joined to the readout" if joined else ""
    return f"{features}; {counted(build(config.model, header, tested.graphs == 1).layout().count(), 'parameter')}"


def _course(record: Record) -> str:
    seconds = f"{number(record.metrics['seconds'])} s on {_backend(record)}"
    if record.config is None:
        return seconds
    train, best = record.config.train, record.metrics.get("best_epoch")
    chosen = f" (best: {best})" if best is not None else ""
    rate = f"learning rate {train.learning_rate:g}, {train.schedule}"
    return (
        f"{counted(record.metrics['epochs'], 'epoch')}{chosen}, batch {train.batch_size}, {train.optimizer}, {rate}, "
        f"seed {record.config.seed}; {seconds}"
    )


def _backend(record: Record) -> str:
    return ", ".join(filter(None, (record.metrics.get(key) for key in ("backend", "device", "precision"))))
