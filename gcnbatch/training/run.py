"""A run: its folder, configuration and data, its members, and resuming.

The folder of a run holds ``config.toml`` (resolved), ``env.json``, ``splits.json``, ``history.jsonl``,
``metrics.json``, ``last.safetensors`` (to resume), ``best.safetensors`` (to predict), ``predictions.csv`` and plots;
a run that starts from another has that one's weights in ``initial.safetensors``.
With folds, repeats or an ensemble, every member has such a folder (``fold1``, ``repeat2-fold1-model3``, …; see
`gcnbatch.training.plan`), and the run's own files summarise them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain, takewhile
from pathlib import Path
from threading import Event
from typing import Any

from gcnbatch import environment, fileio, folders, tables
from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend
from gcnbatch.backends.blas import one_of
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import put
from gcnbatch.data import splits
from gcnbatch.data.endings import is_table
from gcnbatch.data.store import Dataset
from gcnbatch.errors import GcnbatchError, InputError
from gcnbatch.folders import Held
from gcnbatch.ranks import world
from gcnbatch.runners.choice import BackendChoice, make_runner
from gcnbatch.timeline import span
from gcnbatch.training import cross_fit, finished, fit_files, inverter, reports, run_files, targets, warm_start
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fit import OTHER_RATES
from gcnbatch.training.fit_files import HISTORY, LAST
from gcnbatch.training.fits import FitResult, Fits, Say
from gcnbatch.training.plan import (
    GENERATED,
    Planned,
    all_folders,
    blocks,
    data_file,
    different_splits,
    has_blocks,
    has_members,
    plan,
    with_absolute_paths,
)
from gcnbatch.training.position import rates_differ
from gcnbatch.training.processes import MakeRunner, fit_in_processes, on_all_ranks, processes
from gcnbatch.training.reports import ReportWriter
from gcnbatch.training.run_files import CONFIG, STUDY
from gcnbatch.training.stop import resumable
from gcnbatch.training.summary import summarise
from gcnbatch.workers.pool import Workers

CHANGED = "changed since the run began"
# Writes a data set, and returns the configuration with what the data decide.
Make = Callable[[Config, Path], Config]


def start(
    config: Config,
    folder: Path | None,
    quiet: bool = False,
    say: Say = lambda line: None,
    writer: ReportWriter | None = None,
    make: Make | None = None,
    of_mixture: Workers | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Start a run in `folder` (default ``runs/<name>-<time>``), train to the end, and return folder and metrics.

    A run that is refused leaves no folder. `writer` writes the reports; None: this process does. `make` writes the data
    in place of those of `config`; the run keeps them in its folder. `of_mixture` fits what is mixed with the networks;
    None: a process that is started then.

    Raises
    ------
    InputError
        When the folder is not empty or another process writes there, or data and configuration do not match.
    """
    with span("open the backend"):
        choice = BackendChoice(config.backend, config.device, config.cuda, say)
    check_data(config, make)
    _check_libraries(config)
    environment.look_up()  # while the data are read
    hint = f"Choose another -o, or go on with --resume {folder}."
    with ExitStack() as stack:
        held = stack.enter_context(folders.results(folder, config.name, hint))
        target, config = held.folder, with_absolute_paths(config)
        stack.enter_context(resumable("train", target / CONFIG))
        with begun_or_empty(target), _named(target / GENERATED, config.data.path if make else ""):
            if config.data.synthetic:
                _create(target, config)
            config = generate(config, target, make)
            planned, backend = stack.enter_context(_prepared(config, target, choice, quiet))
            if planned[0].experiment.initial:
                warm_start.keep(config, target, planned[0].experiment.weights)
                say(warm_start.describe(planned[0].experiment))
            _create(target, config.model_copy(update={"backend": backend.name}))
        writer = writer or ReportWriter()
        return target, _fit(held, config, planned, backend, quiet, say, writer, of_mixture, _notes(planned, writer))


