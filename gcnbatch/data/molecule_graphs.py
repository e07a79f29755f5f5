"""Graphs of molecules from SMILES, in several processes: for ``data import smiles`` and for predictions from CSV."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer import (
    FeaturizerOptions,
    MoleculeArrays,
    featurize_chunk,
    load_rdkit,
)
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.csv_tables import read_columns
from gcnbatch.data.normalize import symmetric_weights
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, MachineError, nearest
from gcnbatch.fileio import StrPath
from gcnbatch.worker import WorkerDied, Workers

CHUNK = 256  # molecules a worker takes at a time
ID_NAMES = ("id", "molid", "moleculeid", "compoundid")


def featurize(
    smiles: Iterable[str],
    options: FeaturizerOptions,
    *,
    processes: int = 0,
    progress: bool = False,
    scaffolds: bool = False,
    total: int | None = None,
) -> Iterator[MoleculeArrays]:
    """Yield the graphs of `smiles` chunk by chunk, in the order of the input.

    Parameters
    ----------
    smiles : iterable of str
        One per molecule; surrounding blanks are ignored. It is read a few chunks ahead of the output.
    options : FeaturizerOptions
        Contents of a graph.
    processes : int
        Worker processes; 0: one per processor. A single chunk is converted in this process.
    progress : bool
        Show a bar on stderr (never in a pipe).
    scaffolds : bool
        Also compute Murcko scaffolds.
    total : int or None
        Number of molecules, where `smiles` has no length.

    Raises
    ------
    MachineError
        When RDKit is missing or a worker process dies.
    """
    from tqdm import tqdm

    load_rdkit()
    if isinstance(smiles, Sized):
        total = len(smiles)
    workers = processes or len(os.sched_getaffinity(0))
    if total is not None:
        workers = min(workers, -(-total // CHUNK))
    chunks = ((texts, first, options, scaffolds) for first, texts in _chunks(smiles))
    disable = None if progress else True
    with tqdm(total=total, unit=" molecules", disable=disable, file=sys.stderr) as bar:
        results = _in_processes(chunks, workers) if workers > 1 else (featurize_chunk(*chunk) for chunk in chunks)
        for result in results:
            bar.update(len(result.rows) + len(result.bad))
            yield result


def graph_part(
    arrays: MoleculeArrays,
    header: Header,
    y: NDArray[Any],
    ids: NDArray[np.str_],
    groups: NDArray[np.int32] | None = None,
) -> GraphSet:
    """Return featurised molecules with targets `y (G, K)` and `ids (G,)` as a GraphSet.

    Edge weights are D^-1/2 A D^-1/2 if `header.normalized`, else None.
    """
    graphs = GraphSet(
        header=header,
        node_ptr=arrays.node_ptr,
        edge_ptr=arrays.edge_ptr,
        src=arrays.src,
        dst=arrays.dst,
        channel=arrays.channel,
        weight=None,
        x=arrays.x,
        y=y,
        ids=ids,
        groups=groups,
    )
    return replace(graphs, weight=symmetric_weights(graphs)) if header.normalized else graphs


@dataclass(frozen=True)
class MoleculeTable:
    """A CSV file of molecules in memory: one text per row and column.

    `ids` are the values of `id_column`, or row numbers from 1 where that is empty; `others` holds the other columns.
    """

    path: Path
    smiles_column: str
    id_column: str
    smiles: list[str]
    ids: list[str]
    others: dict[str, list[str]]

    def describe(self, index: int) -> str:
        """Return the row at `index` for a message: its number, id and SMILES."""
        identity = f", id {self.ids[index]}" if self.id_column else ""
        return f"{self.path}, row {index + 1}{identity}, SMILES '{self.smiles[index]}'"


def read_molecules(path: StrPath, smiles_column: str = "", id_column: str = "") -> MoleculeTable:
    """Read a CSV file (also .gz) of molecules.

    Parameters
    ----------
    path : path
        UTF-8, a header line, RFC 4180 quoting.
    smiles_column : str
        Empty: the column named ``smiles`` in any case.
    id_column : str
        Empty: a column named like ``id``, ``mol_id`` or ``Compound ID``; without one, rows are numbered from 1.

    Raises
    ------
    InputError
        For a file that is missing, empty, damaged or not UTF-8, and a column that is not there.
    """
    columns = read_columns(Path(path))
    smiles_name, id_name = find_columns(path, list(columns), smiles_column, id_column)
    smiles = columns.pop(smiles_name)
    if not smiles:
        raise InputError(str(path), "no row below the header line", "at least one molecule")
    ids = columns.pop(id_name) if id_name else [str(row + 1) for row in range(len(smiles))]
    return MoleculeTable(Path(path), smiles_name, id_name, smiles, ids, columns)


def find_columns(path: StrPath, names: Sequence[str], smiles_column: str = "", id_column: str = "") -> tuple[str, str]:
    """Return the names of the columns of SMILES and of ids ("" if there is none); see `read_molecules`."""
    smiles_name = _smiles_column(Path(path), names, smiles_column)
    if id_column and id_column not in names:
        raise InputError(str(path), f"no column '{id_column}'", hint=nearest(id_column, names) + " See --id-column.")
    candidates = [name for name in names if _plain(name) in ID_NAMES and name != smiles_name]
    id_name = id_column or (candidates[0] if len(candidates) == 1 else "")
    if id_name == smiles_name:
        raise InputError("--id-column", f"'{id_name}' is the column of SMILES", "another column")
    return smiles_name, id_name


def missing_targets(header: Header, rows: int) -> NDArray[Any]:
    """Return missing targets for `rows` rows, in the type of the header's target kind."""
    if header.target == "multiclass":
        return np.full((rows, 1), -1, dtype=np.int32)
    return np.full((rows, len(header.task_names)), np.nan, dtype=np.float32)


# ------------------------------------------------------------------------------------------------ internals


def _chunks(smiles: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the position of each chunk's first molecule and its stripped texts."""
    texts, first = iter(smiles), 0
    while chunk := [text.strip() for text in islice(texts, CHUNK)]:
        yield first, chunk
        first += len(chunk)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _smiles_column(path: Path, names: Iterable[str], name: str) -> str:
    if name:
        if name not in names:
            raise InputError(str(path), f"no column '{name}'", hint=nearest(name, names) + " See --smiles-column.")
        return name
    found = [column for column in names if column.lower() == "smiles"]
    if len(found) != 1:
        got = "several columns 'smiles'" if found else "no column 'smiles'"
        raise InputError(str(path), got, hint=f"{nearest('smiles', names)} Name it with --smiles-column.")
    return found[0]


def _in_processes(chunks: Iterator[tuple[Any, ...]], count: int) -> Iterator[MoleculeArrays]:
    """Run the chunks in `count` processes and yield the results in order; few chunks are in flight at a time."""
    with Workers(count) as workers:
        waiting: deque[tuple[Future[MoleculeArrays], str]] = deque()

        def begin(most: int) -> None:
            for chunk in islice(chunks, most):
                rows = f"SMILES of rows {chunk[1] + 1} to {chunk[1] + len(chunk[0])}"
                waiting.append((workers.submit(featurize_chunk, *chunk), rows))

        begin(3 * count)
        while waiting:
            under_way, rows = waiting.popleft()
            try:
                result = under_way.result()
            except WorkerDied as error:
                raise MachineError(
                    rows,
                    "the process that read them died",
                    hint="Free some memory; if it dies again, leave these rows out.",
                ) from error
            begin(1)
            yield result
