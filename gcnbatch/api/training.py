"""Training from Python, and the command ``gcnbatch train``."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import check, gather, graphs_of, keys_of, path_of
from gcnbatch.api.run import Run, folder_of
from gcnbatch.backends import registry
from gcnbatch.config_tree import put
from gcnbatch.errors import InputError
from gcnbatch.figures import DRAWN_MEMBERS
from gcnbatch.options.declaration import arguments
from gcnbatch.options.training import ResumeOptions, RunningOptions, TrainOptions
from gcnbatch.ranks.launch import launched

if TYPE_CHECKING:
    from gcnbatch.config import Config
    from gcnbatch.data.graphs import GraphSet

Say = Callable[[str], object]
WRITERS = 64  # threads, which wait for report workers


@arguments(TrainOptions)
def train(given: TrainOptions) -> Run:
    """Train a model and return its run. Without `config` and `data`, it is the built-in quickstart.

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
    from gcnbatch.run_report.workers import report_workers

    options, settings = keys_of(given), given.settings or {}
    options["data", "path"] = path_of(given.data)
    if given.from_run is not None:
        options["train", "from_run"] = str(folder_of(given.from_run))
    graphs = graphs_of(given.data)
    tree = gather(given.config, options, settings)
    if graphs is not None:
        name_after(tree, graphs)
    has_gpu = _wake_gpu(tree)
    members, cores = _members(tree), len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        workers = report_workers(has_gpu and cores > 1, members)
        early = members <= DRAWN_MEMBERS  # many members have many workers, which would slow the imports below
        if early:
            write = stack.enter_context(workers)
        checked = check(tree, given.config, options, settings, given.say)
        if given.baseline:
            _check_baseline(checked, graphs)
        from gcnbatch.training import run

        if not early:
            write = stack.enter_context(workers)
        place = None if given.out is None else Path(given.out)
        if has_gpu and members > 1:
            writers = stack.enter_context(ThreadPoolExecutor(WRITERS))
            folder, _ = run.start(checked, place, given.quiet, given.say, write, writers, graphs)
        else:
            folder, _ = run.start(checked, place, given.quiet, given.say, write, graphs=graphs)
        if not (given.applicability or given.baseline):
            write.page(folder)
    return _completed(folder, given)


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
    from gcnbatch.training import run as runs

    folder = folder_of(given.run)
    runs.resume(folder, given.backend, given.device, given.resident, given.quiet, given.say, given.epochs, given.jobs)
    return _completed(folder, given)


def name_after(tree: dict[str, Any], graphs: GraphSet) -> None:
    """Name the run after its data, where the configuration has no name."""
    import re

    if "name" not in tree and (name := re.sub(r"[^A-Za-z0-9._-]+", "-", graphs.header.name)[:80]):
        put(tree, ("name",), name)


def _completed(folder: Path, given: RunningOptions) -> Run:
    """Add to a finished run what was asked for beside it, and its report."""
    from gcnbatch.run_report.files import update

    if given.applicability:
        from gcnbatch.inference import domain_report
        from gcnbatch.runners.choice import BackendChoice

        domain_report.add_to_run(folder, BackendChoice("auto", given.device or 0), given.say)
    if given.baseline:
        from gcnbatch.baselines import add_to_run

        add_to_run(folder, say=given.say, progress=not given.quiet)
    update(folder)
    return Run(folder)


def _check_baseline(config: Config, graphs: GraphSet | None) -> None:
    if graphs is not None:
        if graphs.smiles is None:
            raise InputError("baseline", "given with graphs without SMILES", "graphs or a data set file with SMILES")
        return
    from gcnbatch.baselines import check_data

    check_data(config)


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

    if launched() is not None:
        from gcnbatch.ranks import world

        if (ranks := world.current()) is not None:
            ranks.start_all(_wake_rank, device)
    return loader.wake(device) is not None


def _wake_rank(first: int) -> None:
    """Initialise this rank's GPU, counted from that of rank 0, while rank 0 checks its input."""
    from gcnbatch.backends.cuda.runtime import loader
    from gcnbatch.ranks import world

    ranks = world.current()
    assert ranks is not None
    loader.wake(ranks.device(first))
    with suppress(ImportError):  # what a run needs of it, rank 0 says
        import_module("gcnbatch.backends.cuda.fused.backend")
