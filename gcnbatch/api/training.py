"""Training from Python, and the command ``gcnbatch train``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import startup
from gcnbatch.api.options import check, gather, graphs_of, keys_of, path_of, report_unused, run_name
from gcnbatch.api.run import Run, folder_of
from gcnbatch.api.sources import leave_none_out, maker, sources
from gcnbatch.config_tree import put
from gcnbatch.data.endings import is_table
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.training import ResumeOptions, RunningOptions, TrainOptions
from gcnbatch.timeline import span

if TYPE_CHECKING:
    from gcnbatch.config import Config
    from gcnbatch.data.graphs import GraphSet

Say = Callable[[str], object]


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
    with startup.overlap(tree) as pools:
        checked = check(tree, config, options, settings, given.say)
        make = maker(given, checked, data)
        if given.baseline:
            _check_baseline(checked, graphs_of(data))
        from gcnbatch.run_report.writer import open_writer
        from gcnbatch.training import run
        from gcnbatch.training.plan import models

        with open_writer(pools, models(checked)) as writer:
            place = None if given.out is None else Path(given.out)
            folder, _ = run.start(checked, place, given.quiet, given.say, writer, make)
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
        report_unused(given.backend or Run.load(folder).config.backend, given.device, given.resident, given.say)
    runs.resume(folder, given.backend, given.device, given.resident, given.quiet, given.say, given.epochs, given.jobs)
    return _completed(folder, update, given)


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
