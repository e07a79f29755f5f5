"""Data set files from Python, and the commands ``gcnbatch data …`` that do not import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import outputs
from gcnbatch.api.options import section
from gcnbatch.backends import registry
from gcnbatch.data import sharding, synthetic
from gcnbatch.data.outputs import output_path
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.figures import FIGURE
from gcnbatch.options.common import Settings
from gcnbatch.options.datasets import (
    CheckOptions,
    DescribeOptions,
    KhopOptions,
    ShardOptions,
    SplitOptions,
    SynthOptions,
)
from gcnbatch.options.declaration import arguments
from gcnbatch.text import QUOTED, printable

if TYPE_CHECKING:
    from gcnbatch.data.add_splits import NewSplits
    from gcnbatch.data.describe import Description
    from gcnbatch.data.graphs import Split

Say = Callable[[str], object]
_SHARD_BYTES = 2_000_000_000
_NEW_SPLITS = ("random", "stratified", "scaffold", "cluster", "time")


@arguments(DescribeOptions)
def describe(given: DescribeOptions) -> Description:
    """Count and measure what a data set holds; the file is checked first.

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

    drawn = (
        None
        if given.plot is None
        else outputs.check(given.plot, FIGURE, [given.path] if Path(given.path).is_file() else [], "--plot")
    )
    with Dataset(given.path, given.memory_mb) as dataset:
        found = measure(dataset)
        if drawn is not None:
            from gcnbatch.data.describe_figure import draw

            draw(found, dataset.y, drawn)
    return found


@arguments(CheckOptions)
def check(given: CheckOptions) -> dict[str, int]:
    """Check a data set against all rules of the format; return what was counted.

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

    with Dataset(given.path, given.memory_mb) as dataset:
        dataset.smiles()
        for note in across_splits(dataset, dataset.splits):
            given.say(note)
        return {
            "graphs": dataset.n_graphs,
            "nodes": int(dataset.node_ptr[-1]),
            "edges": int(dataset.edge_ptr[-1]),
            "features": dataset.header.n_features,
            "targets": dataset.y.size,
            "splits": len(dataset.splits),
        }


@arguments(SynthOptions)
def synth(given: SynthOptions) -> None:
    """Generate a data set whose labels a GCN can learn, and a model of single atoms cannot.

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
    synthetic.check_options(given.preset, given.seed, given.graphs, given.scale, given.bond_channels)
    synthetic.write(
        given.preset, output_path(given.out), given.seed, given.graphs, given.scale, given.bond_channels, given.progress
    )


@arguments(KhopOptions)
def khop(given: KhopOptions) -> None:
    """Let a layer see K hops: powers of the adjacency as channels, or features that are propagated K times.

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
    from gcnbatch.backends.products import HostProducts, open_products
    from gcnbatch.data.khop import check
    from gcnbatch.data.khop import write as write_khop

    if given.normalize is None:
        given = replace(given, normalize=given.mode == "propagated")
    check(given)
    products = open_products(given.backend, given.device)
    if isinstance(products, HostProducts):
        registry.report_on_host(f"backend {products.name}", given.device, None, given.say)
    with Dataset(given.path, given.memory_mb) as dataset:
        write_khop(dataset, given.out, given, products, given.say)


@arguments(ShardOptions)
def shard(given: ShardOptions) -> int:
    """Write a data set as a folder of shards, which is a data set wherever a file is; return their number.

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
    if given.max_bytes and given.max_graphs:
        raise InputError("--size and --graphs", "both given", "one of them")
    limit = given.max_bytes or (0 if given.max_graphs else _SHARD_BYTES)
    with Dataset(given.path, given.memory_mb) as dataset:
        return len(
            sharding.shard(
                dataset, given.out, max_bytes=limit, max_graphs=given.max_graphs or 0, progress=given.progress
            ).shards
        )


@arguments(SplitOptions)
def add_splits(given: SplitOptions) -> dict[str, Split]:
    r"""Add splits to a data set, of a table or new ones: one of parts, or one per fold; return them by name.

    A stored split (``split.kind = "predefined"``) needs neither a seed nor, for scaffolds and clusters, RDKit.

    Raises
    ------
    InputError
        When the table does not fit the set, or a part would be empty.
    MachineError
        When RDKit is missing, for scaffolds and clusters.

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

    if given.table is None or given.kind is not None or given.settings:
        source: adding.SplitTable | adding.NewSplits = _new_splits(
            given.kind,
            given.settings or {},
            given.name,
            not given.progress,
            {"--from": given.table, "--split-column": given.split_column, "--id-column": given.id_column},
        )
    else:
        source = adding.SplitTable(Path(given.table), given.name, given.split_column, given.id_column)
    with Dataset(given.path, given.memory_mb) as dataset:
        added, notes = adding.add_splits(dataset, given.path if given.out is None else given.out, source)
    for note in notes:
        given.say(note)
    return added


def _new_splits(kind: str | None, settings: Settings, name: str, quiet: bool, of_tables: dict[str, Any]) -> NewSplits:
    """Return what makes new splits; options `of_tables` must be empty."""
    from gcnbatch.data.add_splits import NewSplits

    if given := [option for option, value in of_tables.items() if value]:
        raise InputError(given[0], "given with --kind or --set", "a table, or a new split")
    if kind not in _NEW_SPLITS:
        got = "missing" if kind is None else printable(kind, QUOTED)
        raise InputError("--kind", got, f"{', '.join(_NEW_SPLITS)}; or a table with --from")
    config = section("split", settings, {("split", "kind"): kind})
    if config.split.repeats > 1:
        raise InputError("split.repeats", str(config.split.repeats), "1", "Give each split a --name and a split.seed.")
    return NewSplits(config.split, config.seed, name, quiet)
