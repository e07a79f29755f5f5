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
from gcnbatch.text import QUOTED, printable
from gcnbatch.worker import Workers


class Reading(NamedTuple):
    """How a model reads graphs; see `BatchSource`."""

    adjacency: str
    graph_features: bool


@dataclass(frozen=True)
class Texts:
    """What the table says of R rows beside the predictions.

    Parameters
    ----------
    ids : (R,) str
    errors : dict of str, or None
        Reasons why rows could not be read, by position; None if the input has no such rows.
    y : (R, K) or None
        Targets, if the input has those of the models.
    kept : dict of (R,) str
        Columns of the input that go to the output.
    smiles : list of str, or None
        SMILES of the rows that could be read; None: the input has none, or gives them in another way.
    remarks : dict of Cells
        What there is to say of the targets.
    """

    ids: Sequence[str] | NDArray[np.str_]
    errors: dict[int, str] | None = None
    y: NDArray[Any] | None = None
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    smiles: list[str] | None = None
    remarks: Remarks = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """Return all rows."""
        if len(parts) == 1:
            return parts[0]
        first, errors, remarks, before = parts[0], dict[int, str](), list[tuple[int, Remarks]](), 0
        for part in parts:
            errors |= {before + row: reason for row, reason in (part.errors or {}).items()}
            remarks.append((before, part.remarks))
            before += len(part.ids)
        return cls(
            [text for part in parts for text in part.ids],
            None if first.errors is None else errors,
            None if first.y is None else np.concatenate([part.y for part in parts if part.y is not None]),
            {name: [text for part in parts for text in part.kept[name]] for name in first.kept},
            None if first.smiles is None else [text for part in parts for text in part.smiles or ()],
            joined_remarks(remarks),
        )

    def rows(self, at: slice) -> Texts:
        """Return some rows of an input without bad rows and columns of its own."""
        return Texts(self.ids[at], y=None if self.y is None else self.y[at])

    def reasons(self) -> NDArray[np.str_] | None:
        """Return why each row could not be read, (R,), "" for the others; None if the input has no such rows."""
        return None if self.errors is None else np.array([self.errors.get(row, "") for row in range(len(self.ids))])

    def with_errors(self, more: Mapping[int, str], first: int) -> Texts:
        """Return the texts with more reasons by position; `first` is the number of rows before them.

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

    def _bad_row(self, at: int, errors: Mapping[int, str], first: int, hint: str) -> InputError:
        return InputError(f"row {first + at + 1}, id {printable(str(self.ids[at]), QUOTED)}", errors[at], hint=hint)


@dataclass(frozen=True)
class Block:
    """Rows of a part whose table is made at once.

    Parameters
    ----------
    texts : Texts
    places : (M,) int64
        Position among them of each row that could be read.
    alike : Counter of str
        Number of molecules with each element that has no feature of its own.
    """

    texts: Texts
    places: Int64
    alike: Counter[str] = field(default_factory=Counter)

    @classmethod
    def joined(cls, blocks: Sequence[Block]) -> Block:
        """Return all rows."""
        rows = [block.rows for block in blocks]
        starts = np.cumsum([0, *rows[:-1]]).tolist()
        places = [block.places + start for block, start in zip(blocks, starts, strict=True)]
        texts = Texts.joined([block.texts for block in blocks])
        return cls(texts, np.concatenate(places), sum((block.alike for block in blocks), Counter()))

    @property
    def rows(self) -> int:
        """R, the number of rows."""
        return len(self.texts.ids)


def spread(values: NDArray[Any], places: Int64, rows: int) -> NDArray[Any]:
    """Return so many rows with `values` (M, …) at their places; NaN or "" in rows that could not be read."""
    found = np.full((rows, *values.shape[1:]), np.nan if values.dtype.kind == "f" else "", values.dtype)
    found[places] = values
    return found


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
    blocks : tuple of Block
        All rows.
    data : GraphSet, Dataset or None
        The rows that could be read; None if `sources` has them.
    sources : dict of BatchSource
        Their batches by the way in which models read them.
    smiles : callable or None
        Returns their SMILES, or None if the input has none; None: the texts have them.
    """

    blocks: tuple[Block, ...]
    data: GraphSet | Dataset | None
    sources: dict[Reading, BatchSource] = field(default_factory=dict)
    smiles_of: Callable[[], list[str] | None] | None = None

    @classmethod
    def joined(cls, parts: Sequence[Part]) -> Part:
        """Return all rows of parts whose graphs are in memory, as one block."""
        known = [part for part in parts if part.blocks[0].places.size] or parts[:1]
        graphs = [part.data for part in known if isinstance(part.data, GraphSet)]
        return cls(
            (Block.joined([block for part in parts for block in part.blocks]),),
            concatenate(graphs) if graphs else None,
            {reading: BatchSource.joined([part.sources[reading] for part in known]) for reading in parts[0].sources},
        )

    @property
    def rows(self) -> int:
        """R, the number of rows."""
        return sum(block.rows for block in self.blocks)

    @property
    def places(self) -> Int64:
        """Position of each row that could be read, (M,)."""
        return Block.joined(self.blocks).places

    def texts(self) -> Texts:
        """Return the texts of the rows."""
        return Texts.joined([block.texts for block in self.blocks])

    def smiles(self) -> list[str] | None:
        """Return the SMILES of the rows that could be read; None if the input has none."""
        return self.smiles_of() if self.smiles_of is not None else self.texts().smiles

    def graphs(self) -> GraphSet:
        """Return the rows that could be read, in memory."""
        assert self.data is not None
        return self.data.load() if isinstance(self.data, Dataset) else self.data

    def source(self, adjacency: str, graph_features: bool) -> BatchSource:
        """Return the batches of the rows that could be read; see `Reading`."""
        reading = Reading(adjacency, graph_features)
        if reading not in self.sources:
            assert self.data is not None
            self.sources[reading] = BatchSource(self.data, *reading)
        return self.sources[reading]


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
