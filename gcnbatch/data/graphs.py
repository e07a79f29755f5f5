"""Graphs as flat arrays: a data set (`GraphSet`) and the gather of any of its graphs.

The arrays of a set of G graphs with N nodes and E stored edges are concatenated, never padded. Worked example: the
first of two graphs has nodes 0, 1, 2 and edges 0→1, 1→2, the second has one node and no edge::

    node_ptr = [0, 3, 4]      graph g owns the node rows  node_ptr[g] … node_ptr[g+1]-1
    edge_ptr = [0, 2, 2]      graph g owns the edge rows  edge_ptr[g] … edge_ptr[g+1]-1
    src      = [0, 1]         node numbers within the graph
    dst      = [1, 2]

An edge carries features from `src` to `dst`: row `dst` of the adjacency matrix has an entry in column `src`.
An undirected bond is stored as two edges. No function changes an array in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gcnbatch.data.graph_features import FeatureTable
from gcnbatch.data.schema import Header
from gcnbatch.data.sparse import is_sparse, joined_pointer, ragged_rows
from gcnbatch.text import counted, printable

if TYPE_CHECKING:
    import scipy.sparse as sp

Int64 = NDArray[np.int64]

# Arrays of a GraphSet by their rows; target rows are graphs, or nodes of a node-level set.
OF_EDGES = ("src", "dst", "channel", "weight")
OF_GRAPHS = ("groups", "times", "graph_features", "smiles")
OF_ROWS = ("y", "ids", "censored", "sample_weight")


@dataclass(frozen=True)
class Split:
    """Row numbers of one named split: int64, pairwise disjoint. Rows are graphs, or nodes of a node-level set."""

    train: Int64
    valid: Int64
    test: Int64

    def parts(self) -> dict[str, Int64]:
        """Return the three parts by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


class Edges(NamedTuple):
    """Stored edges, each array (E,): from `src` to `dst` in `channel`; float64 weights, 1 in an unweighted set."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    channel: NDArray[np.uint8]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class GraphSet:
    """A data set in memory.

    Parameters
    ----------
    header : Header
        Level, target kind, names, featuriser, source.
    node_ptr, edge_ptr : int64, (G+1,)
        First node and edge row of each graph; start at 0, never decrease.
    src, dst : int32, (E,)
        Node numbers within the edge's graph.
    channel : uint8, (E,)
        Adjacency channel of each edge, ``< len(header.channel_names)``.
    weight : float32, (E,) or None
        Edge weights; None means 1 everywhere.
    x : (N, F) uint8, int8, float16 or float32, or a float32 CSR array
        Node features.
    y : (R, K)
        Targets, one row per graph (R = G) or per node (R = N), as `header.level` says: float64 values of regression or
        float32 0 and 1, with NaN where missing; for ``target == "multiclass"`` int32 class numbers, K = 1, with -1
        where missing.
    ids : str array, (R,)
        The user's name of each row.
    groups : int32, (G,) or None
        Group of each graph (molecular scaffold) for grouped splits.
    splits : dict of Split
        The splits stored in the file.
    graph_features : FeatureTable or None
        Features of whole graphs; see `gcnbatch.data.graph_features`. A float32 array (G, D) is taken for one.
    smiles : str array, (G,), or None
        Molecules of the graphs, for drawings and the baseline. Sets that training reads from a file have none.
    censored : int8, (R, K), or None
        Of regression: 1 where the true value is above the stored one (``>10``), -1 where it is below (``<0.1``), 0
        where it is equal; None: all are equal.
    sample_weight : float32, (R,), or None
        Weight of each row in the losses of training, not negative; None: 1 everywhere.
    times : float64, (G,), or None
        Time of each graph for splits by time, larger is newer, NaN where missing: days since 1970, or any number.
    """

    header: Header
    node_ptr: Int64
    edge_ptr: Int64
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    channel: NDArray[np.uint8]
    weight: NDArray[np.float32] | None
    x: NDArray[Any] | sp.csr_array
    y: NDArray[Any]
    ids: NDArray[np.str_]
    groups: NDArray[np.int32] | None = None
    splits: dict[str, Split] = field(default_factory=dict)
    graph_features: FeatureTable | None = None
    smiles: NDArray[np.str_] | None = None
    censored: NDArray[np.int8] | None = None
    sample_weight: NDArray[np.float32] | None = None
    times: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        given: Any = self.graph_features
        if isinstance(given, np.ndarray):
            table = FeatureTable.of(given, self.header.graph_feature_counts)
            object.__setattr__(self, "graph_features", table)

    def __repr__(self) -> str:
        about = f"{counted(self.n_graphs, 'graph')}, {counted(self.n_nodes, 'node')}, {counted(self.n_edges, 'edge')}"
        targets = f"{self.header.target} targets of {counted(self.n_rows, 'row')}"
        return f"<GraphSet {printable(self.header.name)}: {about}, {targets}>"

    @property
    def n_graphs(self) -> int:
        """G, the number of graphs."""
        return len(self.node_ptr) - 1

    @property
    def n_nodes(self) -> int:
        """N, the number of nodes of all graphs."""
        return int(self.node_ptr[-1])

    @property
    def n_edges(self) -> int:
        """E, the number of stored edges of all graphs."""
        return int(self.edge_ptr[-1])

    @property
    def n_features(self) -> int:
        """F, the number of node features."""
        return int(self.x.shape[1])

    @property
    def n_rows(self) -> int:
        """R, the number of target rows: graphs, or nodes for a node-level set."""
        return self.n_graphs if self.header.level == "graph" else self.n_nodes

    def take(self, graphs: NDArray[np.integer[Any]] | Sequence[int]) -> GraphSet:
        """Return the graphs with these numbers, in this order (repeats allowed), as a new set without splits.

        Raises IndexError when a number is not one of 0 … G-1, TypeError when they are not whole numbers.
        """
        picked = graph_numbers(graphs, self.n_graphs)
        nodes, node_ptr = ragged_rows(self.node_ptr, picked)
        edges, edge_ptr = ragged_rows(self.edge_ptr, picked)
        rows = picked if self.header.level == "graph" else nodes
        places = dict.fromkeys(OF_EDGES, edges) | dict.fromkeys(OF_GRAPHS, picked) | dict.fromkeys(OF_ROWS, rows)
        arrays: dict[str, Any] = {name: getattr(self, name) for name in places}
        arrays = {name: None if array is None else array[places[name]] for name, array in arrays.items()}
        return replace(self, node_ptr=node_ptr, edge_ptr=edge_ptr, x=self.x[nodes], splits={}, **arrays)


def outline(
    header: Header, node_ptr: Int64, y: NDArray[Any], ids: NDArray[np.str_], dtype: DTypeLike, *, weighted: bool = False
) -> GraphSet:
    """Return graphs without edges and without rows of features, which `DatasetWriter.append_blocks` takes in blocks."""
    return GraphSet(
        header=header,
        node_ptr=node_ptr,
        edge_ptr=np.zeros_like(node_ptr),
        src=np.zeros(0, np.int32),
        dst=np.zeros(0, np.int32),
        channel=np.zeros(0, np.uint8),
        weight=np.zeros(0, np.float32) if weighted else None,
        x=np.zeros((0, header.n_features), dtype),
        y=y,
        ids=ids,
    )


def bounded_ranges(ptr: Int64, most: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges (first, stop) of segments: each of at most `most` rows, or of one larger segment.

    ``bounded_ranges([0, 3, 4, 9], 4)`` yields (0, 2) and (2, 3).
    """
    first, count = 0, len(ptr) - 1
    while first < count:
        stop = int(np.searchsorted(ptr, ptr[first] + most, side="right")) - 1
        stop = min(max(stop, first + 1), count)
        yield first, stop
        first = stop


