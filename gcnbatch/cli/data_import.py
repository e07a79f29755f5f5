"""``gcnbatch data import``: one command per source format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gcnbatch.data.refusals import MAX_ATOMS

if TYPE_CHECKING:
    from gcnbatch.data.importers.common import ImportSummary

app = typer.Typer(no_args_is_help=True, help="Convert other formats into a data set.", rich_markup_mode=None)

TargetKind = Literal["binary", "regression", "multiclass"]
Out = Annotated[Path, typer.Option("-o", "--out", metavar="FILE.h5", help="Data set to write.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set.", show_default=False)]
TaskOption = Annotated[
    TargetKind | None,
    typer.Option("--task", help="Kind of the targets. Default: binary if all are 0, 1 or blank, else regression."),
]
Missing = Annotated[
    str,
    typer.Option(
        metavar="A,B,…", help="Further texts of missing values, beside NA, None, ? and the like.", show_default="none"
    ),
]
DelimiterOption = Annotated[
    str, typer.Option(help="Sign between fields: comma, semicolon, tab or bar.", show_default="detected")
]
EncodingOption = Annotated[
    str, typer.Option(metavar="NAME", help="Encoding of text, such as cp1252.", show_default="UTF-8 or UTF-16")
]
MoleculeTask = Annotated[
    TargetKind | None, typer.Option("--task", help="Kind of the targets.", show_default="by their values")
]
SelfLoops = Annotated[bool, typer.Option("--self-loops/--no-self-loops", help="Store A + I or A.")]
Name = Annotated[str, typer.Option("--name", help="Name of the data set. Default: the file's.", show_default=False)]
Undirected = Annotated[
    bool,
    typer.Option("--undirected/--directed", help="Store each listed edge in both directions, or only from src to dst."),
]

# \b keeps the lines of a paragraph as they are.
SMILES_EXAMPLES = """\b
Examples:
  gcnbatch data import smiles tox21.csv.gz -o tox21.h5 --on-bad-row skip
  gcnbatch data import smiles delaney-processed.csv -o esol.h5 \\
      --id-column "Compound ID" \\
      --target-columns "measured log solubility in mols per litre"
"""
PLANETOID_EXAMPLE = """\b
Example:
  gcnbatch data import planetoid planetoid/data --name cora -o cora.h5
"""
TUDATASET_EXAMPLE = """\b
Example:
  gcnbatch data import tudataset MUTAG -o mutag.h5
"""
OGB_EXAMPLE = """\b
Example:
  gcnbatch data import ogb dataset/ogbg_molhiv -o molhiv.h5
  gcnbatch data import ogb dataset/ogbn_products -o products.h5
"""
CSV_EXAMPLES = """\b
Graph targets:   E.csv            N.csv                    G.csv
                 graph,src,dst    graph,node,charge,ring   graph,toxic
                 g1,a,b           g1,a,0,1                 g1,1
                 g1,b,c           g1,b,-1,1                g2,
\b
Node targets:    E.csv            N.csv
(one graph)      src,dst          node,age,label
                 p1,p2            p1,34,A
                 p2,p3            p2,51,
\b
  gcnbatch data import csv --edges E.csv --nodes N.csv --graphs G.csv -o g.h5
  gcnbatch data import csv --edges E.csv --nodes N.csv --node-targets label \\
      --task multiclass -o people.h5
