"""The targets of a split: their scaling, the tasks that training rows can teach, and notes on the labels of each part.

The model sees targets of regression transformed and as (y - mean) / std in float32, everything else sees y in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import TrainConfig
from gcnbatch.data.graphs import Split
from gcnbatch.data.label_ranges import LabelRange, task_name
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.data.weighted_targets import join
from gcnbatch.errors import InputError
from gcnbatch.mixture.transforms import Kind, Transforms
from gcnbatch.moments import moments
from gcnbatch.runners.task import no_targets
from gcnbatch.text import counted, quoted, some_of

Float64 = NDArray[np.float64]
_MOST = 22  # decimal places: 10 to this power is exact in float64


@dataclass(frozen=True)
class Scaling:
    """Transforms of regression targets, and mean and standard deviation of what they give, (K,) float64.

    Outputs are ``logits * std + mean``, with the transform inverted. They are rounded to a decimal place between 1e-8
    and 1e-7 of the deviation, if that place is between 1e-22 and 1e22: float32 logits resolve no more, and their text
    is short. With a transform, the place is relative to the output or the range of targets, the smaller one.

    Parameters
    ----------
    mean, std : float64, (K,)
    transforms : Transforms or None
        None: no output has one.
    """

    mean: Float64
    std: Float64
    transforms: Transforms | None = None

    @classmethod
    def identity(cls, outputs: int) -> Scaling:
        """Return the scaling that changes nothing."""
        return cls(np.zeros(outputs), np.ones(outputs))

    @classmethod
    def of(cls, y: NDArray[Any], transforms: Transforms | None = None) -> Scaling:
        """Return the scaling that gives the labelled entries of each column of `y` mean 0 and standard deviation 1.

        Those of a transform have these after it. Of equal labels, the unit is their absolute value.
        """
        mean, std = moments(y if transforms is None else transforms.apply(y))
        return cls(mean, np.where(std > 0, std, np.where(mean != 0, np.abs(mean), 1.0)), transforms)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kind of transform of each output."""
        none: Kind = "none"
        return self.transforms.kinds if self.transforms else (none,) * len(self.mean)

    def apply(self, y: NDArray[Any]) -> NDArray[np.float32]:
        """Return `y` in the model's scale; infinite beyond the range of float32."""
        with np.errstate(over="ignore"):
            y = y if self.transforms is None else self.transforms.apply(y)
            half = y / 2 - self.mean / 2  # a difference of large numbers of different signs can overflow
            return (half / self.std * 2).astype(np.float32)

    def undo(self, logits: NDArray[np.float32]) -> Float64:
        """Return outputs in the unit of the targets."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = logits.astype(np.float64) * self.std + self.mean
            return self.rounded(values if self.transforms is None else self.transforms.invert(values))

    def rounded(self, values: Float64) -> Float64:
        """Return outputs with the decimal places that `undo` gives."""
        up, down, is_rounded = self._factors if self.transforms is None else _factors(self._units_of(values))
        found = np.rint(values * up / down) / up * down  # one of the factors is 1
        return np.where(np.isfinite(found) & is_rounded & self._is_scaled, found, values)

    @cached_property
    def _factors(self) -> tuple[Float64, Float64, NDArray[np.bool_]]:
        return _factors(self.std)

    @cached_property
    def _is_scaled(self) -> NDArray[np.bool_]:
        return (self.mean != 0) | (self.std != 1)

    def _units_of(self, values: Float64) -> Float64:
        """Return what the digits of outputs (n, K) count from: the deviation; transformed, the value or its range."""
        assert self.transforms is not None
        ranges = np.array([of.high - of.low for of in self.transforms.each])
        is_transformed = np.array(self.kinds) != "none"
        return np.where(is_transformed, np.minimum(np.abs(values), ranges), self.std)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `with_arrays` takes: the transforms; nothing without them."""
        return {} if self.transforms is None else self.transforms.arrays()

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Scaling:
        """Return mean and deviation with the transforms that `arrays` was called on."""
        return Scaling(self.mean, self.std, Transforms.from_arrays(arrays) if arrays else None)


