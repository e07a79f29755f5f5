"""A run: its folder, configuration and data, one fit or k folds, and resuming.

The folder of a run holds ``config.toml`` (resolved), ``env.json``, ``splits.json``, ``history.jsonl``,
``metrics.json``, ``last.safetensors`` (to resume), ``best.safetensors`` (to predict), ``predictions.csv`` and plots.
With folds, every fold has such a folder (``fold1`` …), and the run's own files summarise them.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gcnbatch import environment, fileio, folders, machine
from gcnbatch.backends.base import Backend
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import put, read_toml
from gcnbatch.data import splits
from gcnbatch.data.graphs import Split
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.predictions import Predictions, read_outputs, write_csv
from gcnbatch.runners.choice import BackendChoice, make_runner
from gcnbatch.train import report, run_files
from gcnbatch.train.experiment import Experiment
from gcnbatch.train.loop import HISTORY, OTHER_RATES, Fitted, Interrupted, Trainer
from gcnbatch.train.report import Report
from gcnbatch.train.schedule import rates_differ

CONFIG, ENVIRONMENT, SPLITS, DIGEST, GENERATED = "config.toml", "env.json", "splits.json", "data.sha256", "data.h5"
Say = Callable[[str], object]
Write = Callable[[Report], dict[str, Any]]


def start(
    config: Config,
    folder: Path | None,
    quiet: bool = False,
    say: Say = lambda line: None,
    write: Write = Report.write,
) -> tuple[Path, dict[str, Any]]:
    """Start a run in `folder` (default ``runs/<name>-<time>``), train to the end, and return folder and metrics.

    A run that is refused leaves no folder. `write` writes a fit's report.

    Raises
    ------
    InputError
        When the folder is not empty or another process writes there, or data and configuration do not match.
    """
    choice = BackendChoice(config.backend, config.device, config.cuda, say)
    if not config.data.path and not config.data.synthetic:
        raise InputError(
            "data.path", "empty", "a data set", "Give --data FILE.h5, or set data.path in the configuration."
        )
    if config.data.path:
        absolute = config.data.model_copy(update={"path": str(Path(config.data.path).resolve())})
        config = config.model_copy(update={"data": absolute})
    hint = f"Choose another -o, or go on with --resume {folder}."
    with ExitStack() as stack:
        target = stack.enter_context(folders.results(folder, config.name, hint))
        stack.enter_context(_resumable(target))
        if config.data.synthetic:
            _create(target, config)
            _generate(config, target)
        try:
            experiment, parts, backend = stack.enter_context(_prepared(config, target, choice))
        except InputError:
            if config.data.synthetic:
                for made in target.iterdir():
                    made.unlink()
            raise
        _create(target, config.model_copy(update={"backend": backend.name}))
        return target, _fit_parts(target, experiment, parts, backend, quiet, say, write)


def resume(
    folder: Path,
    backend_name: str | None = None,
    device: int | None = None,
    resident: str | None = None,
    quiet: bool = False,
    say: Say = lambda line: None,
    epochs: int | None = None,
) -> dict[str, Any]:
    """Resume the run in `folder` and return its metrics. A finished run stays unchanged unless `epochs` extends it.

    Parameters
    ----------
    backend_name, device, resident : optional
        Replace the run's backend, GPU and ``cuda.resident``. They do not change the mathematics of a run.
    epochs : int or None
        More epochs than the run has: the result is that of a run with so many epochs from the start.

    Raises
    ------
    InputError
        When `folder` is not a run, another process trains there, the data changed, or the run cannot be extended.
    """
    if not (folder / CONFIG).is_file():
        raise InputError(str(folder), "not a run folder", f"a folder with {CONFIG}", "Start with 'gcnbatch train'.")
    with folders.locked(folder):
        run_files.refuse_links(folder)
        config = resolve(read_toml(folder / CONFIG), where=str(folder / CONFIG))
        longer = config if epochs is None else _extended(config, epochs)
        extended, config = longer != config, longer
        if (folder / report.METRICS).exists() and not extended:
            say(f"{folder} is already finished")
            return run_files.read_metrics(folder / report.METRICS, folds=bool(config.split.folds))
        for place in (folder, *folder.glob("fold*")):
            fileio.remove_abandoned(place)
        tree = config.model_dump(mode="json")
        for path, value in ((("backend",), backend_name), (("device",), device), (("cuda", "resident"), resident)):
            if value is not None:
                put(tree, path, value)
        config = resolve(tree, where="--resume")
        choice = BackendChoice(config.backend, config.device, config.cuda, say)
        with _resumable(folder):
            if config.data.synthetic and not (folder / GENERATED).exists():
                _generate(config, folder)
            with _prepared(config, folder, choice) as (experiment, parts, backend):
                if extended:
                    _check_digest(folder, experiment)
                    _reopen(folder, longer)
                return _fit_parts(folder, experiment, parts, backend, quiet, say, Report.write)


def _extended(config: Config, epochs: int) -> Config:
    """Return the configuration with more epochs."""
    if epochs < config.train.epochs:
        raise InputError(
            "--epochs", f"{epochs} to extend a run of {config.train.epochs}", "more epochs than the run has"
        )
    if config.train.schedule == "cosine" and epochs > config.train.epochs:
        raise InputError(
            "--epochs",
            "given for a run with the cosine schedule, which ends with its last epoch",
            hint="Start a new run.",
        )
    tree = config.model_dump(mode="json")
    put(tree, ("train", "epochs"), epochs)
    return resolve(tree, where="--epochs")


def _reopen(folder: Path, config: Config) -> None:
    """Turn a finished run into one to resume; the metrics go first, so that a crash here leaves no wrong ones."""
    for place in (folder, *folder.glob("fold*")):
        run_files.remove(place / report.METRICS)
    fileio.write_text(folder / CONFIG, config.to_toml())


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Add the command that resumes the run to an error of the machine and to an interrupt."""
    go_on = f"Go on with: gcnbatch train --resume {shlex.quote(str(folder))}"
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        what = str(stop) if isinstance(stop, Interrupted) else "stopped"
        raise Interrupted(what, hint=go_on if (folder / CONFIG).exists() else "Nothing was written.") from None
    except Exception as error:
        explained = machine.explain(error)
        if explained is None:
            raise
        if (folder / CONFIG).exists():
            explained.advise(go_on)
        if explained is error:
            raise
        raise explained from error


