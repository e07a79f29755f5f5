"""Features of whole molecules in an import and in a prediction: the user's own columns, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.cells import FLOAT32_MAX, numbers
from gcnbatch.errors import InputError
from gcnbatch.text import counted, quoted

_NAMED = 5  # features that a note names


def feature_values(path: Path, columns: Mapping[str, Sequence[str]], before: int = 0) -> NDArray[np.float32] | None:
    """Return the user's features (R, D'), NaN where missing, from the texts of each column; None without a column.

    `before` is the number of rows of the table before the first of these.

    Raises
    ------
    InputError
        For a text that is not a number, or is none of 32 bits.
    """
    if not columns:
        return None
    values = np.stack([numbers(path, name, list(texts), before) for name, texts in columns.items()], axis=1)
    large = np.abs(values) > FLOAT32_MAX
    if large.any():
        row, column = (int(i) for i in np.argwhere(large)[0])
        place = f"{path}, row {before + row + 1}, column {quoted(list(columns)[column])}"
        raise InputError(place, f"{values[row, column]:g}", "a 32-bit floating-point number")
    return values.astype(np.float32)


def row_weights(path: Path, name: str, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the weight of each row (R,) from the texts of a column.

    Raises
    ------
    InputError
        For a missing or negative weight, and text that is not a number.
    """
    values = numbers(path, name, list(texts))
    if (wrong := ~((values >= 0) & (values <= FLOAT32_MAX))).any():
        row = int(np.argmax(wrong))
        place = f"{path}, row {row + 1}, column {quoted(name)}"
        raise InputError(place, quoted(texts[row]), "a weight: a number that is not negative")
    return values.astype(np.float32)


class MissingFeatures:
    """Counts missing features of whole graphs, part by part; `lines` then describes them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._missing = np.zeros(len(names), np.int64)

    def add(self, part: GraphSet) -> None:
        """Count those of a part."""
        if part.graph_features is not None:
            self._missing += np.isnan(part.graph_features).sum(axis=0)

    def lines(self) -> list[str]:
        """Return notes for the user."""
        most = np.argsort(-self._missing, kind="stable")
        found = [f"{self._names[at]} in {counted(self._missing[at], 'row')}" for at in most if self._missing[at]]
        if not found:
            return []
        rest = f", and {counted(len(found) - _NAMED, 'more feature')}" if len(found) > _NAMED else ""
        return [f"missing features, taken as the mean of the training rows: {', '.join(found[:_NAMED])}{rest}"]
