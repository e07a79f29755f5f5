"""A run that is finished or stopped, read again: its data set, and its fits with their splits and metrics.

``config.toml`` names the data set, for a baseline ``baseline.json``; a set of the run's own lies in its folder.
``data.sha256`` only says which contents it must have: the path in it is for people, and is never opened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, RootModel

from gcnbatch import fileio
from gcnbatch.config import resolve
from gcnbatch.data.graphs import Split
from gcnbatch.data.schema import Header
from gcnbatch.data.shards import fingerprint
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.predictions import read_outputs
from gcnbatch.training import run_files
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fits import SPLITS
from gcnbatch.training.plan import GENERATED, data_file, member_folders, member_numbers
from gcnbatch.training.reports import METRICS, PREDICTIONS
from gcnbatch.training.run_files import CONFIG

DIGEST = "data.sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}(?=\s|$)")
_DIGEST_BYTES = 1 << 16  # of a digest and a path


def record_digest(folder: Path, experiment: Experiment) -> None:
    """Write the digest in the format of ``sha256sum``."""
    fileio.write_text(folder / DIGEST, f"{experiment.fingerprint}  {experiment.dataset.path}\n")


def check_digest(folder: Path, experiment: Experiment, wrong: str) -> None:
    """Refuse data with another digest than that of the folder.

    Parameters
    ----------
    wrong : str
        What to say of them.

    Raises
    ------
    InputError
    """
    if read_digest(folder) != experiment.fingerprint:
        path = str(experiment.dataset.path)
        raise InputError(path, wrong, f"the data of {folder / DIGEST}", "Restore it, or start anew.")


def read_digest(folder: Path) -> str:
    """Return the digest of the data of the run in this folder.

    Raises
    ------
    InputError
    """
    expected = "the data set's digest"
    line = _DIGEST.match(run_files.read_text(folder / DIGEST, expected, _DIGEST_BYTES))
    if line is None:
        raise InputError(str(folder / DIGEST), "not a line of sha256sum", expected, "Restore the file.")
    return line[0]


BASELINE = "baseline.json"


class _Baseline(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    data: str


@dataclass(frozen=True)
class RunData:
    """Where the data set of a run is, and the SHA-256 that it had.

    Parameters
    ----------
    run : Path
        The run's folder.
    path : Path
    digest : str
    """

    run: Path
    path: Path
    digest: str

    @classmethod
    def of(cls, run: Path) -> RunData:
        """Return the data set of the run in a folder.

        Raises
        ------
        InputError
            When a file of the run is missing or damaged.
        """
        return cls(run, _path(run), read_digest(run))

    @property
    def is_changed(self) -> bool:
        """Whether the contents are others than those of the run.

        Raises
        ------
        InputError
            When the data set is gone.
        """
        return fingerprint(self.path) != self.digest

    def open(self) -> Dataset:
        """Open the data set; its contents are not checked again.

        Raises
        ------
        InputError
            When it is gone or has changed.
        """
        if self.is_changed:
            raise InputError(str(self.path), "changed since the run", f"the data of {self.run}", "Restore it.")
        return Dataset(self.path, check=False)


def _path(run: Path) -> Path:
    if (run / GENERATED).is_file():
        return run / GENERATED
    if (run / CONFIG).is_file():
        return data_file(resolve(run_files.read_toml(run / CONFIG), where=str(run / CONFIG)), run)
    return Path(run_files.read_as(run / BASELINE, _Baseline, "the settings of a baseline").data)


class _Rows(RootModel[dict[str, list[Annotated[int, Field(ge=0, lt=2**62)]]]]):
    """Row numbers by part."""


@dataclass(frozen=True)
class FinishedFit:
    """One fitted model of a run.

    Parameters
    ----------
    repeat, fold : int
        From 1; 0 where the run has no repeats or folds. Models of an ensemble share them.
    folder : Path
        The run's folder, or one in it.
    metrics : dict
    rows : int or None
        Rows of the data set, if known: the numbers of its split must be smaller.
    """

    repeat: int
    fold: int
    folder: Path
    metrics: dict[str, Any]
    rows: int | None = None

    @cached_property
    def split(self) -> Split:
        """Its split.

        Raises
        ------
        InputError
            When it is damaged.
        """
        return read_split(self.folder / SPLITS, self.rows)

    @property
    def block(self) -> tuple[int, int]:
        """Repeat and fold: runs are compared within them."""
        return self.repeat, self.fold

    def outputs(self, header: Header) -> NDArray[np.floating]:
        """Read the model's outputs for its test rows.

        Raises
        ------
        InputError
            When ``predictions.csv`` is damaged, or has other columns or rows.
        """
        return read_outputs(self.folder / PREDICTIONS, header, len(self.split.test))


def block_name(repeat: int, fold: int) -> str:
    """Return the name of the folder of a repeat and fold, "" for neither."""
    return "-".join(f"{what}{number}" for what, number in (("repeat", repeat), ("fold", fold)) if number)


def read_fits(run: Path, rows: int | None = None, with_splits: bool = True) -> list[FinishedFit]:
    """Return the fits of a finished run, in the order of their numbers.

    Parameters
    ----------
    run : Path
    rows : int or None
        As for `FinishedFit`.
    with_splits : bool
        Read the splits, too; otherwise each is read when it is first needed.

    Raises
    ------
    InputError
        When the folder has no fit, or a fit is not finished or damaged.
    """
    places = [run] if (run / SPLITS).is_file() else member_folders(run)
    if not places:
        raise run_files.lacking(run, SPLITS, "'gcnbatch train' or 'gcnbatch baseline'")
    run_files.refuse_links(run)
    if places == [run]:
        return [_read(run, (0, 0, 0), rows, with_splits)]
    return [_read(path, member_numbers(path.name) or (), rows, with_splits) for path in places]


def _read(folder: Path, numbers: tuple[int, ...], rows: int | None, with_split: bool) -> FinishedFit:
    if not (folder / METRICS).is_file():
        raise InputError(str(folder), f"not finished: no {METRICS}", "a finished run", "Finish it with --resume.")
    found = FinishedFit(numbers[0], numbers[1], folder, run_files.read_figures(folder / METRICS), rows)
    if with_split:
        _ = found.split
    return found


def read_split(path: Path, rows: int | None = None) -> Split:
    """Return the split in a ``splits.json``.

    Raises
    ------
    InputError
        When it is damaged, or names a row beyond the data set's `rows`.
    """
    parts = run_files.read_as(path, _Rows, "row numbers of train, valid and test").root
    if parts.keys() != {"train", "valid", "test"}:
        raise InputError(str(path), f"parts {', '.join(parts)}", "train, valid and test")
    if rows is not None and max(max(part, default=0) for part in parts.values()) >= rows:
        raise InputError(str(path), "a row number beyond the data set", f"numbers below {rows}")
    return Split(**{name: np.array(part, dtype=np.int64) for name, part in parts.items()})
