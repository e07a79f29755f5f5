"""Members of a run in other processes: each on its own, on the host or on ranks, or one member on all ranks together.

On the ranks of one member, rank 0 trains and writes; the other ranks compute their parts of each batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.blas import one_of, shared_processors
from gcnbatch.config import Config, resolve
from gcnbatch.data.store import Dataset
from gcnbatch.errors import GcnbatchError, InputError, MachineError
from gcnbatch.machine import cores, free_bytes
from gcnbatch.ranks import world
from gcnbatch.ranks.pool import RankWorkers
from gcnbatch.ranks.process import LeaderProcess
from gcnbatch.ranks.world import World
from gcnbatch.runners.choice import cohort_size
from gcnbatch.runners.leader import Leader, follow
from gcnbatch.runners.task import RunnerTask
from gcnbatch.timeline import span
from gcnbatch.training import finished, warm_start
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fits import FitResult, Fits, Say
from gcnbatch.training.plan import Planned, data_file, plan
from gcnbatch.training.reports import OpenWriter, ReportWriter
from gcnbatch.training.stop import Interrupted, StopRequest
from gcnbatch.workers.pool import WorkerDied, Workers

_POLL_SECONDS = 0.1
_WORTH_STEPS = 4000  # of 1 ms or more: they take twice as long as the start of two processes
_PROCESS_BYTES = 400 << 20  # of a process beside its data, of which it holds about three copies while it prepares them


def processes(backend: Backend, jobs: int, planned: Sequence[Planned]) -> int:
    """Return the number of processes for these members: 1 where a device trains them together.

    On the host, `jobs` of 0 stands for a process for each core, if the work is worth their start and memory has room.
    """
    if (ranks := world.current()) is not None:
        return min(ranks.size, len(planned))
    if registry.entry(backend.name).on_gpu:
        return 1
    return min(jobs or _worthwhile(planned), len(planned))


def _worthwhile(planned: Sequence[Planned]) -> int:
    """Return a process for each core if they take less time than one and fit into half of the free memory; else 1."""
    train, dataset = planned[0].experiment.config.train, planned[0].experiment.dataset
    steps = sum(train.epochs * -(-len(one.split.train) // train.batch_size) for one in planned)
    each = _PROCESS_BYTES + 3 * min(dataset.nbytes, dataset.memory_mb << 20)
    return max(min(cores(), free_bytes() // (2 * each)), 1) if steps >= _WORTH_STEPS else 1


def fit_in_processes(
    folder: Path,
    config: Config,
    planned: Sequence[Planned],
    backend: Backend,
    count: int,
    say: Say,
    lock: int,
    open_writer: OpenWriter | None = None,
    notes: Iterable[str] = (),
) -> dict[str, FitResult]:
    """Fit these members in `count` processes; return their results by name.

    Parameters
    ----------
    folder, config
        Of the run.
    lock : int
        File descriptor of the folder's lock, which the processes of this host hold, too.
    open_writer : callable or None
        As `gcnbatch.training.reports.ReportWriter.elsewhere`.
    notes : iterable of str
        Lines for `say`, which are computed meanwhile.

    Raises
    ------
    Interrupted
        After Ctrl-C; every member has a checkpoint.
    GcnbatchError
        That of the first member that failed.
    """
    together = _together(backend, config.jobs, planned, count)
    groups = [planned[start : start + together] for start in range(0, len(planned), together)]
    found: dict[str, FitResult] = {}

    def done(call: Future[dict[str, FitResult]]) -> None:
        result = call.result()
        found.update(result)
        for one in planned:
            if one.name in result:
                say(f"{one.title} is done")

    with pool(count, lock) as workers, span("wait for training processes"), Calls(workers) as calls:
        ranks = world.current()
        sharing = count if ranks is None else ranks.local_size
        about = str(folder.resolve()), json_of(config, backend)
        for group in groups:
            calls.begin(done, fit_members, *about, [one.name for one in group], sharing, open_writer)
        for line in notes:
            say(line)
        while calls.wait():
            pass
    return found


def _together(backend: Backend, jobs: int, planned: Sequence[Planned], count: int) -> int:
    """Return how many members a process takes at once: those of a cohort, but as many as the others."""
    if not registry.entry(backend.name).on_gpu:
        return 1
    first, _ = planned[0].experiment.task(planned[0].split)  # a cohort of as many fits the memory as of the others
    size = cohort_size(backend, [first] * len(planned), jobs)
    return min(size, -(-len(planned) // count))


def json_of(config: Config, backend: Backend) -> str:
    """Return the configuration, with this backend, as `open_again` takes it."""
    return json.dumps(config.model_dump(mode="json") | {"backend": backend.name})


@contextmanager
def pool(count: int, lock: int) -> Iterator[RankWorkers | Workers]:
    """Yield the ranks of this command, else `count` processes.

    They may use as many BLAS threads as this process; `gcnbatch.backends.blas.one_of` sets how many they do.
    """
    ranks = world.current()
    try:
        if ranks is None:
            with Workers(count, one_blas_thread=False, keep_open=(lock,)) as workers:
                yield workers
            return
        with ranks.own_process or LeaderProcess() as own:
            ranks.own_process = None
            own.hold(lock)
            with RankWorkers(ranks, own) as everywhere:
                yield everywhere
    except WorkerDied as error:
        raise MachineError(
            "a training process", "ended", hint="It may have run out of memory; lower --jobs."
        ) from error


class Calls:
    """Calls that processes run, a context. At its end, after a failure or Ctrl-C, calls stop with a checkpoint.

    Parameters
    ----------
    workers : RankWorkers or Workers

    Raises
    ------
    Interrupted
        At the end of the context, after Ctrl-C.
    """

    def __init__(self, workers: RankWorkers | Workers) -> None:
        self._workers, self._stop = workers, StopRequest()
        self._left: dict[Future[Any], Callable[[Future[Any]], object]] = {}

    def begin(self, done: Callable[[Future[Any]], object], function: Callable[..., Any], *arguments: Any) -> None:
        """Begin a call; `done` takes it when it has ended."""
        self._left[self._workers.submit(function, *arguments)] = done

    def wait(self) -> bool:
        """Wait until calls end, and give them to their functions; return whether there are others.

        Raises
        ------
        Interrupted
        Exception
            Of the function of a call.
        """
        while self._left:
            if self._stop.made:
                raise Interrupted("stopped", "all is saved")
            if ended := wait(self._left, _POLL_SECONDS, FIRST_COMPLETED).done:
                for call in ended:
                    self._left.pop(call)(call)
                break
        return bool(self._left)

    def __enter__(self) -> Calls:
        self._stop.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._left:
                for call in self._left:
                    call.cancel()
                self._workers.terminate()
                wait(self._left)
        finally:
            self._stop.__exit__()
        if self._stop.made and kind is None:
            raise Interrupted("stopped", "all is saved")


def fit_members(
    folder: str, config: str, names: Sequence[str], sharing: int = 1, open_writer: OpenWriter | None = None
) -> dict[str, FitResult]:
    """Fit these members of a run in this process and return their results by name, with the metrics as written.

    `sharing` processes of this host share its cores; `open_writer` as in `fit_in_processes`.
    """
    with open_writer(len(names), sharing) if open_writer else nullcontext(ReportWriter()) as writer:
        with span("open the run again"):
            planned, backend = _opened(folder, config)
        with one_of(len(planned)):
            fits = Fits(Path(folder), backend, 0, True, lambda line: None, writer)
            fitted = fits.fit([planned[name] for name in names])
        return {name: one._replace(metrics=one.result()) for name, one in fitted.items()}


@lru_cache(maxsize=1)
def _opened(folder: str, config: str) -> tuple[dict[str, Planned], Backend]:
    """Open the data set and the backend of a run; they stay open for the next member."""
    experiment, backend = open_again(Path(folder), config)
    return {one.name: one for one in plan(experiment)}, backend


def open_again(folder: Path, config: str, together: bool = False) -> tuple[Experiment, Backend]:
    """Open, in another process, data and backend of a run or study that is under way.

    `together`: the ranks train one model.

    Raises
    ------
    InputError
        On another host, when the folder is not there or the data differ.
    """
    settings = resolve(json.loads(config))
    with world.named():
        if not folder.is_dir():
            raise InputError(
                str(folder), "not there", "the folder of rank 0", "Use a file system that all hosts share."
            )
        dataset = Dataset(data_file(settings, folder), settings.data.memory_mb, check=False)
        ranks = world.current()
        experiment = Experiment(settings, dataset, warm_start.weights(settings, dataset.header, folder), together)
        if ranks is not None:
            finished.check_digest(folder, experiment, "other data than on rank 0")
        device = settings.device if ranks is None else ranks.device(settings.device)
        try:
            return experiment, registry.open_backend(settings.backend, device, settings.cuda)
        except InputError as error:  # no such device
            if ranks is not None:
                error.advise("Start no more ranks on a host than it has GPUs.")
            raise


MakeRunner = Callable[[Backend, Sequence[RunnerTask]], Runner]


@contextmanager
def on_all_ranks(ranks: World, folder: Path, config: Config, backend: Backend) -> Iterator[MakeRunner]:
    """Open the run of this folder on the other ranks; yield what makes its runner.

    Raises
    ------
    GcnbatchError
        That of the first rank that cannot open data or backend, or sees other data.
    """
    ranks.start_all(_follow_run, str(folder.resolve()), json_of(config, backend))
    refused = [error for rank in range(1, ranks.size) if (error := ranks.receive(rank)) is not None]
    communicator = ranks.communicator()
    communicator.send_call(not refused)
    if refused:
        raise refused[0]

    def make_runner(backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
        (task,) = tasks
        return Leader(registry.entry(backend.name).ranks.make_runner(backend, task, communicator), communicator)

    with shared_processors(ranks.local_size):
        yield make_runner


def _follow_run(folder: str, config: str) -> None:
    """Open the only member of a run on this rank, and compute its parts until rank 0 ends."""
    ranks = world.current()
    assert ranks is not None
    communicator = ranks.communicator()
    refused: GcnbatchError | None = None
    try:
        experiment, backend = open_again(Path(folder), config, together=True)
        (planned,) = plan(experiment)
        task, _ = planned.experiment.task(planned.split)
    except GcnbatchError as error:
        refused = error
    ranks.send(refused)
    if communicator.receive_call():
        with shared_processors(ranks.local_size):
            follow(registry.entry(backend.name).ranks.make_runner(backend, task, communicator), communicator)
