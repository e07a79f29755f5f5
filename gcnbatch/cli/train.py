"""``gcnbatch train``: collects its options and prints the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcnbatch.cli.command import command, messages
from gcnbatch.options.declaration import parameters
from gcnbatch.options.training import ResumeOptions, TrainOptions
from gcnbatch.text import counted, figure, printable

if TYPE_CHECKING:
    from gcnbatch.api.run import Run

# \b keeps the lines of a paragraph as they are.
EPILOG = """\b
Examples:
  gcnbatch train assay.csv                     the best model for a table
  gcnbatch train assay.csv --target-columns IC50 --use-all
  gcnbatch train assay.csv --recipe gcn        networks alone
  gcnbatch train                               the built-in quickstart
  gcnbatch train tox21 --data tox21.h5         a shipped configuration
  gcnbatch train mine.toml --data my.h5        your configuration
  gcnbatch train --data my.h5 --folds 5        5-fold cross-validation
  gcnbatch train --data my.h5 --ensemble 10    ten models for infer to average
  gcnbatch train --data my.h5 --set model.widths=[128,128]
  gcnbatch train --data my.h5 --from runs/tox21 --freeze all-conv
  gcnbatch train --resume runs/tox21           continue a stopped run
"""


@command(TrainOptions)
def train(
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN_DIR",
            help="Continue a stopped run; with --epochs, a finished one.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table; only the run's path.")] = False,
    show_keys: Annotated[
        bool, typer.Option("--keys", help="List every key of the configuration: default, meaning, allowed values.")
    ] = False,
    **options: Any,
) -> None:
    """Train a model, of a table of molecules or a data set. The last line on stdout is the run's path.

    A table is imported as by 'gcnbatch data import smiles'; the run keeps the data set. A tenth of the rows, or those
    of the table's split, tests the model. Without arguments, it is the built-in quickstart.
    """
    if show_keys:
        _show_keys()
        return
    from gcnbatch.api import training

    say = messages(quiet)
    if resume is None:
        run = training.train(**options, quiet=quiet, say=say)
    else:
        run = training.resume(resume, **_only_resume(options), quiet=quiet, say=say)
    print_result(run, as_json, quiet)


def print_result(run: Run, as_json: bool, quiet: bool) -> None:
    """Print the metrics and the run's path."""
    if as_json:
        typer.echo(json.dumps({**run.metrics, "run": str(run.folder)}, indent=2))
        return
    if not quiet:
        show(run.metrics)
    typer.echo(str(run.folder))


