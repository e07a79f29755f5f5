"""The models of a prediction, and what they give for the parts of the input: in this process, or on all ranks.

Each of N ranks reads and predicts every N-th part; rank 0 writes all in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import CudaConfig
from gcnbatch.errors import InputError
from gcnbatch.inference.domain import Domain
from gcnbatch.inference.inputs import Data, open_input
from gcnbatch.inference.journal import task_of
from gcnbatch.inference.models import Model, Whole, begin, load_wholes, silent
from gcnbatch.inference.molecules import CsvOptions
from gcnbatch.inference.parts import ALL, Input, Part, Share
from gcnbatch.inference.tabulation import Predicted
from gcnbatch.inference.trust import Level, Trust, load_trust
from gcnbatch.ranks import world
from gcnbatch.ranks.world import World
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.timeline import span
from gcnbatch.workers.pool import Workers, ahead


@dataclass(frozen=True)
class Request:
    """What decides the table of a prediction; see `gcnbatch.inference.ensemble.infer`.

    Parameters
    ----------
    batch_size : int
        0: chosen by the backend.
    """

    runs: Sequence[Path]
    data: Data
    backend: str
    device: int
    cuda: CudaConfig | None
    batch_size: int
    csv: CsvOptions
    level: Level
    applicability: bool


@dataclass(frozen=True)
class Predictor:
    """What predicts a part: runs and models, how they run, and what gives further columns."""

    wholes: list[Whole]
    choice: BackendChoice
    batch_size: int
    trust: Trust
    domain: Domain | None

    @classmethod
    def load(
        cls,
        runs: Sequence[Path],
        choice: BackendChoice,
        say: Callable[[str], object],
        level: Level = "training",
        applicability: bool = False,
        batch_size: int = 0,
    ) -> Predictor:
        """Load the models and what they know of their errors.

        Raises
        ------
        InputError
            As `load_wholes`, `load_trust` and `Domain`.
        """
        with span("load the models"):
            wholes = [one.on(choice.fastest) for one in load_wholes(runs, say)]
        trust = load_trust(wholes[0].models[0], [one.place for one in wholes], level)
        found = cls(wholes, choice, batch_size, trust, None)
        return replace(found, domain=Domain(found.members, choice, batch_size)) if applicability else found

    @property
    def members(self) -> list[Model]:
        """All models."""
        return [model for one in self.wholes for model in one.models]

    @property
    def left_out(self) -> NDArray[np.bool_]:
        """Which tasks each run or model has no outputs of, (wholes, T)."""
        return np.stack([one.left_out for one in self.wholes])

    @property
    def files(self) -> list[Path]:
        """The files that decide the outputs."""
        return [path for one in self.wholes for path in one.files]

    def open_input(
        self,
        request: Request,
        skip: int,
        say: Callable[[str], object] = lambda line: None,
        workers: Workers | None = None,
    ) -> AbstractContextManager[Input]:
        """Open the parts of this rank after the first `skip` rows; without ranks, all."""
        ranks = world.current()
        share = ALL if ranks is None else Share(ranks.rank, ranks.size, ranks.local_size)
        about: dict[str, Any] = {"batch_size": request.batch_size, "skip": skip, "share": share, "batches": True}
        about |= {"workers": workers, "mixtures": tuple(one.for_readers for one in self.wholes)}
        return open_input(request.data, self.members, request.csv, say, **about)

    def begin(self, part: Part, progress: Callable[[int], object]) -> Callable[[], Predicted]:
        """Predict a part with the networks, and return a call that completes what the models give for it.

        The call may run in another thread, while the next part begins. "auto" may change to another backend.
        """
        combine = begin(self.wholes, self.choice, part.source, self.batch_size, progress, part.of_members)
        beside = self.domain.columns(part.source, part.smiles()) if self.domain else {}

        def complete() -> Predicted:
            found = combine()
            single = [one.outputs for one in found]
            deviation = found[0].deviation if len(found) == 1 else None
            return Predicted(part.blocks, single, beside, self.left_out, deviation)

        return complete

    def predict(self, part: Part, progress: Callable[[int], object] = silent) -> Predicted:
        """Return what the models give for a part."""
        return self.begin(part, progress)()


def predict_parts(
    source: Input, predictor: Predictor, request: Request, skip: int, progress: Callable[[int], object]
) -> Iterator[Predicted]:
    """Yield what the models give for all parts in order; the other ranks predict theirs meanwhile.

    Parameters
    ----------
    skip : int
        Rows before the first part.
    progress : callable
        Takes each number of predicted graphs, counted for every model.
    """
    ranks = world.current()
    if ranks is None:
        yield from _overlapped(source.parts, predictor, progress)
        return
    ranks.start_all(_follow, request, _files(request, predictor), skip)
    number, rows = 0, skip
    while rows < source.n_graphs:
        if number % ranks.size == 0:
            found = predictor.predict(next(source.parts), progress)
        else:
            found = ranks.receive(number % ranks.size)
            if isinstance(found, Exception):
                raise found
            progress(found.readable * len(predictor.members))
        yield found
        rows += found.rows
        number += 1


def _overlapped(
    parts: Iterator[Part], predictor: Predictor, progress: Callable[[int], object] = silent
) -> Iterator[Predicted]:
    """Yield what the models give for the parts in order; one is combined while the networks predict the next."""
    with ThreadPoolExecutor(1) as thread:
        under_way = (thread.submit(predictor.begin(part, progress)) for part in _timed(parts))
        yield from (found.result() for found in ahead(under_way, 1))


def _timed(parts: Iterator[Part]) -> Iterator[Part]:
    while True:
        with span("read molecules"):
            part = next(parts, None)
        if part is None:
            return
        yield part


def _files(request: Request, predictor: Predictor) -> dict[str, Any]:
    """Return what ranks compare: names, sizes and times of the data, digests of the models."""
    assert isinstance(request.data, Path)  # of the command line, which alone has ranks
    return task_of(request.data, predictor.files, {})


def _follow(request: Request, files: dict[str, Any], skip: int) -> None:
    """Predict the parts of this rank and send what the models give, or the error, to rank 0."""
    ranks = world.current()
    assert ranks is not None
    with ThreadPoolExecutor(1) as sender:  # rank 0 takes a part while the next one is computed
        before: Future[None] | None = None
        for found in _predicted(ranks, request, files, skip):
            if before:
                before.result()
            before = sender.submit(ranks.send, found)
        if before:
            before.result()


def _predicted(ranks: World, request: Request, files: dict[str, Any], skip: int) -> Iterator[Predicted | Exception]:
    try:
        with world.named():
            choice = BackendChoice(request.backend, ranks.device(request.device), request.cuda)
            how = request.level, request.applicability, request.batch_size
            predictor = Predictor.load(request.runs, choice, lambda line: None, *how)
            if _files(request, predictor) != files:
                expected = "the same names, sizes and times of change"
                raise InputError(str(request.data), "not that of rank 0", expected, "Copy data and runs with cp -p.")
            opened = predictor.open_input(request, skip)
        with opened as source:
            yield from _overlapped(source.parts, predictor)
    except Exception as error:  # rank 0 raises it in place of the part
        yield error
