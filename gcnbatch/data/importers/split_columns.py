"""Splits that a column of a table describes: in words, or as numbers of folds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from gcnbatch.data.graphs import Split
from gcnbatch.data.importers.cells import MISSING
from gcnbatch.data.schema import SPLIT_PARTS
from gcnbatch.errors import InputError
from gcnbatch.text import counted, quoted

_WORDS = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"),
    **dict.fromkeys(("test", "testing", "tst", "holdout"), "test"),
}
_NAMES = {"split", "fold", "folds", "cv_fold", "cvfold", "set", "subset", "partition"}
_MOST_FOLDS = 1000
_FOLD_DIGITS = 10


def _values(texts: Sequence[str]) -> set[str]:
    return {text.lower() for text in set(texts)} - MISSING


def looks_like_split(name: str, texts: Sequence[str]) -> bool:
    """Whether a column that nobody named holds a split."""
    values = _values(texts)
    if not values:
        return False
    return values <= _WORDS.keys() or (name.lower() in _NAMES and all(map(_is_fold, values)))


def find_parts(columns: Mapping[str, Sequence[str]]) -> str:
    """Return the only column that says of rows whether they train or test; "" if there is none or several."""
    found = []
    for name, texts in columns.items():
        values = _values(texts)
        if values <= _WORDS.keys() and {"train", "test"} <= {_WORDS[value] for value in values}:
            found.append(name)
    return found[0] if len(found) == 1 else ""


def split_name(column: str) -> str:
    """Return the name of a column in the letters that the name of a split may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", column).lstrip("._-")[:70] or "split"


def read_splits(place: str, name: str, texts: Sequence[str]) -> dict[str, Split]:
    """Return the splits by name; a row without a value is in none.

    Words (train, valid, test and their usual forms) give one split, `name`. Whole numbers are folds: fold k gives the
    split ``<name>-<k>``, whose test rows are fold k and whose validation rows are the next fold, if there are three.

    Parameters
    ----------
    place : str
        Table and column, for messages.
    name : str
        Name of the split.
    texts : list of str
        One per row of the data set.

    Raises
    ------
    InputError
        For other texts, a split without training rows, and a single fold.
    """
    lower = [text.strip().lower() for text in texts]
    values = set(lower) - MISSING
    if not values:
        raise InputError(place, "no value in any row", "train, valid and test, or numbers of folds")
    if values <= _WORDS.keys():
        return {name: _of_words(place, lower)}
    for row, text in enumerate(lower):
        if text in values and not _is_fold(text):
            got = f"row {row + 1}: {quoted(texts[row])}"
            raise InputError(place, got, "train, valid or test, or the number of a fold, in every row")
    return _of_folds(place, name, lower)


def _is_fold(text: str) -> bool:
    return text.isdecimal() and len(text) <= _FOLD_DIGITS


def _of_words(place: str, lower: Sequence[str]) -> Split:
    parts = np.array([_WORDS.get(text, "") for text in lower])
    rows = {part: np.flatnonzero(parts == part) for part in SPLIT_PARTS}
    if not len(rows["train"]):
        raise InputError(place, "no training row", "at least one")
    return Split(**rows)


def _of_folds(place: str, name: str, lower: Sequence[str]) -> dict[str, Split]:
    fold = np.array([int(text) if _is_fold(text) else -1 for text in lower])
    numbers = np.unique(fold[fold >= 0])
    if not 2 <= len(numbers) <= _MOST_FOLDS:
        raise InputError(place, counted(len(numbers), "fold"), f"2 to {_MOST_FOLDS}")
    splits = {}
    for index, number in enumerate(numbers):
        following = numbers[(index + 1) % len(numbers)] if len(numbers) > 2 else -2
        train = (fold >= 0) & (fold != number) & (fold != following)
        parts = {"train": train, "valid": fold == following, "test": fold == number}
        splits[f"{name}-{number}"] = Split(**{part: np.flatnonzero(rows) for part, rows in parts.items()})
    return splits
