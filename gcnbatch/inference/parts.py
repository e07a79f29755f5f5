"""Parts of an input: consecutive rows, their graphs for the models, and what the table says of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graphs import GraphSet, Int64, concatenate
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.inference.columns import Remarks, joined_remarks
from gcnbatch.mixture import Prepared
from gcnbatch.text import QUOTED, printable
from gcnbatch.workers.pool import Workers

# What the members of a mixture beside the networks give for M molecules, (M, K) by the name of the member, or what they
# read, where the backend computes that.
OfMembers = Mapping[str, NDArray[np.float64]] | Prepared


class InputForm(NamedTuple):
    """How a model reads graphs; see `BatchSource`."""

    adjacency: str
    graph_features: bool


@dataclass(frozen=True)
class RowBlock:
    """R rows whose table is made at once: what it says of them beside the predictions.

    Parameters
    ----------
    ids : (R,) str
    places : (M,) int64
        Position of each row that could be read.
    errors : dict of str, or None
        Reasons why rows could not be read, by position; None if the input has no such rows.
    y : (R, K) or None
        Targets, if the input has those of the models.
    kept : dict of (R,) str
        Columns of the input that go to the output.
    smiles : list of M str, or None
        SMILES of the rows that could be read; None: the input has none, or gives them in another way.
    remarks : dict of Cells
        What there is to say of the targets.
    alike : Counter of str
        Number of molecules with each element that has no feature of its own.
    """

    ids: Sequence[str] | NDArray[np.str_]
    places: Int64
    errors: dict[int, str] | None = None
    y: NDArray[Any] | None = None
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    smiles: list[str] | None = None
    remarks: Remarks = field(default_factory=dict)
    alike: Counter[str] = field(default_factory=Counter)

    @classmethod
    def joined(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """Return all rows."""
        first = blocks[0]
        if len(blocks) == 1:
            return first
        starts = np.cumsum([0, *(len(one.ids) for one in blocks)]).tolist()
        every = list(zip(starts, blocks, strict=False))
        errors = {before + row: reason for before, one in every for row, reason in (one.errors or {}).items()}
        return cls(
            [text for one in blocks for text in one.ids],
            np.concatenate([one.places + before for before, one in every]),
            None if first.errors is None else errors,
            None if first.y is None else np.concatenate([one.y for one in blocks if one.y is not None]),
            {name: [text for one in blocks for text in one.kept[name]] for name in first.kept},
            None if first.smiles is None else [text for one in blocks for text in one.smiles or ()],
            joined_remarks((before, one.remarks) for before, one in every),
            sum((one.alike for one in blocks), Counter()),
        )

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return `values` (M, …) for all rows, (R, …); NaN or "" in those that could not be read."""
        missing = np.nan if values.dtype.kind == "f" else ""
        found = np.full((len(self.ids), *values.shape[1:]), missing, values.dtype)
        found[self.places] = values
        return found

    def reasons(self) -> NDArray[np.str_] | None:
        """Return why each row could not be read, (R,), "" for the others; None if the input has no such rows."""
        return None if self.errors is None else np.array([self.errors.get(row, "") for row in range(len(self.ids))])

    def with_errors(self, more: Mapping[int, str], first: int) -> RowBlock:
        """Return the rows with more reasons by position; `first` is the number of rows before them.

        Raises
        ------
        InputError
            When the table has no column for reasons. Names the first row.
        """
        if not more:
            return self
        if self.errors is None:
            raise self._bad_row(min(more), more, first, "Leave the row out.")
        return replace(self, errors={**self.errors, **more})

    def refuse_bad_row(self, first: int) -> None:
        """Refuse rows of which one could not be read; `first` is the number of rows before them.

        Raises
        ------
        InputError
            Names the first such row.
        """
        if self.errors:
            hint = "Fix the row, or keep such rows blank with --on-bad-row keep."
            raise self._bad_row(min(self.errors), self.errors, first, hint)

    def _bad_row(self, index: int, errors: Mapping[int, str], first: int, hint: str) -> InputError:
        return InputError(
            f"row {first + index + 1}, id {printable(str(self.ids[index]), QUOTED)}", errors[index], hint=hint
        )


