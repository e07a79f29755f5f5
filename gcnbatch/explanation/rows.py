"""Rows to explain: graphs with their predictions and SMILES, read from the parts of an input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64, concatenate
from gcnbatch.inference.averages import mean_and_deviation
from gcnbatch.inference.members import Member, sources_of
from gcnbatch.inference.parts import Part
from gcnbatch.runners.choice import BackendChoice

PART_BYTES = 1 << 25  # of a set that is too large for memory


@dataclass(frozen=True)
class Rows:
    """R rows.

    Parameters
    ----------
    graphs : GraphSet
    predictions : (R, T)
        As `infer` gives them.
    smiles : list of R str
        "" where the input has none.
    numbers : int64, (R,)
        Their numbers in the input, from 1.
    """

    graphs: GraphSet
    predictions: NDArray[np.floating]
    smiles: list[str]
    numbers: Int64

    def join(self, other: Rows) -> Rows:
        """Return the rows of both."""
        return Rows(
            concatenate([self.graphs, other.graphs]),
            np.concatenate([self.predictions, other.predictions]),
            self.smiles + other.smiles,
            np.concatenate([self.numbers, other.numbers]),
        )

    def highest(self, count: int) -> Rows:
        """Return the rows with the highest prediction of any output, highest first."""
        rows = np.argsort(-self.predictions.max(axis=1, initial=-np.inf), kind="stable")[:count]
        smiles = [self.smiles[row] for row in rows.tolist()]
        return Rows(self.graphs.take(rows), self.predictions[rows], smiles, self.numbers[rows])


def rows_of(part: Part, before: int, members: list[Member], choice: BackendChoice, places: list[int]) -> Iterator[Rows]:
    """Yield the readable rows of a part in blocks; `before` rows come before it, `places` are the explained outputs."""
    texts, readable = part.smiles(), part.places
    assert part.data is not None
    blocks = [(0, part.data)] if isinstance(part.data, GraphSet) else part.data.blocks(PART_BYTES)
    for first, graphs in blocks:
        own = slice(first, first + graphs.n_graphs)
        pairs = zip(members, sources_of(members, graphs), strict=True)
        found = [member.outputs(choice, source, 0, lambda done: None)[0] for member, source in pairs]
        smiles = [""] * graphs.n_graphs if texts is None else texts[own]
        predictions, _ = mean_and_deviation(found, np.stack([member.left_out for member in members]))
        yield Rows(graphs, predictions[:, places], smiles, before + 1 + readable[own])
