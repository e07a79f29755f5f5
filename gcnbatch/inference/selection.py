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

    def chosen(self, table: Predictions) -> Predictions:
        """Return the rows over the threshold, or that can be among the best ones."""
        if self.all:
            return table
        values = table.outputs[:, self.column(table.header)]
        least = -np.inf if self.threshold is None else self.threshold
        return table.take(np.flatnonzero(values >= least))

    def best(self, *tables: Predictions) -> Predictions:
        """Return the `top` rows of tables with the highest values; of equal ones, those that come first."""
        table = tables[0].join(*tables[1:]) if len(tables) > 1 else tables[0]
        order: Int64 = np.argsort(-table.outputs[:, self.column(table.header)], kind="stable")
        return table.take(order[: self.top])
