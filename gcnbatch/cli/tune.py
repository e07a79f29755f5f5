"""``gcnbatch tune``: collects its options and prints the best configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gcnbatch.cli.configuration import (
    BackendOption,
    ConfigArgument,
    DataOption,
    DeviceOption,
    EpochsOption,
    JobsOption,
    jobs_key,
    settings,
)
from gcnbatch.text import counted

# \b keeps the lines of a paragraph as they are.
EPILOG = """\b
Examples:
  gcnbatch tune --data tox21.h5 --trials 100 -o study
  gcnbatch tune tox21 --data tox21.h5 --folds 5 --minutes 30 -o study
  gcnbatch tune mine.toml --data my.h5 --space space.toml -o study
  gcnbatch tune --resume study               go on where it was stopped
  gcnbatch tune --resume study --trials 200  more trials
  gcnbatch train study/best.toml             test the best configuration
\b
A space names keys of the configuration (see train --keys):
  [model]
  widths = { choices = [64, 128], repeat = { low = 1, high = 3 } }
  [train]
  learning_rate = { low = 1e-4, high = 1e-1, log = true }
"""


def tune(
    config: ConfigArgument = None,
    data: DataOption = None,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Trials of the study.", show_default="50 without --minutes")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, help="Begin no more trials then.", show_default=False)
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option("--space", metavar="SPACE.toml", help="Keys to search.", show_default="a built-in one"),
    ] = None,
    folds: Annotated[
        int | None, typer.Option("--folds", help="Validate on k folds, without test rows.", show_default=False)
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Validate on splits with other seeds.", show_default=False)
    ] = None,
    epochs: EpochsOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of search and runs.", show_default=False)] = None,
    backend: BackendOption = None,
    device: DeviceOption = None,
    jobs: JobsOption = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set a key that is not searched."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="STUDY_DIR", help="Folder.", show_default="runs/<name>-tune-<time>"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="STUDY_DIR", help="Go on with a study.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the study's path.")] = False,
) -> None:
    """Search for the best configuration. Test rows are never used. The last line on stdout is the study's path."""
    from gcnbatch.api import study
    from gcnbatch.progress import write_line

    def say(line: str) -> None:
        if not quiet or line.startswith("warning: "):
            write_line(line)

    found = study.tune(
        config,
        data,
        space=space,
        trials=trials,
        minutes=minutes,
        out=out,
        resume=resume,
        folds=folds,
        repeats=repeats,
        epochs=epochs,
        seed=seed,
        backend=backend,
        device=device,
        jobs=jobs_key(jobs),
        settings=settings(assignments),
        quiet=quiet,
        say=say,
    )
    if as_json:
        typer.echo(json.dumps({**found.summary, "study": str(found.folder)}, indent=2, allow_nan=False))
    else:
        if not quiet:
            _show(found.summary)
        typer.echo(str(found.folder))


def _show(summary: dict[str, Any]) -> None:
    """Print the counts of trials, and the best one with its values."""
    from gcnbatch.cli.text_tables import facts
    from gcnbatch.text import figure
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
