"""Which rows a screening keeps: those over a threshold, the best ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, nearest
from gcnbatch.predictions import Predictions, output_names


@dataclass(frozen=True)
class Selection:
    """Options of a selection.

    Parameters
    ----------
    top : int
        Keep this number of rows with the highest values, the highest first; 0: all, in the order of the input.
    threshold : float or None
        Keep rows with at least this value.
    by : str
        Output whose value counts; empty: the only one.
    """

    top: int = 0
    threshold: float | None = None
    by: str = ""

    @property
    def all(self) -> bool:
        """Whether every row is kept."""
        return not self.top and self.threshold is None

    def column(self, header: Header) -> int:
        """Return the number of the output whose value counts.

        Raises
        ------
        InputError
            When no output has that name, or there are several and none is named.
        """
        names = output_names(header)
        if self.by and self.by not in names:
            raise InputError("--by", f"no output '{self.by}'", "a task of the model", nearest(self.by, names))
        if self.by and self.all:
            raise InputError("--by", "no selection", "--top or --threshold beside it")
        if not self.by and not self.all and len(names) > 1:
            shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise InputError("--by", f"missing, with {len(names)} outputs", f"one of {shown}")
        return names.index(self.by) if self.by else 0


class Selector:
    """Applies a selection to tables of consecutive rows."""

    def __init__(self, selection: Selection, header: Header) -> None:
        self._selection, self._column = selection, selection.column(header)
        self._best: Predictions | None = None

    def take(self, table: Predictions) -> Predictions:
        """Return the rows to write now: none while the best ones are not known."""
        if self._selection.all:
            return table
        values = table.outputs[:, self._column]
        least = -np.inf if self._selection.threshold is None else self._selection.threshold
        chosen = table.take(np.flatnonzero(values >= least))
        if not self._selection.top:
            return chosen
        self._best = self._first(chosen if self._best is None else self._best.join(chosen))
        return chosen.take(np.zeros(0, np.int64))

    def rest(self) -> Predictions | None:
        """Return the best rows, after the last table."""
        return self._best

    def _first(self, table: Predictions) -> Predictions:
        order: Int64 = np.argsort(-table.outputs[:, self._column], kind="stable")
        return table.take(order[: self._selection.top])
