"""A cross-fitted run: its members as one model.

Each row of training and validation was left out by the members of one part. Their outputs for it, the out-of-fold
outputs, stand for validation: they give the score, the weights of a mixture, and the uncertainty. No row is lost.

The run's folder then holds what that of one model does, ``splits.json`` with all these rows as training rows, and
``out_of_fold.csv``; with a mixture, also ``mixture.safetensors``. With folds or repeats, each of these is such a model
and has such a folder, called a block; the run's own files summarise them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, metrics, tables
from gcnbatch.data import splits
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.machine import cores
from gcnbatch.mixture import Bounds, Problem, fit_members, mix
from gcnbatch.mixture.transforms import Kind
from gcnbatch.predictions import output_names, read_numbers
from gcnbatch.progress import counter
from gcnbatch.text import counted
from gcnbatch.timeline import span
from gcnbatch.training import mixed, reports, run_files, summary, targets
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.finished import DIGEST, RunData, read_split
from gcnbatch.training.fit_files import HISTORY
from gcnbatch.training.fits import SPLITS, FitResult, Say, report_of, text_of
from gcnbatch.training.inverter import Gpu, Inverter
from gcnbatch.training.mixed import FITTED, NETWORK, Fitted, Mixed
from gcnbatch.training.plan import Planned, blocks, different_splits
from gcnbatch.training.reports import METRICS, ReportWriter
from gcnbatch.training.summary import average, draw_curves, pooled_part
from gcnbatch.training.targets import Scaling
from gcnbatch.workers.pool import WorkerDied, Workers

OUT_OF_FOLD = "out_of_fold.csv"
Others = Callable[[], Fitted]  # fits the members beside the networks
FEW, FEW_TESTED = 50, 10  # training and test rows, below which scores say little


class _Outputs(NamedTuple):
    """Outputs of the run for the training rows (n, K), out of fold, and for the test rows (m, K).

    `by_member` has those of each member for the training rows.
    """

    left_out: NDArray[np.floating]
    tested: NDArray[np.floating] | None
    by_member: Mapping[str, NDArray[Any]]


def summarise(
    folder: Path,
    planned: Sequence[Planned],
    fitted: Sequence[FitResult],
    writer: ReportWriter,
    say: Say,
    others: Others | None,
) -> dict[str, Any]:
    """Mix the members of a cross-fitted run, or of one of its blocks, write its files, and return its metrics.

    Parameters
    ----------
    folder : Path
        The run's folder.
    planned, fitted, writer
        As `gcnbatch.training.summary.summarise`; the members of one block.
    say : callable
        Called with each message for the user.
    others : callable or None
        What `beside_networks` yields.
    """
    experiment, place = planned[0].experiment, folder / planned[0].block
    config = experiment.config
    histories = [(folder / one.name / HISTORY, found.epochs) for one, found in zip(planned, fitted, strict=True)]
    curves = writer.submit_call(draw_curves, place, histories)
    rows, folds = _parts(different_splits(planned))
    test = planned[0].split.test
    began = time.monotonic()
    if others is not None:
        of = f"{planned[0].block}: " if planned[0].block else ""
        say(f"{of}mixing the networks with a kernel and trees on {counted(len(rows), 'row')}")
    with span("mix the members"):
        found, more = _outputs(folder, planned, fitted, rows, folds, others)
    mixing = time.monotonic() - began
    split = Split(train=rows, valid=rows[:0], test=test)
    fileio.write_text(place / SPLITS, text_of(split))
    _write_out_of_fold(place, experiment, rows, folds, found)
    outputs = {"valid": found.left_out} | ({} if found.tested is None else {"test": found.tested})
    if found.tested is not None and not planned[0].block:
        writer.examine(experiment.dataset.path, test, found.tested, True)
    with span("wait for reports"):
        results = [one.result() for one in fitted]
    about = splits.describe(config.split, splits.split_seed(config.split, config.seed), experiment.split_rows, split)
    course: dict[str, Any] = {
        "backend": results[-1]["backend"],
        "epochs": config.train.epochs,
        "seconds": round(sum(result["seconds"] for result in results) + mixing, 3),
        "split": about,
        **more,
        "parts": [{"name": Path(one.name).name, **result} for one, result in zip(planned, results, strict=True)],
        "networks": average(results),
    }
    report = report_of(experiment, place, replace(split, train=rows[:0], valid=rows), outputs, course)
    curves.result()
    (place / FITTED).unlink(missing_ok=True)
    with span("report on the mixture"):
        return writer.write(report)


def summarise_blocks(
    folder: Path, planned: Sequence[Planned], fitted: Mapping[str, FitResult], writer: ReportWriter
) -> dict[str, Any]:
    """Write and return the metrics of a run of several cross-fitted models, whose files are written; see `summarise`.

    `fitted` has the results of its networks by name.
    """
    found, wholes = [], []
    for place, own in blocks(planned).items():
        metrics = run_files.read_metrics(folder / place / reports.METRICS, True, cross_fitted=True)
        of_block = {key: value for key, value in metrics.items() if key not in ("parts", "networks")}
        found.append(FitResult.read(of_block))
        (split,) = whole_splits(own)
        wholes.append(replace(own[0], name=place, split=split))
    histories = [(folder / one.name / HISTORY, fitted[one.name].epochs) for one in planned]
    return summary.summarise(folder, wholes, found, writer, histories)


@contextmanager
def beside_networks(
    folder: Path,
    of_blocks: Mapping[str, Sequence[Planned]],
    gpu: Gpu | None,
    early: bool,
    quiet: bool,
    say: Say,
    workers: Workers | None,
) -> Iterator[dict[str, Others | None]]:
    """Yield, for each block, what returns the fitted kernel and trees, and their out-of-fold outputs.

    None without a mixture. They are kept in the run's folder until the block is finished. `gpu` may invert the kernel.
    `early`: another process fits them while this one trains the networks, that of `workers` if it has been started.
    `quiet`: show no progress. `say` is called with notes.
    """
    found: dict[str, Others | None] = dict.fromkeys(of_blocks)
    with ExitStack() as stack:
        for place, planned in of_blocks.items():
            experiment = planned[0].experiment
            config = experiment.config
            if not config.train.mixture:
                continue
            data = experiment.dataset.path, config.data.memory_mb, *_parts(different_splits(planned))
            kinds = experiment.kinds(planned[0].split) if "auto" in config.train.transform else None
            own = experiment.metric, config.seed, config.train.bounds == "one_sided", kinds
            about = folder / place, *data, *own
            call: Future[tuple[Fitted, str]] | None = None
            with suppress(OSError, RuntimeError):
                if early:
                    workers = workers or stack.enter_context(Workers(1, one_blas_thread=False))
                    call = workers.submit(_fit_others, *about, gpu, True)
            found[place] = partial(_result, call, partial(_fit_others, *about, gpu, quiet), say)
        yield found


def _result(call: Future[tuple[Fitted, str]] | None, otherwise: Callable[[], tuple[Fitted, str]], say: Say) -> Fitted:
    """Return the result of a call in another process; of `otherwise`, if there is none or the process died.

    Its note is said.
    """
    found = None
    with suppress(WorkerDied):
        found = None if call is None else call.result()
    fitted, note = otherwise() if found is None else found
    if note:
        say(note)
    return fitted


def _fit_others(
    folder: Path,
    data: Path,
    memory_mb: int,
    rows: Int64,
    folds: NDArray[np.int8],
    metric: str,
    seed: int,
    one_sided: bool,
    kinds: tuple[Kind, ...] | None,
    gpu: Gpu | None,
    quiet: bool,
) -> tuple[Fitted, str]:
    """Fit the kernel and the trees to these rows of a data set, unless the run's folder has them; return a note, too.

    `kinds`: transforms of targets; None: the kernel chooses them. `gpu`: may invert the kernel; the note says why not.
    """
    if (found := mixed.kept(folder)) is not None:
        return found, ""
    with Dataset(data, memory_mb, check=False) as dataset, ExitStack() as stack:
        bars: dict[str, Any] = {}

        def advance(member: str, done: int, count: int) -> None:
            if member not in bars:
                bars[member] = stack.enter_context(counter(count, " steps", member, quiet=quiet))
            bars[member].update(done - bars[member].n)
            if done == count:
                bars[member].close()

        problem = replace(_problem(dataset, rows, folds, metric, seed), kinds=kinds or None)
        if dataset.sample_weight is not None:
            problem = replace(problem, weights=dataset.sample_weight[rows].astype(np.float64))
        if one_sided and dataset.censored is not None:
            problem = replace(problem, bounds=Bounds(dataset.y[rows], dataset.censored[rows]))
        molecules = mixed.molecules(dataset.header, dataset.feature_tables(rows))
        invert = None if gpu is None or len(rows) < gpu.least else Inverter(gpu)
        found = fit_members(problem, molecules, advance, invert)
    mixed.keep(folder, found)
    if invert is not None:
        invert.release()
    return found, "" if invert is None else invert.note


def check(planned: Sequence[Planned]) -> None:
    """Refuse a run with a mixture whose data it cannot read or learn.

    Raises
    ------
    InputError
    """
    experiment = planned[0].experiment
    mixed.check(experiment.dataset, experiment.config.model)
    _problem(experiment.dataset, *_parts(different_splits(planned)), experiment.metric, experiment.config.seed)


def notes(planned: Sequence[Planned]) -> list[str]:
    """Return lines on what out-of-fold rows of a split by time, few training rows and rare labels can show."""
    experiment, test = planned[0].experiment, len(planned[0].split.test)
    lines, parts = [], different_splits(planned)
    if experiment.config.split.rule == "time":
        line = "split by time: networks leave out random training rows, so out-of-fold figures describe known times"
        lines.append(f"{line}; the test rows are newer" if test else line)
    rows, _ = _parts(parts)
    if len(rows) < FEW:
        line = (
            f"{len(rows)} training rows in {len(parts)} parts: scores are uncertain; "
            "trust the ranking of molecules more than their values"
        )
        more = f"; scores of {counted(test, 'test row')} say least: --use-all trains on all rows"
        lines.append(line + more if 0 < test < FEW_TESTED else line)
    return [*lines, *targets.about_rare_labels(experiment.header, experiment.y[rows], len(parts))]


def whole_splits(planned: Sequence[Planned]) -> list[Split]:
    """Return the split of each block: all rows that its parts train on or leave out, and its test rows."""
    found = []
    for own in blocks(planned).values():
        rows, _ = _parts(different_splits(own))
        found.append(Split(train=rows, valid=rows[:0], test=own[0].split.test))
    return found


def _parts(parts: Sequence[Split]) -> tuple[Int64, NDArray[np.int8]]:
    """Return all training rows, ascending, and the part that left each out."""
    rows = np.sort(np.concatenate([split.valid for split in parts]))
    folds = np.empty(len(rows), np.int8)
    for number, split in enumerate(parts):
        folds[np.searchsorted(rows, split.valid)] = number
    return rows, folds


def _outputs(
    folder: Path,
    planned: Sequence[Planned],
    fitted: Sequence[FitResult],
    rows: Int64,
    folds: NDArray[np.int8],
    others: Others | None,
) -> tuple[_Outputs, dict[str, Any]]:
    """Return the outputs of the run, and what metrics.json says of its members."""
    experiment, test = planned[0].experiment, planned[0].split.test
    header, dataset = experiment.header, experiment.dataset
    validated, of_test = (pooled_part(folder, planned, fitted, part) for part in ("valid", "test"))
    assert validated is not None  # every part leaves rows out
    left_out = validated.mean
    if others is None:
        return _Outputs(left_out, of_test.mean if of_test else None, {}), {}
    problem = _problem(dataset, rows, folds, experiment.metric, experiment.config.seed)
    with span("fit the kernel and the trees"):
        members, of_members = others()
    mixture = mix(problem, members, of_members, {NETWORK: left_out.astype(np.float64)}).mixture
    is_regression = header.target == "regression"
    scaling = Scaling.of(problem.y, members.transforms) if is_regression else Scaling.identity(header.n_outputs)
    own = Mixed(mixture, scaling, np.array([not problem.is_learnable(task) for task in problem.tasks]))
    own.save(folder / planned[0].block, header)
    by_member = {name: own.rounded(of) for name, of in {**of_members, NETWORK: left_out}.items()}
    tested_by: dict[str, NDArray[Any]] = {}
    if of_test:
        features = mixed.molecules(header, dataset.feature_tables(test))
        tested_by = {**members.predict(features, cores()), NETWORK: of_test.mean}
    outputs = _Outputs(
        own.outputs({**of_members, NETWORK: left_out}), own.outputs(tested_by) if tested_by else None, by_member
    )
    return outputs, _about(experiment, own, rows, test, by_member, tested_by)


def _problem(dataset: Dataset, rows: Int64, folds: NDArray[np.int8], metric: str, seed: int) -> Problem:
    problem = mixed.problem(dataset, rows, folds, metric, seed)
    if not any(map(problem.is_learnable, problem.tasks)):
        got = "no task has two different values in two parts"
        raise InputError("train.mixture", got, "labels that vary", "Use other targets, or leave out the mixture.")
    return problem


def _about(
    experiment: Experiment,
    own: Mixed,
    rows: Int64,
    test: Int64,
    left_out: Mapping[str, NDArray[Any]],
    tested: Mapping[str, NDArray[Any]],
) -> dict[str, Any]:
    """Return the table of members, its metric, and the transforms of targets."""
    header, metric, mixture = experiment.header, experiment.metric, own.mixture

    def score(own_rows: Int64, outputs: NDArray[Any] | None) -> float | None:
        if outputs is None:
            return None
        y = metrics.without_tasks(experiment.measured[own_rows], own.left_out)
        return metrics.score(metric, header.target, y, outputs)

    found = []
    for name, weights in zip(mixture.names, mixture.weights, strict=True):
        row: dict[str, Any] = {"name": name, "weight": float(weights.mean())}
        if len(weights) > 1:
            row["weights"] = dict(zip(header.task_names, weights.tolist(), strict=True))
        row["out_of_fold"] = score(rows, left_out[name])
        row["test"] = score(test, tested.get(name))
        found.append(row)
    kinds = mixture.members.transforms.kinds
    transforms = dict(zip(header.task_names, kinds, strict=True)) if header.target == "regression" else {}
    return {"metric": metric, "members": found, **({"transforms": transforms} if transforms else {})}


def _write_out_of_fold(
    folder: Path, experiment: Experiment, rows: Int64, folds: NDArray[np.int8], found: _Outputs
) -> None:
    """Write a row for each training row: id, part, targets, the run's out-of-fold outputs, and those of each member."""
    header = experiment.header
    columns: dict[str, Any] = {"id": experiment.ids[rows], "part": (folds + 1).tolist()}

    def add(name: str, values: NDArray[Any]) -> None:
        while name in columns:
            name += "_"
        columns[name] = values

    y = experiment.measured[rows]
    if header.target == "multiclass":
        classes = np.array([*header.class_names, ""])
        add(f"{header.task_names[0]}_target", classes[y[:, 0]])
    else:
        for task, name in enumerate(header.task_names):
            add(f"{name}_target", y[:, task])
    for task, name in enumerate(output_names(header)):
        add(name, found.left_out[:, task])
        for member, outputs in found.by_member.items():
            add(f"{name}_{member}", outputs[:, task].astype(found.left_out.dtype))
    tables.write(folder / OUT_OF_FOLD, columns, experiment.config.parquet)


