"""``gcnbatch train``: collects its options and prints the result."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from gcnbatch.backends import registry
from gcnbatch.cli.configuration import BACKENDS, DeviceOption, JobsOption, ResidentOption, jobs_key
from gcnbatch.text import printable

# \b keeps the lines of a paragraph as they are.
EPILOG = """\b
Examples:
  gcnbatch train                               the built-in quickstart
  gcnbatch train tox21 --data tox21.h5         a shipped configuration
  gcnbatch train mine.toml --data my.h5        your configuration
  gcnbatch train --data my.h5 --folds 5        5-fold cross-validation
  gcnbatch train --data my.h5 --ensemble 10    ten models for infer to average
  gcnbatch train --data my.h5 --set model.widths=[128,128]
  gcnbatch train --resume runs/tox21           continue a stopped run
"""


def train(
    config: Annotated[
        Path | None, typer.Argument(help="TOML configuration.", metavar="CONFIG.toml", show_default=False)
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="HDF5 data set.", show_default=False)] = None,
    backend: Annotated[str | None, typer.Option("--backend", help=BACKENDS, show_default=False)] = None,
    device: DeviceOption = None,
    resident: ResidentOption = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Passes over the training rows.", show_default=False)
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Graphs per step.", show_default=False)] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of weights, shuffles, dropout and splits.", show_default=False)
    ] = None,
    folds: Annotated[
        int | None, typer.Option("--folds", help="k of k-fold cross-validation.", show_default=False)
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Splits with different seeds.", show_default=False)
    ] = None,
    ensemble: Annotated[
        int | None, typer.Option("--ensemble", help="Models per split, with different seeds.", show_default=False)
    ] = None,
    jobs: JobsOption = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set any key of the configuration; see --keys."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="RUN_DIR", help="Folder of the run.", show_default="runs/<name>-<time>"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN_DIR",
            help="Continue a stopped run; with --epochs, a finished one.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also fit a random forest to the same rows, and compare.")
    ] = False,
    applicability: Annotated[
        bool, typer.Option("--applicability", help="Also plot test errors by nearness to the training rows.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table; only the run's path.")] = False,
    show_keys: Annotated[
        bool, typer.Option("--keys", help="List every key of the configuration: default, meaning, allowed values.")
    ] = False,
) -> None:
    """Train a model. Without arguments, it is the built-in quickstart. The last line on stdout is the run's path."""
    if show_keys:
        _show_keys()
        return
    from gcnbatch.cli.configuration import check, gather

    _check_config(config)
    options = {
        ("data", "path"): None if data is None else str(data),
        ("train", "epochs"): epochs,
        ("train", "batch_size"): batch_size,
        ("backend",): backend,
        ("device",): device,
        ("cuda", "resident"): resident,
        ("seed",): seed,
        ("split", "folds"): folds,
        ("split", "repeats"): repeats,
        ("train", "ensemble"): ensemble,
        ("jobs",): jobs_key(jobs),
    }

    def say(line: str) -> None:
        if not quiet:
            from gcnbatch.progress import write_line

            write_line(line)

    if resume is not None:
        free = {("backend",), ("device",), ("cuda", "resident"), ("train", "epochs"), ("jobs",)}
        fixed = {".".join(path): value for path, value in options.items() if path not in free}
        _only_resume(config, out, fixed, assignments)
        from gcnbatch.run_report.files import update
        from gcnbatch.train import run

        folder = resume
        metrics = run.resume(resume, backend, device, resident, quiet, say, epochs, options[("jobs",)])
    else:
        from gcnbatch.train.report_workers import report_workers

        tree = gather(config, options, assignments or [])
        has_gpu = _wake_gpu(tree)
        members, cores = _members(tree), len(os.sched_getaffinity(0))
        with ExitStack() as stack:
            write = stack.enter_context(report_workers(has_gpu and cores > 1, members))
            settings = check(tree, config, options, assignments or [])
            if baseline:
                from gcnbatch.baseline import check_data

                check_data(settings)
            from gcnbatch.train import run

            if has_gpu and members > 1:
                writers = stack.enter_context(ThreadPoolExecutor(min(members, cores)))
                folder, metrics = run.start(settings, out, quiet, say, write, writers)
            else:
                folder, metrics = run.start(settings, out, quiet, say, write)
            from gcnbatch.run_report.files import update

            if not (applicability or baseline):
                write.call(update, folder)
    if applicability:
        from gcnbatch.infer import domain_report
        from gcnbatch.runners.choice import BackendChoice

        metrics = domain_report.add_to_run(folder, BackendChoice("auto", device or 0), say)
    if baseline:
        from gcnbatch.baseline import add_to_run

        metrics = add_to_run(folder, say=say, progress=not quiet)
    update(folder)
    print_result(folder, metrics, as_json, quiet)