def _notes(planned: Sequence[Planned], writer: ReportWriter) -> Iterator[str]:
    """Yield lines on copies of molecules in several parts of a split, and on the labels of each part.

    A set that is not in memory is not read for copies.
    """
    experiment = planned[0].experiment
    parts = different_splits(planned)
    if experiment.config.split.cross_fit:
        yield from cross_fit.notes(next(iter(blocks(planned).values())))
        parts = cross_fit.whole_splits(planned)
    if experiment.dataset.fits_in_memory:
        yield from writer.copies(experiment.dataset, {"": planned[0].split})
    about = experiment.header, experiment.y, parts, experiment.config.split.kind
    yield from targets.label_notes(*about)
    first = planned[0].split
    yield from targets.about_transforms(experiment.header, experiment.y[first.train], experiment.kinds(first))
    transform = experiment.config.train.transform
    yield from targets.about_powers_of_ten(experiment.header, experiment.y[first.train], transform)
    yield from targets.about_bounds(
        experiment.y, experiment.dataset.censored, experiment.config.train.bounds == "one_sided"
    )


def resume(
    folder: Path,
    backend_name: str | None = None,
    device: int | None = None,
    resident: str | None = None,
    quiet: bool = False,
    say: Say = lambda line: None,
    epochs: int | None = None,
    jobs: int | None = None,
) -> dict[str, Any]:
    """Resume the run in `folder` and return its metrics. A finished run stays unchanged unless `epochs` extends it.

    Parameters
    ----------
    backend_name, device, resident, jobs : optional
        Replace the run's `backend`, `device`, `cuda.resident` and `jobs`. They do not change the mathematics of a run.
    epochs : int or None
        More epochs than the run has: the result is that of a run with so many epochs from the start.

    Raises
    ------
    InputError
        When `folder` is not a run, another process trains there, the data changed, or the run cannot be extended.
    """
    if not (folder / CONFIG).is_file():
        raise InputError(str(folder), "not a run folder", f"a folder with {CONFIG}", "Start with 'gcnbatch train'.")
    refuse_study(folder)
    with held_again(folder) as held:
        config = read_config(folder)
        longer = config if epochs is None else _extended(config, epochs)
        extended, config = longer != config, longer
        _check_libraries(config)
        if (folder / reports.METRICS).exists() and not extended:
            say(f"{folder} is already finished")
            kind = has_members(config), config.split.cross_fit > 0 and not has_blocks(config)
            return run_files.read_metrics(folder / reports.METRICS, *kind)
        for place in all_folders(folder):
            fileio.remove_abandoned(place)
        tree = config.model_dump(mode="json")
        replaced = {("backend",): backend_name, ("device",): device, ("cuda", "resident"): resident, ("jobs",): jobs}
        for path, value in replaced.items():
            if value is not None:
                put(tree, path, value)
        config = resolve(tree, where="--resume")
        warm_start.check_kept(config, folder)
        choice = BackendChoice(config.backend, config.device, config.cuda, say)
        with resumable("train", folder / CONFIG):
            if config.data.synthetic and not (folder / GENERATED).exists():
                generate(config, folder)
            with _prepared(config, folder, choice, quiet) as (planned, backend):
                if extended:
                    finished.check_digest(folder, planned[0].experiment, CHANGED)
                    _reopen(folder, longer)
                return _fit(held, config, planned, backend, quiet, say, ReportWriter())


def refuse_study(folder: Path) -> None:
    """Refuse the folder of a study in place of that of a run.

    Raises
    ------
    InputError
    """
    if (folder / STUDY).exists():
        hint = "Go on with 'gcnbatch tune --resume', or train its best.toml."
        raise InputError(str(folder), "the folder of a study", "that of a run", hint)


def read_config(folder: Path) -> Config:
    """Return the configuration of a run or a study.

    Raises
    ------
    InputError
        When the file is damaged; and when it names no data, as an empty one.
    """
    path = folder / CONFIG
    config = resolve(run_files.read_toml(path), where=str(path))
    if not config.data.path and not config.data.synthetic:
        raise InputError(f"{path}: data.path", "missing", "the data set", "Restore the file.")
    return config


def _check_libraries(config: Config) -> None:
    """Refuse a run whose files need a library that is not installed."""
    if config.train.tensorboard:
        fit_files.tensorboard()
    if config.parquet:
        tables.check_parquet("parquet")


def _extended(config: Config, epochs: int) -> Config:
    """Return the configuration with more epochs."""
    if epochs < config.train.epochs:
        raise InputError(
            "--epochs", f"{epochs} to extend a run of {config.train.epochs}", "more epochs than the run has"
        )
    if not _is_extensible(config) and epochs > config.train.epochs:
        raise InputError(
            "--epochs",
            "given for a run with the cosine schedule, which ends with its last epoch",
            hint="Start a new run.",
        )
    tree = config.model_dump(mode="json")
    put(tree, ("train", "epochs"), epochs)
    return resolve(tree, where="--epochs")


