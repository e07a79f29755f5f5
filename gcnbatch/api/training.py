"""Training from Python, and the commands ``train``, ``tune`` and ``baseline``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import startup
from gcnbatch.api.options import (
    check,
    gather,
    graphs_of,
    keys_of,
    load,
    optional_path,
    path_of,
    run_name,
)
from gcnbatch.api.run import Run, folder_of
from gcnbatch.api.sources import leave_none_out, maker, sources, write_set
from gcnbatch.backends import registry
from gcnbatch.config_tree import plain, put
from gcnbatch.data.endings import is_table
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments, chosen
from gcnbatch.options.training import BaselineOptions, ResumeOptions, RunningOptions, TrainOptions, TuneOptions
from gcnbatch.timeline import span

if TYPE_CHECKING:
    from gcnbatch.config import Config
    from gcnbatch.data.graphs import GraphSet


@arguments(TrainOptions)
def train(given: TrainOptions) -> Run:
    """Train a model and return its run. Without `config` and `data`, it is the built-in quickstart.

    A table of molecules is imported first; without a configuration, it is trained by the recipe "best".

    Returns
    -------
    Run
        The finished run; its folder holds the same files as that of the command.

    Raises
    ------
    InputError
        When configuration and data cannot be used. No folder is left then.
    MachineError
        When the machine fails. `gcnbatch.resume` goes on.
    Interrupted
        After Ctrl-C, with a checkpoint.

    Examples
    --------
    >>> import gcnbatch
    >>> run = gcnbatch.train(epochs=1, settings={"model.widths": [4]}, out="quickstart")
    >>> run.metrics["split"]["sizes"]
    [800, 100, 100]
    >>> [row["epoch"] for row in run.history]
    [1]
    """
    config, data, settings = sources(given)
    options = keys_of(given)
    options["data", "path"] = path_of(data)
    if given.from_run is not None:
        options["train", "from_run"] = str(folder_of(given.from_run))
    tree = gather(config, options, settings)
    name_after(tree, graphs_of(data))
    if given.use_all:
        leave_none_out(tree)
    with startup.overlap(tree) as pools, startup.molecule_workers(startup.data_of(tree)) as workers:
        checked = check(tree, config, options, settings, given.say)
        make = maker(given, checked, data, workers)
        if given.baseline:
            _check_baseline(checked, graphs_of(data))
        from gcnbatch.run_report.writer import open_writer
        from gcnbatch.training import run
        from gcnbatch.training.plan import models

        with open_writer(pools, models(checked)) as writer:
            place, of_mixture = optional_path(given.out), pools and pools.mixture
            folder, _ = run.start(checked, place, given.quiet, given.say, writer, make, of_mixture)
            return _completed(folder, writer.page, given)


@arguments(ResumeOptions)
def resume(given: ResumeOptions) -> Run:
    """Go on with a run that was stopped; it ends with the bits of an undisturbed run.

    Raises
    ------
    InputError
        When it is not a run, its data changed, or it cannot be extended.

    Examples
    --------
    >>> import gcnbatch
    >>> run = gcnbatch.train(epochs=1, settings={"model.widths": [4]}, out="quickstart")
    >>> len(gcnbatch.resume(run, epochs=2).history)
    2
    """
    from gcnbatch.run_report.files import update
    from gcnbatch.training import run as runs

    folder = folder_of(given.run)
    if given.device or given.resident:
        backend = given.backend or Run.load(folder).config.backend
        registry.report_unused(backend, given.device, given.resident, given.say)
    runs.resume(folder, given.backend, given.device, given.resident, given.quiet, given.say, given.epochs, given.jobs)
    return _completed(folder, update, given)


@arguments(BaselineOptions)
def baseline(given: BaselineOptions) -> Run:
    """Fit a random forest to the rows that `train` would use: count-Morgan fingerprints and RDKit descriptors.

    Returns
    -------
    Run
        With metrics and test predictions, but without a model to predict with.

    Raises
    ------
    InputError
        When the data have no SMILES, or data and configuration do not match.

    Examples
    --------
    >>> import gcnbatch
    >>> smiles = ["CCO", "c1ccccc1", "CC#N", "CCN"] * 6
    >>> graphs = gcnbatch.from_smiles(smiles, [0.2, 1.9, -0.3, 0.1] * 6)
    >>> gcnbatch.write("molecules.h5", graphs, smiles=smiles)
    >>> gcnbatch.baseline({}, "molecules.h5", trees=5, out="forest").metrics["trees"]
    5
    """
    from gcnbatch.baselines import start
    from gcnbatch.run_report.files import update

    checked = load(given.config, keys_of(given), given.settings or {})
    place, columns = optional_path(given.out), (given.smiles_column, given.target_columns)
    folder, _ = start(checked, place, given.trees, *columns, given.say, progress=not given.quiet)
    update(folder)
    return Run(folder)


@dataclass(frozen=True)
class Study:
    """A search: its folder and its summary.

    Parameters
    ----------
    folder : Path
        Holds ``best.toml``, ``trials.csv`` and ``report.html``.
    summary : dict
        Numbers of trials by state; ``best`` has value, epochs and parameters of the best trial, if there is one.
    """

    folder: Path
    summary: dict[str, Any]

    @property
    def best(self) -> Config:
        """The best configuration, for `gcnbatch.train`.

        Raises
        ------
        InputError
            When no trial is complete.
        """
        from gcnbatch.config import resolve
        from gcnbatch.training import run_files
        from gcnbatch.tuning.page import BEST

        path = self.folder / BEST
        return resolve(run_files.read_toml(path), where=str(path))


@arguments(TuneOptions)
def tune(given: TuneOptions) -> Study:
    """Search for the best configuration; test rows are never used.

    Raises
    ------
    InputError
        When data, configuration and space do not match, or options are given that a study keeps.
    MachineError
        Without Optuna (extra ``tune``).

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 6, [0.2, 1.9, -0.3, 0.1] * 6)
    >>> space = {"train": {"learning_rate": {"choices": [0.001, 0.01]}}}
    >>> study = gcnbatch.tune(
    ...     {"model": {"widths": [4]}}, graphs, space=space, trials=2, epochs=1, jobs=1, out="study"
    ... )
    >>> study.summary["trials"], study.best.train.learning_rate in (0.001, 0.01)
    (2, True)
    """
    options, settings = keys_of(given), given.settings or {}
    options["data", "path"] = path_of(given.data)
    if given.resume is not None:
        free = ("trials", "minutes", "device", "jobs")
        if extra := chosen(vars(given), TuneOptions, ("resume", *free)):
            raise InputError(
                "--resume",
                f"together with {', '.join(extra)}",
                "nothing but --trials, --minutes, --device and --jobs",
                "A study keeps its configuration and its space.",
            )
        replaced = {name: value for name in free[2:] if (value := getattr(given, name)) is not None}
        return _resume_study(Path(given.resume), given, replaced)
    tree, graphs = gather(given.config, options, settings), graphs_of(given.data)
    name_after(tree, graphs)
    with startup.computing(tree, "tune") as has_gpu, startup.chart_processes(has_gpu) as processes:
        from gcnbatch.tuning import search

        limits = search.Limits(plain(given.trials), plain(given.minutes))
        checked = check(tree, given.config, options, settings, given.say)
        keys = given.space if given.space is None or isinstance(given.space, Mapping) else Path(given.space)
        place, make = optional_path(given.out), write_set(graphs)
        return Study(*search.start(checked, place, keys, limits, given.quiet, given.say, make, processes))


def _resume_study(folder: Path, given: TuneOptions, replaced: dict[str, Any]) -> Study:
    from gcnbatch.tuning import search

    limits = search.Limits(plain(given.trials), plain(given.minutes))
    return Study(folder, search.resume(folder, limits, replaced, given.quiet, given.say))


def name_after(tree: dict[str, Any], graphs: GraphSet | None) -> None:
    """Name the run after its data in memory, where the configuration has no name."""
    if graphs is not None and "name" not in tree and (name := run_name(graphs.header.name)):
        put(tree, ("name",), name)


def _completed(folder: Path, write_page: Callable[[Path], object], given: RunningOptions) -> Run:
    """Add to a finished run what was asked for beside it, and its report."""
    if given.applicability:
        from gcnbatch.inference import domain
        from gcnbatch.runners.choice import BackendChoice

        domain.add_to_run(folder, BackendChoice("auto", given.device or 0), given.say)
    if given.baseline:
        from gcnbatch.baselines import add_to_run

        add_to_run(folder, say=given.say, progress=not given.quiet)
    with span("write the page"):
        write_page(folder)
    return Run(folder)


def _check_baseline(config: Config, graphs: GraphSet | None) -> None:
    if graphs is not None:
        if graphs.smiles is None:
            raise InputError("baseline", "given with graphs without SMILES", "graphs or a data set file with SMILES")
        return
    if is_table(config.data.path):
        return
    from gcnbatch.baselines import check_data

    check_data(config)
