"""Predictions with ids: the table that training writes for its test rows and that `infer` writes for any data.

Columns: ``id`` first; binary and regression sets one column per task with the probability or the value in the target's
unit; multiclass sets the predicted class under the task's name, then one ``p(<class>)`` column per class. An ensemble adds
``<name>_std`` after each number. A row that could not be read keeps its place with blank cells and says why in ``error``.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.data.schema import Header


@dataclass(frozen=True)
class Predictions:
    """A table of R rows.

    Parameters
    ----------
    ids : (R,) str
    columns : dict of (R,) arrays
        Text or float32; NaN and "" are blank.
    """

    ids: NDArray[np.str_]
    columns: dict[str, NDArray[Any]]

    @classmethod
    def of(
        cls,
        header: Header,
        ids: NDArray[np.str_],
        outputs: NDArray[np.float32],
        std: NDArray[np.float32] | None = None,
    ) -> Predictions:
        """Arrange outputs (R, K), and an ensemble's deviations (R, K), as columns."""
        columns: dict[str, NDArray[Any]] = {}
        names = header.task_names
        if header.target == "multiclass":
            known = np.isfinite(outputs).all(axis=1)
            best = np.where(known, np.nan_to_num(outputs).argmax(axis=1), 0)
            columns[header.task_names[0]] = np.where(known, np.array(header.class_names)[best], "")
            names = tuple(f"p({name})" for name in header.class_names)
        for k, name in enumerate(names):
            columns[name] = outputs[:, k]
            if std is not None:
                columns[f"{name}_std"] = std[:, k]
        return cls(ids, columns)

    def rows(self) -> Iterator[list[str]]:
        """Yield each row as text, numbers in the shortest form that reads back equal."""
        for i, name in enumerate(self.ids):
            yield [str(name), *(_cell(values[i]) for values in self.columns.values())]


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else str(value)
    return str(value)


def to_csv(table: Predictions) -> str:
    """Return the table as CSV text with a header line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["id", *table.columns])
    writer.writerows(table.rows())
    return stream.getvalue()


def write_csv(path: str | os.PathLike[str], table: Predictions) -> None:
    """Write the table as CSV."""
    fileio.write_text(path, to_csv(table))


def read_outputs(path: str | os.PathLike[str], header: Header) -> NDArray[np.float32]:
    """Return the outputs (R, K) of a CSV that `write_csv` wrote without deviations, equal to the bit."""
    first = 2 if header.target == "multiclass" else 1
    with open(path, encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))[1:]
    cells = [[float(cell) if cell else np.nan for cell in row[first : first + header.n_outputs]] for row in rows]
    return np.array(cells, dtype=np.float32).reshape(len(rows), header.n_outputs)
