"""The fits of a finished run folder: the run itself, or its members, each with its split and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from gcnbatch.data.graphs import Split
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.predictions import read_outputs
from gcnbatch.training import run_files
from gcnbatch.training.fit_report import METRICS, PREDICTIONS
from gcnbatch.training.fits import SPLITS
from gcnbatch.training.plan import member_folders, member_numbers

_ROWS: TypeAdapter[dict[str, list[int]]] = TypeAdapter(dict[str, list[Annotated[int, Field(ge=0, lt=2**62)]]])


@dataclass(frozen=True)
class Fit:
    """One fitted model of a run.

    Parameters
    ----------
    repeat, fold : int
        From 1; 0 where the run has no repeats or folds. Models of an ensemble share them.
    folder : Path
        The run's folder, or one in it.
    split : Split
    metrics : dict
    """

    repeat: int
    fold: int
    folder: Path
    split: Split
    metrics: dict[str, Any]

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


def read_fits(run: Path, rows: int | None = None) -> list[Fit]:
    """Return the fits of a finished run, in the order of their numbers.

    Parameters
    ----------
    run : Path
    rows : int or None
        Rows of the data set, if known: the numbers of a split must be smaller.

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
        return [_read(run, (0, 0, 0), rows)]
    return [_read(path, member_numbers(path.name) or (), rows) for path in places]


def _read(folder: Path, numbers: tuple[int, ...], rows: int | None) -> Fit:
    if not (folder / METRICS).is_file():
        raise InputError(str(folder), f"not finished: no {METRICS}", "a finished run", "Finish it with --resume.")
    split = read_split(folder / SPLITS, rows)
    return Fit(numbers[0], numbers[1], folder, split, run_files.read_figures(folder / METRICS))


def read_split(path: Path, rows: int | None = None) -> Split:
    """Return the split in a ``splits.json``.

    Raises
    ------
    InputError
        When it is damaged, or names a row beyond the data set's `rows`.
    """
    expected = "row numbers of train, valid and test"
    parts = run_files.checked(str(path), run_files.read_json(path, expected), _ROWS, expected)
    if parts.keys() != {"train", "valid", "test"}:
        raise InputError(str(path), f"parts {', '.join(parts)}", "train, valid and test")
    if rows is not None and max(max(part, default=0) for part in parts.values()) >= rows:
        raise InputError(str(path), "a row number beyond the data set", f"numbers below {rows}")
    return Split(**{name: np.array(part, dtype=np.int64) for name, part in parts.items()})
