"""Fitting members in this process: those of a run in cohorts, with a report for each, or one model without a folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, folders
from gcnbatch.backends.base import Backend, Runner
from gcnbatch.config import Config
from gcnbatch.data import splits
from gcnbatch.data.graphs import GraphSet, Split
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import write_graphset
from gcnbatch.model.predict import predict_rows
from gcnbatch.runners.choice import BackendChoice, cohort_size, make_runner
from gcnbatch.runners.task import RunnerTask
from gcnbatch.text import listed
from gcnbatch.training import checkpoint, loop, warm_start
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fit import Fit
from gcnbatch.training.plan import Planned
from gcnbatch.training.reports import Report, ReportWriter
from gcnbatch.training.targets import check_learnable

SPLITS = "splits.json"
PARTS = ("train", "valid", "test")
Say = Callable[[str], object]


class FitResult(NamedTuple):
    """Results of a member.

    Parameters
    ----------
    metrics : dict or concurrent.futures.Future
        Content of its metrics.json; a future while its report is written.
    epochs : int
        Epochs that it has trained.
    outputs : dict of (R, K)
        For its "test" and "valid" rows, if it has such and they are not yet in its files; see `Report`.
    """

    metrics: dict[str, Any] | Future[dict[str, Any]]
    epochs: int
    outputs: dict[str, NDArray[np.floating]]

    @classmethod
    def read(cls, metrics: dict[str, Any]) -> FitResult:
        """Return the results of a member whose report is written."""
        return cls(metrics, metrics["epochs"], {})

    def result(self) -> dict[str, Any]:
        """Wait for the metrics and return them."""
        return self.metrics.result() if isinstance(self.metrics, Future) else self.metrics


class Fits:
    """Fits members in cohorts of this process.

    Parameters
    ----------
    folder : Path
        The run's folder; a member's folder in it is made when its cohort begins.
    backend : Backend
    jobs : int
        Most members of a cohort; 0: as many as the backend takes.
    quiet : bool
        No progress bar.
    say : callable
        Called with each message for the user.
    writer : ReportWriter
        Writes the members' reports.
    make : callable
        Makes a cohort of tasks on the backend.
    """

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        jobs: int,
        quiet: bool,
        say: Say,
        writer: ReportWriter,
        make: Callable[[Backend, Sequence[RunnerTask]], Runner] = make_runner,
    ) -> None:
        self._folder, self._backend, self._jobs = folder, backend, jobs
        self._quiet, self._say, self._writer, self._make = quiet, say, writer, make
        self._planned: dict[Fit, Planned] = {}
        self._fitted: dict[str, FitResult] = {}

    def fit(self, planned: Sequence[Planned]) -> dict[str, FitResult]:
        """Train these members to the end and start to write their reports; return their results by name."""
        self._planned = {Fit(one.experiment, one.split): one for one in planned}
        loop.fit(list(self._planned), self._form, self._report, self._quiet)
        return self._fitted

    def _form(self, waiting: Sequence[Fit]) -> Runner:
        tasks = [member.task for member in waiting]
        size = cohort_size(self._backend, tasks, self._jobs)
        first, last = (self._planned[waiting[index]].title for index in (0, size - 1))
        if first:
            self._say(first if size == 1 else f"{first} to {last}: {size} models train together")
        self._open([member for member in waiting[:size] if member.files is None])
        return self._make(self._backend, tasks[:size])

    def _open(self, members: Sequence[Fit]) -> None:
        """Make the members' folders and write their splits."""
        splits_of = {id(member.split): member for member in members}  # models of an ensemble share a split
        texts = {number: text_of(member.split) for number, member in splits_of.items()}

        def open_one(member: Fit) -> None:
            place = self._folder / self._planned[member].name
            folders.make(place)
            fileio.write_text(place / SPLITS, texts[id(member.split)])
            member.write_to(place, self._say)

        with ThreadPoolExecutor(loop.THREADS) as threads:  # each waits for the disk
            list(threads.map(open_one, members))

    def _report(self, cohort: Runner, ended: dict[int, Fit]) -> None:
        """Write the reports of the members of a cohort that have ended, with their best weights loaded."""
        outputs: dict[Fit, dict[str, Any]] = {member: {} for member in ended.values()}
        for part in PARTS:
            rows = [_rows(ended[i], part) if i in ended else None for i in range(cohort.size)]
            source, size = next((m.experiment.source, m.train.eval_batch_size) for m in ended.values())
            logits_of = predict_rows(cohort, source, rows, size)
            for i, member in ended.items():
                if (logits := logits_of[i]) is not None:
                    outputs[member][part] = member.validation.outputs(logits)
        for member in ended.values():
            one = self._planned[member]
            assert member.files is not None
            has_figures = not one.name  # of several members, `gcnbatch report --figures` draws them
            found = _report(cohort, member, outputs[member], has_figures)
            written = self._writer.submit(found, member.saved, member.files.end)
            kept = {part: of for part, of in outputs[member].items() if part != "train"}
            self._fitted[one.name] = FitResult(written, member.position.epoch, kept)


