"""Molecule-like data sets whose labels depend on the bonds: a GCN can learn them, a model of single atoms cannot.

In every preset, a label is drawn independently of the skeleton and of the multiset of the graph's feature rows. So a
model that ignores bonds cannot do better than the prior.

- ``tox21``: elements are shuffled among atoms with equal skeleton features, which keeps the multiset of feature rows.
  The two of many shuffles that differ in the most tasks are kept, and a coin picks one of them for the graph. Task A-B
  is 1 if the graph has more A-B bonds than with the other shuffle, 0 if fewer, missing if equal.
- ``quickstart``: each task A-B inserts three atoms with equal skeleton features: u, v bonded to u, and w elsewhere. u
  is A. A coin decides which of v and w is B (label 1: v) and which is carbon.
- ``reaction100``: ten inserted atoms with equal skeleton features carry two groups of five elements. In each group
  exactly two atoms are bonded; the shuffle decides which. The 10 x 10 pairs are the 100 classes.

Elements ignore valence: the graphs have the shape of molecules, but are not molecules.

The 75 atom features of `gcnbatch.data.featurizer` are computed from a skeleton and elements. The skeleton determines
all of them but the element: two colourings of one skeleton differ only in the 44 columns of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from gcnbatch import __version__, philox
from gcnbatch.data.atom_features import FEATURE_NAMES, SYMBOLS
from gcnbatch.data.featurizer_options import BOND_CHANNELS
from gcnbatch.data.graphs import GraphSet, Int64
from gcnbatch.data.schema import Header, Target
from gcnbatch.data.synthetic.skeletons import AROMATIC, Skeletons, grow

CHUNK = 2048  # graphs per chunk; seed, number and size determine a chunk
_COLUMN = {name: column for column, name in enumerate(FEATURE_NAMES)}
ELEMENT = {symbol: column for column, symbol in enumerate(SYMBOLS)}
_TWICE_ORDER = np.array([2, 4, 6, 3])  # of a single, double, triple, aromatic bond
Drawn = tuple[Skeletons, Int64, Int64, NDArray[Any]]  # skeletons, atom_columns, elements (N,), targets (G, K)


@dataclass(frozen=True)
class MoleculeRecipe:
    """Recipe of a preset: default size, targets, and the function that draws a chunk of graphs."""

    graphs: int
    target: Target
    task_names: tuple[str, ...]
    class_names: tuple[str, ...]
    draw: Callable[[np.random.Generator, int], Drawn]


def generate(preset: str, seed: int, graphs: int | None = None, bond_channels: bool = False) -> Iterator[GraphSet]:
    """Yield the preset's graphs in parts of at most `CHUNK`; each part has the header."""
    recipe = RECIPES[preset]
    total = recipe.graphs if graphs is None else graphs
    header = Header(
        name=preset,
        level="graph",
        target=recipe.target,
        task_names=recipe.task_names,
        class_names=recipe.class_names,
        n_features=len(FEATURE_NAMES),
        feature_names=FEATURE_NAMES,
        channel_names=(*BOND_CHANNELS, "self") if bond_channels else ("bond",),
        source={"generator": f"gcnbatch {__version__} data synth {preset}", "seed": str(seed)},
    )
    for number, first in enumerate(range(0, total, CHUNK)):
        count = min(CHUNK, total - first)
        rng = philox.generator(seed, f"synthetic.{preset}", number)
        skeletons, columns, elements, y = recipe.draw(rng, count)
        yield _assemble(header, skeletons, one_hot(columns, elements), y, first)


def _assemble(header: Header, skeletons: Skeletons, x: NDArray[np.int8], y: NDArray[Any], first: int) -> GraphSet:
    """Store every bond in both directions and a self-loop per node, ordered by (dst, channel, src)."""
    node_ptr, nodes = skeletons.node_ptr, np.arange(skeletons.n_nodes)
    src = np.concatenate([skeletons.u, skeletons.v, nodes])
    dst = np.concatenate([skeletons.v, skeletons.u, nodes])
    loops = header.n_channels - 1
    kind = np.minimum(skeletons.kind, loops)
    channel = np.concatenate([kind, kind, np.full(len(nodes), loops, np.uint8)])
    order = np.argsort((dst * header.n_channels + channel) * max(len(nodes), 1) + src)
    src, dst = src[order], dst[order]
    edge_ptr = np.searchsorted(dst, node_ptr).astype(np.int64)
    first_node = np.repeat(node_ptr[:-1], np.diff(edge_ptr))
    return GraphSet(
        header=header,
        node_ptr=node_ptr,
        edge_ptr=edge_ptr,
        src=(src - first_node).astype(np.int32),
        dst=(dst - first_node).astype(np.int32),
        channel=channel[order],
        weight=None,
        x=x,
        y=y,
        ids=np.array([f"g{number}" for number in range(first, first + len(y))]),
    )


