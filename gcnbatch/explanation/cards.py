"""Explained molecules as they are shown: drawing, marks of atoms and bonds, figures, and the strongest features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer_options import FeaturizerOptions
from gcnbatch.data.molecule_drawings import Layout, layouts
from gcnbatch.explanation.attributions import Attributions
from gcnbatch.explanation.drawing import Panel

STRONGEST = 3  # features of a molecule that are named


class Card(NamedTuple):
    """An explained molecule.

    Parameters
    ----------
    name, smiles : str
    layout : Layout or None
        Its atoms are the graph's nodes. None, or without paths: no drawing.
    atoms, apart : int64, (T, M)
        Marks of atoms with half of their bonds, and of bonds and atoms, per cent of the strongest of the output; (T, 0)
        without a drawing.
    figures : float64, (T, 3), or (T, 4) if the model joins features of whole molecules
        Prediction, sum of the attributions, completeness error; sum of those of the features.
    strongest : list of T lists of (str, float)
        Features of the whole molecule with the largest attributions.
    """

    name: str
    smiles: str
    layout: Layout | None
    atoms: NDArray[np.int64]
    apart: NDArray[np.int64]
    figures: NDArray[np.float64]
    strongest: list[list[tuple[str, float]]]

    def panels(self, names: Sequence[str]) -> list[Panel]:
        """Return the panels of a drawing: one for each of the T outputs."""
        every = zip(names, self.figures.tolist(), self.atoms, strict=True)
        return [Panel((name, _line(*own)), values) for name, own, values in every]


def cards_of(
    found: Attributions,
    predictions: NDArray[np.floating],
    smiles: Sequence[str],
    options: FeaturizerOptions | None,
    joins: bool,
) -> list[Card]:
    """Return the cards of explained molecules.

    Parameters
    ----------
    predictions : (G, T)
    smiles : sequence of G str
    options : FeaturizerOptions or None
        How they were standardised; None: they are not drawn.
    joins : bool
        Whether the model joins features of whole molecules.
    """
    graphs, bonds, with_bonds, strongest = found.graphs, found.bonds(), found.atoms, _strongest_of(found)
    ends = np.searchsorted(bonds.graph, np.arange(graphs.n_graphs + 1))
    sizes, drawn = np.diff(graphs.node_ptr).tolist(), list[Layout | None]([None] * graphs.n_graphs)
    if options is not None and any(smiles):
        drawn = layouts(smiles, options)
    fitting = [one if one and len(one.symbols) == size else None for one, size in zip(drawn, sizes, strict=True)]
    joined = [found.joined_sums] if joins else []
    figures = np.stack([predictions, found.sums, found.errors, *joined], axis=2)
    cards = []
    for graph, layout in enumerate(fitting):
        own, nodes = slice(ends[graph], ends[graph + 1]), slice(graphs.node_ptr[graph], graphs.node_ptr[graph + 1])
        marks = apart = np.zeros((len(found.names), 0), np.int64)
        if layout is not None and layout.paths:
            of_pairs: dict[tuple[int, int], NDArray[np.float64]] = {}
            pairs = zip(bonds.begin[own].tolist(), bonds.end[own].tolist(), strict=True)
            for pair, values in zip(pairs, bonds.values[own], strict=True):
                of_pairs[pair] = of_pairs.get(pair, 0.0) + values
            marks = _mark_values(layout, with_bonds[nodes], {})
            apart = _mark_values(layout, found.nodes[nodes], of_pairs)
        cards.append(
            Card(str(graphs.ids[graph]), smiles[graph], layout, marks, apart, figures[graph], strongest[graph])
        )
    return cards


def _mark_values(
    layout: Layout, atoms: NDArray[np.float64], bonds: Mapping[tuple[int, int], NDArray[np.float64]]
) -> NDArray[np.int64]:
    """Return the values of a molecule's marks for every output, (T, M): its bonds, then its atoms.

    Parameters
    ----------
    atoms : (N, T)
    bonds : mapping
        Values (T,) of the pairs of atoms that have one.

    Returns
    -------
    int64, (T, M)
        Per cent of the strongest mark of the output.
    """
    none = np.zeros(atoms.shape[1])
    marks = np.concatenate([np.array([bonds.get(pair, none) for pair in layout.bonds]).reshape(-1, len(none)), atoms])
    strongest = np.abs(marks).max(axis=0, initial=0)
    return np.rint(100 * marks / np.where(strongest > 0, strongest, 1)).astype(np.int64).T


def _strongest_of(found: Attributions) -> list[list[list[tuple[str, float]]]]:
    """Return the names and attributions of the strongest features of each molecule, for every output."""
    joined, names = found.joined, found.graphs.header.graph_feature_names
    ptr = np.searchsorted(joined.graph, np.arange(found.graphs.n_graphs + 1)).tolist()
    strongest = []
    for begin, end in pairwise(ptr):
        values, features = joined.values[begin:end], joined.feature[begin:end]
        best = np.argsort(-np.abs(values), axis=0, kind="stable")[:STRONGEST].T
        every = [
            [(names[features[row]], float(values[row, output])) for row in rows] for output, rows in enumerate(best)
        ]
        strongest.append(every)
    return strongest


def _line(prediction: float, total: float, error: float, joined: float | None = None) -> str:
    """Return the figures of an output in a drawing."""
    if joined is None:
        return f"{prediction:.3g}, sum {total:+.3g}"
    return f"{prediction:.3g}, atoms {total - joined:+.3g}, features {joined:+.3g}"
