"""The models of a prediction, and what they give for a part of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import CudaConfig
from gcnbatch.inference.domain import Domain
from gcnbatch.inference.inputs import CsvOptions, Data, Part
from gcnbatch.inference.members import Member, load_members, sources_of
from gcnbatch.inference.trust import Level, Trust, load_trust
from gcnbatch.predictions import Predictions
from gcnbatch.runners.choice import BackendChoice


@dataclass(frozen=True)
class Request:
    """What decides the table of a prediction; see `gcnbatch.inference.infer`.

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
class PartTable:
    """The table of a part, how many of its rows could be read, their targets, and the backend that computed."""

    table: Predictions
    readable: int
    y: NDArray[Any] | None
    backend: str


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

    def predict(self, part: Part, progress: Callable[[int], object]) -> PartTable:
        """Return the table of a part."""
        single, backend = _outputs(part, self.members, self.choice, self.batch_size, progress)
        outputs, std = _combined(part, single)
        beside = self.trust.columns(single) | (self.domain.columns(part.data, part.smiles()) if self.domain else {})
        more = {column: _spread(part, values) for column, values in beside.items()}
        table = Predictions(self.members[0].header, part.ids, outputs, std, part.errors, part.kept, more)
        return PartTable(table, len(part.rows), part.y, backend)


def _outputs(
    part: Part, members: list[Member], choice: BackendChoice, batch_size: int, progress: Callable[[int], object]
) -> tuple[list[NDArray[np.float32]], str]:
    """Return each member's outputs (M, K) for the readable rows, and the backend that computed.

    "auto" may change to another backend.
    """
    pairs = zip(members, sources_of(members, part.data), strict=True)
    found = [member.outputs(choice, source, batch_size, progress) for member, source in pairs]
    return [outputs for outputs, _ in found], found[-1][1]


def _combined(
    part: Part, single: Sequence[NDArray[np.float32]]
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return the members' mean (R, K) and, for several, their standard deviation (n - 1); NaN in unreadable rows."""
    mean = np.full((len(part.ids), single[0].shape[1]), np.nan, dtype=np.float32)
    mean[part.rows] = np.mean(single, axis=0, dtype=np.float64)
    if len(single) == 1:
        return mean, None
    std = np.full_like(mean, np.nan)
    std[part.rows] = np.std(single, axis=0, ddof=1, dtype=np.float64)
    return mean, std


def _spread(part: Part, values: NDArray[Any]) -> NDArray[Any]:
    """Return a column (R,) from the values of the readable rows; "" or NaN in the others."""
    column = np.full(len(part.ids), np.nan if values.dtype.kind == "f" else "", dtype=values.dtype)
    column[part.rows] = values
    return column