def _is_extensible(config: Config) -> bool:
    """Return whether a finished run can get more epochs."""
    return config.train.schedule != "cosine"


def _reopen(folder: Path, config: Config) -> None:
    """Turn a finished run into one to resume; the metrics go first, so that a crash here leaves no wrong ones."""
    for place in all_folders(folder):
        run_files.remove(place / reports.METRICS)
    fileio.write_text(folder / CONFIG, config.to_toml())


@contextmanager
def _prepared(
    config: Config, folder: Path, choice: BackendChoice, quiet: bool
) -> Iterator[tuple[list[Planned], Backend]]:
    """Open the data, plan the members, choose the backend. Every refusal of a task happens here."""
    ranks = None if has_members(config) else world.current()
    with ExitStack() as stack:
        with span("read the data"):
            opened = Dataset(data_file(config, folder), config.data.memory_mb, check=not ranks)
            dataset = stack.enter_context(opened)
            if ranks:
                dataset.check(load=dataset.n_graphs > 1, in_pieces=dataset.n_graphs == 1)
        with span("plan the models"):
            weights = warm_start.weights(config, dataset.header, folder)
            planned = plan(Experiment(config, dataset, weights, bool(ranks), quiet))
            tasks = [one.experiment.task(one.split)[0] for one in planned]
            targets.check_learnable(dataset.path, dataset.header, dataset.y, different_splits(planned))
            if config.train.mixture:
                for block in blocks(planned).values():
                    cross_fit.check(block)
            backend = choice.backend_for(tasks, ranks)
        yield planned, backend


def check_data(config: Config, make: Make | None) -> None:
    """Refuse a configuration without data.

    Raises
    ------
    InputError
    """
    if make is None and not config.data.path and not config.data.synthetic:
        hint = "Give --data FILE.h5, or set data.path in the configuration."
        raise InputError("data.path", "empty", "a data set", hint)


def generate(config: Config, folder: Path, make: Make | None = None) -> Config:
    """Write the data set of a run's or study's own into its folder, if it has one; return its configuration."""
    if make is not None:
        with span("import the table"):
            config = make(config, folder / GENERATED)
        table = config.data.model_copy(update={"path": str(folder / GENERATED), "synthetic": ""})
        return with_absolute_paths(config.model_copy(update={"data": table}))
    if config.data.synthetic:
        from gcnbatch.data import synthetic  # a quarter of a second, which no other run needs

        synthetic.write(config.data.synthetic, folder / GENERATED)
    return config


@contextmanager
def held_again(folder: Path) -> Iterator[Held]:
    """Hold the folder of a run or study that has begun, and refuse links in it."""
    with folders.locked(folder, wait=folders.ORPHANS_SECONDS) as lock:
        run_files.refuse_links(folder)
        yield Held(folder, lock)


