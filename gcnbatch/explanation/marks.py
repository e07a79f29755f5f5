"""Explained molecules as they are drawn: marks of atoms and bonds, the strongest features, figures below a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.molecule_drawings import Layout
from gcnbatch.explanation.attributions import Attributions
from gcnbatch.explanation.drawing import Panel, mark_values

STRONGEST = 3  # features of a molecule that are named


class Marks(NamedTuple):
    """Values of a molecule's marks (T, M): atoms with half of their bonds, and both apart; without a drawing, none."""

    atoms: NDArray[np.int64]
    apart: NDArray[np.int64]


def marks_of(found: Attributions, shown: Sequence[Layout | None]) -> list[Marks]:
    """Return the marks of each molecule."""
    bonds, with_bonds = found.bonds(), found.atoms
    ends = np.searchsorted(bonds.graph, np.arange(len(shown) + 1))
    marks = []
    none = np.zeros((len(found.names), 0), np.int64)
    for at, layout in enumerate(shown):
        if layout is None or not layout.paths:
            marks.append(Marks(none, none))
            continue
        own = slice(ends[at], ends[at + 1])
        of_pairs: dict[tuple[int, int], NDArray[np.float64]] = {}
        pairs = zip(bonds.begin[own].tolist(), bonds.end[own].tolist(), strict=True)
        for pair, values in zip(pairs, bonds.values[own], strict=True):
            of_pairs[pair] = of_pairs.get(pair, 0.0) + values
        nodes = slice(found.graphs.node_ptr[at], found.graphs.node_ptr[at + 1])
        apart = mark_values(layout, found.nodes[nodes], of_pairs)
        marks.append(Marks(mark_values(layout, with_bonds[nodes], {}), apart))
    return marks


def strongest_of(found: Attributions) -> list[list[list[tuple[str, float]]]]:
    """Return the names and attributions of the strongest features of each molecule, for every output."""
    joined, names = found.joined, found.graphs.header.graph_feature_names
    ptr = np.searchsorted(joined.graph, np.arange(found.graphs.n_graphs + 1)).tolist()
    strongest = []
    for begin, end in pairwise(ptr):
        values, features = joined.values[begin:end], joined.feature[begin:end]
        best = np.argsort(-np.abs(values), axis=0, kind="stable")[:STRONGEST].T
        every = [[(names[features[row]], float(values[row, at])) for row in rows] for at, rows in enumerate(best)]
        strongest.append(every)
    return strongest


def panels_of(names: Sequence[str], figures: NDArray[np.float64], marks: Marks) -> list[Panel]:
    """Return the panels of a molecule: T names, figures (T, 3 or 4) as of `gcnbatch.explanation.page.Card`, marks."""
    return [
        Panel((name, _line(*own)), values)
        for name, own, values in zip(names, figures.tolist(), marks.atoms, strict=True)
    ]


def _line(prediction: float, total: float, error: float, joined: float | None = None) -> str:
    """Return the figures of an output in a drawing."""
    if joined is None:
        return f"{prediction:.3g}, sum {total:+.3g}"
    return f"{prediction:.3g}, atoms {total - joined:+.3g}, features {joined:+.3g}"