"""


def _report(summary: ImportSummary) -> None:
    from gcnbatch.cli.text_tables import table
    from gcnbatch.progress import write_line
    from gcnbatch.text import printable

    for note in summary.said():
        write_line(note)
    if summary.columns:
        rows = [("" if cell is None else cell for cell in cells) for cells in summary.columns]
        print("\n".join([*table(("column", "role", "kind", "labelled", "remark"), list(map(tuple, rows)), left=5), ""]))
    print("\n".join(map(printable, summary.lines())))


def _names(option: str | None) -> list[str] | None:
    from gcnbatch.data.importers.cells import split_names

    return None if option is None else split_names(option)


@app.command(epilog=SMILES_EXAMPLES)
def smiles(
    csv: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help=".csv, .tsv, .txt, .smi or .sdf (also .gz, .bz2, .zst), .xlsx or .parquet.",
            show_default=False,
        ),
    ],
    out: Out,
    smiles_column: Annotated[
        str, typer.Option(help="Column of SMILES. Default: the one named smiles.", show_default=False)
    ] = "",
    id_column: Annotated[
        str,
        typer.Option(help="Column of ids. Default: one named like id or mol_id, else row numbers.", show_default=False),
    ] = "",
    target_columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Columns of targets. Default: those that are clearly targets."),
    ] = None,
    no_targets: Annotated[
        bool, typer.Option("--no-targets", help="Import a library: molecules without targets.")
    ] = False,
    split_column: Annotated[
        str, typer.Option(help="Column of a split: train, valid and test, or numbers of folds.", show_default="none")
    ] = "",
    task: MoleculeTask = None,
    delimiter: DelimiterOption = "",
    decimal: Annotated[str, typer.Option(help="Decimal sign: . or ,", show_default="detected")] = "",
    missing: Missing = "",
    encoding: EncodingOption = "",
    largest_fragment: Annotated[
        bool, typer.Option("--largest-fragment", help="Keep only the largest part of a salt or mixture.")
    ] = False,
    neutralize: Annotated[
        bool, typer.Option("--neutralize", help="Remove charges where hydrogens can balance them.")
    ] = False,
    bond_channels: Annotated[
        bool, typer.Option("--bond-channels", help="A channel per bond type: single, double, triple, aromatic.")
    ] = False,
    bond_properties: Annotated[
        str,
        typer.Option(metavar="A,B,…", help="Further channels of bonds: ring, conjugated, stereo.", show_default="none"),
    ] = "",
    atom_features: Annotated[
        Literal["deepchem75", "extended86"],
        typer.Option(help="Features of atoms; extended86 adds rings, chirality and mass."),
    ] = "deepchem75",
    positional: Annotated[
        str,
        typer.Option(
            metavar="rwK", help="Random-walk encodings of atoms: K columns, such as rw8.", show_default="none"
        ),
    ] = "",
    descriptors: Annotated[
        Literal["rdkit2d"] | None, typer.Option(help="Features of molecules: RDKit's 2D descriptors.")
    ] = None,
    fingerprint: Annotated[
        Literal["morgan", "morgan-chiral"] | None,
        typer.Option(help="Features of molecules: counts of circular fragments."),
    ] = None,
    fingerprint_radius: Annotated[int, typer.Option(min=0, max=10, help="Bonds from a fragment's centre.")] = 2,
    fingerprint_size: Annotated[int, typer.Option(min=16, max=65536, help="Columns of the fingerprint.")] = 2048,
    feature_columns: Annotated[
        str,
        typer.Option(metavar="A,B,…", help="Columns of numbers: your own features of molecules.", show_default="none"),
    ] = "",
    self_loops: Annotated[
        bool,
        typer.Option(
            "--self-loops/--no-self-loops", help="Store A + I; with --bond-channels, I is a channel of its own."
        ),
    ] = True,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Store D^-1/2 A D^-1/2 per channel as edge weights.")
    ] = False,
    max_nodes: Annotated[
        int, typer.Option(min=0, help="Molecules with more atoms are bad rows; 0: no limit.")
    ] = MAX_ATOMS,
    on_bad_row: Annotated[
        Literal["fail", "skip"],
        typer.Option(help="Refuse a file with molecules that give no graph, or list them in FILE.skipped.csv."),
    ] = "fail",
    processes: Annotated[int, typer.Option(min=0, help="Processes that run RDKit; 0: one per processor.")] = 0,
    name: Name = "",
) -> None:
    """Molecules of a table or of a structure file.

    A table has a column of SMILES and columns of targets.

    The command prints what it uses each column for. A target is the only column that can be one, or all columns of
    0 and 1. NA, NaN, None, NULL, ND, n.d., ?, -, #N/A, #DIV/0! and blanks are missing. Labels such as active and
    inactive become 0 and 1; other texts become classes. Whole numbers that all differ, as ids do, are targets only
    where --target-columns names them.

    Numbers may have a unit (1.5 uM, 37 %): other units of its kind are converted to the most frequent one, and
    others are refused. 1,500.5 and 1 500 are numbers; say with --decimal what 1,500 is. >10 and <0.1 are kept as the
    numbers 10 and 0.1, with their direction.

    Atoms get DeepChem's 75 features, and more where asked for. Features of molecules (--descriptors, --fingerprint,
    --feature-columns) are joined to the model's readout; predictions from SMILES compute them again. A split by
    scaffold computes Murcko scaffolds from the stored SMILES. Blanks around a SMILES are ignored; a blank inside it is
    an error in the row. Put a column name with a comma in double quotes.
    """
    from gcnbatch.api.imports import import_smiles
    from gcnbatch.data.importers.cells import split_names

    summary = import_smiles(
        csv,
        out,
        smiles_column=smiles_column,
        id_column=id_column,
        target_columns=_names(target_columns),
        no_targets=no_targets,
        split_column=split_column,
        feature_columns=split_names(feature_columns),
        task=task,
        delimiter=delimiter,
        decimal=decimal,
        missing=split_names(missing),
        encoding=encoding,
        largest_fragment=largest_fragment,
        neutralize=neutralize,
        bond_channels=bond_channels,
        self_loops=self_loops,
        normalize=normalize,
        max_nodes=max_nodes,
        bond_properties=split_names(bond_properties),
        atom_features=atom_features,
        positional=positional,
        descriptors=descriptors or "",
        fingerprint=fingerprint or "",
        fingerprint_radius=fingerprint_radius,
        fingerprint_size=fingerprint_size,
        skip_bad_rows=on_bad_row == "skip",
        processes=processes,
        name=name,
        progress=True,
    )
    _report(summary)


@app.command(epilog=PLANETOID_EXAMPLE)
def planetoid(
    folder: Folder,
    name: Annotated[
        str, typer.Option("--name", help="cora, citeseer, pubmed: NAME in ind.NAME.x.", show_default=False)
    ],
    out: Out,
    row_normalize: Annotated[
        bool, typer.Option("--row-normalize/--no-row-normalize", help="Scale each node's features to sum 1 (Kipf).")
    ] = True,
    self_loops: SelfLoops = True,
) -> None:
    """Citation networks of the Planetoid repository.

    The folder has the files ind.NAME.*, with their public split.

    The files are Python pickles; their arrays are read as data, and no code in them is executed.
    """
    from gcnbatch.data.importers.planetoid import import_planetoid

    _report(import_planetoid(folder, out, name=name, row_normalize=row_normalize, self_loops=self_loops))


@app.command(epilog=TUDATASET_EXAMPLE)
def tudataset(folder: Folder, out: Out, self_loops: SelfLoops = True) -> None:
    """A set of the TUDataset collection.

    The folder has the text files DS_A.txt, DS_graph_indicator.txt and so on.

    Graph labels become classes; without them, graph attributes become regression targets. Node labels (one-hot) and
    node attributes become features; without both, the degree is the feature (one-hot, 63 and more share a column). Each
    edge label is a channel.
    """
    from gcnbatch.data.importers.tudataset import import_tudataset

    _report(import_tudataset(folder, out, self_loops=self_loops))


@app.command(epilog=OGB_EXAMPLE)
def ogb(
    folder: Folder,
    out: Out,
    task: TaskOption = None,
    undirected: Undirected = True,
    self_loops: SelfLoops = True,
    edge_channels: Annotated[
        bool, typer.Option("--edge-channels", help="A channel per value of the first edge feature.")
    ] = False,
) -> None:
    """A set of the Open Graph Benchmark.

    It is one of graphs (ogbg-…) or of nodes (ogbn-products, ogbn-arxiv). The folder has raw/ and split/.

    Whole-numbered node features of graphs become one-hot columns. Blank and nan labels are missing. The splits are
    kept. A node set is read in blocks; its ids come from mapping/. What is not read, such as node_year, is reported.
    """
    from gcnbatch.data.importers.ogb import import_ogb

    _report(
        import_ogb(
            folder,
            out,
            task=task,
            undirected=undirected,
            self_loops=self_loops,
            edge_channels=edge_channels,
            progress=True,
        )
    )


@app.command("csv", epilog=CSV_EXAMPLES)
def plain_csv(
    edges: Annotated[Path, typer.Option(metavar="E.csv", help="Columns: graph,src,dst[,channel][,weight].")],
    nodes: Annotated[Path, typer.Option(metavar="N.csv", help="Columns: graph,node, then features and node targets.")],
    out: Out,
    graphs: Annotated[
        Path | None, typer.Option(metavar="G.csv", help="Columns: graph, then targets: a graph-level data set.")
    ] = None,
    target_columns: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Targets in G.csv. Default: all columns but graph.")
    ] = None,
    node_targets: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Targets in N.csv: a node-level data set.")
    ] = None,
    task: TaskOption = None,
    undirected: Undirected = True,
    self_loops: SelfLoops = True,
    missing: Missing = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    name: Name = "",
) -> None:
    """Plain tables (.csv, .xlsx, .parquet) of any other graphs.

    Names of graphs and nodes are arbitrary texts.

    Every node must be in N.csv. Its columns besides graph, node and the node targets are features and contain numbers.
    Each distinct text in the column channel (such as a bond type) becomes an adjacency channel. Omit the column graph
    in both tables if there is one graph. For a repeated edge, the first weight counts. Blank targets are missing, as NA
    and the like are; targets may have units and bounds, as those of molecules. Without features, the degree is the
    feature (one-hot, 63 and more share a column).

    The tables may be larger than memory, which holds only graphs and nodes. Edges and features are kept in temporary
    files next to FILE.h5: about 20 bytes per listed edge and 4 bytes per feature value.
    """
    from gcnbatch.data.importers.cells import split_names
    from gcnbatch.data.importers.plain_csv import import_csv

    summary = import_csv(
        out,
        edges=edges,
        nodes=nodes,
        graphs=graphs,
        target_columns=_names(target_columns),
        node_targets=_names(node_targets),
        task=task,
        undirected=undirected,
        self_loops=self_loops,
        missing=split_names(missing),
        delimiter=delimiter,
        encoding=encoding,
        name=name,
        progress=True,
    )
    _report(summary)