@contextmanager
def _prepared(config: Config, folder: Path, choice: BackendChoice) -> Iterator[tuple[Experiment, list[Split], Backend]]:
    """Open the data, build the model, make the splits, choose the backend. Every refusal of a task happens here."""
    path = folder / GENERATED if config.data.synthetic else Path(config.data.path)
    with Dataset(path, config.data.memory_mb) as dataset:
        experiment = Experiment(config, dataset)
        about = (config.split, config.seed, experiment.split_rows)
        parts = splits.make_folds(*about) if config.split.folds else [splits.make_split(*about)]
        tasks = [experiment.task(part)[0] for part in parts]
        yield experiment, parts, choice.backend_for(tasks)


def _generate(config: Config, folder: Path) -> None:
    """Write the synthetic data set into the run folder."""
    from gcnbatch.data import synthetic

    synthetic.write(config.data.synthetic, folder / GENERATED)


def _create(folder: Path, config: Config) -> None:
    fileio.write_text(folder / CONFIG, config.to_toml())
    about = {**environment.host(), "backend": config.backend, "command": sys.argv[1:]}
    fileio.write_json(folder / ENVIRONMENT, about)


def _fit_parts(
    folder: Path, experiment: Experiment, parts: list[Split], backend: Backend, quiet: bool, say: Say, write: Write
) -> dict[str, Any]:
    """Fit the split, or every fold that has no metrics yet, and return the run's metrics."""
    _check_digest(folder, experiment)
    if count := splits.left_out(experiment.config.split, experiment.split_rows):
        say(f"{count:,} of {len(experiment.y):,} rows have no label and are left out")
    if not experiment.config.split.folds:
        return _fit(folder, experiment, parts[0], backend, quiet, say, write)
    results = []
    for number, split in enumerate(parts, 1):
        place = folder / f"fold{number}"
        if (place / report.METRICS).exists():
            results.append(run_files.read_metrics(place / report.METRICS, folds=False))
            history = run_files.read_history(place / HISTORY, results[-1]["epochs"])
            if rates_differ(experiment.config.train, history):
                say(f"{place} {OTHER_RATES}; the folds that follow have those of now")
            continue
        say(f"fold {number} of {len(parts)}")
        folders.make(place)
        results.append(_fit(place, experiment, split, backend, quiet, say, write))
    return _summarise(folder, experiment, parts, results)


