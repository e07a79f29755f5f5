"""Data sets as arrays: from SMILES, from NumPy or device arrays, from files and to files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gcnbatch.api import arrays
from gcnbatch.api.imports import featurizer
from gcnbatch.data.graphs import GraphSet, Split, concatenate
from gcnbatch.data.importers.smiles import computed_names
from gcnbatch.data.molecule_features import count_columns, rdkit_version
from gcnbatch.data.molecule_graphs import featurize, graph_part
from gcnbatch.data.molecule_groups import scaffolds_of
from gcnbatch.data.outputs import output_path
from gcnbatch.data.schema import MURCKO, Header, Level, Target
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import check_graphset, write_graphset
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.imports import FromSmilesOptions

if TYPE_CHECKING:
    from gcnbatch.fileio import StrPath


def read(path: StrPath, *, memory_mb: int = 4096, scaffolds: bool = False) -> GraphSet:
    """Read a data set file as arrays; every value is checked.

    Parameters
    ----------
    path : path
        An HDF5 file of format "gcnbatch".
    memory_mb : int
        Limit in MiB.
    scaffolds : bool
        Compute Murcko scaffolds as groups, for a split by scaffold; a file has the SMILES for them.

    Raises
    ------
    InputError
        Names the array's path in the file and the first wrong position.
    MachineError
        When the arrays take more than `memory_mb`, or RDKit is missing for scaffolds.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.write("two.h5", gcnbatch.from_smiles(["CCO", "c1ccccc1"], [0.2, 1.9]))
    >>> graphs = gcnbatch.read("two.h5")
    >>> graphs.node_ptr.tolist(), graphs.x.shape, graphs.y.tolist()
    ([0, 3, 9], (9, 75), [[0.2], [1.9]])
    """
    with Dataset(path, memory_mb) as dataset:
        smiles = dataset.smiles()
        texts = None if smiles is None else np.array(smiles, dtype=np.str_)
        graphs = replace(dataset.load(), smiles=texts)
        return replace(graphs, groups=scaffolds_of(dataset)) if scaffolds else graphs


def write(path: StrPath, graphs: GraphSet, *, smiles: Sequence[str] | None = None) -> None:
    """Write a data set file; it appears when it is complete.

    Parameters
    ----------
    path : path
    graphs : GraphSet
    smiles : sequence of str
        The SMILES of each graph, for drawings and the baseline; None: `graphs.smiles`.

    Raises
    ------
    InputError
        When an array breaks a rule of the format, the arguments are in another order, or the file that is there is no
        data set.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.write("library.h5", gcnbatch.from_smiles(["CCO", "c1ccccc1"]))
    >>> gcnbatch.read("library.h5").smiles.tolist()
    ['CCO', 'c1ccccc1']
    """
    if isinstance(path, GraphSet) or not isinstance(graphs, GraphSet):
        got = f"called with {type(path).__name__}, {type(graphs).__name__}"
        raise InputError("gcnbatch.write", got, "a path, then a GraphSet")
    target = output_path(path, any_name=True)
    given = graphs if smiles is None else replace(graphs, smiles=np.array(list(smiles), dtype=np.str_))
    check_graphset(str(path), given)
    write_graphset(target, given)


@arguments(FromSmilesOptions)
def from_smiles(given: FromSmilesOptions) -> GraphSet:
    """Convert SMILES into graphs, with Murcko scaffolds as groups.

    Raises
    ------
    InputError
        For a molecule that gives no graph, with its row; for targets that do not fit.
    MachineError
        Without RDKit (extra ``chem``).

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1"], [[1, None], [0, 1]], task_names=["toxic", "active"])
    >>> graphs.n_graphs, graphs.header.target, graphs.y.tolist()
    (2, 'binary', [[1.0, nan], [0.0, 1.0]])
    """
    texts = [str(text) for text in given.smiles]
    if not texts:
        raise InputError("smiles", "no molecule", "at least one")
    options = featurizer(given)
    own, own_names = arrays.own_features(given.features, given.feature_names, len(texts))
    computed = computed_names(options, own_names)
    found = arrays.targets(given.y, len(texts), given.task, given.task_names, given.class_names)
    header = Header(
        name=given.name,
        level="graph",
        target=found.kind,
        task_names=found.task_names,
        class_names=found.class_names,
        n_features=len(options.feature_names),
        feature_names=options.feature_names,
        graph_feature_names=(*own_names, *computed),
        graph_feature_counts=count_columns(options),
        channel_names=options.channel_names,
        normalized=given.normalize,
        group_kind=MURCKO,
        featurizer=options.to_header() | ({"rdkit": rdkit_version()} if computed else {}),
    )
    names = arrays.ids_of(given.ids, len(texts))
    numbers: dict[str, int] = {}
    parts = []
    for made in featurize(texts, options, processes=given.processes, scaffolds=True):
        if made.bad:
            bad = made.bad[0]
            raise InputError(f"smiles, row {bad.index + 1}, {texts[bad.index]!a}", bad.reason, "a molecule")
        groups = [numbers.setdefault(scaffold, len(numbers)) for scaffold in made.scaffolds]
        rows, numbered = made.rows, np.array(groups, dtype=np.int32)
        columns = own[rows] if own_names else None
        parts.append(graph_part(made, header, found.y[rows], names[rows], numbered, columns))
    smiles = np.array([text.strip() for text in texts], dtype=np.str_)
    return replace(concatenate(parts), smiles=smiles, times=arrays.times_of(given.times, len(texts)))


def graph_set(
    x: Any,
    src: Any,
    dst: Any,
    y: Any = None,
    *,
    node_ptr: Any = None,
    edge_ptr: Any = None,
    channel: Any = None,
    weight: Any = None,
    level: Level = "graph",
    task: Target | None = None,
    task_names: Sequence[str] | None = None,
    class_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    channel_names: Sequence[str] | None = None,
    ids: Iterable[str] | None = None,
    groups: Any = None,
    sample_weight: Any = None,
    times: Any = None,
    splits: Mapping[str, Split] | None = None,
    normalized: bool = False,
    name: str = "arrays",
) -> GraphSet:
    """Make a data set of arrays and check it. Arrays may be of any library; those of a device are copied.

    Parameters
    ----------
    x : array-like or CSR array, (N, F)
        Node features of all graphs.
    src, dst : array-like of int, (E,)
        Ends of the edges: node numbers within their graph. An undirected edge is given twice.
    y : array-like, (R,) or (R, K)
        Targets as for `from_smiles`, per graph or per node.
    node_ptr, edge_ptr : array-like of int, (G+1,)
        First node and edge row of each graph; None: one graph.
    channel : array-like of int, (E,)
        Adjacency channel of each edge; None: one channel.
    weight : array-like, (E,)
        Edge weights; None: 1.
    level : {"graph", "node"}
        Whether a row of `y` is that of a graph or of a node.
    task, task_names, class_names, ids
        As for `from_smiles`.
    groups : array-like of int, (G,)
        Group of each graph, for the split by scaffold.
    sample_weight : array-like, (R,)
        Weight of each row in the losses of training; None: 1.
    times : array-like, (G,)
        Time of each graph, for the split by time; as for `from_smiles`.
    splits : mapping of Split
        Splits by name.
    normalized : bool
        Whether the weights are D^-1/2 A D^-1/2 per channel.

    Raises
    ------
    InputError
        Names the array and the first wrong position.

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.graph_set(  # two graphs: three nodes and two edges, one node
    ...     x=[[1, 0], [0, 1], [1, 1], [0, 1]], src=[0, 1], dst=[1, 2], y=[1, 0], node_ptr=[0, 3, 4], edge_ptr=[0, 2, 2]
    ... )
    >>> graphs.n_graphs, graphs.x.dtype.name, graphs.header.target
    (2, 'uint8', 'binary')
    """
    features = arrays.node_features(x)
    sources = arrays.integers(src, np.int32, "src")
    nodes = np.array([0, features.shape[0]]) if node_ptr is None else arrays.to_host(node_ptr, "node_ptr")
    edges = np.array([0, len(sources)]) if edge_ptr is None else arrays.to_host(edge_ptr, "edge_ptr")
    rows = len(nodes) - 1 if level == "graph" else features.shape[0]
    found = arrays.targets(y, rows, task, task_names, class_names)
    channels = np.zeros(len(sources), np.uint8) if channel is None else arrays.integers(channel, np.uint8, "channel")
    names = channel_names or [f"channel{number}" for number in range(int(channels.max(initial=0)) + 1)]
    header = Header(
        name=name,
        level=level,
        target=found.kind,
        task_names=found.task_names,
        class_names=found.class_names,
        n_features=features.shape[1],
        feature_names=tuple(feature_names),
        channel_names=tuple(names),
        normalized=normalized,
        group_kind="" if groups is None else "group",
    )
    graphs = GraphSet(
        header=header,
        node_ptr=arrays.integers(nodes, np.int64, "node_ptr"),
        edge_ptr=arrays.integers(edges, np.int64, "edge_ptr"),
        src=sources,
        dst=arrays.integers(dst, np.int32, "dst"),
        channel=channels,
        weight=arrays.weights(weight, "weight"),
        x=features,
        y=found.y,
        ids=arrays.ids_of(ids, rows),
        groups=None if groups is None else arrays.integers(groups, np.int32, "groups"),
        splits=dict(splits or {}),
        sample_weight=arrays.weights(sample_weight, "sample_weight"),
        times=arrays.times_of(times, len(nodes) - 1),
    )
    check_graphset("graph_set", graphs)
    return graphs
