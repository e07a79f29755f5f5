"""Checks that runs were trained and tested on the same rows of the same data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gcnbatch.data.shards import fingerprint
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.training import run_files
from gcnbatch.training.digest import DIGEST
from gcnbatch.training.fitted import Fit, block_name, read_fits

_HINT = "Train both with the same --data, split, folds, repeats and seed."


@dataclass(frozen=True)
class ComparedRun:
    """A run with its name in the comparison, its fits, and the path and digest of its data."""

    name: str
    folder: Path
    fits: list[Fit]
    data: Path
    digest: str

    @property
    def model(self) -> str:
        """What was fitted: "random forest", else "gcn"."""
        return str(self.fits[0].metrics.get("model", "gcn"))


def read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """Read finished runs and check that they can be compared.

    Raises
    ------
    InputError
        For fewer than two runs, one given twice, a run that is not finished, and other data or rows than the first's.
    """
    if len(folders) < 2:
        raise InputError("RUN_DIR", f"{len(folders)} run", "two or more")
    names = _names(folders)
    runs = [_read(name, folder) for name, folder in zip(names, folders, strict=True)]
    for run in runs[1:]:
        _check_same_data(runs[0], run)
        _check_same_splits(runs[0], run)
    return runs


def _names(folders: Sequence[Path]) -> list[str]:
    resolved = [folder.resolve() for folder in folders]
    for at, folder in enumerate(resolved):
        if folder in resolved[:at]:
            raise InputError(str(folders[at]), "given twice", "different runs")
    last = [folder.name for folder in resolved]
    return [name if last.count(name) == 1 else str(folder) for name, folder in zip(last, folders, strict=True)]


def _read(name: str, folder: Path) -> ComparedRun:
    fits = read_fits(folder)
    text = run_files.read_text(folder / DIGEST, "the data set's digest").strip()
    digest, _, path = text.partition("  ")
    return ComparedRun(name, folder, fits, Path(path), digest)


def _check_same_data(first: ComparedRun, other: ComparedRun) -> None:
    """Files may differ, in features for example; ids and targets may not."""
    if first.digest == other.digest:
        return
    with open_data(first) as one, open_data(other) as two:
        if one.header.task_names != two.header.task_names or one.header.target != two.header.target:
            raise InputError(str(other.folder), "other tasks", f"those of {first.folder}", _HINT)
        if one.ids.tolist() != two.ids.tolist() or not np.array_equal(one.y, two.y, equal_nan=one.y.dtype.kind == "f"):
            raise InputError(str(other.folder), f"other ids or targets ({two.path})", f"those of {one.path}", _HINT)


def open_data(run: ComparedRun) -> Dataset:
    """Open the data set of a run.

    Raises
    ------
    InputError
        When it is gone or has changed.
    """
    if fingerprint(run.data) != run.digest:
        raise InputError(str(run.data), "changed since the run", f"the data of {run.folder}", "Restore it.")
    return Dataset(run.data, check=False)


def _check_same_splits(first: ComparedRun, other: ComparedRun) -> None:
    mine, its = ({fit.block: fit.split for fit in run.fits} for run in (first, other))
    if mine.keys() != its.keys():
        got, expected = (", ".join(block_name(*block) or "one split" for block in sorted(of)) for of in (its, mine))
        raise InputError(str(other.folder), got, f"{expected}, as in {first.folder}", _HINT)
    for block, split in mine.items():
        for part, rows in split.parts().items():
            if not np.array_equal(rows, its[block].parts()[part]):
                place = other.folder / block_name(*block)
                raise InputError(str(place), f"other {part} rows", f"those of {first.folder}", _HINT)
