"""The models of a prediction, and what they give for a part of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import CudaConfig
from gcnbatch.inference.domain import Domain
from gcnbatch.inference.inputs import Data
from gcnbatch.inference.members import Member, load_members
from gcnbatch.inference.options import CsvOptions
from gcnbatch.inference.parts import Part, Reading
from gcnbatch.inference.tabulation import Predicted
from gcnbatch.inference.trust import Trust
from gcnbatch.inference.trust_files import Level, load_trust
from gcnbatch.runners.choice import BackendChoice


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
    """What predicts a part: the members, how they run, and what gives further columns."""

    members: list[Member]
    choice: BackendChoice
    batch_size: int
    trust: Trust
    domain: Domain | None

    @classmethod
    def load(cls, request: Request, choice: BackendChoice, say: Callable[[str], object]) -> Predictor:
        """Load the models and what they know of their errors.

        Raises
        ------
        InputError
            As `load_members`, `load_trust` and `Domain`.
        """
        members = load_members(request.runs, say)
        trust = load_trust(members, request.level)
        domain = Domain(members, choice, request.batch_size) if request.applicability else None
        return cls(members, choice, request.batch_size, trust, domain)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """How the members read graphs, each way once."""
        return tuple({member.reading: None for member in self.members})

    @property
    def left_out(self) -> NDArray[np.bool_]:
        """Which tasks each member has no outputs of, (members, T)."""
        return np.stack([member.left_out for member in self.members])

    def predict(self, part: Part, progress: Callable[[int], object]) -> Predicted:
        """Return what the models give for a part. "auto" may change to another backend."""
        found = [
            member.outputs(self.choice, part.source(*member.reading), self.batch_size, progress)
            for member in self.members
        ]
        beside = self.domain.columns(part.source, part.smiles()) if self.domain else {}
        return Predicted(part.blocks, [outputs for outputs, _ in found], beside, found[-1][1], self.left_out)