def _only_resume(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a resumed run; others are refused."""
    from gcnbatch.errors import InputError

    declared, free = parameters(TrainOptions), parameters(ResumeOptions)
    given = {name: value for name, value in options.items() if name not in free and value != declared[name].default}
    settings = [f"{key}={value}" for key, value in given.pop("settings", {}).items()]
    others = [word for name, word in (("config", "CONFIG"), ("out", "--out")) if given.pop(name, None)]
    extra = [*(declared[name].flags[0] for name in given), *settings, *others]
    if extra:
        raise InputError(
            "--resume",
            f"together with {', '.join(extra)}",
            "nothing but --backend, --device, --resident, --jobs and --epochs",
            "A resumed run keeps its configuration.",
        )
    return {name: value for name, value in options.items() if name in free}


def show(metrics: dict[str, Any]) -> None:
    """Print the figures of each part, or mean ± deviation over folds."""
    from gcnbatch.cli.text_tables import by_task, table
    from gcnbatch.data.splits import title
    from gcnbatch.metrics import common_unit, label

    if "parts" in metrics:
        _show_cross_fitted(metrics)
        return
    split = metrics["split"]
    figures: dict[str, dict[str, Any]]
    named = f"{printable(metrics['backend'])}, {title(split)}"
    if members := metrics.get("folds") or metrics.get("members"):
        mean, std = metrics["mean"], metrics["std"]
        fitted = [part for part in mean if part != "uncertainty"]
        figures = {part: {n: _spread(mean[part][n], std[part][n]) for n in mean[part]} for part in fitted}
        what = "folds" if "folds" in metrics else "models"
        typer.echo(f"{len(members)} {what}, {named}: mean ± standard deviation")
    else:
        parts = {part: metrics[part] for part in ("train", "valid", "test") if part in metrics}
        figures = {part: {n: v for n, v in of.items() if v is None or type(v) is float} for part, of in parts.items()}
        sizes = " / ".join(str(size) for size in split["sizes"])
        course = printable(metrics.get("model", "")) or f"best epoch {metrics['best_epoch']} of {metrics['epochs']}"
        typer.echo(f"{named}: {sizes} rows; {course}")
    for line in _defined(metrics):
        typer.echo(line)
    names = list(dict.fromkeys(name for of in figures.values() for name in of))
    test = metrics.get("out_of_fold", metrics.get("test", {}))
    header = ["", *(label(name, common_unit(test)) for name in names)]
    for line in table(header, [[part, *map(of.get, names)] for part, of in figures.items()]):
        typer.echo(line)
    for line in by_task(test, "test, by task"):
        typer.echo(line)
    _show_uncertainty(metrics)
    if metrics.get("baseline"):
        typer.echo(printable(metrics["baseline"]["verdict"]))


def _show_cross_fitted(metrics: dict[str, Any]) -> None:
    """Print the figures of left-out and test rows, and the table of members."""
    from gcnbatch.cli.text_tables import by_task, table
    from gcnbatch.data.splits import title
    from gcnbatch.metrics import common_unit, label

    split = metrics["split"]
    trained, _, tested = split["sizes"]
    sizes = f"{trained:,} training and {counted(tested, 'test row')}" if tested else counted(trained, "training row")
    named = f"{printable(metrics['backend'])}, {title(split)}: {sizes}"
    typer.echo(f"{counted(len(metrics['parts']), 'network')}, each trained without its part; {named}")
    parts = {"out of fold": metrics["valid"], "test": metrics.get("test")}
    figures = {part: of for part, of in parts.items() if of}
    unit = common_unit(metrics["valid"])
    names = [name for name, value in metrics["valid"].items() if value is None or type(value) is float]
    header = ["", *(label(name, unit) for name in names)]
    for line in table(header, [[part, *map(of.get, names)] for part, of in figures.items()]):
        typer.echo(line)
    if members := metrics.get("members"):
        name = label(metrics["metric"], unit)
        columns = [("weight", "weight"), (f"{name}, out of fold", "out_of_fold"), (f"{name}, test", "test")]
        columns = columns if "test" in figures else columns[:-1]
        rows = [[printable(of["name"]), *(of[key] for _, key in columns)] for of in members]
        for line in table(["member alone", *(title for title, _ in columns)], rows):
            typer.echo(line)
    for line in by_task(metrics.get("test") or metrics["valid"], "test, by task" if "test" in figures else "by task"):
        typer.echo(line)
    _show_uncertainty(metrics)
    if metrics.get("baseline"):
        typer.echo(printable(metrics["baseline"]["verdict"]))


def _spread(mean: float, deviation: float | None) -> str:
    return f"{figure(mean)} ± {'–' if deviation is None else figure(deviation)}"


def _defined(metrics: dict[str, Any]) -> Iterator[str]:
    """Yield a line per part on metrics that not all members have: their means leave members out."""
    from gcnbatch.metrics import label

    what = "folds" if "folds" in metrics else "models"
    members = len(metrics.get("folds") or metrics.get("members") or ())
    for part, counts in metrics.get("defined", {}).items():
        if part != "uncertainty":
            by_count: dict[int, list[str]] = {}
            for name, count in counts.items():
                by_count.setdefault(count, []).append(label(name))
            shown = "; ".join(f"{', '.join(names)} of {count} of {members}" for count, names in by_count.items())
            yield f"{part}, means over {what} that have a value: {shown}"


def _show_uncertainty(metrics: dict[str, Any]) -> None:
    """Print calibration error and coverage of the test rows, and whether something could not be computed."""
    mean = metrics.get("mean")
    found = (mean if isinstance(mean, dict) else metrics).get("uncertainty") or {}
    before, after, level, coverage = (found.get(name) for name in ("ece", "ece_calibrated", "level", "coverage"))
    shown = []
    if before is not None and after is not None:
        shown.append(f"ECE {before:.3f} before and {after:.3f} after calibration")
    if level is not None and coverage is not None:
        shown.append(f"{level:.0%} {'intervals' if 'ence' in found else 'sets'} cover {coverage:.1%}")
    if shown:
        typer.echo(f"test, {'; '.join(shown)}")
    if notes := found.get("notes"):
        more = f" (and {counted(len(notes) - 1, 'more note')} in metrics.json)" if len(notes) > 1 else ""
        typer.echo(f"note: {printable(notes[0])}{more}")


def _show_keys() -> None:
    from gcnbatch.config import key_table

    rows = key_table()
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for key, default, allowed, meaning in rows:
        typer.echo(f"{key:{widths[0]}}  {default:{widths[1]}}  {meaning} ({allowed})")