@contextmanager
def begun_or_empty(folder: Path) -> Iterator[None]:
    """Empty the folder of a run or study after an error in the block, while it was set up; it was empty before.

    It stays as it is after a failure of the machine that came when its configuration was there: it can be resumed.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, InputError) or not (folder / CONFIG).exists():
            folders.empty(folder)
        raise


@contextmanager
def _named(own: Path, given: str) -> Iterator[None]:
    """Name, in the message of a refusal in the block, the table that the user gave in place of the set made of it."""
    try:
        yield
    except InputError as error:
        if is_table(given):
            error.rename(str(own), given)
        raise


def _create(folder: Path, config: Config) -> None:
    fileio.write_text(folder / CONFIG, config.to_toml())
    run_files.write_environment(folder, backend=config.backend)


def _fit(
    held: Held,
    config: Config,
    planned: list[Planned],
    backend: Backend,
    quiet: bool,
    say: Say,
    writer: ReportWriter,
    of_mixture: Workers | None = None,
    notes: Iterable[str] = (),
) -> dict[str, Any]:
    """Fit every member that has no metrics yet, and return the run's metrics.

    `notes`: lines for users, which take time. They are computed beside training, if other processes train or write
    reports.
    """
    folder, experiment = held.folder, planned[0].experiment
    if not (folder / finished.DIGEST).exists():
        finished.record_digest(folder, experiment)
    finished.check_digest(folder, experiment, CHANGED)
    notes = chain(notes, splits.notes(config.split, experiment.split_rows))
    known = {name: FitResult.read(metrics) for name, metrics in _known_metrics(folder, planned, say).items()}
    missing = [one for one in planned if one.name not in known]
    on_gpu = registry.entry(backend.name).on_gpu  # then the cores of the host are idle
    cross_fitted = {
        place: own
        for place, own in blocks(planned).items()
        if config.split.cross_fit and not (folder / place / reports.METRICS).exists()
    }
    # Also where a run goes on after its networks: it then ends in the same bits.
    gpu = inverter.Gpu(backend.name, config.device, config.cuda, inverter.ON_GPU) if on_gpu else None
    early = on_gpu and bool(missing)
    with cross_fit.beside_networks(folder, cross_fitted, gpu, early, quiet, say, of_mixture) as others:
        if missing:
            with one_of(len(planned)):
                known |= _fit_networks(held, config, missing, backend, quiet, say, writer, notes)
        for line in notes:  # that no training has taken
            say(line)
        for place, own in cross_fitted.items():
            fitted = [known[one.name] for one in own]
            with span("summarise the models"):
                found = cross_fit.summarise(folder, own, fitted, writer, say, others[place])
    with span("summarise the models"):
        if config.split.cross_fit:
            found = cross_fit.summarise_blocks(folder, planned, known, writer) if has_blocks(config) else found
            if not _is_extensible(config):  # then nothing reads them; they take more than the model
                for one in planned:
                    (folder / one.name / LAST).unlink(missing_ok=True)
            return found
        fitted = [known[one.name] for one in planned]
        return summarise(folder, planned, fitted, writer) if planned[0].name else fitted[0].result()


def _fit_networks(
    held: Held,
    config: Config,
    planned: list[Planned],
    backend: Backend,
    quiet: bool,
    say: Say,
    writer: ReportWriter,
    notes: Iterable[str],
) -> dict[str, FitResult]:
    """Train networks: one on all ranks together, or many in several processes or in cohorts of this one.

    Members of another kind have a function like this one: it returns the result of each member by name.
    """
    folder, ranks = held.folder, world.current()
    make: MakeRunner = make_runner
    if (count := processes(backend, config.jobs, planned)) > 1:
        return fit_in_processes(folder, config, planned, backend, count, say, held.lock, writer.elsewhere, notes)
    with ExitStack() as stack:
        stack.enter_context(_said(notes, say, beside=writer.elsewhere is not None))
        if ranks and not has_members(config):
            say(f"{ranks.size} ranks train one model together")
            make = stack.enter_context(on_all_ranks(ranks, folder, config, backend))
        elif ranks:
            say("the last model trains on rank 0; the other ranks are idle")
        return Fits(folder, backend, config.jobs, quiet, say, writer, make).fit(planned)


@contextmanager
def _said(notes: Iterable[str], say: Say, beside: bool) -> Iterator[None]:
    """Say the notes first, or, with `beside`, in a thread beside the block: other processes compute them.

    There, one that cannot be found is said: training goes on without it. If the block fails, no others begin.
    """
    if not beside:
        for line in notes:
            say(line)
        yield
        return
    failed = Event()

    def say_all() -> None:
        try:
            for line in takewhile(lambda line: not failed.is_set(), notes):
                say(line)
        except GcnbatchError as error:
            say(f"notes on the data are not complete: {error}")

    with ThreadPoolExecutor(1) as executor:
        said = executor.submit(say_all)
        try:
            yield
        except BaseException:
            failed.set()
            raise
    said.result()


def _known_metrics(folder: Path, planned: list[Planned], say: Say) -> dict[str, dict[str, Any]]:
    """Return the metrics of finished members by name; none for an only member, whose metrics are the run's."""
    known = {}
    places = {one.name: folder / one.name for one in planned if one.name}
    for name, place in places.items():
        if (place / reports.METRICS).exists():
            known[name] = run_files.read_metrics(place / reports.METRICS, members=False)
            history = run_files.read_history(place / HISTORY, known[name]["epochs"])
            if len(known) < len(planned) and rates_differ(planned[0].experiment.config.train, history):
                say(f"{place} {OTHER_RATES}; those that follow have those of now")
    return known
