"""What a report says of a finished run, read from its folder, and the test rows if its data set is still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcnbatch.config import Config
from gcnbatch.data.store import Dataset
from gcnbatch.errors import GcnbatchError
from gcnbatch.run_report.tested import Examined, HeldOut, examine
from gcnbatch.text import printable
from gcnbatch.training import run_files
from gcnbatch.training.finished import FinishedFit, RunData, read_fits
from gcnbatch.training.reports import METRICS
from gcnbatch.training.run import read_config
from gcnbatch.training.summary import pooled


@dataclass(frozen=True)
class Record:
    """A finished run.

    Parameters
    ----------
    folder : Path
    config : Config or None
        None for a baseline.
    environment : dict
        env.json.
    data : Path
    digest : str
        SHA-256 of the data set.
    metrics : dict
        metrics.json.
    fits : list of FinishedFit
    examined : Examined or None
    why_not : str
        Why there are no test rows.
    """

    folder: Path
    config: Config | None
    environment: dict[str, Any]
    data: Path
    digest: str
    metrics: dict[str, Any]
    fits: list[FinishedFit]
    examined: Examined | None
    why_not: str

    @property
    def tested(self) -> HeldOut | None:
        """The test rows, if the data set is still there."""
        return self.examined.rows if self.examined else None

    @property
    def name(self) -> str:
        """The run's name: that of its configuration, else of its folder."""
        return self.config.name if self.config else self.folder.resolve().name

    @property
    def one_split(self) -> bool:
        """Whether all models share their test rows, so that these can be resampled."""
        return _one_split(self.fits)

    @property
    def networks(self) -> int:
        """Number of networks of a cross-fitted run; 0 of others."""
        return len(self.metrics.get("parts", ()))

    @property
    def members(self) -> list[dict[str, Any]]:
        """The table of members of a mixture; empty of others."""
        return self.metrics.get("members", []) if self.networks else []

    @property
    def models(self) -> str:
        """The models of a run with several: "5 folds", "2 repeats of 5 folds", "3 models"."""
        repeats, folds = (len(set(numbers)) for numbers in zip(*(fit.block for fit in self.fits), strict=True))
        if folds == 1:
            return f"{len(self.fits)} models"
        return f"{folds} folds" if repeats == 1 else f"{repeats} repeats of {folds} folds"

    @property
    def test(self) -> dict[str, Any]:
        """Figures of the test rows; with several models, of the mean of their outputs."""
        return self.metrics.get("out_of_fold") or self.metrics.get("test", {})

    @property
    def baseline(self) -> dict[str, Any]:
        """The comparison with a baseline; empty if there is none."""
        return self.metrics.get("baseline") or {}


def read(folder: Path, check_data: bool, examined: Examined | None = None) -> Record:
    """Read a finished run.

    Parameters
    ----------
    folder : Path
    check_data : bool
        Compare the data set's digest with that of the run.
    examined : Examined or None
        Its test rows, if they are examined already. Splits are then read when they are needed.

    Raises
    ------
    InputError
        When the folder is not that of a finished run, or a file in it is damaged.
    """
    fits = read_fits(folder, with_splits=examined is None)
    metrics = run_files.read_figures(folder / METRICS)
    config = read_config(folder) if (folder / run_files.CONFIG).is_file() else None
    environment, data = run_files.read_environment(folder), RunData.of(folder)
    why_not = ""
    try:
        if check_data and data.is_changed:
            why_not = "the data set changed since the run"
        elif examined is None and any(len(fit.split.test) for fit in fits):
            examined = _examined(data.path, fits)
        elif examined is None:
            why_not = "the run has no test rows"
    except GcnbatchError as error:
        why_not = printable(str(error), 200)
    return Record(folder, config, environment, data.path, data.digest, metrics, fits, examined, why_not)


def _one_split(fits: Sequence[FinishedFit]) -> bool:
    return len({fit.block for fit in fits}) == 1


def _examined(path: Path, fits: Sequence[FinishedFit]) -> Examined:
    with Dataset(path, check=False) as data:
        pool = pooled([fit.split.test for fit in fits], [fit.outputs(data.header) for fit in fits])
        return examine(data, pool.rows, pool.mean, resampled=_one_split(fits))
