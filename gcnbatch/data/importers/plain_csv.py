"""``data import csv``: an edge table, a node table and, for graph-level targets, a graph table.

The tables are read in blocks: graphs, nodes, edges. Then the file is written in blocks. Memory grows with the graphs
and nodes, not with the edges or features, which are kept on disk in between.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gcnbatch.data.graphs import GraphSet, outline
from gcnbatch.data.importers.common import DEGREE_NAMES, ImportSummary, with_self_channel, write_listed
from gcnbatch.data.importers.graph_tables import Nodes, read_edges, read_graphs, read_nodes
from gcnbatch.data.importers.scratch import Scratch
from gcnbatch.data.importers.targets import Targets
from gcnbatch.data.outputs import output_path
from gcnbatch.data.schema import Header
from gcnbatch.data.store import DatasetWriter
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.table import Table
from gcnbatch.errors import InputError
from gcnbatch.fileio import sha256
from gcnbatch.options.declaration import arguments
from gcnbatch.options.imports import ImportCsvOptions
from gcnbatch.progress import counter
from gcnbatch.text import printable

if TYPE_CHECKING:
    from tqdm import tqdm


@arguments(ImportCsvOptions)
def import_csv(given: ImportCsvOptions) -> ImportSummary:
    r"""Convert plain tables, text (also compressed), Excel or Parquet by their endings.

    Names of graphs and nodes are arbitrary texts, blank targets are missing labels.

    Raises
    ------
    InputError
        Names the table and the first wrong row.

    Notes
    -----
    Without a ``graph`` column, all nodes are one graph. For a repeated edge, the first weight counts. Without feature
    columns, the one-hot degree is the feature. Every node must be listed in `nodes`; `graphs` defines the order of the
    graphs. A node that lists its own self-loop keeps that one. During the import the folder of `out` also needs room
    for 9 to 13 bytes per edge (18 to 26 if undirected) and 4 bytes per feature value.

    Examples
    --------
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> tables = {
    ...     "E.csv": ["graph,src,dst", "g1,a,b", "g1,b,c"],
    ...     "N.csv": ["graph,node,charge", "g1,a,0", "g1,b,-1", "g1,c,0", "g2,a,1"],
    ...     "G.csv": ["graph,toxic", "g1,1", "g2,"],
    ... }
    >>> for name, lines in tables.items():
    ...     _ = Path(name).write_text("\n".join(lines))
    >>> gcnbatch.import_csv("g.h5", edges="E.csv", nodes="N.csv", graphs="G.csv").graphs
    2
    >>> gcnbatch.read("g.h5").y.tolist()
    [[1.0], [nan]]
    """
    files = [Path(file) for file in (given.edges, given.nodes, given.graphs) if file is not None]
    target, asked = output_path(given.out, files), TableFormat(given.delimiter, encoding=given.encoding)
    if (given.graphs is None) == (given.node_targets is None):
        got = "both --graphs and --node-targets" if given.graphs is not None else "neither --graphs nor --node-targets"
        raise InputError("targets", got, "a table of graphs with targets, or names of target columns in the node table")
    for file in files:
        with open_table(file, asked):  # report a wrong path before reading the other tables
            pass
    with DatasetWriter(target) as writer, Scratch(target) as scratch:
        known = columns = None
        notes: list[str] = []
        with _bar("reading", sum(file.stat().st_size for file in files), "B", given.progress) as bar:
            if given.graphs is not None:
                with open_table(Path(given.graphs), asked, bar.update) as table:
                    known, columns = read_graphs(table, given)
                    notes += _notes(table)
            with open_table(Path(given.nodes), asked, bar.update) as table:
                node_set = read_nodes(table, scratch, known, given)
                notes += _notes(table)
            with open_table(Path(given.edges), asked, bar.update) as table:
                edge_set = read_edges(table, scratch, node_set, given.undirected)
                notes += _notes(table)
        columns = columns or node_set.targets
        assert columns is not None  # one of the two tables has targets
        channel_names, loop_channel = with_self_channel(edge_set.channel_names, given.self_loops)
        source = {printable(file.name): f"sha256 {sha256(file)}" for file in files}
        targets = columns.finish()
        title = given.name or printable(target.path.stem)
        graphs = _outline(title, targets, node_set, channel_names, edge_set.file.weighted, source)
        with _bar("writing", edge_set.file.count + graphs.n_nodes, " rows", given.progress) as bar:
            blocks = edge_set.file.blocks(edge_set.channel_numbers, loop_channel, bar.update)
            rows = None if node_set.features is None else node_set.features.blocks(node_set.order, bar.update)
            written = write_listed(writer, graphs, blocks, rows, bar.update)
        writer.finish(written.header)
    summary = ImportSummary(target.path, written.header, notes=(*notes, *targets.notes))
    summary.add(written)
    return summary


def _notes(table: Table) -> list[str]:
    return [f"{table.path.name}: {note}" for note in table.notes]


def _bar(what: str, total: int, unit: str, progress: bool) -> tqdm[Any]:
    return counter(total, unit, what, scale=True, quiet=not progress, delay=0.5)


def _outline(
    name: str, targets: Targets, nodes: Nodes, channel_names: tuple[str, ...], weighted: bool, source: dict[str, str]
) -> GraphSet:
    """Return all graphs without edges and without rows of features."""
    by_node, features, bounds = nodes.targets is not None, nodes.features, targets.censored
    feature_names = DEGREE_NAMES if features is None else features.names
    header = Header(
        name=name,
        level="node" if by_node else "graph",
        **targets.in_header(),
        n_features=len(feature_names),
        feature_names=feature_names,
        channel_names=channel_names,
        source=source,
    )
    y = targets.y[nodes.order] if by_node else targets.y
    ids = nodes.ids() if by_node else np.array(list(nodes.graphs), dtype=np.str_)
    found = outline(header, nodes.node_ptr, y, ids, np.uint8 if features is None else features.dtype, weighted=weighted)
    return replace(found, censored=bounds[nodes.order] if by_node and bounds is not None else bounds)