def out_of_fold_scores(folder: Path, header: Header, mixtures: Sequence[Mixed]) -> list[float | None]:
    """Return the out-of-fold score of each of some mixtures of a run's members, by the metric of the run.

    Parameters
    ----------
    folder : Path
        Of a cross-fitted run with a mixture, or a block of one. Its data set is read, too.

    Raises
    ------
    InputError
        When a file of it or the data set is gone or damaged.
    """
    run = folder if (folder / DIGEST).is_file() else folder.parent
    with RunData.of(run).open() as dataset:
        rows = read_split(folder / SPLITS, len(dataset.y)).train
        y = dataset.measured[rows]
    names, targets_of = mixtures[0].mixture.names, 1 if header.target == "multiclass" else len(header.task_names)
    count = header.n_outputs * (1 + len(names))  # the run's own, then those of each member
    table = read_numbers(folder / OUT_OF_FOLD, header, len(rows), 2 + targets_of, count)
    table = table.reshape(len(rows), header.n_outputs, -1)
    of_members = {name: table[:, :, place] for place, name in enumerate(names, 1)}
    metric = run_files.read_figures(folder / METRICS)["metric"]
    return [
        metrics.score(metric, header.target, metrics.without_tasks(y, one.left_out), one.outputs(of_members))
        for one in mixtures
    ]
