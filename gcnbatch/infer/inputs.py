"""Inputs of predictions: a data set file as one part, or a CSV file of molecules in parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import DataConfig
from gcnbatch.data.featurizer import FeaturizerOptions, MoleculeArrays
from gcnbatch.data.graphs import GraphSet, Int64, concatenate
from gcnbatch.data.importers.csv_tables import open_table
from gcnbatch.data.importers.molecule_tables import find_columns
from gcnbatch.data.molecule_graphs import CHUNK, featurize, graph_part, missing_targets
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.infer.members import Member, check_fit

CSV_ENDINGS, HDF5_ENDINGS = (".csv", ".csv.gz"), (".h5", ".hdf5")
PART_ROWS = 4096  # molecules in memory at a time, unless a batch is larger


@dataclass(frozen=True)
class Part:
    """Consecutive rows of the input.

    Parameters
    ----------
    ids : (R,) str
        Ids of all rows.
    data : GraphSet or Dataset
        The rows that could be read.
    rows : (M,) int64
        Position among the R rows of each row of `data`.
    errors : (R,) str or None
        Reason why a row could not be read; None if the input has no such rows.
    """

    ids: NDArray[np.str_]
    data: GraphSet | Dataset
    rows: Int64
    errors: NDArray[np.str_] | None = None


@dataclass(frozen=True)
class Input:
    """An opened input: the number of its graphs, its parts in order, and its targets (R, K) or None."""

    n_graphs: int
    parts: Iterator[Part]
    y: NDArray[Any] | None = None


@dataclass(frozen=True)
class CsvOptions:
    """Options of a CSV file of molecules; empty columns: as in training, else detected; see `featurize`."""

    smiles_column: str = ""
    id_column: str = ""
    processes: int = 0


@contextmanager
def open_input(path: Path, members: Sequence[Member], options: CsvOptions, batch_size: int) -> Iterator[Input]:
    """Open `path` by its ending and check that it fits every member.

    Raises
    ------
    InputError
        For an unknown ending, a damaged file, data that do not fit, and a CSV file if the models were not trained on
        SMILES.
    """
    name = path.name.lower()
    if name.endswith(HDF5_ENDINGS):
        with Dataset(path, DataConfig().memory_mb) as dataset:
            _check_members(members, path, dataset.header)
            yield _whole(dataset)
    elif name.endswith(CSV_ENDINGS):
        header = members[0].header
        if (header.featurizer or {}).get("kind") != "smiles":
            raise InputError(
                str(path),
                "a CSV file of molecules",
                f"an HDF5 data set, as {members[0].place} was not trained on a set made from SMILES",
            )
        _check_members(members, path, header)
        yield from _molecules(path, header, options, max(PART_ROWS, batch_size))
    else:
        known = ", ".join((*HDF5_ENDINGS, *CSV_ENDINGS))
        raise InputError(str(path), "unknown ending", f"{known}; the data come last, after the runs")


def _check_members(members: Sequence[Member], path: Path, header: Header) -> None:
    for member in members:
        check_fit(member, str(path), header, "Prepare the data as for the run.")


def _whole(dataset: Dataset) -> Input:
    data = dataset.load() if dataset.fits_in_memory else dataset
    part = Part(dataset.ids, data, np.arange(len(dataset.ids), dtype=np.int64))
    return Input(dataset.n_graphs, iter([part]), dataset.y)


# ------------------------------------------------------------------------------------------------ CSV


def _molecules(path: Path, header: Header, options: CsvOptions, part_rows: int) -> Iterator[Input]:
    """Yield the Input of a CSV file; a first pass counts the rows and checks the table."""
    recorded = header.featurizer or {}
    with open_table(path) as table:
        wished = {
            key: getattr(options, key) or (recorded.get(key, "") if recorded.get(key) in table.names else "")
            for key in ("smiles_column", "id_column")
        }
        columns = find_columns(path, table.names, **wished)
        total = sum(1 for _ in table.rows)
    if total == 0:
        raise InputError(str(path), "no row below the header line", "at least one molecule")
    with closing(_parts(path, header, columns, total, options.processes, part_rows)) as parts:
        yield Input(total, parts)


def _parts(
    path: Path, header: Header, columns: tuple[str, str], total: int, processes: int, part_rows: int
) -> Generator[Part]:
    ids: deque[str] = deque()  # of rows that are read but not yet yielded
    with open_table(path) as table:
        smiles_at, id_at = (table.names.index(name) if name else -1 for name in columns)

        def smiles() -> Iterator[str]:
            for number, record in enumerate(table.rows, 1):
                ids.append(record[id_at] if id_at >= 0 else str(number))
                yield record[smiles_at]

        options = FeaturizerOptions.from_header(header.featurizer)
        chunks = featurize(smiles(), options, processes=processes, total=total)
        first = 0
        while group := list(islice(chunks, -(-part_rows // CHUNK))):
            rows = sum(len(chunk.rows) + len(chunk.bad) for chunk in group)
            yield _part(header, group, [ids.popleft() for _ in range(rows)], first)
            first += rows


def _part(header: Header, chunks: list[MoleculeArrays], ids: list[str], first: int) -> Part:
    """Join chunks into a part; `first` is the position of its first row in the file."""
    errors = [""] * len(ids)
    graphs, rows = [], []
    for chunk in chunks:
        places = chunk.rows - first
        names = np.array([ids[place] for place in places], dtype=np.str_)
        graphs.append(graph_part(chunk, header, missing_targets(header, len(places)), names))
        rows.append(places)
        for bad in chunk.bad:
            errors[bad.index - first] = bad.reason
    return Part(np.array(ids), concatenate(graphs), np.concatenate(rows), np.array(errors))
