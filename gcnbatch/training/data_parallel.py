"""One run on all ranks of a command: rank 0 trains and writes, the other ranks compute their parts of each batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.blas import shared_processors
from gcnbatch.config import Config
from gcnbatch.errors import GcnbatchError
from gcnbatch.ranks import world
from gcnbatch.ranks.world import World
from gcnbatch.runners.choice import make_distributed
from gcnbatch.runners.leader import Leader, follow
from gcnbatch.runners.task import RunnerTask
from gcnbatch.training.plan import plan
from gcnbatch.training.processes import open_again

MakeRunner = Callable[[Backend, Sequence[RunnerTask]], Runner]


@contextmanager
def on_all_ranks(ranks: World, folder: Path, config: Config, backend: Backend) -> Iterator[MakeRunner]:
    """Open the run of this folder on the other ranks; yield what makes its runner.

    Raises
    ------
    GcnbatchError
        That of the first rank that cannot open data or backend, or sees other data.
    """
    text = json.dumps(config.model_copy(update={"backend": backend.name}).model_dump(mode="json"))
    ranks.start_all(_follow_run, str(folder.resolve()), text)
    refused = [error for rank in range(1, ranks.size) if (error := ranks.receive(rank)) is not None]
    communicator = ranks.communicator()
    communicator.send_call(not refused)
    if refused:
        raise refused[0]

    def make_runner(backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
        (task,) = tasks
        return Leader(make_distributed(backend, task, communicator), communicator)

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
            follow(make_distributed(backend, task, communicator), communicator)
