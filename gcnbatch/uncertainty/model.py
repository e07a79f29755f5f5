"""Uncertainty of a trained model: calibrators and conformal scores, from validation rows alone.

Split conformal prediction (Vovk et al. 2005; Lei et al. 2018): a row's score says how badly a label fits its output.
Where validation and new rows are exchangeable, a label whose p-value exceeds ``1 - level`` is the right one with
probability `level` or more.

- regression: the score is the absolute error; the interval is the output plus and minus a quantile.
- binary: one minus the label's probability, with p-values within each label (Mondrian), so that the rare label is
  covered, too.
- multiclass: one minus the probability of the class, over all classes.

Dimensions as in `gcnbatch.metrics`. A segment is a task of a regression set, a task and label of a binary set
(``2 k + label``), or all rows of a multiclass set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gcnbatch import philox
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, misfit
from gcnbatch.text import quoted
from gcnbatch.uncertainty import calibration
from gcnbatch.uncertainty.calibration import Calibrator

BLOCK_VALUES = 1 << 22  # of a block


def in_blocks(of_rows: Callable[..., NDArray[Any]], *arrays: NDArray[Any]) -> NDArray[Any]:
    """Return what `of_rows` returns for arrays of R rows each, if it computes each row from that row alone.

    >>> in_blocks(lambda a, b: a.sum(axis=1) * b, np.ones((3, 2)), np.arange(3))
    array([0., 2., 4.])
    """
    values = arrays[0]
    step = max(BLOCK_VALUES // max(values[:1].size, 1), 1)
    starts = range(0, max(len(values), 1), step)
    return np.concatenate([of_rows(*(array[start : start + step] for array in arrays)) for start in starts])


Float64 = NDArray[np.float64]
LEVEL = 0.9


class _About(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    calibrators: list[Calibrator | None]
    notes: list[str]
    level: float = Field(default=LEVEL, ge=0.5, lt=1)  # runs of before have none


@dataclass(frozen=True)
class Uncertainty:
    """What is known of a model's errors.

    Parameters
    ----------
    header : Header
        Header of the model's data.
    calibrators : list
        One per task (binary) or one (multiclass), None where there are too few rows; empty for regression.
    scores : list of arrays
        Sorted conformal scores of each segment: float64 errors of regression, else float32.
    notes : list of str
        What could not be done, and why.
    level : float
        Level of intervals and sets that training was asked for; any other can be had as well.
    """

    header: Header
    calibrators: list[Calibrator | None]
    scores: list[NDArray[np.floating]]
    notes: list[str]
    level: float = LEVEL

    @classmethod
    def fit(cls, header: Header, y: NDArray[Any], outputs: NDArray[np.floating], level: float = LEVEL) -> Uncertainty:
        """Return the uncertainty that validation rows show; `y` and `outputs` as in `metrics.evaluate`."""
        notes: list[str] = []
        calibrators: list[Calibrator | None] = []
        scores: list[NDArray[Any]] = []
        for task, (labels, values) in enumerate(labelled(header, y, outputs)):
            if header.target == "regression":
                scores.append(np.abs(labels - values))
                continue
            reason = calibration.too_few(labels)
            if reason:
                notes.append(f"task {quoted(header.task_names[task])} is not calibrated: {reason}")
            if header.target == "multiclass":
                calibrators.append(None if reason else calibration.fit_classes(labels, values))
                scores.append(1 - values[np.arange(len(labels)), labels])
            else:
                draws = philox.generator(0, "calibration", task)
                calibrators.append(None if reason else calibration.fit_binary(labels, values, draws))
                scores += [values[~labels], 1 - values[labels]]
        kind = np.float64 if header.target == "regression" else np.float32
        return cls(header, calibrators, [np.sort(one).astype(kind) for one in scores], notes, level)

    # -------------------------------------------------------------------------------------------- predictions

    def calibrated(self, outputs: NDArray[np.floating]) -> NDArray[np.float32] | None:
        """Return calibrated probabilities (R, K) or (R, C); NaN in tasks without a calibrator; None without any."""
        if not any(self.calibrators):
            return None
        if self.header.target == "multiclass":
            (only,) = self.calibrators
            assert only is not None
            return in_blocks(lambda rows: only.apply(rows).astype(np.float32), outputs)
        columns = [
            np.full(len(outputs), np.nan) if one is None else one.apply(outputs[:, task])
            for task, one in enumerate(self.calibrators)
        ]
        return np.stack(columns, axis=1).astype(np.float32)

    def half_widths(self, level: float) -> Float64:
        """Return half of each interval's width (K,); NaN where there are too few validation rows for the level."""
        return np.array([quantile(scores, level) for scores in self.scores])

    def p_values(self, task: int, values: NDArray[np.floating]) -> Float64:
        """Return conformal p-values of a task's labels: (R, 2) from probabilities (R,), or (R, C) from (R, C).

        NaN where a segment has no scores.
        """
        wide = values.astype(np.float64)
        if self.header.target == "multiclass":
            return p_value(self.scores[0], 1 - wide)
        none, one = self.scores[2 * task : 2 * task + 2]
        return np.stack([p_value(none, wide), p_value(one, 1 - wide)], axis=1)

    def lacking_tasks(self, level: float) -> dict[str, int]:
        """Return the tasks with too few validation rows for a level, and how many they have (of the rarer label)."""
        per_task = 2 if self.header.target == "binary" else 1
        rows = {
            name: min(map(len, self.scores[task * per_task : (task + 1) * per_task]))
            for task, name in enumerate(self.header.task_names)
        }
        return {name: count for name, count in rows.items() if count < rows_for(level)}

    # -------------------------------------------------------------------------------------------- files

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to store."""
        ends = np.cumsum([0, *map(len, self.scores)], dtype=np.int64)
        return {"scores": np.concatenate(self.scores), "segments": ends}

    def about(self) -> dict[str, Any]:
        """Return the description to store with the arrays."""
        return _About(calibrators=self.calibrators, notes=self.notes, level=self.level).model_dump(mode="json")

    @classmethod
    def read(
        cls, place: str, header: Header, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]
    ) -> Uncertainty:
        """Return what `arrays` and `about` describe; `place` names the file in messages.

        Raises
        ------
        InputError
            When they do not fit the model.
        """
        expected = "the uncertainty that training writes"
        try:
            found = _About.model_validate(about)
        except ValidationError as error:
            raise InputError(place, misfit(error), expected) from error
        tasks = len(header.task_names)
        segments, count = (
            (2 * tasks if header.target == "binary" else tasks),
            (tasks if header.target != "regression" else 0),
        )
        scores, ends = arrays.get("scores"), arrays.get("segments")
        if (
            scores is None
            or ends is None
            or scores.dtype not in ((np.float32, np.float64) if header.target == "regression" else (np.float32,))
            or scores.ndim != 1
            or ends.dtype != np.int64
            or ends.shape != (segments + 1,)
            or ends[0] != 0
            or ends[-1] != len(scores)
            or (np.diff(ends) < 0).any()
            or len(found.calibrators) != count
        ):
            raise InputError(place, "scores that do not fit the model", expected)
        parts = np.split(scores, ends[1:-1])
        if any((np.diff(part) < 0).any() for part in parts):
            raise InputError(f"{place}: scores", "numbers that are not sorted", expected)
        most = math.inf if header.target == "regression" else 1.0  # errors, or one minus a probability
        if len(scores) and not 0 <= scores.min() <= scores.max() <= most:
            raise InputError(f"{place}: scores", f"{scores.min():g} to {scores.max():g}", f"numbers from 0 to {most:g}")
        return cls(header, found.calibrators, parts, found.notes, found.level)


def labelled(header: Header, y: NDArray[Any], outputs: NDArray[np.floating]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return, for each task, labels and outputs of its labelled rows with finite outputs; binary labels as bool."""
    if header.target == "multiclass":
        known = (y[:, 0] >= 0) & np.isfinite(outputs).all(axis=1)
        return [(y[known, 0].astype(np.int64), outputs[known])]
    found = []
    for task in range(y.shape[1]):
        known = ~np.isnan(y[:, task]) & np.isfinite(outputs[:, task])
        labels = y[known, task]
        found.append((labels == 1 if header.target == "binary" else labels, outputs[known, task]))
    return found


def rows_for(level: float) -> int:
    """Return the least number of scores n for which the rank ``ceil((n + 1) level)`` exists."""
    return math.ceil(level / (1 - level) - 1e-9)


def quantile(scores: NDArray[np.floating], level: float) -> float:
    """Return the score of rank ``ceil((n + 1) level)``; NaN where n is too small."""
    rank = math.ceil((len(scores) + 1) * level - 1e-9)
    return float(scores[rank - 1]) if rank <= len(scores) else math.nan


def p_value(scores: NDArray[np.floating], values: Float64) -> Float64:
    """Return ``(number of scores >= value + 1) / (n + 1)``, in the shape of `values`; NaN without scores."""
    if not len(scores):
        return np.full(values.shape, np.nan)
    at_least = len(scores) - np.searchsorted(scores, values.astype(scores.dtype), side="left")
    return np.where(np.isnan(values), np.nan, (at_least + 1) / (len(scores) + 1))