def _sizes(rng: np.random.Generator, count: int, log_mean: float, log_deviation: float, low: int, high: int) -> Int64:
    """Draw node counts low … high from a truncated log-normal distribution."""
    bounds = ndtr((np.log([low - 0.5, high + 0.5]) - log_mean) / log_deviation)
    drawn = np.exp(log_mean + log_deviation * ndtri(rng.uniform(bounds[0], bounds[1], size=count)))
    return np.clip(np.rint(drawn), low, high).astype(np.int64)


# ------------------------------------------------------------------------------------------------ tox21

_TOX21_ELEMENTS = ("C", "N", "O", "S", "P")
_TOX21_MIX = (0.3, 0.2, 0.2, 0.15, 0.15)
_TOX21_PAIRS = tuple(combinations_with_replacement(range(5), 2))[:12]
_SHUFFLES = 32
_DIFFERENCE_WEIGHT = 2  # weight of each task in which two shuffles differ; the size of the difference counts at most 2


def _tox21(rng: np.random.Generator, count: int) -> Drawn:
    skeletons = grow(rng, _sizes(rng, count, 2.76, 0.57, 1, 132))
    columns = atom_columns(skeletons)
    kinds = rng.choice(len(_TOX21_MIX), size=skeletons.n_nodes, p=_TOX21_MIX)
    shuffles = _shuffles(rng, skeletons, columns, kinds)
    bonds = np.stack([_pair_counts(skeletons, kinds) for kinds in shuffles])
    mine, other = _most_different(bonds)
    swap = rng.random(count) < 0.5
    mine, other = np.where(swap, other, mine), np.where(swap, mine, other)
    rows = np.arange(count)
    difference = bonds[mine, rows] - bonds[other, rows]
    y = np.where(difference == 0, np.nan, difference > 0).astype(np.float32)
    graph = np.repeat(rows, np.diff(skeletons.node_ptr))
    elements = np.array([ELEMENT[symbol] for symbol in _TOX21_ELEMENTS])
    return skeletons, columns, elements[shuffles[mine[graph], np.arange(skeletons.n_nodes)]], y


def _shuffles(rng: np.random.Generator, skeletons: Skeletons, columns: Int64, kinds: Int64) -> Int64:
    """Return `_SHUFFLES` permutations of `kinds` among atoms of a graph with equal skeleton features, (S, N)."""
    _, alike = np.unique(columns, axis=0, return_inverse=True)
    graph = np.repeat(np.arange(len(skeletons.node_ptr) - 1), np.diff(skeletons.node_ptr))
    cell = graph * (int(alike.max(initial=0)) + 1) + alike
    places = np.argsort(cell, kind="stable")
    shuffled = np.empty((_SHUFFLES, len(kinds)), dtype=np.int64)
    for row in shuffled:
        row[places] = kinds[np.argsort(cell + rng.random(len(cell)))]
    return shuffled


def _pair_counts(skeletons: Skeletons, kinds: Int64) -> NDArray[np.int16]:
    """Count the bonds of each task's pair of elements in each graph, (G, 12)."""
    task = np.full((5, 5), len(_TOX21_PAIRS))
    for number, (a, b) in enumerate(_TOX21_PAIRS):
        task[a, b] = task[b, a] = number
    graphs = len(skeletons.node_ptr) - 1
    graph = np.searchsorted(skeletons.node_ptr, skeletons.u, side="right") - 1
    width = len(_TOX21_PAIRS) + 1
    cell = graph * width + task[kinds[skeletons.u], kinds[skeletons.v]]
    counts = np.bincount(cell, minlength=graphs * width).reshape(graphs, width)
    return counts[:, :-1].astype(np.int16)


def _most_different(bonds: NDArray[np.int16]) -> tuple[Int64, Int64]:
    """Return the two shuffles of each graph that differ most over the tasks; `bonds` is (S, G, K)."""
    graphs = bonds.shape[1]
    best = np.full(graphs, -1)
    pair = np.zeros((2, graphs), dtype=np.int64)
    for second in range(1, len(bonds)):
        gap = np.abs(bonds[:second] - bonds[second])
        score = (np.minimum(gap, 2) + _DIFFERENCE_WEIGHT * (gap > 0)).sum(axis=2)
        first = score.argmax(axis=0)
        value = score[first, np.arange(graphs)]
        better = value > best
        best[better] = value[better]
        pair[0, better], pair[1, better] = first[better], second
    return pair[0], pair[1]


# ------------------------------------------------------------------------------------ quickstart, reaction100

_QUICK_TASKS = (("N", "O"), ("S", "P"), ("Si", "B"))
_QUICK_MISSING = 0.05
_GROUPS = (("N", "O", "S", "P", "Si"), ("B", "Se", "As", "Ge", "Sn"))
_PAIRS = tuple(combinations(range(5), 2))


