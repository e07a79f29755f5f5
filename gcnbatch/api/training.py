"""Training from Python, and the command ``gcnbatch train``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import startup
from gcnbatch.api.options import Settings, check, gather, graphs_of, path_of
from gcnbatch.api.run import Run, folder_of
from gcnbatch.config_tree import put
from gcnbatch.errors import InputError

if TYPE_CHECKING:
    from gcnbatch.api.options import ConfigLike, DataLike
    from gcnbatch.config import Config
    from gcnbatch.data.graphs import GraphSet
    from gcnbatch.fileio import StrPath

Say = Callable[[str], object]


def train(
    config: ConfigLike | None = None,
    data: DataLike | None = None,
    *,
    out: StrPath | None = None,
    backend: str | None = None,
    device: int | None = None,
    resident: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    folds: int | None = None,
    repeats: int | None = None,
    ensemble: int | None = None,
    jobs: int | None = None,
    from_run: Run | StrPath | None = None,
    freeze: str | Sequence[str] | None = None,
    settings: Settings | None = None,
    baseline: bool = False,
    applicability: bool = False,
    quiet: bool = True,
    say: Say = lambda line: None,
) -> Run:
    """Train a model and return its run. Without `config` and `data`, it is the built-in quickstart.

    Parameters
    ----------
    config : path, str, mapping or Config
        A TOML file, the name of a shipped configuration, or its tables: ``{"train": {"epochs": 20}}``.
    data : path or GraphSet
        HDF5 data set, or one in memory; the run then keeps it in its folder.
    out : path
        Folder of the run; None: ``runs/<name>-<time>``.
    backend, device, resident, epochs, batch_size, seed, folds, repeats, ensemble, jobs
        The options of the command. They replace the values of `config`; None: not given.
    from_run : Run or path
        Start from the weights of this run (fine-tuning).
    freeze : str or sequence of str
        Layers that keep those weights: ``"conv1"``, …, ``"all-conv"``.
    settings : mapping
        Further keys by name, ``{"model.widths": [128, 128]}``; they win over all others.
    baseline : bool
        Also fit a random forest to the same rows, and compare.
    applicability : bool
        Also plot test errors by nearness to the training rows.
    quiet : bool
        Show no progress on stderr.
    say : callable
        Called with each message, a line of text.

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
    options = {
        ("data", "path"): path_of(data),
        ("train", "epochs"): epochs,
        ("train", "batch_size"): batch_size,
        ("backend",): backend,
        ("device",): device,
        ("cuda", "resident"): resident,
        ("seed",): seed,
        ("split", "folds"): folds,
        ("split", "repeats"): repeats,
        ("train", "ensemble"): ensemble,
        ("jobs",): jobs,
        ("train", "from_run"): None if from_run is None else str(folder_of(from_run)),
        ("train", "freeze"): freeze if freeze is None or isinstance(freeze, str) else list(freeze),
    }
    graphs, settings = graphs_of(data), settings or {}
    tree = gather(config, options, settings)
    if graphs is not None:
        name_after(tree, graphs)
    with startup.overlap(tree) as pools:
        checked = check(tree, config, options, settings, say)
        if baseline:
            _check_baseline(checked, graphs)
        from gcnbatch.run_report.writer import open_writer
        from gcnbatch.training import run
        from gcnbatch.training.plan import models

        with open_writer(pools, models(checked)) as writer:
            folder, _ = run.start(checked, None if out is None else Path(out), quiet, say, writer, graphs)
            return _completed(folder, writer.page, device, baseline, applicability, quiet, say)


def resume(
    run: StrPath | Run,
    *,
    epochs: int | None = None,
    backend: str | None = None,
    device: int | None = None,
    resident: str | None = None,
    jobs: int | None = None,
    baseline: bool = False,
    applicability: bool = False,
    quiet: bool = True,
    say: Say = lambda line: None,
) -> Run:
    """Go on with a run that was stopped; it ends with the bits of an undisturbed run.

    Parameters
    ----------
    run : path or Run
    epochs : int
        More epochs than the run has: they extend it, also a finished one.
    backend, device, resident, jobs
        Replace those of the run.
    baseline, applicability, quiet, say
        As for `train`.

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

    folder = folder_of(run)
    runs.resume(folder, backend, device, resident, quiet, say, epochs, jobs)
    return _completed(folder, update, device, baseline, applicability, quiet, say)


def name_after(tree: dict[str, Any], graphs: GraphSet) -> None:
    """Name the run after its data, where the configuration has no name."""
    import re

    if "name" not in tree and (name := re.sub(r"[^A-Za-z0-9._-]+", "-", graphs.header.name)[:80]):
        put(tree, ("name",), name)


def _completed(
    folder: Path,
    write_page: Callable[[Path], object],
    device: int | None,
    baseline: bool,
    applicability: bool,
    quiet: bool,
    say: Say,
) -> Run:
    """Add to a finished run what was asked for beside it, and its report."""
    if applicability:
        from gcnbatch.inference import domain
        from gcnbatch.runners.choice import BackendChoice

        domain.add_to_run(folder, BackendChoice("auto", device or 0), say)
    if baseline:
        from gcnbatch.baselines import add_to_run

        add_to_run(folder, say=say, progress=not quiet)
    write_page(folder)
    return Run(folder)


def _check_baseline(config: Config, graphs: GraphSet | None) -> None:
    if graphs is not None:
        if graphs.smiles is None:
            raise InputError("baseline", "given with graphs without SMILES", "graphs or a data set file with SMILES")
        return
    from gcnbatch.baselines import check_data

    check_data(config)
