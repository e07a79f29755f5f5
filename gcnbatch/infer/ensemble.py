"""Predictions of an ensemble: run folders and data in, a table out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.errors import InputError
from gcnbatch.infer.domain import Domain
from gcnbatch.infer.inputs import CsvOptions, Input, Part, open_input
from gcnbatch.infer.members import Member, load_members
from gcnbatch.infer.trust import Trust, load_trust
from gcnbatch.predictions import STDOUT, Predictions, Sink, check_target, open_sink
from gcnbatch.progress import counter
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.train import metrics
from gcnbatch.uncertainty.model import LEVEL

Say = Callable[[str], object]


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
    data: Path,
    out: str = STDOUT,
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
    quiet: bool = False,
    say: Say = lambda line: None,
) -> InferenceSummary:
    """Predict every row of `data` with the mean of all models of `runs`; write the table to `out`.

    Parameters
    ----------
    runs : sequence of Path
        Run folders; a run with folds counts as all its folds.
    data : Path
        HDF5 data set, or a file of molecules (see `gcnbatch.data.importers.molecule_files`).
    out : str
        File (.csv, .jsonl, .h5; see `gcnbatch.predictions`), or ``-`` for CSV on standard output.
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
    quiet : bool
        No progress.
    say : callable
        Called with each message for the user.

    Raises
    ------
    InputError
        When runs, data or output cannot be used or do not match; then nothing is written.
    """
    check_target(out)
    if out != STDOUT and Path(out).resolve() == data.resolve():
        raise InputError(f"output {out}", "the data file itself", "another file")
    choice = BackendChoice(backend, device, cuda)
    members = load_members(runs, say)
    trust = load_trust(members, level)
    size = batch_size or 0
    domain = Domain(members, choice, size) if applicability else None
    started = time.monotonic()
    with open_input(data, members, csv or CsvOptions(), size) as source, open_sink(out, spreadsheet) as sink:
        for note in (*source.notes, *trust.notes):
            say(note)
        rows, unreadable, figures, name = _predict(
            source, members, trust, domain, choice, sink, size, on_bad_row == "fail", quiet
        )
        if figures is not None and source.trained_on:
            say(f"caution: {data} holds the rows that the model was trained on; these metrics are no test of it")
    if unreadable:
        say(f"{unreadable} of {rows} rows could not be read; see column error")
    return InferenceSummary(rows, unreadable, len(members), name, round(time.monotonic() - started, 3), figures)


def _predict(
    source: Input,
    members: list[Member],
    trust: Trust,
    domain: Domain | None,
    choice: BackendChoice,
    sink: Sink,
    batch_size: int,
    fail: bool,
    quiet: bool,
) -> tuple[int, int, dict[str, Any] | None, str]:
    """Return the numbers of rows and of unreadable ones, the metrics, and the backend that computed."""
    header = members[0].header
    rows = unreadable = 0
    figures, name = None, choice.fastest.name
    labels: list[NDArray[Any]] = []
    predicted: list[NDArray[np.float32]] = []
    with counter(source.n_graphs * len(members), " graphs", quiet=quiet) as bar:
        for part in source.parts:
            if fail:
                _refuse_bad_row(part, rows)
            single, name = _outputs(part, members, choice, batch_size, bar.update)
            outputs, std = _combined(part, single)
            beside = trust.columns(single) | (domain.columns(part.data, part.smiles()) if domain else {})
            more = {column: _spread(part, values) for column, values in beside.items()}
            sink.append(Predictions(header, part.ids, outputs, std, part.errors, part.kept, more))
            rows += len(part.ids)
            unreadable += len(part.ids) - len(part.rows)
            bar.update((len(part.ids) - len(part.rows)) * len(members))
            if part.y is not None and (known := _labelled(part.y) & np.isfinite(outputs).all(axis=1)).any():
                labels.append(part.y[known])
                predicted.append(outputs[known])
    if labels:
        y, outputs = np.concatenate(labels), np.concatenate(predicted)
        figures = metrics.evaluate(header.target, y, outputs, header.task_names, header.class_names)
    return rows, unreadable, figures, name


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


def _refuse_bad_row(part: Part, first: int) -> None:
    if part.errors is not None and (bad := np.flatnonzero(part.errors != "")).size:
        at = int(bad[0])
        raise InputError(
            f"row {first + at + 1}, id {part.ids[at]}",
            str(part.errors[at]),
            hint="Fix the row, or keep such rows blank with --on-bad-row keep.",
        )


def _labelled(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows (R,) have a label."""
    known: NDArray[np.bool_] = y >= 0 if y.dtype.kind == "i" else ~np.isnan(y)
    return np.asarray(known.any(axis=1))
