"""Runs that were trained and tested on the same rows of the same data, and their test scores by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gcnbatch.data.graphs import Split
from gcnbatch.errors import InputError
from gcnbatch.training.finished import FinishedFit, RunData, block_name, read_fits

Block = tuple[int, int]  # repeat, fold
_HINT = "Train both with the same --data, split, folds, repeats and seed."


@dataclass(frozen=True)
class ComparedRun:
    """A run with its name in the comparison, its fits and its data."""

    name: str
    folder: Path
    fits: list[FinishedFit]
    data: RunData

    @property
    def model(self) -> str:
        """What was fitted: "random forest", "mixture", else "gcn"."""
        metrics = self.fits[0].metrics
        return str(metrics.get("model", "mixture" if "parts" in metrics and "members" in metrics else "gcn"))


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
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise InputError(str(folders[number]), "given twice", "different runs")
    last = [folder.name for folder in resolved]
    return [name if last.count(name) == 1 else str(folder) for name, folder in zip(last, folders, strict=True)]


def _read(name: str, folder: Path) -> ComparedRun:
    fits = read_fits(folder)
    return ComparedRun(name, folder, fits, RunData.of(folder))


def _check_same_data(first: ComparedRun, other: ComparedRun) -> None:
    """Files may differ, in features for example; ids and targets may not."""
    if first.data.digest == other.data.digest:
        return
    with first.data.open() as one, other.data.open() as two:
        if one.header.task_names != two.header.task_names or one.header.target != two.header.target:
            raise InputError(str(other.folder), "other tasks", f"those of {first.folder}", _HINT)
        if one.ids.tolist() != two.ids.tolist() or not np.array_equal(one.y, two.y, equal_nan=one.y.dtype.kind == "f"):
            raise InputError(str(other.folder), f"other ids or targets ({two.path})", f"those of {one.path}", _HINT)


def _learnt_together(split: Split) -> Split:
    return Split(train=np.sort(np.concatenate([split.train, split.valid])), valid=split.valid[:0], test=split.test)


def _check_same_splits(first: ComparedRun, other: ComparedRun) -> None:
    mine, its = ({fit.block: fit.split for fit in run.fits} for run in (first, other))
    if mine.keys() != its.keys():
        got, expected = (", ".join(block_name(*block) or "one split" for block in sorted(of)) for of in (its, mine))
        raise InputError(str(other.folder), got, f"{expected}, as in {first.folder}", _HINT)
    for block, split in mine.items():
        one, two = split, its[block]
        if not (len(one.valid) and len(two.valid)):  # cross-fitted runs validate on all of these rows
            one, two = _learnt_together(one), _learnt_together(two)
        for part, rows in one.parts().items():
            if not np.array_equal(rows, two.parts()[part]):
                place = other.folder / block_name(*block)
                raise InputError(str(place), f"other {part} rows", f"those of {first.folder}", _HINT)


def scores_by_block(fits: Sequence[FinishedFit], metric: str) -> dict[Block, float | None]:
    """Return the test score of each block: the mean over the models of an ensemble; None where it is not defined."""
    found: dict[Block, list[float | None]] = {}
    for fit in fits:
        value = fit.metrics.get("test", {}).get(metric)
        found.setdefault(fit.block, []).append(float(value) if isinstance(value, int | float) else None)
    return {
        block: None if None in values else float(np.mean([value for value in values if value is not None]))
        for block, values in found.items()
    }


def overlap(fits: Sequence[FinishedFit]) -> float:
    """Return test rows / training rows, the mean over the fits: the correction for folds that share training rows."""
    return float(np.mean([len(fit.split.test) / max(len(fit.split.train), 1) for fit in fits]))
