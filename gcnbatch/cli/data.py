"""``gcnbatch data``: describe, check, generate, import and extend data sets."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from gcnbatch.cli.command import command, messages
from gcnbatch.errors import InputError
from gcnbatch.options import datasets, imports
from gcnbatch.text import counted, printable

if TYPE_CHECKING:
    from gcnbatch.data.importers.common import ImportSummary

data = typer.Typer(
    no_args_is_help=True, help="Describe, check, generate, import and extend data sets.", rich_markup_mode=None
)
importing = typer.Typer(no_args_is_help=True, help="Convert other formats into a data set.", rich_markup_mode=None)
data.add_typer(importing, name="import")
_JSON = "Print JSON instead of text."
_ANNOUNCED = 256 << 20  # bytes of memory from which the cost of a preset is reported first


@command(datasets.KhopOptions, group=data)
def khop(**options: Any) -> None:
    """Let a layer see K hops.

    Powers of the adjacency become channels, or features are propagated K times (SGC).

    Graphs never mix, so many small graphs and one large graph both work. The command prints the expected size of the
    result before it starts. GPU and CPU give the same file, except for float32 rounding in dense features and in rows
    of more than 4,096 products.

    Examples:
      gcnbatch data khop tox21.h5 -o two.h5 --hops 2 --mode channels
      gcnbatch data khop cora.h5 -o cora_sgc.h5 --hops 2 --mode propagated
      gcnbatch data khop reddit.h5 -o two.h5 --hops 2 --mode channels --keep 50
    """
    from gcnbatch.api import files

    files.khop(**options, say=messages())
    print(options["out"])


@command(datasets.ShardOptions, group=data)
def shard(**options: Any) -> None:
    """Write a data set as a folder of shards.

    Shards are HDF5 files of consecutive graphs, with an index. The folder is a data set wherever a file is, with the
    same results to the bit. A shard is a data set, too. --size counts bytes in memory; files are smaller. After an
    error nothing is left, and after a kill the same command starts anew. Splits are kept; 'gcnbatch data split DIR'
    adds more.

    Examples:
      gcnbatch data shard library.h5 -o library --size 2GB
      gcnbatch train --data library
      gcnbatch data info library
    """
    from gcnbatch.api import files

    count = files.shard(**options, progress=True)
    print(f"{options['out']}: {counted(count, 'shard')}")


@command(datasets.SplitOptions, group=data)
def split(**options: Any) -> None:
    r"""Add a split or folds to a data set: of a table, or new.

    Words (train, valid, test) give one split. Numbers are folds: fold k gives the split NAME-k, which tests on fold k
    and, with three folds or more, validates on the next one. Rows without an entry are in no part.

    A new split is the one that a run with this [split] and seed 0 would make; split.folds makes NAME-0, NAME-1, …

    Examples:
      gcnbatch data split tox21.h5 --from split.csv
      gcnbatch data split tox21.h5 --kind scaffold    needs RDKit here alone
      gcnbatch data split tox21.h5 --kind cluster --set split.similarity=0.5
      gcnbatch train --data tox21.h5 --set split.kind=predefined \
          --set split.name=scaffold

    split.csv with parts     split.csv with folds
    id,split                 id,fold
    T1,train                 T1,0
    T2,test                  T2,1
    """
    from gcnbatch.api import files

    added = files.add_splits(**options, progress=True, say=messages())
    for title, parts in added.items():
        print(f"{title}: " + ", ".join(f"{part} {len(rows):,}" for part, rows in parts.parts().items()))
    print(options.get("out", options["path"]))


@command(datasets.DescribeOptions, group=data, as_json=_JSON)
def info(as_json: bool = False, **options: Any) -> None:
    """Describe a data set.

    Shown are sizes, distributions, channels, labels per task, splits and the origin.

    The file is checked first, as by 'gcnbatch data check'.

    Examples:
      gcnbatch data info tox21.h5
      gcnbatch data info tox21.h5 --plot tox21.png
      gcnbatch data info tox21.h5 --json | jq '.tasks[] | {name, missing}'
    """
    from gcnbatch.api import files
    from gcnbatch.cli.data_info import lines

    description = files.describe(**options)
    print(json.dumps(description.as_dict(), indent=2) if as_json else "\n".join(lines(description)))


@command(datasets.CheckOptions, group=data, as_json=_JSON)
def check(as_json: bool = False, **options: Any) -> None:
    """Check a file against all rules of the format.

    The first error is reported with its position in the file. For molecules, copies in different parts of a split are
    counted.

    Exit code 0 if the file is valid, 2 if not. With --json, the result is on stdout in both cases.

    Examples:
      gcnbatch data check tox21.h5
      gcnbatch data check tox21.h5 --json && gcnbatch train --data tox21.h5
    """
    from gcnbatch.api import files

    file = options["path"]
    try:
        counts = files.check(**options, say=lambda line: typer.echo(printable(line), err=True))
    except InputError as error:
        if as_json:
            print(json.dumps({"file": str(file), "valid": False, "error": str(error)}, indent=2))
        raise
    if as_json:
        print(json.dumps({"file": str(file), "valid": True, "checked": counts}, indent=2))
        return
    shown = ", ".join(counted(count, name.removesuffix("s"), name) for name, count in counts.items())
    print(f"{file}: valid. Checked structure, types, offsets, index ranges, numbers, labels, ids and splits: {shown}.")


@command(datasets.SynthOptions, group=data)
def synth(**options: Any) -> None:
    """Generate a data set.

    A GCN can learn its labels, a model of single atoms cannot.

    In the molecules, the bonds determine the labels, while the atoms alone are independent of them. In the networks,
    the neighbours predict the class far better than the node itself. Use these sets for timing and to check that
    training works, not for science.

    Many graphs; --graphs sets their number:
      quickstart   1,000 small graphs, 3 binary tasks; trains in seconds
      tox21        7,831 graphs, 12 binary tasks, a fifth of the labels missing
      reaction100  75,477 graphs of at most 50 nodes, 100 classes
    One graph; --scale sets its size:
      citation     2,708 nodes, 1,433 sparse features, 7 classes (as Cora)
      reddit       232,965 nodes, 114 million edges, 602 features, 41 classes
      products     2,449,029 nodes, 124 million edges, 100 features, 47 classes

    Examples:
      gcnbatch data synth tox21 -o tox21.h5
      gcnbatch data synth reaction100 -o small.h5 --graphs 5000 --bond-channels
      gcnbatch data synth reddit -o reddit.h5 --scale 0.1 --seed 7
    """
    from gcnbatch.api import files
    from gcnbatch.cli.text_tables import size
    from gcnbatch.data import synthetic

    preset, scale = options["preset"], options["scale"]
    synthetic.check_options(preset, options["seed"], options.get("graphs"), scale, options["bond_channels"])
    cost = None if preset in synthetic.MANY_GRAPHS else synthetic.forecast(preset, scale)
    if cost is not None and cost.memory > _ANNOUNCED:
        print(
            f"{preset}: {counted(cost.nodes, 'node')}, {counted(cost.edges, 'edge')}; this takes about "
            f"{size(cost.memory)} of memory and "
            f"makes a file of about {size(cost.disk)}. A smaller --scale takes less.",
            file=sys.stderr,
        )
    files.synth(**options, progress=True)
    print(options["out"])


@command(imports.ImportSmilesOptions, group=importing)
def smiles(**options: Any) -> None:
    r"""Molecules of a table or of a structure file.

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

    Examples:
      gcnbatch data import smiles tox21.csv.gz -o tox21.h5 --on-bad-row skip
      gcnbatch data import smiles delaney-processed.csv -o esol.h5 \
          --id-column "Compound ID" \
          --target-columns "measured log solubility in mols per litre"
    """
    from gcnbatch.api.imports import import_smiles

    _report(import_smiles(**options, progress=True))


@command(imports.ImportPlanetoidOptions, group=importing)
def planetoid(**options: Any) -> None:
    """Citation networks of the Planetoid repository.

    The folder has the files ind.NAME.*, with their public split.

    The files are Python pickles; their arrays are read as data, and no code in them is executed.

    Example:
      gcnbatch data import planetoid planetoid/data --name cora -o cora.h5
    """
    from gcnbatch.data.importers.planetoid import import_planetoid

    _report(import_planetoid(**options))


@command(imports.ImportTudatasetOptions, group=importing)
def tudataset(**options: Any) -> None:
    """A set of the TUDataset collection.

    The folder has the text files DS_A.txt, DS_graph_indicator.txt and so on.

    Graph labels become classes; without them, graph attributes become regression targets. Node labels (one-hot) and
    node attributes become features; without both, the degree is the feature (one-hot, 63 and more share a column). Each
    edge label is a channel.

    Example:
      gcnbatch data import tudataset MUTAG -o mutag.h5
    """
    from gcnbatch.data.importers.tudataset import import_tudataset

    _report(import_tudataset(**options))


@command(imports.ImportOgbOptions, group=importing)
def ogb(**options: Any) -> None:
    """A set of the Open Graph Benchmark.

    It is one of graphs (ogbg-…) or of nodes (ogbn-products, ogbn-arxiv). The folder has raw/ and split/.

    Whole-numbered node features of graphs become one-hot columns. Blank and nan labels are missing. The splits are
    kept. A node set is read in blocks; its ids come from mapping/. What is not read, such as node_year, is reported.

    Example:
      gcnbatch data import ogb dataset/ogbg_molhiv -o molhiv.h5
      gcnbatch data import ogb dataset/ogbn_products -o products.h5
    """
    from gcnbatch.data.importers.ogb import import_ogb

    _report(import_ogb(**options, progress=True))


@command(imports.ImportCsvOptions, group=importing, name="csv")
def plain_csv(**options: Any) -> None:
    r"""Plain tables (.csv, .xlsx, .parquet) of any other graphs.

    Names of graphs and nodes are arbitrary texts.

    Every node must be in N.csv. Its columns besides graph, node and the node targets are features and contain numbers.
    Each distinct text in the column channel (such as a bond type) becomes an adjacency channel. Omit the column graph
    in both tables if there is one graph. For a repeated edge, the first weight counts. Blank targets are missing, as NA
    and the like are; targets may have units and bounds, as those of molecules. Without features, the degree is the
    feature (one-hot, 63 and more share a column).

    The tables may be larger than memory, which holds only graphs and nodes. Edges and features are kept in temporary
    files next to FILE.h5: about 20 bytes per listed edge and 4 bytes per feature value.

    Graph targets:   E.csv            N.csv                    G.csv
                     graph,src,dst    graph,node,charge,ring   graph,toxic
                     g1,a,b           g1,a,0,1                 g1,1
                     g1,b,c           g1,b,-1,1                g2,

    Node targets:    E.csv            N.csv
    (one graph)      src,dst          node,age,label
                     p1,p2            p1,34,A
                     p2,p3            p2,51,

      gcnbatch data import csv --edges E.csv --nodes N.csv --graphs G.csv -o g.h5
      gcnbatch data import csv --edges E.csv --nodes N.csv --node-targets label \
          --task multiclass -o people.h5
    """
    from gcnbatch.data.importers.plain_csv import import_csv

    _report(import_csv(**options, progress=True))


def _report(summary: ImportSummary) -> None:
    from gcnbatch.cli.text_tables import table
    from gcnbatch.progress import write_line

    for note in summary.said():
        write_line(note)
    if summary.columns:
        rows = [("" if cell is None else cell for cell in cells) for cells in summary.columns]
        print("\n".join([*table(("column", "role", "kind", "labelled", "remark"), list(map(tuple, rows)), left=5), ""]))
    print("\n".join(map(printable, summary.lines())))
