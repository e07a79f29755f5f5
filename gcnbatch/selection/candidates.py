"""The best molecules of a pool that is predicted part by part, in memory that does not grow with the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.data.graphs import Int64
from gcnbatch.predictions import Predictions
from gcnbatch.selection.conditions import ColumnComparison
from gcnbatch.selection.known import Measured, Molecule

MEASURED, NEAR, UNREADABLE = "measured already", "too similar to a chosen one", "unreadable"
_KEPT = 50  # candidates per requested molecule
_LEAST_KEPT = 5_000
_SAMPLED = 6  # molecules per representative one that may be it


class Candidate(NamedTuple):
    """A row that may be chosen.

    Parameters
    ----------
    score : float
    row : int
        Its number, from 0.
    id : str
    cells : dict of str
        Its other columns.
    outputs : dict of (mean, deviation)
        By the name of the output; NaN where there is no deviation.
    probability : float
        That all bounds hold.
    molecule : Molecule
    """

    score: float
    row: int
    id: str
    cells: dict[str, str]
    outputs: dict[str, tuple[float, float]]
    probability: float
    molecule: Molecule


@dataclass
class Candidates:
    """Collects rows of the pool; only those whose score is among the best are read by RDKit.

    Parameters
    ----------
    measured : Measured
    comparisons : list of ColumnComparison
    smiles : str
        The column of SMILES.
    ids : str
        The column of ids, "" without one.
    count : int
        Requested molecules.
    left_out : Counter of str
        Rows that cannot be chosen, by the reason.
    examined : int
        Rows whose molecule was read.
    """

    measured: Measured
    comparisons: Sequence[ColumnComparison]
    smiles: str
    ids: str
    count: int
    left_out: Counter[str] = field(default_factory=Counter)
    examined: int = 0
    _best: list[Candidate] = field(default_factory=list)
    _least: float = -np.inf

    def add(
        self,
        table: Predictions,
        first: int,
        score: NDArray[np.float64],
        outputs: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
        probability: NDArray[np.float64],
    ) -> None:
        """Take rows from the row `first` on; a score of NaN leaves a row out."""
        for index in np.flatnonzero(score > self._least).tolist():
            cells = {name: str(texts[index]) for name, texts in table.kept.items()}
            molecule = self._read(str(table.ids[index]), cells)
            if molecule is not None:
                values = {
                    name: (float(mean[index]), float(deviation[index])) for name, (mean, deviation) in outputs.items()
                }
                about = first + index, str(table.ids[index]), cells, values, float(probability[index]), molecule
                self._best.append(Candidate(float(score[index]), *about))
        if len(self._best) > 2 * (most := max(_KEPT * self.count, _LEAST_KEPT)):
            self._best = self.ranked()[:most]
            self._least = self._best[-1].score

    def _read(self, id_: str, cells: dict[str, str]) -> Molecule | None:
        """Return the molecule of a row that may be chosen; count why it may not."""
        self.examined += 1
        found = self.measured.read(cells[self.smiles])
        if found is None:
            self.left_out[UNREADABLE] += 1
            return None
        if found.name in self.measured.names:
            self.left_out[MEASURED] += 1
            return None
        named = {**cells, self.ids: id_} if self.ids else cells
        for one in self.comparisons:
            if not one.holds(named, found.molecule):
                self.left_out[f"not {one}"] += 1
                return None
        return found

    def ranked(self) -> list[Candidate]:
        """Return the candidates, the best first; of equal scores, that which comes first in the pool."""
        return sorted(self._best, key=lambda one: (-one.score, one.row))

    def choose(self, most_similar: float) -> list[Candidate]:
        """Return the best molecules, each once, of which no two are more similar than this; see `different`."""
        ranked = self.ranked()
        first = {one.molecule.name: place for place, one in reversed(list(enumerate(ranked)))}
        places = sorted(first.values())
        chosen = different([ranked[place].molecule.fingerprint for place in places], self.count, most_similar)
        found = [ranked[places[index]] for index in chosen]
        passed = places[chosen[-1]] + 1 if len(found) == self.count else len(ranked)
        if near := passed - len(found):
            self.left_out[NEAR] += near
        return found


def different(fingerprints: Sequence[Any], count: int, most_similar: float) -> list[int]:
    """Return the positions of the first `count` molecules of which no two have a larger Tanimoto similarity.

    Each in turn is chosen, unless it is too similar to one that is chosen already.
    """
    from rdkit.DataStructs import BulkTanimotoSimilarity

    chosen: list[int] = []
    for place, one in enumerate(fingerprints):
        if len(chosen) == count:
            break
        near = BulkTanimotoSimilarity(one, [fingerprints[index] for index in chosen])
        if max(near, default=0.0) <= most_similar:
            chosen.append(place)
    return chosen


def representative(fingerprints: Sequence[Any], count: int, seed: int) -> Int64:
    """Return the positions of `count` molecules, ascending, that the others are similar to.

    Facility location: each in turn adds most to the sum over all molecules of the Tanimoto similarity to the nearest
    chosen one. It is chosen among a random sample.
    """
    from rdkit.DataStructs import BulkTanimotoSimilarity

    sample = philox.generator(seed, "selection.start").permutation(len(fingerprints))[: _SAMPLED * count]
    similarities = np.array([BulkTanimotoSimilarity(fingerprints[index], fingerprints) for index in sample], np.float32)
    nearest = np.zeros(len(fingerprints), np.float32)
    chosen: list[int] = []
    for _ in range(count):
        gains = np.maximum(similarities, nearest).sum(axis=1)
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
        nearest = np.maximum(nearest, similarities[chosen[-1]])
    return np.sort(sample[chosen])
