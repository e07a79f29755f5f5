"""One large graph whose node classes depend weakly on the features and strongly on the neighbours.

Classes have uneven sizes and nodes have power-law weights. A bond joins two nodes drawn by weight: from one class with
probability `homophily`, else from all classes. Features depend weakly on the class: words partly from the class's own
topic (``citation``), or a noisy class centre (``reddit``, ``products``). Averaging over neighbours reduces the noise; a
GCN does that, a classifier of single nodes cannot. Some nodes of ``reddit`` and ``products`` have the label of another
class. As on Reddit, features alone predict at most 58 % of the labels, a GCN with two layers 93 or 94 %. On
``products`` (scale 0.02), a linear model predicts 32 % from features alone and 84 % from means over two hops.

Source of Reddit's figures: Hamilton et al., "Inductive representation learning on large graphs", 2017 (0.585 from raw
features); 93.3 % for a GCN with two layers on the whole graph. ``products`` has the shape of ogbn-products: Hu et al.,
"Open Graph Benchmark: datasets for machine learning on graphs", 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch import __version__, philox
from gcnbatch.data.graphs import GraphSet, Int64, Split, outline
from gcnbatch.data.schema import Header
from gcnbatch.data.sparse import row_pointer
from gcnbatch.data.synthetic.bonds import Bonds, EdgeEnds

BOND_BLOCK = 250_000  # bonds drawn at a time
_NODE_BLOCK = 1_024  # rows of dense features drawn at a time
_HUB = 40.0  # largest node weight, in means: the hubs of Cora and Reddit have about 40 times the mean degree
_CLASS_FILL = 0.25  # most bonds, as a share of all pairs of nodes within classes of equal size
_DISK_PER_BOND, _DISK_PER_NODE = 3, 26  # bytes, measured
_MEMORY, _MEMORY_PER_BOND, _MEMORY_PER_NODE = 90_000_000, 11, 90  # bytes while a file is written, measured
_BYTES_PER_CSR_ROW = 50  # compressed
Advance = Callable[[int], object]


@dataclass(frozen=True)
class NetworkRecipe:
    """The shape of a network at scale 1.

    `bonds` is the number of undirected bonds without self-loops, `exponent` that of the power law of node weights.
    `words` is the mean number of words per node in sparse features (0: dense features). `signal` is the share of words
    from the class's topic, or the distance of class centres per feature in units of the noise. `mislabelled` is the
    share of nodes whose label is not the class that determined their bonds and features. `split` has the rows for
    training (per class if `per_class`), validation and test at scale 1.
    """

    nodes: int
    bonds: int
    classes: int
    features: int
    homophily: float
    exponent: float
    words: int
    signal: float
    mislabelled: float
    split: tuple[int, int, int]
    per_class: bool


RECIPES = {
    "citation": NetworkRecipe(2_708, 5_278, 7, 1_433, 0.75, 2.9, 18, 0.36, 0.0, (20, 500, 1_000), True),
    "reddit": NetworkRecipe(232_965, 57_307_946, 41, 602, 0.75, 2.2, 0, 0.1, 0.06, (153_431, 23_831, 55_703), False),
    "products": NetworkRecipe(
        2_449_029, 61_859_140, 47, 100, 0.75, 2.2, 0, 0.24, 0.15, (196_615, 39_323, 2_213_091), False
    ),
}


def size(preset: str, scale: float) -> tuple[int, int]:
    """Return (nodes, bonds) of a preset at a scale.

    The mean degree is that of scale 1, or less if classes are too small for so many bonds.
    """
    recipe = RECIPES[preset]
    nodes = max(round(recipe.nodes * scale), 20 * recipe.classes)
    pairs_within_classes = nodes * nodes / (2 * recipe.classes)
    return nodes, min(round(recipe.bonds * nodes / recipe.nodes), int(_CLASS_FILL * pairs_within_classes))


class Forecast(NamedTuple):
    """Size of a network: nodes, stored edges, bytes on disk, and bytes of memory while it is written."""

    nodes: int
    edges: int
    disk: int
    memory: int


def forecast(preset: str, scale: float) -> Forecast:
    """Return the expected cost of writing a network to a file, within about 20 %."""
    nodes, bonds = size(preset, scale)
    features = _BYTES_PER_CSR_ROW if RECIPES[preset].words else 2 * RECIPES[preset].features
    disk = bonds * _DISK_PER_BOND + nodes * (_DISK_PER_NODE + features)
    memory = _MEMORY + bonds * _MEMORY_PER_BOND + nodes * _MEMORY_PER_NODE
    return Forecast(nodes, 2 * bonds + nodes, disk, memory)


class Stream(NamedTuple):
    """A network that is generated while it is read.

    Parameters
    ----------
    graph : GraphSet
        Nodes, targets, ids and split, without edges and without rows of features.
    features : iterator
        Blocks of rows of x, in order.
    edges : iterator of (src, dst), int32
        Blocks of stored edges, ordered by (dst, src).
    """

    graph: GraphSet
    features: Iterator[Any]
    edges: Iterator[EdgeEnds]


def stream(preset: str, seed: int, scale: float = 1.0, advance: Advance = lambda _: None) -> Stream:
    """Return the network in blocks, with a split named "standard".

    This draws the bonds and calls `advance` with the number of new ones. They take 4 bytes each in memory; everything
    else is generated in blocks.
    """
    recipe = RECIPES[preset]
    nodes, bonds = size(preset, scale)
    rng = philox.generator(seed, f"synthetic.{preset}.labels")
    labels = rng.choice(recipe.classes, nodes, p=rng.dirichlet(np.full(recipe.classes, 8.0)))
    drawn = _draw_bonds(recipe, philox.generator(seed, f"synthetic.{preset}.bonds"), labels, bonds, advance)
    told = _mislabelled(recipe, philox.generator(seed, f"synthetic.{preset}.told"), labels).astype(np.int32)
    ids = np.array([f"n{number}" for number in range(nodes)])
    graph = outline(_header(preset, recipe, seed, scale), np.array([0, nodes]), told[:, None], ids, np.float16)
    split = _split(recipe, philox.generator(seed, f"synthetic.{preset}.split"), labels)
    graph = replace(graph, splits={"standard": split})
    return Stream(
        graph, _features(recipe, philox.generator(seed, f"synthetic.{preset}.features"), labels), drawn.edges()
    )


def generate(preset: str, seed: int, scale: float = 1.0, advance: Advance = lambda _: None) -> GraphSet:
    """Return the network as one part in memory."""
    return whole(stream(preset, seed, scale, advance))


def whole(made: Stream) -> GraphSet:
    """Return a network in memory."""
    graph, features, edges = made
    src, dst = (np.concatenate(column) for column in zip(*edges, strict=True))
    rows = list(features)
    return replace(
        graph,
        edge_ptr=np.array([0, len(src)]),
        src=src,
        dst=dst,
        channel=np.zeros(len(src), dtype=np.uint8),
        x=rows[0] if len(rows) == 1 else np.concatenate(rows),
    )


def blocks(made: Stream) -> Iterator[tuple[int, GraphSet]]:
    """Yield the edges of a network for `DatasetWriter.append_blocks`."""
    for src, dst in made.edges:
        channel = np.zeros(len(src), dtype=np.uint8)
        yield 0, replace(made.graph, edge_ptr=np.array([0, len(src)]), src=src, dst=dst, channel=channel)


def _header(preset: str, recipe: NetworkRecipe, seed: int, scale: float) -> Header:
    return Header(
        name=preset,
        level="node",
        target="multiclass",
        task_names=("class",),
        class_names=tuple(f"class{number}" for number in range(recipe.classes)),
        n_features=recipe.features,
        channel_names=("edge",),
        source={
            "generator": f"gcnbatch {__version__} data synth {preset}",
            "seed": str(seed),
            "scale": str(scale),
        },
    )


def _mislabelled(recipe: NetworkRecipe, rng: np.random.Generator, labels: Int64) -> Int64:
    """Return the labels for the file: a share of them is replaced by that of another class."""
    wrong = rng.random(len(labels)) < recipe.mislabelled
    other: Int64 = (labels + rng.integers(1, recipe.classes, len(labels))) % recipe.classes
    return np.where(wrong, other, labels)


def _draw_bonds(recipe: NetworkRecipe, rng: np.random.Generator, labels: Int64, bonds: int, advance: Advance) -> Bonds:
    """Draw `bonds` distinct undirected bonds; repeat with the missing number until all are found."""
    nodes = len(labels)
    by_class = np.argsort(labels, kind="stable")
    weight = (1.0 - rng.random(nodes)) ** (-1.0 / (recipe.exponent - 1.0))
    np.minimum(weight, _HUB * weight.mean(), out=weight)
    reach = np.concatenate([np.zeros(1), np.cumsum(weight[by_class])])
    class_start = np.searchsorted(labels[by_class], np.arange(recipe.classes + 1))
    low, high = reach[class_start[labels]], reach[class_start[labels + 1]]

    def draw(count: int) -> Int64:
        """Return at most `count` bonds as keys smaller * nodes + larger, without self-loops."""
        a = _pick(reach, by_class, rng.random(count) * reach[-1])
        inside = rng.random(count) < recipe.homophily
        start, stop = np.where(inside, low[a], 0.0), np.where(inside, high[a], reach[-1])
        b = _pick(reach, by_class, start + rng.random(count) * (stop - start))
        return (np.minimum(a, b) * nodes + np.maximum(a, b))[a != b]

    found = Bonds(nodes)
    while missing := bonds - found.count:
        for first in range(0, missing, BOND_BLOCK):
            found.add(draw(min(BOND_BLOCK, missing - first)))
        found.settle()
        advance(missing - (bonds - found.count))
    return found


def _pick(reach: NDArray[np.float64], by_class: Int64, point: NDArray[np.float64]) -> Int64:
    place = np.searchsorted(reach, point, side="right") - 1
    return by_class[np.minimum(place, len(by_class) - 1)]


def _features(recipe: NetworkRecipe, rng: np.random.Generator, labels: Int64) -> Iterator[Any]:
    return iter([_words(recipe, rng, labels)]) if recipe.words else _centres(recipe, rng, labels)


def _words(recipe: NetworkRecipe, rng: np.random.Generator, labels: Int64) -> sp.csr_array:
    """Return the words of each node, rows with sum 1; words follow a Zipf law, some from the class's topic."""
    nodes, vocabulary = len(labels), recipe.features
    popularity = 1.0 / np.arange(10, vocabulary + 10)
    popularity /= popularity.sum()
    topic = rng.permuted(np.tile(np.arange(vocabulary), (recipe.classes, 1)), axis=1)  # rank -> word, by class
    counts = 1 + rng.poisson(recipe.words - 1, nodes)
    node = np.repeat(np.arange(nodes), counts)
    word = rng.choice(vocabulary, len(node), p=popularity)
    own = rng.random(len(node)) < recipe.signal
    word[own] = topic[labels[node[own]], word[own]]
    key = np.unique(node * vocabulary + word)
    node, word = key // vocabulary, key % vocabulary
    indptr = row_pointer(np.bincount(node, minlength=nodes))
    share = (1.0 / np.diff(indptr))[node].astype(np.float32)
    return sp.csr_array((share, word.astype(np.int32), indptr.astype(np.int32)), shape=(nodes, vocabulary))