def text_of(split: Split) -> str:
    """Return the content of splits.json."""
    return json.dumps({part: rows.tolist() for part, rows in split.parts().items()})


def _rows(member: Fit, part: str) -> Any:
    rows = member.split.parts()[part]
    return rows if len(rows) else None


def _report(cohort: Runner, member: Fit, outputs: dict[str, Any], has_figures: bool) -> Report:
    assert member.files is not None
    experiment, split = member.experiment, member.split
    config = experiment.config
    about = splits.describe(config.split, config.seed, experiment.split_rows, split)
    course = {**_course(cohort, member), "split": about, **_transforms(member)}
    left_out = experiment.ids[split.valid] if config.split.cross_fit else None
    own = report_of(experiment, member.files.folder, split, outputs, course)
    return replace(own, history=member.rows, has_figures=has_figures, left_out_ids=left_out)


def report_of(
    experiment: Experiment, folder: Path, split: Split, outputs: dict[str, Any], course: dict[str, Any]
) -> Report:
    """Return the report of a model without epochs on the rows of a split, `outputs` by part."""
    parts = split.parts()
    return Report(
        folder=folder,
        header=experiment.header,
        labels={part: experiment.measured[parts[part]] for part in outputs},
        outputs=outputs,
        data=experiment.dataset.path,
        test_rows=split.test,
        test_ids=experiment.ids[split.test],
        history=[],
        course=course,
        parquet=experiment.config.parquet,
        level=experiment.config.train.level,
    )


def _transforms(member: Fit) -> dict[str, Any]:
    """Return the entry of metrics.json on the transforms of targets; none without them."""
    kinds = member.scaling.kinds
    found = dict(zip(member.header.task_names, kinds, strict=True)) if set(kinds) != {"none"} else {}
    return {"transforms": found} if found else {}


def _course(cohort: Runner, member: Fit) -> dict[str, Any]:
    """Return the entries of metrics.json on training: backend and its properties, epochs, seconds, time of a step.

    The time of a step is host time, divided by the members that it trained: on an asynchronous device, the time to
    enqueue it.
    """
    position, steps = member.position, np.array(member.step_seconds) * 1e6
    course: dict[str, Any] = {"backend": cohort.backend, **cohort.about()}
    course |= {"best_epoch": position.best_epoch + 1, "epochs": position.epoch, "seconds": round(position.seconds, 3)}
    if len(steps):
        quantiles = np.quantile(steps, [0.5, 0.2, 0.8])
        course["step_us"] = {
            name: round(float(q), 1) for name, q in zip(("median", "p20", "p80"), quantiles, strict=True)
        }
        course["graphs_per_second"] = round(member.graphs / max(member.seconds, 1e-9), 1)
    return course


def warn_of_left_out(header: Header, left_out: NDArray[np.bool_]) -> None:
    """Warn of tasks (T,) that the training rows cannot teach."""
    if left_out.any():
        names = listed(np.array(header.task_names)[left_out])
        text = f"no labels of two classes in the training rows, so that predictions are NaN: {names}"
        warnings.warn(text, stacklevel=3)


def fit_in_memory(config: Config, graphs: GraphSet) -> tuple[bytes, list[dict[str, Any]]]:
    """Train one model on the split of `config`.

    Returns
    -------
    bytes
        What best.safetensors of a run would hold.
    list of dict
        The rows of history.jsonl.

    Raises
    ------
    InputError
        When data and configuration do not match.

    Warns
    -----
    UserWarning
        Of tasks that the training rows cannot teach: their outputs are NaN.
    """
    choice = BackendChoice(config.backend, config.device, config.cuda, lambda line: None)
    with TemporaryDirectory(prefix="gcnbatch-") as folder:
        path = Path(folder, "data.h5")
        write_graphset(path, graphs)
        with Dataset(path, config.data.memory_mb, check=False) as dataset:
            experiment = Experiment(config, dataset, warm_start.weights(config, dataset.header))
            member = Fit(experiment, splits.make_split(config.split, config.seed, experiment.split_rows))
            check_learnable(path, dataset.header, dataset.y, [member.split])
            warn_of_left_out(experiment.header, member.validation.left_out)
            backend = choice.backend_for([member.task])
            loop.fit([member], lambda waiting: make_runner(backend, [waiting[0].task]), None, quiet=True)
    return checkpoint.encode(member.best_weights()), member.rows