def print_result(folder: Path, metrics: dict[str, Any], as_json: bool, quiet: bool) -> None:
    """Print the metrics and the run's path."""
    if as_json:
        typer.echo(json.dumps({**metrics, "run": str(folder)}, indent=2))
        return
    if not quiet:
        show(metrics)
    typer.echo(str(folder))


def _members(tree: dict[str, Any]) -> int:
    """Return the number of models of a tree that is not checked yet; 1 where a number is none."""
    count = 1
    for section, key in (("split", "folds"), ("split", "repeats"), ("train", "ensemble")):
        table = tree.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        count *= value if isinstance(value, int) and 1 < value <= 1000 else 1
    return count


def _wake_gpu(tree: dict[str, Any]) -> bool:
    """Initialise the GPU of a tree that is not checked yet, if it may use one; return whether there is one."""
    backend, device = tree.get("backend", registry.AUTO), tree.get("device", 0)
    if backend not in registry.choices() or not registry.may_use_gpu(backend) or type(device) is not int:
        return False
    from gcnbatch.backends.cuda.runtime import loader

    return loader.wake(device) is not None


def _only_resume(config: Path | None, out: Path | None, options: dict[str, Any], assignments: list[str] | None) -> None:
    from gcnbatch.errors import InputError

    extra = [name for name, value in options.items() if value is not None] + list(assignments or [])
    extra += ["CONFIG"] if config else []
    extra += ["--out"] if out else []
    if extra:
        raise InputError(
            "--resume",
            f"together with {', '.join(extra)}",
            "nothing but --backend, --device, --resident, --jobs and --epochs",
            "A resumed run keeps its configuration.",
        )


def show(metrics: dict[str, Any]) -> None:
    """Print the figures of each part, or mean ± deviation over folds."""
    from gcnbatch.cli.text_tables import by_task, table

    split = metrics["split"]
    figures: dict[str, dict[str, Any]]
    named = f"{metrics['backend']}, {split['kind']} split{' ' + split['name'] if 'name' in split else ''}"
    named = printable(f"{named}, seed {split['seed']}")
    if members := metrics.get("folds") or metrics.get("members"):
        mean, std = metrics["mean"], metrics["std"]
        fitted = [part for part in mean if part != "uncertainty"]
        figures = {part: {n: f"{mean[part][n]:.4f} ± {std[part][n]:.4f}" for n in mean[part]} for part in fitted}
        what = "folds" if "folds" in metrics else "models"
        typer.echo(f"{len(members)} {what}, {named}: mean ± standard deviation")
    else:
        parts = {part: metrics[part] for part in ("train", "valid", "test") if part in metrics}
        figures = {part: {n: v for n, v in of.items() if v is None or type(v) is float} for part, of in parts.items()}
        sizes = " / ".join(str(size) for size in split["sizes"])
        course = printable(metrics.get("model", "")) or f"best epoch {metrics['best_epoch']} of {metrics['epochs']}"
        typer.echo(f"{named}: {sizes} rows; {course}")
    names = list(dict.fromkeys(name for of in figures.values() for name in of))
    for line in table(["", *names], [[part, *map(of.get, names)] for part, of in figures.items()]):
        typer.echo(line)
    test = metrics.get("out_of_fold", metrics.get("test", {}))
    for line in by_task(test, "test, by task"):
        typer.echo(line)
    _show_uncertainty(metrics)
    if metrics.get("baseline"):
        typer.echo(printable(metrics["baseline"]["verdict"]))


def _show_uncertainty(metrics: dict[str, Any]) -> None:
    """Print calibration error and coverage of the test rows, and whether something could not be computed."""
    from gcnbatch.text import printable

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
        more = f" (and {len(notes) - 1} more notes in metrics.json)" if len(notes) > 1 else ""
        typer.echo(f"note: {printable(notes[0])}{more}")


def _show_keys() -> None:
    from gcnbatch.config import key_table

    rows = key_table()
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for key, default, allowed, meaning in rows:
        typer.echo(f"{key:{widths[0]}}  {default:{widths[1]}}  {meaning} ({allowed})")


def _check_config(config: Path | None) -> None:
    """Refuse data in place of the configuration, and say which command takes them."""
    if config is None or config.suffix.lower() in ("", ".toml"):
        return  # the importers import NumPy, which report workers must not wait for
    from gcnbatch.data.importers.molecule_files import ENDINGS
    from gcnbatch.data.outputs import ENDINGS as HDF5_ENDINGS
    from gcnbatch.errors import InputError

    name = config.name.lower()
    if name.endswith(HDF5_ENDINGS):
        raise InputError(str(config), "a data set", "a TOML configuration", f"Give it as --data {config}.")
    if name.endswith(ENDINGS):
        data = f"{name.split('.')[0]}.h5"
        raise InputError(
            str(config),
            "a table of molecules",
            "a TOML configuration",
            f"Import it: gcnbatch data import smiles {config} -o {data}; then: gcnbatch train --data {data}",
        )
