"""A study: its folder, configuration, space and data, the search, its results, and resuming.

The folder of a study holds ``config.toml`` (the base configuration, resolved), ``space.toml``, ``study.json`` (rounds
and number of trials), ``env.json``, ``data.sha256``, ``study.journal`` (finished trials, as Optuna keeps them),
``trials.csv``, ``best.toml`` (a configuration for `train`) and ``report.html``.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field

from gcnbatch import fileio, folders, tables
from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import read_toml
from gcnbatch.data.splits import notes
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.folders import Held
from gcnbatch.machine import cores
from gcnbatch.metrics import label
from gcnbatch.pages.document import REPORT
from gcnbatch.ranks import world
from gcnbatch.runners.choice import BackendChoice, cohort_size
from gcnbatch.text import quoted
from gcnbatch.timeline import span
from gcnbatch.training import finished, run_files, warm_start
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.plan import data_file, with_absolute_paths
from gcnbatch.training.processes import Calls, json_of, pool
from gcnbatch.training.run import Make, begun_or_empty, check_data, generate, held_again, read_config
from gcnbatch.training.run_files import CONFIG, STUDY
from gcnbatch.training.stop import resumable
from gcnbatch.tuning import results
from gcnbatch.tuning.page import SPACE
from gcnbatch.tuning.processes import TrialsInProcesses
from gcnbatch.tuning.progress import Watch
from gcnbatch.tuning.record import Record
from gcnbatch.tuning.space import DEFAULT, read_space
from gcnbatch.tuning.splits import splits_of
from gcnbatch.tuning.study import Rounds, Runs, Study
from gcnbatch.tuning.trials import Trials, direction
from gcnbatch.workers.pool import INLINE

MOST_TRIALS = 1_000_000
TRIALS = 50  # of a study without a number of trials or minutes
_ALIKE = Rounds(8, alike=True, beside=3)  # on a device that trains several models at once; four may be there
_MIXED = Rounds(4, alike=False)
Say = Callable[[str], object]


@dataclass(frozen=True)
class Limits:
    """When a search ends: after so many trials, or at the first round after so many minutes; None: no limit.

    Raises
    ------
    InputError
        For other values.
    """

    trials: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and (type(self.trials) is not int or not 1 <= self.trials <= MOST_TRIALS):
            raise InputError("trials", quoted(self.trials), f"a whole number, 1 to {MOST_TRIALS:,}")
        number = isinstance(self.minutes, int | float) and not isinstance(self.minutes, bool)
        if self.minutes is not None and not (number and self.minutes >= 0):
            raise InputError("minutes", quoted(self.minutes), "a number, at least 0")


@dataclass(frozen=True)
class _Settings:
    """What study.json holds."""

    trials: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None
    at_once: Annotated[int, Field(ge=1, le=1024)]
    alike: bool
    beside: Annotated[int, Field(ge=0, le=1024)] = 0  # as in earlier versions
    backend: str | None = None  # as it was given, such as auto; earlier versions did not keep it


def start(
    config: Config,
    folder: Path | None,
    space: Path | Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    quiet: bool = False,
    say: Say = lambda line: None,
    make: Make | None = None,
    processes: Executor = INLINE,
) -> tuple[Path, dict[str, Any]]:
    """Start a study in `folder` (default ``runs/<name>-tune-<time>``), search, and return folder and summary.

    Parameters
    ----------
    config : Config
        The base: keys that are not searched have its values.
    space : Path, mapping or None
        A TOML file or its tables; None: the default space.
    make : callable
        Writes the data in place of those of `config`; the study keeps them in its folder.
    processes : Executor
        Draws the charts of the page.

    Raises
    ------
    InputError
        When the folder is not empty, or data, configuration and space do not match. Nothing is left then.
    """
    limits = limits or Limits()
    check_data(config, make)
    if config.train.ensemble > 1:
        raise InputError("train.ensemble", str(config.train.ensemble), "1: a trial trains one model per split")
    if config.parquet:
        tables.check_parquet("parquet")
    tree = dict(space) if isinstance(space, Mapping) else read_toml(space or DEFAULT)
    place = "space" if isinstance(space, Mapping) else str(space or "default space")
    read_space(tree, config, place, known_only=space is None)
    with span("open the backend"):
        choice = BackendChoice(config.backend, config.device, config.cuda, say)
    hint = f"Choose another -o, or go on with --resume {folder}."
    with ExitStack() as stack:
        held = stack.enter_context(folders.results(folder, f"{config.name}-tune", hint))
        target, config = held.folder, with_absolute_paths(config)
        stack.enter_context(resumable("tune", target / CONFIG))
        with begun_or_empty(target):
            config = generate(config, target, make)
            experiment = stack.enter_context(_opened(config, target))
            splits = splits_of(experiment)
            tasks = [experiment.task(split)[0] for split in splits]
            backend = choice.backend_for(tasks)
            rounds = _ALIKE if cohort_size(backend, [tasks[0], tasks[0]]) > 1 else _MIXED
            count = TRIALS if limits == Limits() else limits.trials
            fileio.write_text(target / SPACE, tomli_w.dumps(tree))
            settings = _Settings(count, rounds.trials, rounds.alike, rounds.beside, config.backend)
            config = config.model_copy(update={"backend": backend.name})
            fileio.write_json(target / STUDY, asdict(settings))
            run_files.write_environment(target)
            warm_start.keep(config, target, experiment.weights)
            finished.record_digest(target, experiment)
            fileio.write_text(target / CONFIG, config.to_toml())  # the last file: with it, the study can be resumed
        limits = Limits(count, limits.minutes)
        return target, _search(held, config, experiment, backend, limits, quiet, say, processes)


def resume(
    folder: Path,
    limits: Limits | None = None,
    replaced: dict[str, Any] | None = None,
    quiet: bool = False,
    say: Say = lambda line: None,
    processes: Executor = INLINE,
) -> dict[str, Any]:
    """Go on with a study; return its summary.

    Parameters
    ----------
    limits : Limits or None
        More trials than the study has extend it; None or no number: as many as when it began.
    replaced : dict or None
        Values of `device` and `jobs` in place of those of the study.
    processes : Executor
        As of `start`.

    Raises
    ------
    InputError
        When `folder` is not a study, is damaged, or its data changed.
    """
    _check_study(folder)
    with held_again(folder) as held:
        fileio.remove_abandoned(folder)
        known, given = _read(folder)[1], limits or Limits()
        config = resolve(read_config(folder).model_dump(mode="json") | (replaced or {}), where="--resume")
        if config.parquet:
            tables.check_parquet("parquet")
        registry.report_unused(config.backend, (replaced or {}).get("device"), None, say)
        count = given.trials or (known.trials if given.minutes is None else None)
        choice = BackendChoice(config.backend, config.device, config.cuda, say)
        with resumable("tune", folder / CONFIG), _reopened(config, folder) as experiment:
            splits = splits_of(experiment)
            backend = choice.backend_for([experiment.task(split)[0] for split in splits])
            return _search(held, config, experiment, backend, Limits(count, given.minutes), quiet, say, processes)


def report(folder: Path, say: Say = lambda line: None) -> Path:
    """Write the results of a study again; return the path of its page.

    Raises
    ------
    InputError
        As `resume`.
    """
    _check_study(folder)
    with held_again(folder), _reopened(read_config(folder), folder) as experiment:
        study = _study(folder, experiment)
        if lost := results.lost_trials(folder, study):
            raise InputError(*lost, "Restore it, or train the others again with 'gcnbatch tune --resume'.")
        results.write(folder, study, experiment, say)
    return folder / REPORT


def _check_study(folder: Path) -> None:
    if not (folder / CONFIG).is_file() or not (folder / STUDY).is_file():
        expected = f"a folder with {CONFIG} and {STUDY}"
        raise InputError(str(folder), "not a study", expected, "Start with 'gcnbatch tune'.")


def _read(folder: Path) -> tuple[Config, _Settings]:
    """Return the configuration that a study began with, whose backend is not chosen yet, and its settings."""
    place = folder / STUDY
    known = run_files.read_as(place, _Settings, "a study")
    config = read_config(folder)
    tree = config.model_dump(mode="json") | {"backend": known.backend or config.backend}
    return resolve(tree, where=str(place)), known


def _study(folder: Path, experiment: Experiment) -> Study:
    """Return the search of a folder that has all files of a study."""
    base, known = _read(folder)
    space = read_space(run_files.read_toml(folder / SPACE), base, str(folder / SPACE), known_only=True)
    record = Record(folder, direction(experiment), space)
    return Study(space, record, Rounds(known.at_once, known.alike, known.beside), base, direction(experiment))


def _search(
    held: Held,
    config: Config,
    experiment: Experiment,
    backend: Backend,
    limits: Limits,
    quiet: bool,
    say: Say,
    processes: Executor = INLINE,
) -> dict[str, Any]:
    """Search in a folder that has all files of a study; write and return the results.

    `config` is that of this machine.
    """
    folder, lock = held
    for line in notes(config.split, experiment.split_rows):
        say(line)
    if config.train.mixture:
        say("trials train the networks alone, by what they give for the rows that they leave out; best.toml mixes them")
    study = _study(folder, experiment)
    if lost := results.lost_trials(folder, study):
        say(f"warning: {InputError(*lost)}; the others are trained again")
    deadline = time.monotonic() + 60 * limits.minutes if limits.minutes is not None else math.inf
    count = limits.trials if limits.trials is not None else sys.maxsize
    with ExitStack() as stack:
        runs = _runs(stack, folder, config, experiment, backend, study.rounds, lock)
        with Watch(study, limits.trials, deadline, label(experiment.monitor), quiet) as watch:
            study.search(count, deadline, runs, watch.show)
    with span("write the results"):
        return results.write(folder, study, experiment, say, processes)


def _runs(
    stack: ExitStack,
    folder: Path,
    config: Config,
    experiment: Experiment,
    backend: Backend,
    rounds: Rounds,
    lock: int,
) -> Runs:
    """Return what runs trials: this process, several of the host, or ranks."""
    ranks = world.current()
    on_gpu = registry.entry(backend.name).on_gpu
    jobs = config.jobs or min(cores(), rounds.trials * (1 + rounds.beside))
    if ranks is None and (on_gpu or config.jobs == 1):
        return Trials(experiment, splits_of(experiment), backend)
    calls = stack.enter_context(Calls(stack.enter_context(pool(jobs, lock))))
    devices = ranks.size if ranks is not None and on_gpu else 0
    return TrialsInProcesses(calls, folder.resolve(), json_of(config, backend), devices)


@contextmanager
def _reopened(config: Config, folder: Path) -> Iterator[Experiment]:
    """Open the data of a study, which must not have changed."""
    warm_start.check_kept(config, folder)
    with _opened(config, folder) as experiment:
        finished.check_digest(folder, experiment, "changed since the study began")
        yield experiment


@contextmanager
def _opened(config: Config, folder: Path) -> Iterator[Experiment]:
    with span("read the data"):
        dataset = Dataset(data_file(config, folder), config.data.memory_mb)
    with dataset:
        yield Experiment(config, dataset, warm_start.weights(config, dataset.header, folder))
