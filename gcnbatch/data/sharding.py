"""Writing a data set as a folder of shards (see `gcnbatch.data.shards`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gcnbatch import fileio, folders
from gcnbatch.data import checks
from gcnbatch.data.graphs import Split, bounded_ranges
from gcnbatch.data.shards import INDEX, MAX_SHARDS, WRITTEN, Index, Shard, StoredFile, read_index
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import DatasetWriter, write_splits
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath
from gcnbatch.progress import counter
from gcnbatch.text import counted

CHUNK_BYTES = 1 << 14  # before compression: a batch reads single graphs from everywhere


def shard(dataset: Dataset, out: StrPath, *, max_bytes: int = 0, max_graphs: int = 0, progress: bool = False) -> Index:
    """Write a data set as a folder of shards; the index appears last.

    The folder must be new or empty, or hold what a killed call has left. After an error nothing is left. At most
    128 MiB and the ids and targets of a shard are in memory, beside what `dataset` holds.

    Parameters
    ----------
    dataset : Dataset
    out : path
    max_bytes : int
        Most bytes in memory of a shard's graphs; a larger graph has a shard of its own. Files are smaller by their
        compression.
    max_graphs : int
        Most graphs of a shard. Exactly one of both limits is given, the other is 0.
    progress : bool
        Show progress on stderr.

    Raises
    ------
    InputError
        For a folder that holds something else, a set of fewer than two graphs, and more than MAX_SHARDS shards.
    MachineError
        When the disk is full.
    """
    folder = Path(out)
    ranges = _ranges(dataset, max_bytes, max_graphs)
    if dataset.path.resolve().parent == folder.resolve() or dataset.path.resolve() == folder.resolve():
        raise InputError(f"output {folder}", f"the folder of the input {dataset.path}", "another folder")
    with (
        folders.results(folder, "shards", whole=True, parts=WRITTEN),
        counter(dataset.n_graphs, " graphs", quiet=not progress) as bar,
    ):
        shards = []
        for number, (first, stop) in enumerate(ranges):
            path = folder / f"shard-{number:05}.h5"
            with DatasetWriter(path, CHUNK_BYTES) as writer:
                for _, part in dataset.blocks(first=first, stop=stop):
                    writer.append(part)
                    bar.update(part.n_graphs)
                writer.finish(dataset.header, smiles=dataset.smiles(first, stop))
            nodes, edges = (int(ptr[stop] - ptr[first]) for ptr in (dataset.node_ptr, dataset.edge_ptr))
            shards.append(Shard(**_stored(path), graphs=stop - first, nodes=nodes, edges=edges))
        splits = _write_splits(folder, dataset.splits)
        index = Index(header=dataset.header, shards=tuple(shards), splits=splits)
        fileio.write_text(folder / INDEX, index.model_dump_json(indent=1) + "\n")
    return index


def replace_splits(folder: Path, splits: Mapping[str, Split], rows: int) -> None:
    """Give a folder of shards of `rows` target rows these splits: a new file of splits, then the index, which names it.

    Raises
    ------
    InputError
        For splits that break a rule of the format, and a folder that another process writes to.
    """
    checks.check_splits(folder, splits, rows)
    with folders.locked(folder):
        index = read_index(folder)
        added = _write_splits(folder, splits)
        new = index.model_copy(update={"splits": added})
        fileio.write_text(folder / INDEX, new.model_dump_json(indent=1) + "\n")
        if index.splits is not None and index.splits != added:
            (folder / index.splits.file).unlink(missing_ok=True)


def _ranges(dataset: Dataset, max_bytes: int, max_graphs: int) -> list[tuple[int, int]]:
    if dataset.n_graphs < 2:
        got = counted(dataset.n_graphs, "graph")
        hint = "Use the file as it is: of a graph larger than memory, slices are read."
        raise InputError(str(dataset.path), got, "at least 2 graphs, as a shard holds whole graphs", hint)
    cost = np.arange(dataset.n_graphs + 1) if max_graphs else dataset.bytes_before()
    ranges = list(bounded_ranges(cost, max_graphs or max_bytes))
    if len(ranges) > MAX_SHARDS:
        option = "--graphs" if max_graphs else "--size"
        raise InputError(option, counted(len(ranges), "shard"), f"at most {MAX_SHARDS}", f"Give a larger {option}.")
    return ranges


def _write_splits(folder: Path, splits: Mapping[str, Split]) -> StoredFile | None:
    if not splits:
        return None
    temporary = folder / f"splits-{0:016x}.h5"
    try:
        write_splits(temporary, splits)
        found = _stored(temporary)
        path = folder / f"splits-{found['sha256'][:16]}.h5"
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return StoredFile(file=path.name, sha256=found["sha256"], bytes=found["bytes"])


def _stored(path: Path) -> dict[str, Any]:
    return {"file": path.name, "sha256": fileio.sha256(path), "bytes": path.stat().st_size}
