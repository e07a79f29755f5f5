"""The rows of a search: parts to train and to validate on. No part has a test row of the configuration's split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gcnbatch.config import Config
from gcnbatch.data import splits
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.splits import SplitRows
from gcnbatch.errors import InputError
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.plan import copies_of, cross_fit_parts

_NO_ROWS: Int64 = np.zeros(0, np.int64)


def splits_of(experiment: Experiment) -> list[Split]:
    """Return the splits of a search: `search_splits`; of a cross-fitted configuration, those of its parts.

    Folds and repeats stand in for the parts: they may be fewer.
    """
    split = experiment.config.split
    if split.cross_fit and not split.folds and split.repeats == 1:
        return [replace(part, test=_NO_ROWS) for part in cross_fit_parts(experiment)]
    return search_splits(experiment.config, experiment.split_rows, copies_of(experiment))


def search_splits(config: Config, rows: SplitRows, copies: Int64 | None = None) -> list[Split]:
    """Return the splits whose mean validation value is the objective; their test parts are empty.

    The configuration's split without folds names the test rows. With folds, its other rows are divided into folds, and
    each fold validates once. With repeats, they are divided anew with the following seeds. Those of a predefined split
    are divided as `valid_kind` says. `copies` are the first rows of molecules whose copies the split keeps together.

    Raises
    ------
    InputError
        As `splits.make_split` and `splits.make_folds`; or if no rows validate.
    """
    given = config.split
    outer = splits.make_split(given.model_copy(update={"folds": 0, "repeats": 1}), config.seed, rows)
    if copies is not None:
        outer = splits.without_copies(outer, copies, rows.times if given.kind == "time" else None)
    seed = splits.split_seed(given, config.seed)
    left = _only(rows, np.concatenate([outer.train, outer.valid]))
    rule = given.model_copy(update={"kind": given.rule, "name": "", "test": 0.0})
    drawn = [rule.model_copy(update={"seed": seed + repeat}) for repeat in range(given.repeats)]
    if given.folds:
        found = [
            Split(part.train, part.test, _NO_ROWS)
            for own in drawn
            for part in splits.make_folds(own.model_copy(update={"valid": 0.0}), 0, left)
        ]
    elif given.repeats > 1:
        valid = given.valid if given.kind == "predefined" else given.valid / (1.0 - given.test)
        found = [splits.make_split(own.model_copy(update={"valid": valid}), 0, left) for own in drawn]
    else:
        found = [replace(outer, test=_NO_ROWS)]
    if not all(len(part.valid) for part in found):
        raise InputError("split.valid", "no validation rows to compare trials by", "some", "Set it above 0.")
    return found


def _only(rows: SplitRows, kept: Int64) -> SplitRows:
    """Return the rows with the targets of the others removed: rows without targets are in no part."""
    y = np.full_like(rows.y, -1 if rows.y.dtype.kind == "i" else np.nan)
    y[kept] = rows.y[kept]
    return replace(rows, y=y)
