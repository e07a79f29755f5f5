"""The commands that predict with trained runs: ``infer``, ``explain``, ``embed``, ``serve`` and ``select``."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import RunsAndData, command, messages, print_result, runs_and_data
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import chosen, parameters
from gcnbatch.options.prediction import EmbedOptions, ExplainOptions, InferOptions, ServeOptions
from gcnbatch.options.selection import CampaignOptions, SelectCommandOptions, SelectOptions
from gcnbatch.text import counted

_QUIET = "No progress, no summary."
_SUMMARY = "Print a summary as JSON."


@command(InferOptions, as_json="Print a summary with the metrics as JSON.", quiet=_QUIET)
def infer(
    paths: RunsAndData,
    plain: Annotated[bool, typer.Option("--plain", help="Predictions alone, without calibration and sets.")] = False,
    as_json: bool = False,
    quiet: bool = False,
    **options: Any,
) -> None:
    """Predict with trained runs.

    For all rows of DATA, OUT has ids and probabilities, or values in the target's unit.

    Examples:
      gcnbatch infer runs/tox21 new.h5 -o predictions.csv
      gcnbatch infer runs/tox21 new.csv -o new.jsonl    straight from SMILES
      gcnbatch infer runs/tox21 'CC(=O)O'               one molecule
      head new.smi | gcnbatch infer runs/tox21 -        a table or SMILES lines
      gcnbatch infer runs/a runs/b new.h5 -o mean.csv   mean and deviation
      gcnbatch infer runs/tox21 new.csv.gz | head       CSV on stdout

    A run with folds is the ensemble of its folds. Rows are in the order of the input; a molecule that cannot be
    read has a blank row with the reason in the column 'error'. Columns of DATA that are named like the tasks give
    metrics. Where the run had enough validation rows, there are calibrated probabilities (<name>_calibrated),
    intervals (<name>_low, <name>_high) or sets of labels (<name>_set, such as 0|1) that hold the right value in a
    share --level of new rows.
    """
    from gcnbatch.api import prediction

    runs, data = runs_and_data(paths)
    out = options["out"]
    if as_json and out == "-":
        raise InputError("--json", "predictions go to standard output too", "-o FILE beside it")
    if plain:
        options["level"] = None

    say = messages(quiet)
    try:
        summary = prediction.infer(runs, data, **options, quiet=quiet, say=say)
        if out == "-":
            sys.stdout.flush()
    except BrokenPipeError:
        if out != "-":
            raise
        # A reader such as head has what it wanted. Python must not find the closed pipe again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if as_json:
        print_result(True, {**asdict(summary), "out": out}, "")
    if summary.metrics is not None:
        from gcnbatch.cli.text_tables import by_task, table
        from gcnbatch.metrics import common_unit, label

        unit = common_unit(summary.metrics)
        figures = {name: value for name, value in summary.metrics.items() if value is None or isinstance(value, float)}
        for line in [
            *table([label(name, unit) for name in figures], [list(figures.values())], left=0),
            *by_task(summary.metrics, "by task"),
        ]:
            say(line)
    where = "" if out == "-" else f" in {out}"
    models = counted(summary.members, "model")
    say(f"{counted(summary.rows, 'row')} predicted by {models} on {summary.backend} in {summary.seconds:.1f} s{where}")


@command(ExplainOptions, as_json=_SUMMARY, quiet=_QUIET)
def explain(paths: RunsAndData, as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    """Show what each atom and bond adds to predictions.

    The last line on stdout is the path of the folder.

    Examples:
      gcnbatch explain runs/tox21 new.csv -o why             all rows, all tasks
      gcnbatch explain runs/tox21 library.smi --task NR-AR --top 50 -o why
      gcnbatch explain runs/a runs/b set.h5 -o why           mean of the models

    DIR gets index.html, which sorts and filters without network; atoms.csv, bonds.csv and molecules.csv; and an SVG per
    molecule in molecules/. The method is integrated gradients from a molecule without features and bonds. For every
    molecule, molecules.csv has the completeness error: what the sum of all attributions misses.
    """
    from gcnbatch.api import prediction

    runs, data = runs_and_data(paths)
    say = messages(quiet)
    summary = prediction.explain(runs, data, **options, quiet=quiet, say=say)
    if summary.unreadable:
        say(f"{counted(summary.unreadable, 'row')} could not be read; see column error of molecules")
    say(summary.text())
    print_result(as_json, asdict(summary), summary.folder)


@command(EmbedOptions, as_json=_SUMMARY, quiet=_QUIET)
def embed(paths: RunsAndData, as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    """Write the embedding of each molecule.

    It has a vector of each network.

    Examples:
      gcnbatch embed runs/lipo new.csv -o vectors.parquet
      gcnbatch embed runs/lipo new.csv -o vectors.npy      ids in vectors.ids.csv
      gcnbatch embed runs/lipo new.csv -o all.csv --fingerprint --descriptors
      gcnbatch embed runs/lipo new.csv -o v.npy --map map.html

    The vector of a molecule has the values that enter the output layer, columns e0, e1, …; those of several
    networks stand side by side, because their columns mean different things. Rows are in the order of the input; a
    molecule that cannot be read has a blank row. The map places similar vectors near each other; colours are
    targets, errors and predictions.
    """
    from gcnbatch.api import prediction

    runs, data = runs_and_data(paths)
    say = messages(quiet)
    summary = prediction.embed(runs, data, **options, quiet=quiet, say=say)
    more = f" and {counted(summary.features, 'feature')}" if summary.features else ""
    say(f"{counted(summary.rows, 'row')} of {counted(summary.embedding, 'value')}{more}")
    print_result(as_json, asdict(summary), summary.out)


@command(ServeOptions, quiet="No messages.")
def serve(
    runs: Annotated[list[str], typer.Argument(metavar="RUN_DIR...", help="Folders of runs.", show_default=False)],
    quiet: bool = False,
    **options: Any,
) -> None:
    r"""Serve predictions over HTTP, and as a page in the browser.

    The URL on stdout says that requests are answered.

    Examples:
      gcnbatch serve runs/tox21              then open http://127.0.0.1:8000/
      gcnbatch serve runs/tox21 runs/logp    two models, named like their folders
      gcnbatch serve runs/tox21 --host 0.0.0.0 --token-file keys.txt
      curl http://127.0.0.1:8000/predict -H 'Content-Type: application/json' \
        -d '{"smiles": ["CCO"]}'

    The page / predicts molecules that are pasted, dropped as a CSV or drawn. /docs describes requests for programs:
    POST /predict with JSON or a CSV, GET /models, GET /health. Molecules that arrive together are predicted together.
    Ctrl-C or SIGTERM ends the server after the answers under way.
    """
    from gcnbatch.api import prediction

    def ready(url: str) -> None:
        print(url, flush=True)

    prediction.serve(runs, **options, ready=ready, say=messages(quiet))


@command(SelectCommandOptions, as_json=_SUMMARY, quiet=_QUIET)
def select(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN_DIR... POOL",
            help="Folders of runs; then molecules (.csv, .smi, .sdf, .xlsx, .parquet), a folder of such files, or - "
            "for standard input.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--campaign", metavar="TABLE", help="Replay a campaign on measured molecules, without runs and POOL."
        ),
    ] = None,
    as_json: bool = False,
    quiet: bool = False,
    **options: Any,
) -> None:
    """Choose the molecules to measure next.

    OUT has the rows of POOL in the order of their rank, with score, prediction, deviation, similarity to the nearest
    measured molecule, and why.

    Examples:
      gcnbatch select runs/assay pool.csv --n 96 -o next.csv
      gcnbatch select runs/assay pool.csv --where "MW < 500" -o next.csv
      gcnbatch select runs/a runs/b pool.csv --maximise pIC50 --below hERG=5
      gcnbatch select --campaign measured.csv --maximise pIC50 -o campaign

    Molecules are taken in the order of their score. Left out: molecules of the run's data set, molecules for which
    a condition or bound does not hold, and molecules too similar to one that is taken. Several runs that have equal
    tasks: <run>.<task> names one. A campaign begins with 4 % of the rows of its table, measures a batch in each
    round, and shows how much of the best 5 % it has found, beside random choice and the first by a random forest.
    """
    from gcnbatch.api import selection

    say = messages(quiet)
    if table is not None:
        if paths:
            raise InputError("--campaign", f"given with {paths[0]}", "the table alone, without runs and POOL")
        campaign = selection.campaign(table, **_own(options, CampaignOptions, "--campaign"), quiet=quiet, say=say)
        for line in campaign.text().splitlines():
            say(line)
        print_result(as_json, campaign.summary, campaign.folder)
        return
    runs, data = runs_and_data(paths) if paths else ([], "")
    if not runs:
        raise InputError("RUN_DIR... POOL", "missing", "runs and molecules, or --campaign TABLE")
    own = {"out": "-", **_own(options, SelectOptions, "runs and POOL")}
    if as_json and own["out"] == "-":
        raise InputError("--json", "the molecules go to standard output too", "-o FILE beside it")
    chosen = selection.select(runs, data, **own, quiet=quiet, say=say)
    for line in chosen.text().splitlines():
        say(line)
    if as_json:
        print_result(as_json, chosen.summary, "")


def _own(options: dict[str, Any], declared: type, what: str) -> dict[str, Any]:
    """Return the options of a declaration; refuse others that were given."""
    if others := chosen(options, SelectCommandOptions, parameters(declared)):
        raise InputError(others[0], f"given with {what}", "its options alone; see --help")
    return {name: options[name] for name in parameters(declared) if name in options}
