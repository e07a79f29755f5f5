"""Predictions of an ensemble: run folders and data in, a table out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.blas import shared_processors
from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.errors import InputError
from gcnbatch.infer.domain import Domain
from gcnbatch.infer.inputs import CsvOptions, Data, Input, Part, open_input, refuse_bad_row
from gcnbatch.infer.journal import Journal, can_resume, open_resumable, task_of
from gcnbatch.infer.members import Member, load_members
from gcnbatch.infer.selection import Selection, Selector
from gcnbatch.infer.trust import Trust, load_trust
from gcnbatch.predictions import STDOUT, Predictions, Sink, check_target, open_sink
from gcnbatch.progress import counter
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.train import metrics
from gcnbatch.uncertainty.model import LEVEL

Say = Callable[[str], object]
_Options = tuple[CsvOptions, Selection, bool, float | None, bool]  # table, selection, spreadsheet, level, applicability


@dataclass(frozen=True)
class InferenceSummary:
    """Summary of a prediction.

    Parameters
    ----------
    rows, unreadable : int
        Rows of the input, and those that could not be read.
    members : int
        Number of averaged models.
    backend : str
    seconds : float
        From opening the data to the last row written.
    metrics : dict or None
        Metrics on the data's labels (see `gcnbatch.train.metrics.evaluate`), None without labels.
    """

    rows: int
    unreadable: int
    members: int
    backend: str
    seconds: float
    metrics: dict[str, Any] | None


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
    level: float | None = LEVEL,
    applicability: bool = False,
    selection: Selection | None = None,
    resume: bool = False,
    quiet: bool = False,
    say: Say = lambda line: None,
) -> InferenceSummary:
    """Predict every row of `data` with the mean of all models of `runs`; write the table to `out`.

    Parameters
    ----------
    runs : sequence of Path
        Run folders; a run with folds counts as all its folds.
    data : Path, GraphSet or list of str
        HDF5 data set, or a file of molecules (see `gcnbatch.data.importers.molecule_files`); a set in memory; SMILES.
    out : str or Sink
        File (.csv, .jsonl, .h5; see `gcnbatch.predictions`), or ``-`` for CSV on standard output; or what takes the
        rows.
    backend, device, cuda
        Backend, GPU and CUDA options.
    csv : CsvOptions or None
        Options of a CSV file; None: the defaults.
    batch_size : int or None
        Graphs per batch; None: chosen by the backend. It does not change the predictions.
    on_bad_row : {"keep", "fail"}
        A molecule that cannot be read keeps a blank row with the reason, or raises an error.
    spreadsheet : bool
        Put an apostrophe before texts of a CSV that a spreadsheet would run as formulas.
    level : float
        Level of conformal intervals and sets, from 0.5 to below 1. None: predictions alone.
    applicability : bool
        Add similarity and embedding distance to the nearest training molecule.
    selection : Selection or None
        Rows to write; None: all.
    resume : bool
        Go on where a killed prediction with the same data, models and options was stopped (.csv and .jsonl).
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
        check_target(out)
        if out != STDOUT and isinstance(data, Path) and Path(out).resolve() == data.resolve():
            raise InputError(f"output {out}", "the data file itself", "another file")
    chosen, options = selection or Selection(), csv or CsvOptions()
    if resume:
        _check_resume(str(out), chosen)
    choice = BackendChoice(backend, device, cuda)
    members = load_members(runs, say)
    selector = Selector(chosen, members[0].header)
    trust = load_trust(members, level)
    size = batch_size or 0
    domain = Domain(members, choice, size) if applicability else None
    started = time.monotonic()
    with (
        _open_output(out, data, members, (options, chosen, spreadsheet, level, applicability), resume, say) as output,
        open_input(data, members, options, size, output.rows) as source,
        shared_processors() if source.featurised else nullcontext(),
    ):
        for note in (*source.notes, *trust.notes):
            say(note)
        if begun := output.rows:
            say(f"{begun:,} of {source.n_graphs:,} rows are there: going on after them")
        model = _Model(members, choice, size, trust, domain)
        done = _predict(source, model, output, selector, on_bad_row == "fail", quiet)
        if done.figures is not None and source.trained_on:
            say(f"caution: {data} holds the rows that the model was trained on; these metrics are no test of it")
    if done.unreadable:
        say(f"{done.unreadable} of {done.rows} rows could not be read; see column error")
    seconds = round(time.monotonic() - started, 3)
    return InferenceSummary(begun + done.rows, done.unreadable, len(members), done.backend, seconds, done.figures)


def _check_resume(out: str, selection: Selection) -> None:
    if not can_resume(out):
        raise InputError("--resume", f"output {out}", "a .csv or .jsonl file: these can be continued")
    if selection.top:
        raise InputError("--resume", "with --top, which writes at the end only", "--threshold in its place")