def graph_numbers(graphs: NDArray[np.integer[Any]] | Sequence[int], n_graphs: int) -> Int64:
    """Return `graphs` as int64; refuse masks, fractions and negative numbers, which NumPy would reinterpret."""
    numbers = np.asarray(graphs)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise TypeError(f"graph numbers must be integers, not {numbers.dtype}")
    if numbers.size and (numbers.min() < 0 or numbers.max() >= n_graphs):
        raise IndexError(f"graph numbers must lie in 0 … {n_graphs - 1}")
    return numbers.astype(np.int64, copy=False)


def layout(graphs: GraphSet) -> dict[str, str]:
    """Return the properties that sets must share to be joined, in words, by name."""
    x, table = graphs.x, graphs.graph_features
    optional = {
        "edge weights": graphs.weight,
        "groups": graphs.groups,
        "censored targets": graphs.censored,
        "weights of rows": graphs.sample_weight,
        "times": graphs.times,
    }
    return {
        "rows per": graphs.header.level,
        "target": f"{graphs.header.target} of {counted(graphs.y.shape[1], 'column')}",
        "features": f"{'sparse' if is_sparse(x) else 'dense'} {x.dtype} of {counted(x.shape[1], 'column')}",
        **{name: "absent" if array is None else "present" for name, array in optional.items()},
        "graph features": "absent" if table is None else f"{table.shape[1]}, {counted(table.counts.n_cols, 'count')}",
    }


def concatenate(parts: Sequence[GraphSet]) -> GraphSet:
    """Join sets of the same layout into one, with the first one's header and without splits.

    Raises ValueError when the layouts differ.
    """
    first = parts[0]
    if len(parts) == 1:
        return replace(first, splits={})
    for part in parts[1:]:
        if layout(part) != layout(first):
            raise ValueError(f"cannot join sets of different layouts: {layout(first)} and {layout(part)}")

    def joined(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        if any(array is None for array in arrays):
            return None
        return FeatureTable.joined(arrays) if name == "graph_features" else np.concatenate(arrays)

    arrays: dict[str, Any] = {name: joined(name) for name in (*OF_EDGES, *OF_GRAPHS, *OF_ROWS)}
    arrays |= {name: joined_pointer([getattr(part, name) for part in parts]) for name in ("node_ptr", "edge_ptr")}
    return replace(first, x=stacked([part.x for part in parts]), splits={}, **arrays)


def stacked(features: list[Any]) -> Any:
    """Return the rows of all matrices, which are all sparse or all dense."""
    if not is_sparse(features[0]):
        return np.concatenate(features)
    import scipy.sparse as sp  # takes longer than the import of a small table of molecules

    return sp.vstack(features, format="csr")
