"""Data set files from Python, and the commands ``gcnbatch data …`` that do not import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gcnbatch import outputs
from gcnbatch.api.options import Settings, section
from gcnbatch.data import sharding, synthetic
from gcnbatch.data.outputs import output_path
from gcnbatch.data.store import Dataset
from gcnbatch.figures import FIGURE
from gcnbatch.text import QUOTED, printable

if TYPE_CHECKING:
    from gcnbatch.data.add_splits import NewSplits
    from gcnbatch.data.describe import Description
    from gcnbatch.data.graphs import Split
    from gcnbatch.fileio import StrPath

Say = Callable[[str], object]
_SHARD_BYTES = 2_000_000_000
_NEW_SPLITS = ("random", "stratified", "scaffold")


def describe(path: StrPath, *, plot: StrPath | None = None, memory_mb: int = 4096) -> Description:
    """Count and measure what a data set holds; the file is checked first.

    Parameters
    ----------
    path : path
        HDF5 file, or folder of shards.
    plot : path
        Also draw node counts, degrees and labels into this PNG file.
    memory_mb : int
        A set larger than this many MiB is read in slices.

    Raises
    ------
    InputError
        As for `check`.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.synth("quickstart", "quickstart.h5", graphs=60)
    >>> found = gcnbatch.describe("quickstart.h5")
    >>> found.graphs, found.header.target, len(found.tasks)
    (60, 'binary', 3)
    """
    from gcnbatch.data.describe import describe as measure

    drawn = None if plot is None else outputs.check(plot, FIGURE, [path] if Path(path).is_file() else [], "--plot")
    with Dataset(path, memory_mb) as dataset:
        found = measure(dataset)
        if drawn is not None:
            from gcnbatch.data.describe_figure import draw

            draw(found, dataset.y, drawn)
    return found


def check(path: StrPath, *, memory_mb: int = 4096, say: Say = lambda line: None) -> dict[str, int]:
    """Check a data set against all rules of the format; return what was counted.

    Parameters
    ----------
    path, memory_mb
        As for `describe`.
    say : callable
        Called with a note for each split with copies of a molecule in several parts.

    Raises
    ------
    InputError
        Names the first wrong position in the file.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.write("two.h5", gcnbatch.graph_set([[1], [2]], src=[0, 1], dst=[1, 0], y=[1]))
    >>> gcnbatch.check("two.h5")
    {'graphs': 1, 'nodes': 2, 'edges': 2, 'features': 1, 'targets': 1, 'splits': 0}
    """
    from gcnbatch.data.copies import across_splits

    with Dataset(path, memory_mb) as dataset:
        dataset.smiles()
        for note in across_splits(dataset, dataset.splits):
            say(note)
        return {
            "graphs": dataset.n_graphs,
            "nodes": int(dataset.node_ptr[-1]),
            "edges": int(dataset.edge_ptr[-1]),
            "features": dataset.header.n_features,
            "targets": dataset.y.size,
            "splits": len(dataset.splits),
        }


def synth(
    preset: str,
    out: StrPath,
    *,
    graphs: int | None = None,
    scale: float = 1.0,
    seed: int = 0,
    bond_channels: bool = False,
    progress: bool = False,
) -> None:
    """Generate a data set whose labels a GCN can learn, and a model of single atoms cannot.

    Parameters
    ----------
    preset : {"quickstart", "tox21", "reaction100", "citation", "reddit", "products"}
    out : path
        HDF5 file.
    graphs : int
        Number of graphs, for the first three presets; None: as in the set that they are named after.
    scale : float
        Size of the one graph of the others, at most 4.
    seed : int
        The same seed gives the same data.
    bond_channels : bool
        Molecules: a channel per bond type, and one for self-loops.
    progress : bool
        Show progress on stderr.

    Raises
    ------
    InputError
        For an unknown preset, or options that do not go with it.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.synth("tox21", "tox21.h5", graphs=20)
    >>> gcnbatch.read("tox21.h5").y.shape
    (20, 12)
    """
    synthetic.check_options(preset, seed, graphs, scale, bond_channels)
    synthetic.write(preset, output_path(out), seed, graphs, scale, bond_channels, progress)


def khop(
    path: StrPath,
    out: StrPath,
    *,
    hops: int,
    mode: Literal["channels", "propagated"],
    values: Literal["walks", "binary"] = "walks",
    normalize: bool | None = None,
    keep: int = 0,
    max_edges: int = 200_000_000,
    backend: str = "auto",
    device: int = 0,
    memory_mb: int = 4096,
    say: Say = lambda line: None,
) -> None:
    """Let a layer see K hops: powers of the adjacency as channels, or features that are propagated K times.

    Parameters
    ----------
    path, memory_mb
        As for `describe`.
    out : path
        HDF5 file.
    hops : int
        K, at most 64.
    mode : {"channels", "propagated"}
        Store A^2 … A^K as further channels, or replace the features X by S^K X.
    values : {"walks", "binary"}
        Weights of the new channels: sums over walks, or 1.
    normalize : bool
        Use D^-1/2 A D^-1/2: as weights of every channel, or to propagate; None: only to propagate.
    keep : int
        Keep so many largest entries of each row of a power; 0: all.
    max_edges : int
        Refuse a result with a larger expected size.
    backend : {"auto", "cpu", "cuda"}
    device : int
    say : callable
        Called with lines about the expected size.

    Raises
    ------
    InputError
        For options that do not go together, and a result above `max_edges`.

    Examples
    --------
    >>> import gcnbatch
    >>> path = gcnbatch.graph_set([[1], [2], [3]], src=[0, 1, 1, 2], dst=[1, 0, 2, 1], y=[1])  # 0 - 1 - 2
    >>> gcnbatch.write("path.h5", path)
    >>> gcnbatch.khop("path.h5", "two.h5", hops=2, mode="channels", backend="cpu")
    >>> two = gcnbatch.read("two.h5")
    >>> sorted(zip(two.src[two.channel == 1].tolist(), two.dst[two.channel == 1].tolist()))
    [(0, 0), (0, 2), (1, 1), (2, 0), (2, 2)]
    """
    from gcnbatch.backends.products import open_products
    from gcnbatch.data.khop import Options
    from gcnbatch.data.khop import write as write_khop

    normal = mode == "propagated" if normalize is None else normalize
    options = Options(hops, mode, values, normal, keep, max_edges)
    options.check()
    products = open_products(backend, device)
    with Dataset(path, memory_mb) as dataset:
        write_khop(dataset, out, options, products, say)


def shard(
    path: StrPath,
    out: StrPath,
    *,
    max_bytes: int = 0,
    max_graphs: int = 0,
    memory_mb: int = 4096,
    progress: bool = False,
) -> int:
    """Write a data set as a folder of shards, which is a data set wherever a file is; return their number.

    Parameters
    ----------
    path, memory_mb
        As for `describe`.
    out : path
        New or empty folder.
    max_bytes : int
        Most bytes of a shard in memory; without both limits, 2 GB.
    max_graphs : int
        Most graphs of a shard, in place of `max_bytes`.
    progress : bool
        Show progress on stderr.

    Raises
    ------
    InputError
        For both limits, a folder that holds something else, and a set of fewer than two graphs.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.synth("quickstart", "quickstart.h5", graphs=60)
    >>> gcnbatch.shard("quickstart.h5", "shards", max_graphs=20)
    3
    >>> gcnbatch.check("shards")["graphs"]
    60
    """
    from gcnbatch.errors import InputError

    if max_bytes and max_graphs:
        raise InputError("--size and --graphs", "both given", "one of them")
    limit = max_bytes or (0 if max_graphs else _SHARD_BYTES)
    with Dataset(path, memory_mb) as dataset:
        return len(sharding.shard(dataset, out, max_bytes=limit, max_graphs=max_graphs, progress=progress).shards)


def add_splits(
    path: StrPath,
    table: StrPath | None = None,
    *,
    kind: str | None = None,
    settings: Settings | None = None,
    out: StrPath | None = None,
    name: str = "",
    split_column: str = "",
    id_column: str = "",
    memory_mb: int = 4096,
    say: Say = lambda line: None,
) -> dict[str, Split]:
    r"""Add splits to a data set, of a table or new ones: one of parts, or one per fold; return them by name.

    A stored split needs neither a seed nor, for scaffolds, RDKit where it is used (``split.kind = "predefined"``).

    Parameters
    ----------
    path, memory_mb
        As for `describe`.
    table : path or None
        CSV or Parquet with a part (train, valid, test) or the number of a fold per id, or per row.
    kind : {"random", "stratified", "scaffold"} or None
        Kind of the new splits, in place of a table.
    settings : mapping or None
        Keys of section ``[split]`` for new splits, such as ``{"split.folds": 5}``.
    out : path
        HDF5 file; None: `path`.
    name : str
        Of the split; empty: the column's, or the kind.
    split_column, id_column : str
        Of the table. Empty: detected.
    say : callable
        Called with notes, such as the number of rows that are in no part.

    Raises
    ------
    InputError
        When the table does not fit the set, or a part would be empty.
    MachineError
        When RDKit is missing, for scaffolds.

    Examples
    --------
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> gcnbatch.write("molecules.h5", gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N"], [1, 2, 3], ids="abc"))
    >>> Path("split.csv").write_text("id,split\na,train\nb,valid\nc,test\n") > 0
    True
    >>> gcnbatch.add_splits("molecules.h5", "split.csv")["split"].test.tolist()
    [2]
    >>> list(gcnbatch.add_splits("molecules.h5", kind="random", settings={"split.folds": 3, "split.valid": 0}))
    ['random-0', 'random-1', 'random-2']
    """
    from gcnbatch.data import add_splits as adding

    if table is None or kind is not None or settings:
        source: adding.SplitTable | adding.NewSplits = _new_splits(
            kind, settings or {}, name, {"--from": table, "--split-column": split_column, "--id-column": id_column}
        )
    else:
        source = adding.SplitTable(Path(table), name, split_column, id_column)
    with Dataset(path, memory_mb) as dataset:
        added, notes = adding.add_splits(dataset, path if out is None else out, source)
    for note in notes:
        say(note)
    return added


def _new_splits(kind: str | None, settings: Settings, name: str, of_tables: dict[str, Any]) -> NewSplits:
    """Return what makes new splits; options `of_tables` must be empty."""
    from gcnbatch.data.add_splits import NewSplits
    from gcnbatch.errors import InputError

    if given := [option for option, value in of_tables.items() if value]:
        raise InputError(given[0], "given with --kind or --set", "a table, or a new split")
    if kind not in _NEW_SPLITS:
        got = "missing" if kind is None else printable(kind, QUOTED)
        raise InputError("--kind", got, f"{', '.join(_NEW_SPLITS)}; or a table with --from")
    config = section("split", settings, {("split", "kind"): kind})
    if config.split.repeats > 1:
        raise InputError("split.repeats", str(config.split.repeats), "1", "Give each split a --name and a split.seed.")
    return NewSplits(config.split, config.seed, name)
