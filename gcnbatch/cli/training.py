"""The commands ``train``, ``tune`` and ``baseline``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcnbatch.cli.command import command, messages, print_result
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import chosen, parameters
from gcnbatch.options.training import BaselineOptions, ResumeOptions, TrainOptions, TuneOptions
from gcnbatch.text import counted, figure

if TYPE_CHECKING:
    from gcnbatch.api.run import Run

_QUIET = "No progress, no table; only the run's path."


@command(TrainOptions, as_json="Print the metrics as JSON.", quiet=_QUIET)
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
    as_json: bool = False,
    quiet: bool = False,
    show_keys: Annotated[
        bool, typer.Option("--keys", help="List every key of the configuration: default, meaning, allowed values.")
    ] = False,
    **options: Any,
) -> None:
    """Train a model, of a table of molecules or a data set. The last line on stdout is the run's path.

    A table is imported as by 'gcnbatch data import smiles'; the run keeps the data set. A tenth of the rows, or those
    of the table's split, tests the model. Without arguments, it is the built-in quickstart.

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
    if show_keys:
        _show_keys()
        return
    from gcnbatch.api import training

    say = messages(quiet)
    if resume is None:
        run = training.train(**options, quiet=quiet, say=say)
    elif others := chosen(options, TrainOptions, parameters(ResumeOptions)):
        raise InputError(
            "--resume",
            f"together with {', '.join(others)}",
            "nothing but --backend, --device, --resident, --jobs and --epochs",
            "A resumed run keeps its configuration.",
        )
    else:
        free = {name: options[name] for name in parameters(ResumeOptions) if name in options}
        run = training.resume(resume, **free, quiet=quiet, say=say)
    _show(run, as_json, quiet)


@command(BaselineOptions, as_json="Print the metrics as JSON.", quiet="No messages, no table; only the run's path.")
def baseline(as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    """Fit a random forest to the rows that 'train' would use.

    It sees count-Morgan fingerprints and RDKit descriptors of each molecule.
    The last line on stdout is the run's path.

    Examples:
      gcnbatch baseline --data tox21.h5 --folds 5   the folds of 'train'
      gcnbatch baseline tox21 --data tox21.h5       the split of a configuration
      gcnbatch baseline --data molecules.csv        a table of molecules
      gcnbatch train --data tox21.h5 --baseline     beside a run, on its rows
    """
    from gcnbatch.api import training

    _show(training.baseline(**options, quiet=quiet, say=messages(quiet)), as_json, quiet)


def _show(run: Run, as_json: bool, quiet: bool) -> None:
    """Print the metrics and the run's path."""
    if not (as_json or quiet):
        from gcnbatch.cli.run_figures import lines

        typer.echo("\n".join(lines(run.metrics)))
    print_result(as_json, {**run.metrics, "run": str(run.folder)} if as_json else None, run.folder)


def _show_keys() -> None:
    from gcnbatch.config import key_table

    rows = key_table()
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for key, default, allowed, meaning in rows:
        typer.echo(f"{key:{widths[0]}}  {default:{widths[1]}}  {meaning} ({allowed})")


@command(TuneOptions, as_json="Print the summary as JSON.", quiet="No progress; only the study's path.")
def tune(as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    """Search for the best configuration. Test rows are never used. The last line on stdout is the study's path.

    Examples:
      gcnbatch tune --data tox21.h5 --trials 100 -o study
      gcnbatch tune tox21 --data tox21.h5 --folds 5 --minutes 30 -o study
      gcnbatch tune mine.toml --data my.h5 --space space.toml -o study
      gcnbatch tune --resume study               go on where it was stopped
      gcnbatch tune --resume study --trials 200  more trials
      gcnbatch train study/best.toml             test the best configuration

    A space names keys of the configuration (see train --keys):
      [model]
      widths = { choices = [64, 128], repeat = { low = 1, high = 3 } }
      [train]
      learning_rate = { low = 1e-4, high = 1e-1, log = true }
    """
    from gcnbatch.api import training
    from gcnbatch.progress import write_line

    def say(line: str) -> None:
        if not quiet or line.startswith("warning: "):
            write_line(line)

    found = training.tune(**options, quiet=quiet, say=say)
    if not (as_json or quiet):
        _show_study(found.summary)
    print_result(as_json, {**found.summary, "study": str(found.folder)}, found.folder)


def _show_study(summary: dict[str, Any]) -> None:
    """Print the counts of trials, and the best one with its values."""
    from gcnbatch.cli.text_tables import facts
    from gcnbatch.tuning.page import objective

    counts = ", ".join(f"{summary[state]} {state}" for state in ("complete", "pruned", "failed"))
    typer.echo(f"{counted(summary['trials'], 'trial')}: {counts}")
    if "best" not in summary:
        return
    best = summary["best"]
    pairs = [(f"best {objective(summary)}", f"{figure(best['value'])} (trial {best['number']})")]
    pairs += [(key, _text(value)) for key, value in best["parameters"].items()]
    for line in facts(pairs):
        typer.echo(line)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
