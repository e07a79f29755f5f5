"""``gcnbatch data import``: one command per source format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from gcnbatch.cli.command import command
from gcnbatch.options.imports import (
    ImportCsvOptions,
    ImportOgbOptions,
    ImportPlanetoidOptions,
    ImportSmilesOptions,
    ImportTudatasetOptions,
)

if TYPE_CHECKING:
    from gcnbatch.data.importers.common import ImportSummary

app = typer.Typer(no_args_is_help=True, help="Convert other formats into a data set.", rich_markup_mode=None)

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


@app.command(epilog=SMILES_EXAMPLES)
@command(ImportSmilesOptions)
def smiles(**options: Any) -> None:
    """Molecules of a table or of a structure file.

    A table has a column of SMILES and columns of targets.

    The command prints what it uses each column for. A target is the only column that can be one, or all columns of
    0 and 1. NA, NaN, None, NULL, ND, n.d., ?, -, #N/A, #DIV/0! and blanks are missing. Labels such as active and
    inactive become 0 and 1; other texts become classes. Whole numbers that all differ, as ids do, are targets only
    where --target-columns names them.

    Numbers may have a unit (1.5 uM, 37 %): other units of its kind are converted to the most frequent one, and
    others are refused. 1,500.5 and 1 500 are numbers; say with --decimal what 1,500 is. >10 and <0.1 are kept as the
    numbers 10 and 0.1, with their direction. The name of a column may state the unit of numbers without one, as
    IC50 (nM) and IC50_nM do.

    Atoms get DeepChem's 75 features, and more where asked for. Features of molecules (--descriptors, --fingerprint,
    --feature-columns) are joined to the model's readout; predictions from SMILES compute them again. A split by
    scaffold or cluster computes these from the stored SMILES. --time-column names dates (2020-01-31, 31.01.2020,
    1/31/2020, …) or numbers for a split by time. Blanks around a SMILES are ignored; a blank inside it is
    an error in the row. Put a column name with a comma in double quotes.
    """
    from gcnbatch.api.imports import import_smiles

    _report(import_smiles(**options, progress=True))


@app.command(epilog=PLANETOID_EXAMPLE)
@command(ImportPlanetoidOptions)
def planetoid(**options: Any) -> None:
    """Citation networks of the Planetoid repository.

    The folder has the files ind.NAME.*, with their public split.

    The files are Python pickles; their arrays are read as data, and no code in them is executed.
    """
    from gcnbatch.data.importers.planetoid import import_planetoid

    _report(import_planetoid(**options))


@app.command(epilog=TUDATASET_EXAMPLE)
@command(ImportTudatasetOptions)
def tudataset(**options: Any) -> None:
    """A set of the TUDataset collection.

    The folder has the text files DS_A.txt, DS_graph_indicator.txt and so on.

    Graph labels become classes; without them, graph attributes become regression targets. Node labels (one-hot) and
    node attributes become features; without both, the degree is the feature (one-hot, 63 and more share a column). Each
    edge label is a channel.
    """
    from gcnbatch.data.importers.tudataset import import_tudataset

    _report(import_tudataset(**options))


@app.command(epilog=OGB_EXAMPLE)
@command(ImportOgbOptions)
def ogb(**options: Any) -> None:
    """A set of the Open Graph Benchmark.

    It is one of graphs (ogbg-…) or of nodes (ogbn-products, ogbn-arxiv). The folder has raw/ and split/.

    Whole-numbered node features of graphs become one-hot columns. Blank and nan labels are missing. The splits are
    kept. A node set is read in blocks; its ids come from mapping/. What is not read, such as node_year, is reported.
    """
    from gcnbatch.data.importers.ogb import import_ogb

    _report(import_ogb(**options, progress=True))


@app.command("csv", epilog=CSV_EXAMPLES)
@command(ImportCsvOptions)
def plain_csv(**options: Any) -> None:
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
    from gcnbatch.data.importers.plain_csv import import_csv

    _report(import_csv(**options, progress=True))
