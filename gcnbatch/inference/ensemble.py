"""Predictions of an ensemble: run folders and data in, a table out, as a file or in memory."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.chemistry import about_elements
from gcnbatch.data.schema import Header
from gcnbatch.data.shards import is_sharded
from gcnbatch.errors import InputError
from gcnbatch.fileio import Output, StrPath
from gcnbatch.inference.columns import Remarks, joined_remarks, lines
from gcnbatch.inference.inputs import Data, find
from gcnbatch.inference.journal import Journal, can_resume, open_resumable, task_of
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.inference.predictor import Predictor, Request, predict_parts
from gcnbatch.inference.tabulation import Made, Predicted, RowMaker, Selection, tabulate
from gcnbatch.inference.trust import Level
from gcnbatch.outputs import STDOUT
from gcnbatch.predictions import Predictions, Sink, as_it_is, check_ending, check_target, open_sink
from gcnbatch.progress import counter
from gcnbatch.runners.choice import FEW, BackendChoice, backend_for_few
from gcnbatch.text import counted, listed, some_of
from gcnbatch.timeline import span
from gcnbatch.training.reports import evaluate
from gcnbatch.workers.pool import Workers

Say = Callable[[str], object]


@dataclass(frozen=True)
class InferenceSummary:
    """Summary of a prediction.

    Parameters
    ----------
    rows, unreadable : int
        Rows of the input, and those that could not be read or have no finite prediction.
    members : int
        Number of averaged models.
    backend : str
    seconds : float
        From opening the data to the last row written.
    metrics : dict or None
        Metrics on the data's labels (see `gcnbatch.metrics.evaluate`), None without labels.
    labelled : int
        Rows that have a label and a prediction, on which the metrics are.
    """

    rows: int
    unreadable: int
    members: int
    backend: str
    seconds: float
    metrics: dict[str, Any] | None
    labelled: int = 0


def infer(
    runs: Sequence[Path],
    data: Data,
    out: str | Sink = STDOUT,
    *,
    backend: str = "auto",
    device: int = 0,
    cuda: CudaConfig | None = None,
    batch_size: int | None = None,
    on_bad_row: Literal["keep", "fail"] = "keep",
    csv: CsvOptions | None = None,
    spreadsheet: bool = False,
    level: Level = "training",
    applicability: bool = False,
    selection: Selection | None = None,
    resume: bool = False,
    workers: Workers | None = None,
    with_metrics: bool = True,
    quiet: bool = False,
    say: Say = lambda line: None,
) -> InferenceSummary:
    """Predict every row of `data` with the mean of all models of `runs`; write the table to `out`.

    A cross-fitted run is one model: its networks' mean, or its mixture. The standard deviation is that over the models;
    of one cross-fitted run, over its networks; of one mixture, see `gcnbatch.training.mixed.Mixed.deviation`.

    Parameters
    ----------
    runs : sequence of Path
        Run folders; a run with folds counts as all its folds, a cross-fitted one as one model.
    data : Path, GraphSet or list of str
        HDF5 data set, or a file of molecules (see `gcnbatch.data.tables.formats`); a set in memory; SMILES.
    out : str or Sink
        File (.csv, .jsonl, .h5; see `gcnbatch.predictions`), or ``-`` for CSV on standard output; or what takes the
        rows.
    backend, device, cuda
        Backend, GPU and CUDA options. "auto" predicts fewer than FEW SMILES on the host, unless the others are given.
    csv : CsvOptions or None
        Options of a CSV file; None: the defaults.
    batch_size : int or None
        Graphs per batch; None: chosen by the backend. It does not change the predictions.
    on_bad_row : {"keep", "fail"}
        A molecule that cannot be read keeps a blank row with the reason, or raises an error.
    spreadsheet : bool
        Put an apostrophe before texts of a CSV that a spreadsheet would run as formulas.
    level : float, "training" or None
        Level of conformal intervals and sets, from 0.5 to below 1, or "training". None: predictions alone.
    applicability : bool
        Add similarity and embedding distance to the nearest training molecule.
    selection : Selection or None
        Rows to write; None: all.
    resume : bool
        Go on where a killed prediction with the same data, models and options was stopped (.csv and .jsonl).
    workers : Workers or None
        Processes of `gcnbatch.data.featurizer_worker.early_workers` that have imported WORKER_MODULES.
    with_metrics : bool
        Compute metrics where the data have labels, and say what they leave out.
    quiet : bool
        No progress.
    say : callable
        Called with each message for the user.

    Raises
    ------
    InputError
        When runs, data or output cannot be used or do not match; then nothing is written.
    """
    if isinstance(out, str):
        check_ending(out)
    chosen, options = selection or Selection(), csv or CsvOptions()
    if resume:
        _check_resume(str(out), chosen)
    request = Request(runs, data, backend, device, cuda, batch_size or 0, options, level, applicability)
    few = isinstance(data, list) and len(data) < FEW and not device and cuda in (None, CudaConfig())
    with span("open the backend"):
        choice = BackendChoice(backend_for_few(backend) if few else backend, device, cuda)
    predictor = Predictor.load(runs, choice, say, level, applicability, batch_size or 0)
    members = predictor.members
    header = members[0].header
    chosen.column(header)
    target = check_target(out, header, _reads(runs, data)) if isinstance(out, str) else out
    started = time.monotonic()
    known = {"table": {**asdict(options), "processes": 0}, "selection": asdict(chosen), "spreadsheet": spreadsheet}
    known |= {"level": level, "applicability": applicability}
    with (
        _open_output(target, data, predictor, known, resume, say) as output,
        predictor.open_input(request, output.rows, say, workers) as source,
    ):
        for note in predictor.trust.notes:
            say(note)
        if begun := output.rows:
            say(f"{begun:,} of {counted(source.n_graphs, 'row')} are there: going on after them")
        if predictor.left_out.any():
            say(_without_model(header, predictor.left_out))
        maker = RowMaker(header, predictor.trust, chosen, output.sink.encode, on_bad_row == "fail")
        written = _Written(output, chosen, remarks=source.remarks)
        with counter(source.n_graphs * len(members), " graphs", quiet=quiet) as bar:
            bar.update(begun * len(members))
            parts = predict_parts(source, predictor, request, begun, bar.update)
            for found, made in tabulate(parts, begun, maker, source.workers):
                written.append(made, found)
                bar.update((found.rows - found.readable) * len(members))
        written.finish()
        metrics = written.metrics(header, begun, say) if with_metrics else None
        if metrics is not None and source.trained_on:
            say(f"caution: {data} holds the rows that the model was trained on; these metrics do not test it")
    if note := about_elements(written.alike):
        say(note)
    rows = output.rows - begun
    if unreadable := rows - written.predicted:
        say(f"{some_of(unreadable, rows, 'row', 'has', 'have')} no prediction; see column error")
    seconds, labelled = round(time.monotonic() - started, 3), 0 if metrics is None else written.labelled
    return InferenceSummary(begun + rows, unreadable, len(members), choice.used, seconds, metrics, labelled)


def _without_model(header: Header, left_out: NDArray[np.bool_]) -> str:
    """Return a line on tasks that some or all members (members, T) have no outputs of."""
    every, some = left_out.all(axis=0), left_out.any(axis=0)
    parts = []
    if every.any():
        parts.append(f"blank, as no model has learned them: {listed(np.array(header.task_names)[every])}")
    if (some & ~every).any():
        parts.append(
            f"from fewer models, as not all have learned them: {listed(np.array(header.task_names)[some & ~every])}"
        )
    return "; ".join(parts)


def _reads(runs: Sequence[Path], data: Data) -> list[Path]:
    """Return the files and folders that are read; of a folder of shards, no output can be one."""
    return [*runs, *([data] if isinstance(data, Path) and not is_sharded(data) else [])]


def _check_resume(out: str, selection: Selection) -> None:
    if not can_resume(out):
        raise InputError("--resume", f"output {out}", "a .csv or .jsonl file: these can be continued")
    if selection.top:
        raise InputError("--resume", "with --top, which writes at the end only", "--threshold in its place")


@contextmanager
def _open_output(
    out: Output | Sink | None, data: Data, predictor: Predictor, known: dict[str, Any], resume: bool, say: Say
) -> Iterator[Journal]:
    """Open an output; `known` are the options that decide its rows."""
    if isinstance(out, Sink):
        yield Journal(out)
    elif out is not None and isinstance(data, Path) and can_resume(out.path.name):
        task = task_of(data, predictor.files, known)
        with open_resumable(out, predictor.members[0].header, task, resume, known["spreadsheet"], say) as journal:
            yield journal
    else:
        with open_sink(out, known["spreadsheet"]) as sink:
            yield Journal(sink)


@dataclass
class _Written:
    """Writes rows, or keeps the best ones until the end; collects what there is to say of them.

    `predicted` is the number of rows with a prediction. `alike` counts the molecules with each element that has no
    feature of its own.
    """

    output: Journal
    selection: Selection
    best: Predictions | None = None
    remarks: Remarks = field(default_factory=dict)
    labels: list[NDArray[Any]] = field(default_factory=list)
    outputs: list[NDArray[np.floating]] = field(default_factory=list)
    predicted: int = 0
    alike: Counter[str] = field(default_factory=Counter)

    def append(self, made: list[Made], part: Predicted) -> None:
        """Take what was made of a part."""
        for block in made:
            if block.labelled is not None:
                self.labels.append(block.labelled[0])
                self.outputs.append(block.labelled[1])
        self.remarks = joined_remarks([(0, self.remarks), *((0, block.remarks) for block in made)])
        self.predicted += int(np.count_nonzero(part.finite))
        for own in part.blocks:
            self.alike.update(own.alike)
        if self.selection.top:
            tables = [table for table in (self.best, *(block.best for block in made)) if table is not None]
            self.best = self.selection.best(*tables)
            self.output.rows += part.rows
        else:
            self.output.append([block.rows for block in made], part.rows)

    @property
    def labelled(self) -> int:
        """The number of rows with a label and a prediction."""
        return sum(map(len, self.labels))

    def metrics(self, header: Header, before: int, say: Say) -> dict[str, Any] | None:
        """Return the metrics, None without labels; say what they leave out. `before` rows were there before."""
        if before and (self.labels or self.remarks):  # metrics of a part of the rows would mislead
            say("no metrics: they would leave out the rows that were there before")
            return None
        for line in lines(self.remarks, header, self.labelled, self.output.rows - before):
            say(line)
        return evaluate(header, np.concatenate(self.labels), np.concatenate(self.outputs)) if self.labels else None

    def finish(self) -> None:
        """Write the best rows."""
        if self.best is not None:
            self.output.append([self.output.sink.encode(self.best)], 0)


def predict(
    folders: Sequence[Path], data: StrPath | GraphSet | Iterable[str], processes: int = 0, **options: Any
) -> Predictions:
    """Return the predictions of all rows.

    Parameters
    ----------
    folders : sequence of Path
        Runs whose models are averaged.
    data : path, GraphSet or iterable of str
        A text is the name of a file, or one SMILES; several SMILES come in a list.
    processes : int
        Processes that read SMILES; 0: one per processor.
    **options
        As for `gcnbatch.inference.ensemble.infer`.

    Raises
    ------
    InputError
        When runs and data cannot be used or do not match.
    """
    found, source = _Collected(), as_input(data)
    infer(folders, source, found, csv=CsvOptions(processes=processes), quiet=True, **options)
    table = found.table()
    return replace(table, smiles=source) if isinstance(source, list) else table


class _Collected(Sink):
    """Keeps the parts of a table."""

    def __init__(self) -> None:
        self.encode = as_it_is
        self._parts: list[Predictions] = []

    def write(self, made: Sequence[Predictions]) -> None:
        self._parts.extend(made)

    def table(self) -> Predictions:
        first, *others = self._parts
        return first.join(*others) if others else first


def as_input(data: StrPath | GraphSet | Iterable[str]) -> Data:
    """Return data as `open_input` takes them; a text is what `find` returns.

    Raises
    ------
    InputError
        For no molecule.
    """
    if isinstance(data, str | os.PathLike):
        return find(data)
    if isinstance(data, GraphSet):
        return data
    if not (texts := list(data)):
        raise InputError("data", "no molecule", "at least one")
    return texts