def _fillers(rng: np.random.Generator, count: int) -> Int64:
    return rng.choice([ELEMENT["C"], ELEMENT["F"], ELEMENT["Cl"]], size=count, p=(0.8, 0.1, 0.1))


def _quickstart(rng: np.random.Generator, count: int) -> Drawn:
    skeletons = grow(rng, rng.integers(16, 26, size=count), (2, 1) * len(_QUICK_TASKS))
    elements = _fillers(rng, skeletons.n_nodes)
    y = rng.integers(0, 2, size=(count, len(_QUICK_TASKS))).astype(np.float32)
    for task, (a, b) in enumerate(_QUICK_TASKS):
        u, v, w = skeletons.slots[:, 3 * task : 3 * task + 3].T
        elements[u] = ELEMENT[a]
        elements[v] = np.where(y[:, task] == 1, ELEMENT[b], ELEMENT["C"])
        elements[w] = np.where(y[:, task] == 1, ELEMENT["C"], ELEMENT[b])
    y[rng.random(y.shape) < _QUICK_MISSING] = np.nan
    return skeletons, atom_columns(skeletons), elements, y


def _reaction100(rng: np.random.Generator, count: int) -> Drawn:
    skeletons = grow(rng, _sizes(rng, count, 3.35, 0.3, 19, 50), (2, 1, 1, 1) * len(_GROUPS))
    elements = _fillers(rng, skeletons.n_nodes)
    pair_number = np.zeros((5, 5), dtype=np.int64)
    for number, (a, b) in enumerate(_PAIRS):
        pair_number[a, b] = pair_number[b, a] = number
    label = np.zeros(count, dtype=np.int64)
    for place, group in enumerate(_GROUPS):
        shuffle = np.argsort(rng.random((count, 5)), axis=1)
        elements[skeletons.slots[:, 5 * place : 5 * place + 5]] = np.array([ELEMENT[symbol] for symbol in group])[
            shuffle
        ]
        label = len(_PAIRS) * label + pair_number[shuffle[:, 0], shuffle[:, 1]]
    return skeletons, atom_columns(skeletons), elements, label.astype(np.int32)[:, None]


def _names(elements: tuple[str, ...], pairs: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
    return tuple("-".join(elements[place] for place in pair) for pair in pairs)


RECIPES = {
    "tox21": MoleculeRecipe(7_831, "binary", _names(_TOX21_ELEMENTS, _TOX21_PAIRS), (), _tox21),
    "reaction100": MoleculeRecipe(
        75_477,
        "multiclass",
        ("reaction",),
        tuple(f"{a}+{b}" for a in _names(_GROUPS[0], _PAIRS) for b in _names(_GROUPS[1], _PAIRS)),
        _reaction100,
    ),
    "quickstart": MoleculeRecipe(1_000, "binary", tuple("-".join(pair) for pair in _QUICK_TASKS), (), _quickstart),
}


def atom_columns(skeletons: Skeletons) -> NDArray[np.int64]:
    """Return the five feature columns that the skeleton sets for each node, (N, 5).

    They are degree, implicit valence, hybridisation, hydrogens and aromatic (-1 if it is not). Two nodes with equal
    rows differ only in their element and their neighbours. Missing bonds up to four count as hydrogens, as in carbon,
    for every element.
    """
    ends = np.concatenate([skeletons.u, skeletons.v])
    kinds = np.concatenate([skeletons.kind, skeletons.kind])
    count = skeletons.n_nodes
    valence = np.bincount(ends, weights=_TWICE_ORDER[kinds], minlength=count).astype(np.int64)
    highest = np.zeros(count, dtype=np.int64)
    np.maximum.at(highest, ends, np.array([0, 1, 2, 1])[kinds])
    aromatic = np.zeros(count, dtype=bool)
    aromatic[ends[kinds == AROMATIC]] = True
    hydrogens = np.maximum(4 - (valence + 1) // 2, 0)
    return np.stack(
        [
            _COLUMN["degree=0"] + skeletons.degree(),
            _COLUMN["implicit_valence=0"] + hydrogens,
            _COLUMN["hybridisation=sp3"] - highest,
            _COLUMN["hydrogens=0"] + hydrogens,
            np.where(aromatic, _COLUMN["aromatic"], -1),
        ],
        axis=1,
    )


def one_hot(columns: Int64, elements: Int64) -> NDArray[np.int8]:
    """Return the features (N, 75) of nodes with these `atom_columns` (N, 5) and elements (N,), places in SYMBOLS."""
    x = np.zeros((len(elements), len(FEATURE_NAMES)), dtype=np.int8)
    rows = np.arange(len(elements))
    x[rows, elements] = 1
    for column in columns.T:
        x[rows[column >= 0], column[column >= 0]] = 1
    return x
