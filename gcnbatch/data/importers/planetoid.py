"""``data import planetoid``: Cora, Citeseer and Pubmed as the files ``ind.NAME.*`` of the Planetoid repository."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64, Split
from gcnbatch.data.importers.common import ImportSummary, folder_source, source_folder
from gcnbatch.data.importers.edges import build_edges
from gcnbatch.data.importers.inert_pickle import read_array, read_csr, read_neighbours
from gcnbatch.data.outputs import output_path
from gcnbatch.data.schema import Header
from gcnbatch.data.store import write_graphset
from gcnbatch.data.tables.files import open_text
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.imports import ImportPlanetoidOptions

PARTS = ("y", "tx", "ty", "allx", "ally", "graph")
VALID_NODES = 500


@arguments(ImportPlanetoidOptions)
def import_planetoid(given: ImportPlanetoidOptions) -> ImportSummary:
    """Convert one citation network: node classes, sparse features, the public split as ``planetoid``.

    Notes
    -----
    Split: training nodes are the first ``len(y)``, validation nodes the next 500, test nodes those of ``test.index``.
    Missing test nodes (Citeseer has isolated ones) get a row of zeros and no label. Citations count
    in both directions, repeats once; a paper's citations of itself are dropped.

    Raises
    ------
    InputError
        When a file is missing, is no data, or contradicts another one.

    Examples
    --------
    >>> import pickle
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> import gcnbatch
    >>> x, classes = sp.csr_matrix(np.eye(3, 4, dtype=np.float32)), np.eye(2, dtype=np.int32)
    >>> parts = {"y": classes[[0]], "allx": x[:2], "ally": classes, "tx": x[2:], "ty": classes[[1]]}
    >>> for part, value in {**parts, "graph": {0: [1], 1: [0, 2], 2: [1]}}.items():
    ...     _ = Path(f"ind.mini.{part}").write_bytes(pickle.dumps(value, protocol=2))
    >>> _ = Path("ind.mini.test.index").write_text("2")
    >>> gcnbatch.import_planetoid(".", "mini.h5", name="mini").nodes
    3
    >>> gcnbatch.read("mini.h5").splits["planetoid"].test.tolist()
    [2]
    """
    target = output_path(given.out)
    folder = source_folder(given.source)
    files = {part: folder / f"ind.{given.name}.{part}" for part in (*PARTS, "test.index")}
    _check_present(folder, given.name, files.values())
    test = _read_test_index(files["test.index"])
    known, tested = (read_csr(files[part]) for part in ("allx", "tx"))
    x = _with_test_rows(known, tested, test, files["tx"])
    labels = _labels(files, known.shape[0], tested.shape[0])
    one_hot = _with_test_rows(labels["ally"], labels["ty"], test, files["ty"]).toarray()
    nodes, classes = one_hot.shape
    if given.row_normalize:
        x = _row_normalized(x, files["allx"])
    y = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1).astype(np.int32)[:, None]
    ptr = np.array([0, nodes], dtype=np.int64)
    src, dst = _citations(files["graph"], nodes)
    edges = build_edges(ptr, src, dst, undirected=True, loop_channel=0 if given.self_loops else None)
    train = labels["y"].shape[0]
    split = Split(np.arange(train), np.arange(train, min(train + VALID_NODES, known.shape[0])), np.sort(test))
    header = Header(
        name=given.name,
        level="node",
        target="multiclass",
        task_names=("class",),
        class_names=tuple(str(number) for number in range(classes)),
        n_features=x.shape[1],
        channel_names=("cites",),
        source=folder_source(folder, files.values()),
    )
    graphs = GraphSet(
        header=header,
        node_ptr=ptr,
        **vars(edges),
        x=x.astype(np.float32),
        y=y,
        ids=np.arange(nodes).astype(np.str_),
        splits={"planetoid": split},
    )
    write_graphset(target, graphs)
    summary = ImportSummary(target.path, header)
    summary.add(graphs)
    return summary


def _labels(files: dict[str, Path], known: int, tested: int) -> dict[str, sp.csr_array]:
    """Return the one-hot labels of the training nodes (y), the known nodes (ally) and the test nodes (ty)."""
    labels = {part: read_array(files[part]) for part in ("y", "ally", "ty")}
    for part, rows in (("y", None), ("ally", known), ("ty", tested)):
        shape = labels[part].shape
        if len(shape) != 2 or (shape[0] > known if rows is None else shape[0] != rows):
            wanted = f"at most {known}" if rows is None else f"{rows}"
            raise InputError(str(files[part]), f"shape {shape}", f"({wanted}, classes)")
        if not np.isin(labels[part], (0, 1)).all():
            raise InputError(str(files[part]), "other numbers than 0 and 1", "a 1 in the column of each node's class")
    return {part: sp.csr_array(rows.astype(np.float32)) for part, rows in labels.items()}


def _check_present(folder: Path, name: str, files: Iterable[Path]) -> None:
    for file in files:
        if not file.is_file():
            found = sorted({entry.name.split(".")[1] for entry in folder.glob("ind.*.graph")})
            hint = f"The folder holds: {', '.join(found)}." if found else "The folder holds no Planetoid data set."
            raise InputError(str(folder), f"no file '{file.name}'", f"ind.{name}.*", hint)


def _read_test_index(path: Path) -> Int64:
    with open_text(path) as file:
        lines = [number for line in file.lines() for number in line.split()]
    try:
        test = np.array([int(line) for line in lines], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise InputError(str(path), str(error), "a node number per line") from error
    if len(test) == 0 or len(np.unique(test)) != len(test):
        raise InputError(str(path), "empty" if len(test) == 0 else "a node number twice", "different node numbers")
    return test


def _with_test_rows(known: sp.csr_array, test_rows: sp.csr_array, test: Int64, path: Path) -> sp.csr_array:
    """Return the rows `known`, followed by row i of `test_rows` at node ``test[i]``; missing nodes get zeros."""
    first, rows = known.shape[0], test_rows.shape[0]
    if rows != len(test) or test_rows.shape[1] != known.shape[1]:
        raise InputError(str(path), f"shape {test_rows.shape}", f"({len(test)}, {known.shape[1]})")
    if test.min() < first or test.max() >= first + 10 * rows:
        raise InputError(str(path), f"test nodes {test.min()} to {test.max()}", f"numbers from {first} on")
    place = sp.csr_array(
        (np.ones(rows, np.float32), (test - first, np.arange(rows))), shape=(test.max() + 1 - first, rows)
    )
    return sp.csr_array(sp.vstack([known, place @ test_rows], format="csr"))


def _row_normalized(x: sp.csr_array, path: Path) -> sp.csr_array:
    """Return the rows divided by their sums; rows whose sum is 0 stay."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = x.sum(axis=1)
        factors = np.divide(1.0, total, out=np.zeros_like(total), where=total != 0)
        x = sp.csr_array(sp.diags_array(factors) @ x)
    if not (np.isfinite(total).all() and np.isfinite(x.data).all()):
        raise InputError(str(path), "features whose sum is not finite in 32 bits", hint="Give --no-row-normalize.")
    return x


def _citations(path: Path, nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return both ends of every citation between different papers."""
    pairs = read_neighbours(path)
    wrong = np.flatnonzero(((pairs < 0) | (pairs >= nodes)).any(axis=0))
    if len(wrong):
        ends = pairs[:, wrong[0]]
        raise InputError(str(path), f"a citation from node {ends[0]} to node {ends[1]}", f"nodes 0 to {nodes - 1}")
    src, dst = pairs[:, pairs[0] != pairs[1]]
    return src, dst