@dataclass(frozen=True)
class Share:
    """The parts with the numbers `first`, `first + every`, … of an input.

    Parameters
    ----------
    first, every : int
    beside : int
        Processes of this host that take shares.
    """

    first: int = 0
    every: int = 1
    beside: int = 1

    def has(self, number: int) -> bool:
        """Return whether the part of this number belongs to the share."""
        return number % self.every == self.first


ALL = Share()


@dataclass(frozen=True)
class Part:
    """Consecutive rows of the input.

    Parameters
    ----------
    blocks : tuple of RowBlock
        All rows.
    data : GraphSet, Dataset or None
        The rows that could be read; None if `sources` has them.
    sources : dict of BatchSource
        Their batches by the way in which models read them.
    smiles : callable or None
        Returns their SMILES, or None if the input has none; None: the texts have them.
    of_members : tuple
        For each run, what the members of its mixture beside the networks give for them or read, or None without a
        mixture; empty: the runs compute it.
    """

    blocks: tuple[RowBlock, ...]
    data: GraphSet | Dataset | None
    sources: dict[InputForm, BatchSource] = field(default_factory=dict)
    smiles_of: Callable[[], list[str] | None] | None = None
    of_members: tuple[OfMembers | None, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence[Part]) -> Part:
        """Return all rows of parts whose graphs are in memory, as one block."""
        known = [part for part in parts if len(part.blocks[0].places)] or parts[:1]
        graphs = [part.data for part in known if isinstance(part.data, GraphSet)]
        return cls(
            (RowBlock.joined([block for part in parts for block in part.blocks]),),
            concatenate(graphs) if graphs else None,
            {form: BatchSource.joined([part.sources[form] for part in known]) for form in parts[0].sources},
            of_members=tuple(map(_joined, zip(*(part.of_members for part in parts), strict=True))),
        )

    @property
    def rows(self) -> int:
        """R, the number of rows."""
        return sum(len(block.ids) for block in self.blocks)

    def block(self) -> RowBlock:
        """Return all rows as one block."""
        return RowBlock.joined(self.blocks)

    def smiles(self) -> list[str] | None:
        """Return the SMILES of the rows that could be read; None if the input has none."""
        return self.smiles_of() if self.smiles_of is not None else self.block().smiles

    def graphs(self) -> GraphSet:
        """Return the rows that could be read, in memory."""
        assert self.data is not None
        return self.data.load() if isinstance(self.data, Dataset) else self.data

    def source(self, adjacency: str, graph_features: bool) -> BatchSource:
        """Return the batches of the rows that could be read; see `InputForm`."""
        form = InputForm(adjacency, graph_features)
        if form not in self.sources:
            assert self.data is not None
            self.sources[form] = BatchSource(self.data, *form)
        return self.sources[form]


def _joined(of_parts: Sequence[OfMembers | None]) -> OfMembers | None:
    """Return what there is of all parts, one after the other."""
    prepared = [of for of in of_parts if isinstance(of, Prepared)]
    if prepared:
        return Prepared.joined(prepared)
    known = [of for of in of_parts if of is not None and not isinstance(of, Prepared)]
    return {name: np.concatenate([of[name] for of in known]) for name in known[0]} if known else None


@dataclass(frozen=True)
class Input:
    """An opened input.

    Parameters
    ----------
    n_graphs : int
        Number of its graphs.
    parts : iterator of Part
        All rows, in order.
    trained_on : bool
        Whether the models were trained on it.
    notes : tuple of str
        What was detected, for the user.
    featurised : bool
        Whether other processes make the graphs while the models predict.
    workers : Workers or None
        Processes for the work on its rows; None for a small input.
    remarks : dict of Cells
        What there is to say of its targets beside what the parts say.
    """

    n_graphs: int
    parts: Iterator[Part]
    trained_on: bool = False
    notes: tuple[str, ...] = ()
    featurised: bool = False
    workers: Workers | None = None
    remarks: Remarks = field(default_factory=dict)
