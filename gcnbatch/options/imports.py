"""Parameters of ``data import …`` and `from_smiles`: tables, molecules, folders of published sets."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

from gcnbatch.data.refusals import MAX_ATOMS
from gcnbatch.fileio import StrPath
from gcnbatch.options.common import Progress, names
from gcnbatch.options.declaration import Option, argument, declaration, option, python

Target = Literal["binary", "regression", "multiclass"]
AtomFeatures = Literal["deepchem75", "extended86"]
Descriptors = Literal["", "rdkit2d"]
Out = Annotated[StrPath, Option("Data set to write.", "-o", "--out", metavar="FILE.h5")]
SetName = Annotated[str, Option("Name of the data set. Default: the file's.")]
SelfLoops = Annotated[bool, Option("Store A + I or A.", "--self-loops/--no-self-loops")]
Undirected = Annotated[
    bool, Option("Store each listed edge in both directions, or only from src to dst.", "--undirected/--directed")
]
Task = Annotated[
    Target | None,
    Option(
        "Kind of the targets. Default: binary if all are 0, 1 or blank, else regression.",
        doc="Kind of the targets. Default: binary if all are 0, 1 or blank; of an OGB set, classes if one column holds "
        "0, 1, … C-1; else regression.",
    ),
]

OnBadRow = Annotated[
    Literal["fail", "skip"],
    Option(
        "Refuse a file with molecules that give no graph, or list them in FILE.skipped.csv.",
        doc="Refuse a file with molecules that give no graph, or leave them out and list them in ``FILE.skipped.csv``, "
        "beside the data set.",
    ),
]


@declaration
class TextOptions:
    """How a text table is written."""

    _: KW_ONLY
    delimiter: str = option("Sign between fields: comma, semicolon, tab or bar.", default="", shown="detected")
    missing: Sequence[str] = names(
        "Further texts of missing values, beside NA, None, ? and the like.", default=(), shown="none"
    )
    encoding: str = option("Encoding of text, such as cp1252.", default="", metavar="NAME", shown="UTF-8 or UTF-16")


@declaration
class ColumnOptions:
    """What the columns of a table of molecules are."""

    _: KW_ONLY
    smiles_column: str = option("Column of SMILES. Default: the one named smiles.", default="")
    id_column: str = option("Column of ids. Default: one named like id or mol_id, else row numbers.", default="")
    target_columns: Sequence[str] | None = names(
        "Columns of targets. Default: those that are clearly targets.", default=None
    )
    split_column: str = option(
        "Column of a split: train, valid and test, or numbers of folds.", default="", shown="none"
    )
    weight_column: str = option("Column of the weight of each row in training.", default="", shown="none")
    feature_columns: Sequence[str] = names(
        "Columns of numbers: your own features of molecules.", default=(), shown="none"
    )
    time_column: str = option(
        "Column of dates or numbers, for a split by time: the newest rows test.", default="", shown="none"
    )
    task: Target | None = option("Kind of the targets.", default=None, shown="by their values")


@declaration
class StandardOptions:
    """How molecules are standardised."""

    _: KW_ONLY
    largest_fragment: bool = option("Keep only the largest part of a salt or mixture.", default=False)
    neutralize: bool = option("Remove charges where hydrogens can balance them.", default=False)


@declaration
class TableOptions(ColumnOptions, TextOptions, StandardOptions):
    """How a table of molecules is read."""

    _: KW_ONLY
    decimal: str = option("Decimal sign: . or ,", default="", shown="detected")


@declaration
class MoleculeOptions(StandardOptions):
    """What a molecule becomes."""

    _: KW_ONLY
    bond_channels: bool = option(
        "A channel per bond type (single, double, triple, aromatic), and one for self-loops.", default=False
    )
    bond_properties: Sequence[str] = names(
        "Further channels of bonds: ring, conjugated, stereo.", default=(), shown="none"
    )
    atom_features: AtomFeatures = option(
        "Features of atoms; extended86 adds rings, chirality and mass.", default="deepchem75"
    )
    positional: str = option(
        "Random-walk encodings of atoms: K columns, such as rw8.",
        default="",
        metavar="rwK",
        shown="none",
        doc='``"rw8"``: eight columns of random-walk encodings per atom; empty: none.',
    )
    descriptors: Descriptors = option(
        "Features of molecules: RDKit's 2D descriptors.", default="", typed=Literal["rdkit2d"]
    )
    fingerprint: str = option(
        "Features of molecules: counts of fragments; one or more of morgan, morgan-chiral, morgan-feature, atompair.",
        default="",
        metavar="A,B,…",
        shown="none",
        doc='``"morgan,atompair"``: counts of circular fragments and of pairs of atoms; ``"morgan-chiral"`` tells '
        'fragments of different chirality apart, ``"morgan-feature"`` atoms by their role alone; empty: none.',
    )
    fingerprint_radius: int = option("Bonds from a circular fragment's centre.", default=2, min=0, max=10)
    fingerprint_size: int = option("Columns of each fingerprint.", default=2048, min=16, max=65536)
    self_loops: bool = option(
        "Store A + I; with --bond-channels, I is a channel of its own.",
        "--self-loops/--no-self-loops",
        default=True,
        doc="Store A + I; with `bond_channels`, I is a channel of its own.",
    )
    normalize: bool = option("Store D^-1/2 A D^-1/2 per channel as edge weights.", default=False)
    max_nodes: int = option("Molecules with more atoms are bad rows; 0: no limit.", default=MAX_ATOMS, min=0)
    processes: int = option("Processes that run RDKit; 0: one per processor.", default=0, min=0)


@declaration
class ImportSmilesOptions(TableOptions, MoleculeOptions):
    """``gcnbatch data import smiles``."""

    source: StrPath = argument(
        ".csv, .tsv, .txt, .smi or .sdf (also .gz, .bz2, .zst), .xlsx or .parquet.", metavar="FILE"
    )
    out: Out
    _: KW_ONLY
    no_targets: bool = option("Import a library: molecules without targets.", default=False)
    on_bad_row: OnBadRow = "fail"
    name: SetName = ""
    progress: Progress = False


@declaration
class FromSmilesOptions(MoleculeOptions):
    """`gcnbatch.from_smiles`."""

    smiles: Iterable[str] = python("A SMILES per row.")
    y: Any = python(
        "Targets, (R,) or (R, K), NaN or None where missing; classes from 0, -1 where missing. None: no targets.",
        default=None,
    )
    _: KW_ONLY
    task: Target | None = python(
        "Kind of the targets; None: binary if all are 0, 1 or missing, else regression.", default=None
    )
    task_names: Sequence[str] | None = python("Names of the K columns; default ``task0`` ….", default=None)
    class_names: Sequence[str] = python("Names of the classes; default ``0`` ….", default=())
    ids: Iterable[str] | None = python("Default: row numbers from 1.", default=None)
    features: Any = python(
        "Own features of the molecules, (R, D), NaN or None where missing, which a model joins to its readout.",
        default=None,
    )
    feature_names: Sequence[str] | None = python("Names of the D columns; default ``feature0`` ….", default=None)
    times: Any = python(
        "Time of each molecule for splits by time, (R,): numbers, dates of NumPy, or texts as in a table's column.",
        default=None,
    )
    name: str = python("Name of the data set.", default="molecules")


@declaration
class ImportPlanetoidOptions:
    """``gcnbatch data import planetoid``."""

    source: StrPath = argument(
        "Folder of the data set.", metavar="DIR", doc="Folder with ``ind.NAME.{y,tx,ty,allx,ally,graph,test.index}``."
    )
    out: Out
    _: KW_ONLY
    name: str = option("cora, citeseer, pubmed: NAME in ind.NAME.x.")
    row_normalize: bool = option(
        "Scale each node's features to sum 1 (Kipf).", "--row-normalize/--no-row-normalize", default=True
    )
    self_loops: SelfLoops = True


@declaration
class ImportTudatasetOptions:
    """``gcnbatch data import tudataset``."""

    source: StrPath = argument(
        "Folder of the data set.", metavar="DIR", doc="Folder with ``DS_A.txt`` and its other files."
    )
    out: Out
    _: KW_ONLY
    self_loops: SelfLoops = True


@declaration
class ImportOgbOptions:
    """``gcnbatch data import ogb``."""

    source: StrPath = argument(
        "Folder of the data set.", metavar="DIR", doc="Folder that holds ``raw/`` and ``split/``."
    )
    out: Out
    _: KW_ONLY
    task: Task = None
    undirected: Undirected = True
    self_loops: SelfLoops = True
    edge_channels: bool = option(
        "A channel per value of the first edge feature.",
        default=False,
        doc="A channel per value of the first edge feature, not one for all edges; graph sets only.",
    )
    progress: Progress = False


@declaration
class ImportCsvOptions(TextOptions):
    """``gcnbatch data import csv``."""

    out: Out
    _: KW_ONLY
    edges: StrPath = option(
        "Columns: graph,src,dst[,channel][,weight].",
        metavar="E.csv",
        doc="Columns ``graph, src, dst`` and optionally ``channel`` (any text) and ``weight`` (a number).",
    )
    nodes: StrPath = option(
        "Columns: graph,node, then features and node targets.",
        metavar="N.csv",
        doc="Columns ``graph, node``; other columns are features (numbers) or node targets.",
    )
    graphs: StrPath | None = option(
        "Columns: graph, then targets: a graph-level data set.",
        default=None,
        metavar="G.csv",
        doc="Columns ``graph`` and the targets, for a graph-level set.",
    )
    target_columns: Sequence[str] | None = names(
        "Targets in G.csv. Default: all columns but graph.",
        default=None,
        doc="Targets in `graphs`; None: all columns but ``graph``.",
    )
    node_targets: Sequence[str] | None = names(
        "Targets in N.csv: a node-level data set.",
        default=None,
        doc="Targets in `nodes`, for a node-level set. Give either this or `graphs`.",
    )
    task: Task = None
    undirected: Undirected = True
    self_loops: SelfLoops = True
    name: SetName = ""
    progress: Progress = False
