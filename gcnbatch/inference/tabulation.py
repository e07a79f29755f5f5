"""Rows of the output: made of predictions in worker processes, selected, and written in the order of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, nearest
from gcnbatch.inference.columns import Remarks, joined_remarks
from gcnbatch.inference.domain import DISTANCE
from gcnbatch.inference.models import mean_and_deviation
from gcnbatch.inference.parts import RowBlock
from gcnbatch.inference.trust import Trust
from gcnbatch.predictions import Predictions, output_names
from gcnbatch.workers.pool import WorkerDied, Workers, ahead
from gcnbatch.workers.shared import Shared


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


Columns = dict[str, NDArray[Any]]
NOT_FINITE = "the model's output is not a finite number"


@dataclass(frozen=True)
class Predicted:
    """What the models give for a part.

    Parameters
    ----------
    blocks : tuple of RowBlock
        Its rows.
    single : list of (M, K)
        Outputs of each member for the rows that could be read.
    beside : dict of (M,)
        Further columns.
    left_out : bool, (members, T)
        Tasks that a member has no outputs of: they are NaN in all rows.
    deviation : (M, K) or None
        Of the only member, where it consists of several models.
    """

    blocks: tuple[RowBlock, ...]
    single: list[NDArray[np.floating]]
    beside: Columns
    left_out: NDArray[np.bool_]
    deviation: NDArray[np.floating] | None = None

    @property
    def rows(self) -> int:
        """R, the number of rows."""
        return sum(len(block.ids) for block in self.blocks)

    @property
    def readable(self) -> int:
        """M, the number of rows that could be read."""
        return len(self.single[0])

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which of these rows have finite numbers alone, (M,), but for tasks that are left out."""
        pairs = zip(self.single, self.left_out, strict=True)
        known = [np.isfinite(outputs) | absent for outputs, absent in pairs]
        known += [np.isfinite(values)[:, None] for name, values in self.beside.items() if name == DISTANCE]
        return np.asarray(np.concatenate(known, axis=1).all(axis=1))

    def by_block(self) -> Iterator[Predicted]:
        """Yield what the models give for each block."""
        first = 0
        for block in self.blocks:
            own = slice(first, first := first + len(block.places))
            beside = {name: values[own] for name, values in self.beside.items()}
            yield replace(self, blocks=(block,), beside=beside, **self._outputs_of(own))

    def without_lost(self) -> tuple[Predicted, dict[int, str]]:
        """Return what the models give for the finite rows of the only block, and why the others have no numbers."""
        if (finite := self.finite).all():
            return self, {}
        (block,) = self.blocks
        lost = dict.fromkeys(block.places[~finite].tolist(), NOT_FINITE)
        beside = {name: values[finite] for name, values in self.beside.items()}
        left = replace(block, places=block.places[finite])
        return replace(self, blocks=(left,), beside=beside, **self._outputs_of(finite)), lost

    def _outputs_of(self, rows: Any) -> dict[str, Any]:
        deviation = None if self.deviation is None else self.deviation[rows]
        return {"single": [outputs[rows] for outputs in self.single], "deviation": deviation}


@dataclass(frozen=True)
class Made:
    """Rows that are made for the output.

    Parameters
    ----------
    rows : object
        The selected rows, as the sink's `encode` returns them; None if the best ones are not known yet.
    best : Predictions or None
        Those that may be among the best ones.
    labelled : tuple of (L, K) arrays
        Targets and outputs of the rows that have both.
    remarks : dict of Cells
        What there is to say of the targets, by row of the input.
    """

    rows: Any
    best: Predictions | None = None
    labelled: tuple[NDArray[Any], NDArray[np.floating]] | None = None
    remarks: Remarks = field(default_factory=dict)


@dataclass(frozen=True)
class RowMaker:
    """Makes rows for the output.

    Parameters
    ----------
    header : Header
    trust : Trust
        Gives further columns.
    selection : Selection
        The rows to write.
    encode : callable
        Of the sink.
    fail : bool
        Whether a row without a prediction is an error.
    """

    header: Header
    trust: Trust
    selection: Selection
    encode: Callable[[Predictions], Any]
    fail: bool

    def __call__(self, predicted: Predicted, before: int) -> Made:
        """Return the rows of a block; `before` rows of the input come before it.

        Raises
        ------
        InputError
            With `fail`, for a row without a prediction; else for one whose reason has no column.
        """
        predicted, lost = predicted.without_lost()
        block = predicted.blocks[0].with_errors(lost, before)
        if self.fail:
            block.refuse_bad_row(before)
        with np.errstate(over="ignore"):  # the deviation, or an end of the interval, of huge outputs is infinite
            mean, deviation = mean_and_deviation(predicted.single, predicted.left_out, self.trust.scaling)
            columns = self.trust.columns(predicted.single) | predicted.beside
        deviation = deviation if predicted.deviation is None else predicted.deviation
        outputs = block.spread(mean)
        std = None if deviation is None else block.spread(deviation)
        more = {name: block.spread(values) for name, values in columns.items()}
        kept = {name: np.array(values, dtype=np.str_) for name, values in block.kept.items()}
        ids = np.array(block.ids, dtype=np.str_)
        table = Predictions(self.header, ids, outputs, std, block.reasons(), kept, more)
        labelled = None
        absent = np.asarray(predicted.left_out.all(axis=0))
        if block.y is not None and (known := _known(block.y, outputs, absent)).any():
            labelled = block.y[known], outputs[known]
        remarks = joined_remarks([(before, block.remarks)])
        chosen = self.selection.chosen(table)
        if self.selection.top:
            return Made(None, self.selection.best(chosen), labelled, remarks)
        return Made(self.encode(chosen), None, labelled, remarks)


def _make(maker: Shared, predicted: Predicted, before: int) -> Made:
    """Make rows in a worker process."""
    made: Made = maker.load()(predicted, before)
    return made


def tabulate(
    parts: Iterable[Predicted], before: int, maker: RowMaker, workers: Workers | None
) -> Iterator[tuple[Predicted, list[Made]]]:
    """Yield each part with the rows of its blocks; processes make them while the models predict the next parts.

    `before` rows of the input come before the first part. Without workers, or where one fails, this process makes rows.
    """
    shared = Shared(maker) if workers else None

    def begin() -> Iterator[tuple[Predicted, list[tuple[Predicted, int, Future[Made] | None]]]]:
        first = before
        for part in parts:
            begun = []
            for own in part.by_block():
                begun.append((own, first, workers.submit(_make, shared, own, first) if workers else None))
                first += own.rows
            yield part, begun

    under_way = ahead(begin(), 2 + workers.count // 2, lambda one: len(one[1])) if workers else begin()
    for part, begun in under_way:
        yield part, [_made(maker, *block) for block in begun]


def _made(maker: RowMaker, own: Predicted, before: int, call: Future[Made] | None) -> Made:
    if call is not None:
        with suppress(WorkerDied, MemoryError):
            return call.result()
    return maker(own, before)


def _known(y: NDArray[Any], outputs: NDArray[np.floating], absent: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows (R,) have a label and a prediction, but for the tasks (T,) that no member has."""
    known: NDArray[np.bool_] = y >= 0 if y.dtype.kind == "i" else ~np.isnan(y)
    return np.asarray(known.any(axis=1) & (np.isfinite(outputs) | absent).all(axis=1))