def _check_digest(folder: Path, experiment: Experiment) -> None:
    """Record the data set's digest in the format of ``sha256sum``; a resumed run must have the same digest."""
    place, path = folder / DIGEST, experiment.dataset.path
    if not place.exists():
        fileio.write_text(place, f"{experiment.fingerprint}  {path}\n")
    elif run_files.read_text(place, "the data set's digest").split()[:1] != [experiment.fingerprint]:
        raise InputError(str(path), "changed since the run began", f"the data of {place}", "Restore it, or start anew.")


def _fit(
    folder: Path, experiment: Experiment, split: Split, backend: Backend, quiet: bool, say: Say, write: Write
) -> dict[str, Any]:
    rows = {part: values.tolist() for part, values in split.parts().items()}
    fileio.write_text(folder / SPLITS, json.dumps(rows))
    for line in experiment.one_class_tasks(split):
        say(line)
    task, scaling = experiment.task(split)
    runner = make_runner(backend, task)
    try:
        trainer = Trainer(experiment, split, runner, scaling, folder, quiet, say)
        found = _report(trainer, trainer.fit())
    finally:
        runner.close()
    return write(found)


def _report(trainer: Trainer, fitted: Fitted) -> Report:
    experiment, parts = trainer.experiment, {part: rows for part, rows in trainer.split.parts().items() if len(rows)}
    return Report(
        folder=trainer.folder,
        header=experiment.header,
        labels={part: experiment.y[rows] for part, rows in parts.items()},
        outputs={part: trainer.outputs(rows) for part, rows in parts.items()},
        test_ids=experiment.ids[trainer.split.test],
        history=run_files.read_history(trainer.folder / HISTORY, fitted.position.epoch),
        course={**_course(fitted), "split": _describe_split(experiment, trainer.split)},
    )


def _describe_split(experiment: Experiment, split: Split) -> dict[str, Any]:
    """Return the name, seed and sizes of a split, for metrics.json."""
    config = experiment.config.split
    named = {"name": config.name or next(iter(experiment.dataset.splits))} if config.kind == "predefined" else {}
    seed, sizes = splits.split_seed(config, experiment.config.seed), [len(rows) for rows in split.parts().values()]
    return {"kind": config.kind, **named, "seed": seed, "sizes": sizes}


def _course(fitted: Fitted) -> dict[str, Any]:
    """Return the entries of metrics.json on training: backend and its properties, epochs, seconds, time of a step.

    The time of a step is host time: on an asynchronous device, the time to enqueue it.
    """
    at, steps = fitted.position, np.array(fitted.step_seconds) * 1e6
    course: dict[str, Any] = {"backend": fitted.runner.backend, **fitted.runner.about()}
    course |= {"best_epoch": at.best_epoch + 1, "epochs": at.epoch, "seconds": round(at.seconds, 3)}
    if len(steps):
        quantiles = np.quantile(steps, [0.5, 0.2, 0.8])
        course["step_us"] = {
            name: round(float(q), 1) for name, q in zip(("median", "p20", "p80"), quantiles, strict=True)
        }
        course["graphs_per_second"] = round(fitted.graphs / max(fitted.train_seconds, 1e-9), 1)
    return course


def _summarise(
    folder: Path, experiment: Experiment, parts: list[Split], results: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write the run's metrics (mean, standard deviation) and its out-of-fold predictions in the data set's order."""
    summary = report.summarise_folds(results)
    summary["backend"] = results[-1]["backend"]
    summary["epochs"] = experiment.config.train.epochs
    summary["seconds"] = round(sum(result["seconds"] for result in results), 3)
    summary["split"] = {**results[0]["split"], "sizes": [result["split"]["sizes"] for result in results]}
    places = [folder / f"fold{number}" / report.PREDICTIONS for number in range(1, len(parts) + 1)]
    held_out = [
        read_outputs(place, experiment.header, len(part.test)) for place, part in zip(places, parts, strict=True)
    ]
    rows = np.concatenate([part.test for part in parts])
    order = np.argsort(rows, kind="stable")
    pooled = np.concatenate(held_out)[order]
    header, y, ids = experiment.header, experiment.y[rows[order]], experiment.ids[rows[order]]
    summary["out_of_fold"] = report.evaluate(header, y, pooled)
    write_csv(folder / report.PREDICTIONS, Predictions(header, ids, pooled))
    report.draw(folder, header, y, pooled, summary["out_of_fold"], part="test rows of all folds").result()
    fileio.write_json(folder / report.METRICS, summary)
    return summary
