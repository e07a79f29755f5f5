"""A loaded run that predicts many batches of SMILES, for a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from gcnbatch.config_sections import CudaConfig
from gcnbatch.data import featurizer_worker, guard, molecule_graphs
from gcnbatch.data.graphs import GraphSet, concatenate
from gcnbatch.data.tables.table import Block
from gcnbatch.errors import InputError
from gcnbatch.inference import molecules
from gcnbatch.inference.domain import Domain
from gcnbatch.inference.inputs import check_smiles
from gcnbatch.inference.molecules import SMILES, Converter, convert_guarded, convert_timed, smiles_columns
from gcnbatch.inference.parts import Part
from gcnbatch.inference.predictor import Predictor
from gcnbatch.inference.tabulation import RowMaker, Selection
from gcnbatch.inference.trust import Level
from gcnbatch.machine import cores
from gcnbatch.predictions import Predictions, as_it_is
from gcnbatch.runners.choice import KeptRunners
from gcnbatch.workers.pool import WorkerDied, Workers
from gcnbatch.workers.shared import Shared

Say = Callable[[str], object]


class Machine(NamedTuple):
    """Where runs predict: the backend, whose runners are kept, and the processes that read SMILES.

    Only the thread that opened it may use the models.
    """

    choice: KeptRunners
    workers: Workers

    @classmethod
    def open(cls, backend: str, device: int = 0, cuda: CudaConfig | None = None, processes: int = 0) -> Machine:
        """Open the backend and start the processes; 0: one per processor.

        Raises
        ------
        InputError, BackendUnavailable, MachineError
            As `gcnbatch.backends.registry.open_backend`.
        """
        choice = KeptRunners(backend, device, cuda)
        return cls(choice, Workers(processes or cores(), featurizer_worker.prepare, (molecules.__name__,), quiet=True))


Begun = list[tuple[Block, Callable[[], Part]]]  # chunks of SMILES, and what returns their part once it is read


class LoadedRun:
    """A loaded run.

    Parameters
    ----------
    folder : Path
    machine : Machine
    level : float, "training" or None
        Level of conformal intervals and sets.
    say : callable
        Called with each message for the user.

    Attributes
    ----------
    folder : Path
    predictor : Predictor
        It has an applicability domain if the data set of the run is found; else `why_no_domain` says why.

    Raises
    ------
    InputError
        As `Predictor.load`; also when the models were not trained on SMILES, or read features from columns.
    """

    def __init__(self, folder: Path, machine: Machine, level: Level = "training", say: Say = lambda line: None) -> None:
        self.folder, self._machine = folder, machine
        self.predictor = Predictor.load([folder], machine.choice, say, level)
        header = check_smiles(self.predictor.members, str(folder), "a model of graphs", "a model of molecules")
        forms = tuple({member.input_form: None for member in self.predictor.members})
        self._converter = Converter(header, smiles_columns(header), forms)
        self.why_no_domain = ""
        try:
            self.predictor = replace(self.predictor, domain=Domain(self.predictor.members, machine.choice))
        except InputError as error:
            self.why_no_domain = str(error)
            say(f"no applicability and no nearest training molecules: {error}")
        for note in (*self._converter.columns.features.notes, *self.predictor.trust.notes):
            say(note)
        self.header = self.predictor.members[0].header
        self._make = RowMaker(self.header, self.predictor.trust, Selection(), as_it_is, fail=False)

    @cached_property
    def _shared(self) -> Shared:
        return Shared(self._converter)

    def begin(self, smiles: Sequence[str], alone: bool = False) -> Begun:
        """Let processes read SMILES, at least one.

        `alone`: `finish` follows at once. A process then reads a single chunk for `finish` itself: a thread that waits
        for it would cost two switches between threads.
        """
        workers = self._machine.workers
        size = min(-(-len(smiles) // workers.count), molecule_graphs.CHUNK)
        chunks = [Block(start, {SMILES: list(smiles[start : start + size])}) for start in range(0, len(smiles), size)]
        calls = [(convert_timed, guard.SECONDS, chunk, self._shared) for chunk in chunks]
        if alone and len(chunks) == 1:
            return [(chunks[0], partial(workers.call, *calls[0]))]
        return [(chunk, workers.submit(*call).result) for chunk, call in zip(chunks, calls, strict=True)]

    def finish(self, begun: Begun, applicability: bool = False) -> Predictions:
        """Return the predictions of all rows; ids are their numbers.

        A molecule that cannot be read, or crashes its process, has a reason in place of numbers. `applicability`: add
        similarity and distance to the nearest training molecule, if there is a domain.
        """
        part = Part.joined([part for chunk in begun for part in self._read(*chunk)])
        predictor = self.predictor if applicability else self._alone
        made: Predictions = self._make(predictor.predict(part), 0).rows
        return made

    @cached_property
    def _alone(self) -> Predictor:
        return replace(self.predictor, domain=None)

    def predict(self, smiles: Sequence[str], applicability: bool = False) -> Predictions:
        """Return the predictions of SMILES, at least one; see `finish`."""
        return self.finish(self.begin(smiles, alone=True), applicability)

    def graphs(self, smiles: str) -> GraphSet:
        """Return the graph of a molecule.

        Raises
        ------
        InputError
            When it cannot be read.
        """
        rows = Block(0, {SMILES: [smiles]})
        converter = replace(self._converter, forms=())
        parts = convert_guarded(rows, Shared(converter))
        if reasons := parts[0].block().errors:
            raise InputError("smiles", reasons[0])
        return concatenate([part.graphs() for part in parts])

    def _read(self, chunk: Block, part: Callable[[], Part]) -> list[Part]:
        try:
            return [part()]
        except (WorkerDied, MemoryError):
            return convert_guarded(chunk, self._shared)
