"""``gcnbatch tune``: collects its options and prints the best configuration."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command
from gcnbatch.options.training import TuneOptions
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


@command(TuneOptions)
def tune(
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the study's path.")] = False,
    **options: Any,
) -> None:
    """Search for the best configuration. Test rows are never used. The last line on stdout is the study's path."""
    from gcnbatch.api import study
    from gcnbatch.progress import write_line

    def say(line: str) -> None:
        if not quiet or line.startswith("warning: "):
            write_line(line)

    found = study.tune(**options, quiet=quiet, say=say)
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