def _factors(units: Float64) -> tuple[Float64, Float64, NDArray[np.bool_]]:
    """Return powers of ten that round to 8 digits of these units, and which of them can."""
    with np.errstate(divide="ignore"):
        places = 7 - np.floor(np.log10(units))
    is_rounded = np.abs(places) <= _MOST
    places = np.where(is_rounded, places, 0)
    return 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0), is_rounded


_NAMED = 20  # tasks in a message
_MIDDLE, _SEVERAL_POWERS = (0.05, 0.95), 1e3  # share of labels that several powers of ten part, and their ratio
_MOST_ROUNDING = 1e-3  # of targets that are not scaled, in standard deviations
STRATIFIED = 'split.kind = "stratified" gives each part its share of rare labels'


class Targets(NamedTuple):
    """The targets of a split.

    Parameters
    ----------
    labels : (rows, T)
        Of the training rows.
    scaling : Scaling
    values : (R, T), or weighted ones (R, 3 T)
        Of all rows as the model sees them, and missing outside of the training rows; see `RunnerTask`. Read-only.
    is_weighted : bool
    left_out : bool, (T,)
        Tasks that the training rows cannot teach.
    """

    labels: NDArray[Any]
    scaling: Scaling
    values: NDArray[Any]
    is_weighted: bool
    left_out: NDArray[np.bool_]

    @classmethod
    def of(cls, dataset: Dataset, split: Split, train: TrainConfig, kinds: Sequence[Kind]) -> Targets:
        """Return the targets of a split, with transforms of these kinds; of classes, there are none.

        They are weighted where rows or tasks have weights, bounds are one-sided, or the loss is not a plain one.

        Raises
        ------
        InputError
            When the training rows have no label, or numbers that float32 cannot hold and that are not scaled.
        """
        y, header = dataset.y, dataset.header
        labels, scaling = y[split.train], Scaling.identity(header.n_outputs)
        absent = left_out(header, labels)
        _check_labels(dataset, split, labels)
        values = no_targets(header, len(y))
        if header.target == "regression":
            transforms = Transforms.fit(kinds, labels)
            found = Scaling.of(labels, transforms if set(transforms.kinds) != {"none"} else None)
            scaling = found if train.standardize else replace(scaling, transforms=found.transforms)
            values[split.train] = scaling.apply(labels)
            if not train.standardize:
                _check_rounding(dataset, transforms.apply(labels), values[split.train])
        else:
            values[split.train] = labels
            if absent.any() and not absent.all():  # a fold with nothing to learn trains on what it has
                values[:, absent] = np.nan
        bounds = dataset.censored if train.bounds == "one_sided" else None
        own = dataset.sample_weight is not None or bool(train.task_weights) or bounds is not None
        if is_weighted := own or (header.target == "regression" and train.regression_loss != "squared"):
            of_rows = np.ones(1) if dataset.sample_weight is None else dataset.sample_weight
            weights = of_rows[:, None] * (train.task_weights or (1.0,))
            values = join(values, weights, 0 if bounds is None else bounds)
        values.flags.writeable = False
        return cls(labels, scaling, values, is_weighted, absent)