def _centres(recipe: NetworkRecipe, rng: np.random.Generator, labels: Int64) -> Iterator[NDArray[np.float16]]:
    """Yield standard normal noise around a centre per class, (N, F), block by block."""
    centres = recipe.signal * rng.standard_normal((recipe.classes, recipe.features), dtype=np.float32)
    for first in range(0, len(labels), _NODE_BLOCK):
        rows = labels[first : first + _NODE_BLOCK]
        noise = rng.standard_normal((len(rows), recipe.features), dtype=np.float32)
        yield (noise + centres[rows]).astype(np.float16)


def _split(recipe: NetworkRecipe, rng: np.random.Generator, labels: Int64) -> Split:
    """Return the split of the recipe; below scale 1, its sizes shrink in proportion."""
    order = rng.permutation(len(labels))
    share = min(1.0, len(labels) / recipe.nodes)
    train, valid, test = (max(1, int(part * share)) for part in recipe.split)
    if recipe.per_class:
        rank = np.empty(len(labels), dtype=np.int64)
        grouped = order[np.argsort(labels[order], kind="stable")]
        start = np.searchsorted(labels[grouped], np.arange(recipe.classes))
        rank[grouped] = np.arange(len(labels)) - start[labels[grouped]]
        chosen = np.sort(np.flatnonzero(rank < train))
        rest = order[rank[order] >= train]
    else:
        chosen, rest = np.sort(order[:train]), order[train:]
    return Split(chosen, np.sort(rest[:valid]), np.sort(rest[valid : valid + test]))