@contextmanager
def _open_output(
    out: str | Sink, data: Data, members: list[Member], options: _Options, resume: bool, say: Say
) -> Iterator[Journal]:
    table, selection, spreadsheet, level, applicability = options
    if not isinstance(out, str):
        yield Journal(out)
    elif isinstance(data, Path) and can_resume(out):
        known = {"table": {**asdict(table), "processes": 0}, "selection": asdict(selection), "spreadsheet": spreadsheet}
        task = task_of(data, members, known | {"level": level, "applicability": applicability})
        with open_resumable(out, task, resume, spreadsheet, say) as journal:
            yield journal
    else:
        with open_sink(out, spreadsheet) as sink:
            yield Journal(sink)


@dataclass(frozen=True)
class _Model:
    """What predicts a part: the members, how they run, and what gives further columns."""

    members: list[Member]
    choice: BackendChoice
    batch_size: int
    trust: Trust
    domain: Domain | None

    def predict(self, part: Part, progress: Callable[[int], object]) -> tuple[Predictions, str]:
        """Return the table of a part, and the backend that computed."""
        single, backend = _outputs(part, self.members, self.choice, self.batch_size, progress)
        outputs, std = _combined(part, single)
        beside = self.trust.columns(single) | (self.domain.columns(part.data, part.smiles()) if self.domain else {})
        more = {column: _spread(part, values) for column, values in beside.items()}
        return Predictions(self.members[0].header, part.ids, outputs, std, part.errors, part.kept, more), backend


@dataclass
class _Done:
    """What was predicted: numbers of rows and of unreadable ones, the metrics, and the backend that computed."""

    backend: str
    rows: int = 0
    unreadable: int = 0
    figures: dict[str, Any] | None = None


def _predict(
    source: Input,
    model: _Model,
    output: Journal,
    selector: Selector,
    fail: bool,
    quiet: bool,
) -> _Done:
    header, count = model.members[0].header, len(model.members)
    done = _Done(model.choice.fastest.name)
    labels: list[NDArray[Any]] = []
    predicted: list[NDArray[np.float32]] = []
    before = output.rows  # metrics of a part of the rows would mislead
    with counter(source.n_graphs * count, " graphs", quiet=quiet) as bar:
        bar.update(before * count)
        for part in source.parts:
            if fail:
                refuse_bad_row(part, output.rows)
            table, done.backend = model.predict(part, bar.update)
            output.append(selector.take(table), len(part.ids))
            done.rows += len(part.ids)
            done.unreadable += len(part.ids) - len(part.rows)
            bar.update((len(part.ids) - len(part.rows)) * count)
            if not before and part.y is not None and (known := _known(part.y, table.outputs)).any():
                labels.append(part.y[known])
                predicted.append(table.outputs[known])
    if (rest := selector.rest()) is not None:
        output.append(rest, 0)
    if labels:
        y, outputs = np.concatenate(labels), np.concatenate(predicted)
        done.figures = metrics.evaluate(header.target, y, outputs, header.task_names, header.class_names)
    return done


def _outputs(
    part: Part, members: list[Member], choice: BackendChoice, batch_size: int, progress: Callable[[int], object]
) -> tuple[list[NDArray[np.float32]], str]:
    """Return each member's outputs (M, K) for the readable rows, and the backend that computed.

    "auto" may change to another backend.
    """
    sources = {kind: BatchSource(part.data, kind) for kind in {member.adjacency for member in members}}
    found = [member.outputs(choice, sources[member.adjacency], batch_size, progress) for member in members]
    return [outputs for outputs, _ in found], found[-1][1]


def _combined(
    part: Part, single: Sequence[NDArray[np.float32]]
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return the members' mean (R, K) and, for several, their standard deviation (n - 1); NaN in unreadable rows."""
    mean = np.full((len(part.ids), single[0].shape[1]), np.nan, dtype=np.float32)
    mean[part.rows] = np.mean(single, axis=0, dtype=np.float64)
    if len(single) == 1:
        return mean, None
    std = np.full_like(mean, np.nan)
    std[part.rows] = np.std(single, axis=0, ddof=1, dtype=np.float64)
    return mean, std


def _spread(part: Part, values: NDArray[Any]) -> NDArray[Any]:
    """Return a column (R,) from the values of the readable rows; "" or NaN in the others."""
    column = np.full(len(part.ids), np.nan if values.dtype.kind == "f" else "", dtype=values.dtype)
    column[part.rows] = values
    return column


def _known(y: NDArray[Any], outputs: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which rows (R,) have a label and a prediction."""
    known: NDArray[np.bool_] = y >= 0 if y.dtype.kind == "i" else ~np.isnan(y)
    return np.asarray(known.any(axis=1) & np.isfinite(outputs).all(axis=1))
