"""The rows of a search: parts to train and to validate on. No part has a test row of the configuration's split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gcnbatch.config import Config
from gcnbatch.config_sections import SplitConfig
from gcnbatch.data import splits
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.splits import SplitRows
from gcnbatch.errors import InputError

_NO_ROWS: Int64 = np.zeros(0, np.int64)


def search_splits(config: Config, rows: SplitRows) -> list[Split]:
    """Return the splits whose mean validation value is the objective; their test parts are empty.

    The configuration's split without folds names the test rows. With folds, the other rows are divided into folds, and
    each fold validates once. With repeats, they are divided anew with the following seeds.

    Raises
    ------
    InputError
        As `splits.make_split` and `splits.make_folds`; or if no rows validate.
    """
    given = config.split
    outer = splits.make_split(_split(given, folds=0, repeats=1), config.seed, rows)
    seed = splits.split_seed(given, config.seed)
    left = _without(rows, outer.test)
    if given.folds:
        kind = "random" if given.kind == "predefined" else given.kind
        found = [
            Split(part.train, part.test, _NO_ROWS)
            for repeat in range(given.repeats)
            for part in splits.make_folds(_split(given, kind=kind, name="", valid=0.0, seed=seed + repeat), 0, left)
        ]
    elif given.repeats > 1:
        valid = given.valid / (1.0 - given.test)
        found = [
            splits.make_split(_split(given, repeats=1, valid=valid, test=0.0, seed=seed + repeat), 0, left)
            for repeat in range(given.repeats)
        ]
    else:
        found = [replace(outer, test=_NO_ROWS)]
    if not all(len(part.valid) for part in found):
        raise InputError("split.valid", "no validation rows to compare trials by", "some", "Set it above 0.")
    return found


def _split(given: SplitConfig, **values: object) -> SplitConfig:
    return given.model_copy(update=values)


def _without(rows: SplitRows, test: Int64) -> SplitRows:
    """Return the rows with the test rows' targets removed: rows without targets are in no part."""
    y = rows.y.copy()
    y[test] = -1 if y.dtype.kind == "i" else np.nan
    return replace(rows, y=y)
