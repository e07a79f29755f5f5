"""The choice of a backend for a task, and its runner. Modules above this one do not distinguish backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend, Runner
from gcnbatch.config_sections import CudaConfig
from gcnbatch.errors import InputError
from gcnbatch.model.gcn import Gcn
from gcnbatch.ranks.world import World
from gcnbatch.runners.ops import OpsPredictor
from gcnbatch.runners.task import RunnerTask

# With fewer molecules, "auto" predicts on the host. One molecule takes 11 ms through a GPU and 3 on the host (a network
# without descriptors): launches and transfers cost more than the networks. Those of 64 molecules take two cores 0.6 ms,
# or 8 ms where there are ten that read fingerprints (recipe best). benchmarks/serving.py --tests sizes
FEW = 64


def backend_for_few(name: str) -> str:
    """Return the backend to name for fewer than FEW molecules: for ``"auto"``, the fastest on the host."""
    on_host = (found.name for found in registry.BACKENDS if not found.on_gpu and found.probe().ready)
    return next(on_host, name) if name == registry.AUTO else name


def refusal(backend: Backend, task: RunnerTask, ranks: World | None = None) -> str | None:
    """Return the property of the task, or of the ranks that train it together, which the backend does not support."""
    entry = registry.entry(backend.name)
    return entry.ranks.refuses(backend, task, ranks) if ranks else entry.runners.refuses(backend, task)


def cohort_size(backend: Backend, tasks: Sequence[RunnerTask], most: int = 0) -> int:
    """Return how many of these tasks of one architecture, from the front, may share a runner now; at least 1.

    `most`: not more than these; 0: as many as the backend takes.
    """
    size = registry.entry(backend.name).runners.cohort_size(backend, tasks)
    return min(size, most or size)


def make_runner(backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
    """Return the runner of these tasks of one architecture, at most `cohort_size` many.

    Raises
    ------
    InputError
        The backend refuses one of them.
    """
    if reason := next((reason for task in tasks if (reason := refusal(backend, task))), None):
        raise _refused(backend, reason)
    return registry.entry(backend.name).runners.make_runner(backend, tasks)


def make_predictor(backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
    """Return a runner that predicts with as many of these tasks of one architecture, from the front, as it takes."""
    of_graphs = tasks[0].source.header.level == "graph"
    if of_graphs and registry.entry(backend.name).steps_are_operations:
        return OpsPredictor(backend, tasks)
    return make_runner(backend, tasks[: cohort_size(backend, tasks)])


def distributed_refusal(backend: Backend, ranks: int) -> InputError | None:
    """Return why `backend` cannot train one model on so many ranks, or None."""
    if ranks > 1 and not registry.entry(backend.name).data_parallel:
        able = " or ".join(f"--backend {found.name}" for found in registry.BACKENDS if found.data_parallel)
        got = f"cannot share one run among {ranks} ranks"
        hint = f"Use {able}, start it without a launcher, or train folds, repeats or an ensemble on the ranks."
        return InputError(f"backend {backend.name}", got, hint=hint)
    return None


class BackendChoice:
    """The backend of a command: the named one, or for ``"auto"`` the fastest that can start and supports the task.

    The fastest is opened at once, a slower one only for a task that the faster ones refuse.

    Parameters
    ----------
    name, device, options
        As in `gcnbatch.backends.registry.open_backend`.
    say : callable
        Receives a line with the reason when a slower backend takes a task.

    Attributes
    ----------
    fastest : Backend
    used : str
        Name of the backend that the last task got; at first, of the fastest.

    Raises
    ------
    InputError, BackendUnavailable, MachineError
        As `gcnbatch.backends.registry.open_backend`.
    """

    def __init__(
        self,
        name: str,
        device: int = 0,
        options: CudaConfig | None = None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._device, self._options, self._say = device, options, say
        self._ready = registry.ready(name, device)
        self._opened: list[Backend] = []
        self.fastest = next(self._backends())
        self.used = self.fastest.name

    def backend_for(self, tasks: Sequence[RunnerTask], ranks: World | None = None) -> Backend:
        """Return the fastest backend that supports all of these tasks, each trained by these ranks together.

        Rank 0 calls it, while the others wait for calls.

        Raises
        ------
        InputError
            No backend does. The message gives the reason of the named backend, or of the slowest.
        BackendUnavailable
            Something that the ranks need to exchange the backend's arrays is missing.
        """
        why, refused = "", None
        for backend in self._backends():
            if ranks and (refused := distributed_refusal(backend, ranks.size)):
                why = why or f"{backend.name} {refused.got}"
                continue
            refused, reason = None, next((reason for task in tasks if (reason := refusal(backend, task, ranks))), None)
            if reason is None:
                if why:
                    self._say(f"backend {backend.name}: {why}")
                self.used = backend.name
                return backend
            why = why or f"{backend.name} does not take {reason}"
        raise refused or _refused(backend, str(reason))

    @contextmanager
    def predictor(self, tasks: Sequence[RunnerTask]) -> Iterator[Runner]:
        """Open the runner that `make_predictor` returns for these tasks on the backend for them."""
        with closing(make_predictor(self.backend_for(tasks), tasks)) as runner:
            yield runner

    def takes_on_host(self, graphs: int) -> bool:
        """Return whether so many graphs are predicted on the host although the fastest backend is elsewhere."""
        return False

    def _backends(self) -> Iterator[Backend]:
        """Yield the candidates, fastest first; each is opened once."""
        yield from tuple(self._opened)
        for entry in self._ready:
            self._opened.append(entry.open(self._device, self._options))
            yield self._opened[-1]


class KeptRunners(BackendChoice):
    """A choice that keeps its runners, for models that predict small inputs again and again.

    A task with the model of an earlier one has its parameters, too. Where the backend computes by operations, tasks
    with the models of earlier ones get the same runner.

    Attributes
    ----------
    for_few : KeptRunners or None
        The choice for fewer than FEW graphs: that of the host, where ``"auto"`` finds a GPU.
    """

    def __init__(self, name: str, device: int = 0, options: CudaConfig | None = None) -> None:
        super().__init__(name, device, options)
        self._kept: dict[tuple[int, ...], tuple[list[Gcn], OpsPredictor]] = {}
        few = backend_for_few(name)
        self.for_few = None if few in (name, self.fastest.name) else KeptRunners(few)

    def takes_on_host(self, graphs: int) -> bool:
        return self.for_few is not None and graphs < FEW

    @contextmanager
    def predictor(self, tasks: Sequence[RunnerTask]) -> Iterator[Runner]:
        """Open the runner for these tasks, or the kept one."""
        if self.for_few is not None and self.takes_on_host(tasks[0].source.n_graphs):
            with self.for_few.predictor(tasks) as runner:
                yield runner
            return
        models = [task.model for task in tasks]
        key = tuple(map(id, models))
        if (kept := self._kept.get(key)) is not None:
            kept[1].take(tasks)
            yield kept[1]
            return
        runner = make_predictor(self.backend_for(tasks), tasks)
        if isinstance(runner, OpsPredictor):
            self._kept[key] = models, runner  # the models stay alive, as their numbers are the key
            yield runner
        else:
            with closing(runner):
                yield runner


def _refused(backend: Backend, reason: str) -> InputError:
    slower = registry.slower_than(backend.name)
    hint = f"Use --backend {slower[0].name}." if slower else ""
    return InputError(f"backend {backend.name}", f"it does not take {reason}", hint=hint)