def left_out(header: Header, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which tasks (T,) the training rows cannot teach: they have no labels of them, or labels of one class."""
    found = LabelRange.of(labels)
    return np.isnan(found.low) if header.target == "regression" else ~found.varies


def check_learnable(place: object, header: Header, y: NDArray[Any], splits: Sequence[Split]) -> None:
    """Refuse splits none of which has a task to learn; `place` names the data.

    Raises
    ------
    InputError
    """
    if all(left_out(header, y[split.train]).all() for split in splits):
        reason = "labels" if header.target == "regression" else "labels of two classes"
        if left_out(header, y).all():  # which no split can change
            raise InputError(str(place), f"no task has {reason}", reason, "Use other rows or other targets.")
        got = f"no task has {reason} in the training rows"
        raise InputError(str(place), got, reason, f"Use more rows or other targets; {STRATIFIED}.")


def _check_labels(dataset: Dataset, split: Split, labels: NDArray[Any]) -> None:
    """Refuse training rows without any label, or without weight."""
    if dataset.sample_weight is not None and not dataset.sample_weight[split.train].any():
        raise InputError(str(dataset.path), "training rows whose weights are all zero", "some weight above 0")
    if np.isnan(LabelRange.of(labels).low).all():
        names = dataset.header.task_names
        of = f"task {quoted(names[0])}" if len(names) == 1 else f"any of {len(names):,} tasks"
        raise InputError(
            str(dataset.path),
            f"no label of {of} in the training rows",
            "at least one",
            "Name other targets at import (--target-columns) or choose another split.",
        )


def _check_rounding(dataset: Dataset, labels: NDArray[np.float64], targets: NDArray[np.float32]) -> None:
    """Refuse targets that float32 rounds away, or cannot hold."""
    _, std = moments(labels)
    with np.errstate(invalid="ignore"):
        lost = np.isinf(targets) | (np.abs(targets - labels) > _MOST_ROUNDING * std)
    if lost.any():
        row, task = map(int, np.argwhere(lost)[0])
        got = f"{labels[row, task]!r} of task {quoted(dataset.header.task_names[task])}, which float32 does not resolve"
        raise InputError("train.standardize", f"false with {got}", "true", "Leave train.standardize at its default.")


def label_notes(header: Header, y: NDArray[Any], splits: Sequence[Split], kind: str) -> list[str]:
    """Return a line for each thing that users should know of the labels in the splits of a run.

    Parameters
    ----------
    y : (R, T)
        Targets of the data set.
    splits : sequence of Split
        Different splits: folds, and those of repeats.
    kind : str
        Their kind, as in the configuration.
    """
    ranges = [{part: LabelRange.of(y[rows]) for part, rows in split.parts().items() if len(rows)} for split in splits]
    absent = np.array([left_out(header, y[split.train]) for split in splits])
    lines = list(_left_out(header, absent, ranges[0]["train"]))
    if header.target == "regression":
        return [*lines, *_equal(header, ranges)]
    poor = [line for part in ("valid", "test") for line in _poor(header, absent, ranges, part)]
    depends = bool((absent.any(axis=0) & ~absent.all(axis=0)).any())  # on the split
    lines += poor
    if kind == "random" and (poor or depends):
        lines[-1] += f"; {STRATIFIED}"
    return lines


def about_rare_labels(header: Header, y: NDArray[Any], parts: int) -> list[str]:
    """Return the note on labels of fewer training rows, with targets y (R, T), than cross-fitting has parts."""
    if header.target == "regression":
        return []
    rare = []
    for task, labels in enumerate(y.T):
        values, counts = np.unique(labels[labels >= 0], return_counts=True)  # NaN and -1 are missing
        if len(values) > 1 and counts.min() < parts:
            rare.append(f"{task_name(header, task)} ({counted(int(counts.min()), 'row')} of its rarest label)")
    few = f"fewer rows of a label than parts, so that scores of it say little: {_listed(rare)}"
    return [few] if rare else []


def about_transforms(header: Header, labels: NDArray[Any], kinds: Sequence[Kind]) -> list[str]:
    """Return lines on the transforms of these kinds, and on those that training labels (R, T) do not have."""
    if header.target != "regression":
        return []
    fitted = Transforms.fit(kinds, labels).kinds
    named = list(zip(header.task_names, kinds, fitted, strict=True))
    learnt = [f"{quoted(name)} ({of})" for name, _, of in named if of != "none"]
    lacking = [quoted(name) for name, kind, of in named if of != kind]
    lines = [f"learnt on another scale, scored in the user's units: {_listed(learnt)}"] if learnt else []
    reason = "learnt as they are, since negative or equal labels have no such transform"
    return [*lines, f"{reason}: {_listed(lacking)}"] if lacking else lines


def about_powers_of_ten(header: Header, labels: NDArray[Any], transform: Sequence[str]) -> list[str]:
    """Return advice on training labels (R, T) that lie powers of ten apart and are learnt as they are.

    `transform` is that of the configuration; with "auto", a kernel has compared the scales already.
    """
    if header.target != "regression":
        return []
    each = list(transform) * (len(header.task_names) if len(transform) == 1 else 1)
    wide = []
    for name, kind, y in zip(header.task_names, each, labels.T, strict=True):
        positive = y[y > 0]
        if kind == "none" and len(positive) and not (y < 0).any():
            low, high = np.quantile(positive, _MIDDLE)
            if high >= _SEVERAL_POWERS * low:
                wide.append(f"{quoted(name)} (most from {low:.3g} to {high:.3g})")
    advice = "a network may predict negative values; --set train.transform=log lets it learn the logarithm"
    return [f"labels over several powers of ten: {_listed(wide)}: {advice}"] if wide else []


def about_bounds(y: NDArray[Any], censored: NDArray[np.int8] | None, one_sided: bool = False) -> list[str]:
    """Return the note for targets `y (R, T)` that are bounds.

    `censored` has their directions, None without any; `one_sided`: predictions that a bound allows cost nothing.
    """
    bounds = 0 if censored is None else int(np.count_nonzero(censored))
    if not bounds:
        return []
    what = some_of(bounds, int(np.count_nonzero(~np.isnan(y))), "label", "is a bound", "are bounds")
    if one_sided:
        return [f"{what}: predictions beyond a bound cost nothing, and metrics leave bounds out"]
    return [f"{what}: a model learns the numbers that bounds name, and metrics leave them out"]


def _left_out(header: Header, absent: NDArray[np.bool_], first: LabelRange) -> Iterator[str]:
    every, some = (np.asarray(of) for of in (absent.all(axis=0), absent.any(axis=0)))
    if not some.any():
        return
    shown = []
    if every.any():
        shown.append(_listed(first.described(header, np.flatnonzero(every))))
    if (some & ~every).any():
        names = _listed([task_name(header, task) for task in np.flatnonzero(some & ~every).tolist()])
        shown.append(f"in some of the {len(absent)} splits {names}")
    reason = "without labels" if header.target == "regression" else "without labels of two classes"
    count = _count(int(np.count_nonzero(some)), len(some))
    yield f"left out: {count} {reason} in the training rows: {'; '.join(shown)}"


def _equal(header: Header, ranges: Sequence[dict[str, LabelRange]]) -> Iterator[str]:
    """Yield a line on regression tasks whose training labels are all equal."""
    found = next((of["train"] for of in ranges if of["train"].equal.any()), None)
    if found is not None:
        named = _listed(found.described(header, np.flatnonzero(found.equal)))
        yield f"training labels are all equal and teach nothing: {named}"


def _poor(
    header: Header, absent: NDArray[np.bool_], ranges: Sequence[dict[str, LabelRange]], part: str
) -> Iterator[str]:
    """Yield a line on tasks that a part has no labels of two classes of, though training has."""
    found = [(~of[part].varies & ~own) for of, own in zip(ranges, absent, strict=True) if part in of]
    tasks: list[int] = np.flatnonzero(np.any(found, axis=0)).tolist() if found else []
    if not tasks:
        return
    count = sum(map(np.any, found))
    of_splits = f" of {count} of {len(found)} splits" if len(found) > 1 else ""
    means = "; means leave these splits out" if count < len(found) else ""
    names = _listed([task_name(header, task) for task in tasks])
    lacking = f"{_count(len(tasks), len(header.task_names))} without labels of two classes, so without ROC-AUC there"
    yield f"{part} rows{of_splits}: {lacking}: {names}{means}"


def _count(some: int, every: int) -> str:
    return f"{some:,} of {every:,} tasks" if every > 1 else "a task"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
