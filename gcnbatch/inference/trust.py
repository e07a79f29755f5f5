"""Columns beside the predictions: calibrated probabilities, conformal intervals and sets, from what training stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.inference.columns import labels_of
from gcnbatch.inference.models import Model
from gcnbatch.training import checkpoint
from gcnbatch.training.reports import METRICS, UNCERTAINTY
from gcnbatch.training.targets import Scaling
from gcnbatch.uncertainty.model import LEVEL, Uncertainty

Columns = dict[str, NDArray[np.floating] | NDArray[np.str_]]
EMPTY, BETWEEN = "{}", "|"  # a set without a label; labels of a set


@dataclass(frozen=True)
class Trust:
    """What the members' runs know of their errors, one entry per member; without entries there are no columns.

    `scaling` rounds values of regression.

    Of an ensemble, calibrated probabilities, p-values and half widths are the members' means. `notes` say what is
    missing, for the user.
    """

    header: Header
    scaling: Scaling
    level: float
    uncertainties: tuple[Uncertainty, ...]
    notes: tuple[str, ...] = ()

    def columns(self, single: Sequence[NDArray[np.floating]]) -> Columns:
        """Return the columns for the outputs (R, K) of every member.

        ``<name>_calibrated`` (binary, multiclass), ``<task>_set`` (labels joined by ``|``), or ``<name>_low`` and
        ``<name>_high`` (regression). Tasks with too few validation rows have none.
        """
        if not self.uncertainties:
            return {}
        if self.header.target == "regression":
            return self._intervals(single)
        return self._calibrated(single) | self._sets(single)

    def _intervals(self, single: Sequence[NDArray[np.floating]]) -> Columns:
        share = 1 / len(single)  # a sum of large values can overflow
        mean = np.sum([outputs * share for outputs in single], axis=0)
        half = np.sum([one.half_widths(self.level) * share for one in self.uncertainties], axis=0)
        low, high = self.scaling.rounded(mean - half), self.scaling.rounded(mean + half)
        columns: Columns = {}
        for k, name in enumerate(self.header.task_names):
            if np.isfinite(half[k]):
                columns[f"{name}_low"], columns[f"{name}_high"] = low[:, k], high[:, k]
        return columns

    def _calibrated(self, single: Sequence[NDArray[np.floating]]) -> Columns:
        found = [one.calibrated(outputs) for one, outputs in zip(self.uncertainties, single, strict=True)]
        known = [part for part in found if part is not None]
        if len(known) < len(found):
            return {}
        mean = np.stack(known).mean(axis=0, dtype=np.float64).astype(np.float32)
        multiclass = self.header.target == "multiclass"
        names = [f"p({name})" for name in self.header.class_names] if multiclass else self.header.task_names
        tasks = [0] * len(names) if multiclass else range(len(names))
        done = [all(one.calibrators[task] for one in self.uncertainties) for task in tasks]
        return {f"{name}_calibrated": mean[:, k] for k, name in enumerate(names) if done[k]}

    def _sets(self, single: Sequence[NDArray[np.floating]]) -> Columns:
        lacking = set().union(*(one.lacking_tasks(self.level) for one in self.uncertainties))
        columns: Columns = {}
        for task, name in enumerate(self.header.task_names):
            if name in lacking:
                continue
            labels = labels_of(self.header, name)
            pairs = zip(self.uncertainties, single, strict=True)
            found = [one.p_values(task, of if self.header.class_names else of[:, task]) for one, of in pairs]
            columns[f"{name}_set"] = _texts(np.stack(found).mean(axis=0), labels, 1 - self.level)
        return columns


def _texts(p_values: NDArray[np.float64], labels: Sequence[str], most: float) -> NDArray[np.str_]:
    """Return the labels (R,) whose p-values (R, L) exceed `most`; "" where there is none."""
    if not len(p_values):
        return np.zeros(0, dtype=np.str_)
    held, place, first = p_values > most, np.zeros(len(p_values), np.int64), np.zeros(1, np.int64)
    for label in held.T:  # numbers of the different sets; np.unique takes five times as long to sort whole rows
        _, first, place = np.unique(2 * place + label, return_index=True, return_inverse=True)
    texts = np.array([BETWEEN.join(np.array(labels)[row].tolist()) or EMPTY for row in held[first]])
    return np.where(np.isnan(p_values).any(axis=1), "", texts[place])


Level = float | Literal["training"] | None  # "training": the level that the runs were trained for; None: none


def load_trust(model: Model, places: Sequence[Path], level: Level) -> Trust:
    """Load what training stored in the folders of runs or models; nothing if `level` is None. `model` is one of them.

    Raises
    ------
    InputError
        When a file is damaged or does not fit the model, the level is out of range, or that of the runs differs.
    """
    header, scaling = model.header, model.scaling
    if level is None:
        return Trust(header, scaling, LEVEL, ())
    if not isinstance(level, str) and not 0.5 <= level < 1:
        raise InputError("--level", f"{level:g}", "at least 0.5 and below 1")
    paths = [place / UNCERTAINTY for place in places]
    if missing := [path.parent for path in paths if not path.is_file()]:
        note = f"no calibrated probabilities, intervals or sets: {missing[0]} has no {UNCERTAINTY}"
        return Trust(header, scaling, LEVEL, (), (note,) if (missing[0] / METRICS).is_file() else ())
    found = []
    for path in paths:
        stored = checkpoint.load(path)
        found.append(Uncertainty.read(str(path), header, stored.arrays, stored.about))
    level = _level_of(found) if isinstance(level, str) else level
    lacking = [name for name in header.task_names if any(name in one.lacking_tasks(level) for one in found)]
    notes = []
    if lacking:
        shown = ", ".join(lacking[:5]) + (", …" if len(lacking) > 5 else "")
        what = "intervals" if header.target == "regression" else "sets"
        notes.append(f"no {what} at level {level:g} for {shown}: too few validation rows")
    return Trust(header, scaling, level, tuple(found), tuple(notes))


def _level_of(found: Sequence[Uncertainty]) -> float:
    """Return the level that all members were trained for."""
    levels = sorted({one.level for one in found})
    if len(levels) > 1:
        raise InputError("--level", f"trained for {', '.join(f'{one:g}' for one in levels)}", "one level of all runs")
    return levels[0]
