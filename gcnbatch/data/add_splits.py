"""Splits added to a data set: of a table, by id or in the order of the rows, or made from the set's own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gcnbatch.config_sections import SplitConfig
from gcnbatch.data.copies import stored_copies
from gcnbatch.data.graphs import Split
from gcnbatch.data.importers.molecule_tables import find_id_column
from gcnbatch.data.importers.split_columns import looks_like_split, read_splits, split_name
from gcnbatch.data.outputs import output_path
from gcnbatch.data.sharding import replace_splits
from gcnbatch.data.shards import is_sharded
from gcnbatch.data.splits import SplitRows, make_folds, make_split
from gcnbatch.data.store import Dataset, DatasetWriter
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.table import with_numbers
from gcnbatch.errors import InputError, nearest
from gcnbatch.fileio import StrPath
from gcnbatch.text import counted, quoted


@dataclass(frozen=True)
class SplitTable:
    """A table with a part or fold per row; empty names of columns are detected, an empty `name` is the column's."""

    path: Path
    name: str = ""
    split_column: str = ""
    id_column: str = ""

    @property
    def files(self) -> list[Path]:
        """Files that are read."""
        return [self.path]

    def splits(self, dataset: Dataset) -> tuple[dict[str, Split], list[str]]:
        """Return the splits by name, and notes."""
        column, texts, notes = _texts_of_rows(dataset.ids.tolist(), self)
        name = self.name or split_name(column)
        return read_splits(f"{self.path}, column {quoted(column)}", name, texts), notes


@dataclass(frozen=True)
class NewSplits:
    """The split, or the splits of all folds, that a run with this section and seed would make.

    An empty `name` is the kind. Fold k is ``<name>-<k>``, from 0.
    """

    config: SplitConfig
    seed: int
    name: str = ""
    quiet: bool = True

    @property
    def files(self) -> list[Path]:
        """Files that are read."""
        return []

    def splits(self, dataset: Dataset) -> tuple[dict[str, Split], list[str]]:
        """Return the splits by name, and notes."""
        config, name = self.config, self.name or self.config.kind
        rows = SplitRows.of(dataset, config.kind, config.similarity, self.quiet)
        if not config.folds:
            return {name: make_split(config, self.seed, rows)}, []
        folds = make_folds(config, self.seed, rows)
        return {f"{name}-{number}": fold for number, fold in enumerate(folds)}, []


def add_splits(dataset: Dataset, out: StrPath, source: SplitTable | NewSplits) -> tuple[dict[str, Split], list[str]]:
    """Write `dataset` with the splits of `source` to `out`, which may be its own path; return the splits and notes.

    Raises
    ------
    InputError
        For a table that cannot be read, unknown columns, repeated ids, another number of rows in a table without ids,
        names of splits that the set has, and for a set that another process has replaced since it was opened. For new
        splits, as `make_split` and `make_folds`.
    MachineError
        When RDKit, which scaffolds need, is missing.
    """
    own = Path(out).resolve() == dataset.path.resolve()
    target = None
    if not (own and is_sharded(dataset.path)):
        target = output_path(out, source.files if own else [*source.files, dataset.path])
    splits, notes = source.splits(dataset)
    for title in splits:
        if title in dataset.splits:
            raise InputError(
                str(dataset.path), f"there is a split {quoted(title)}", "a new name", "Give another --name."
            )
    rows = len(dataset.ids)
    left = rows - max(sum(map(len, split.parts().values())) for split in splits.values())
    if left:
        notes.append(f"{left:,} of {counted(rows, 'row')} of {dataset.path} {'is' if left == 1 else 'are'} in no part")
    if copies := stored_copies(dataset):
        notes += copies.lines(dataset.y, splits)
    if target is None:
        _check_not_replaced(dataset)
        replace_splits(dataset.path, dataset.splits | splits, rows)
        return splits, notes
    with DatasetWriter(target) as writer:
        if own:
            _check_not_replaced(dataset)
        for _, part in dataset.blocks():
            writer.append(part)
        if not dataset.n_graphs:
            writer.append(dataset.read([]))
        writer.finish(dataset.header, dataset.splits | splits, dataset.smiles())
    return splits, notes


def _check_not_replaced(dataset: Dataset) -> None:
    if dataset.replaced:
        raise InputError(str(dataset.path), "another process has written it meanwhile", hint="Run again.")


def _texts_of_rows(ids: Sequence[str], table: SplitTable) -> tuple[str, list[str], list[str]]:
    """Return the column of the split, its text for each row of the data set, and notes."""
    with open_table(table.path, index=True) as source:
        columns = {name: list(map(str.strip, texts)) for name, texts in source.columns().items()}
    id_name = _named(table, "--id-column", table.id_column, list(columns)) or find_id_column(list(columns))
    column = _named(table, "--split-column", table.split_column, list(columns))
    if not column:
        found = [name for name, values in columns.items() if name != id_name and looks_like_split(name, values)]
        if len(found) != 1:
            got = f"{len(found)} columns look like a split" if found else "no column looks like a split"
            raise InputError(str(table.path), got, hint=f"{nearest('split', columns)} Name it with --split-column.")
        column = found[0]
    values = columns[column]
    if id_name:
        return column, *_by_id(list(map(str.strip, ids)), table.path, with_numbers(columns[id_name], 0), values)
    if len(values) != len(ids):
        got = f"{counted(len(values), 'row')} and no column of ids"
        raise InputError(
            str(table.path), got, f"{counted(len(ids), 'row')}, as in the data set", "Add a column of ids."
        )
    return column, values, []


def _by_id(ids: Sequence[str], path: Path, keys: list[str], values: list[str]) -> tuple[list[str], list[str]]:
    for place, names in (("the data set", ids), (str(path), keys)):
        unique, count = np.unique(np.array(names, dtype=np.str_), return_counts=True)
        if (count > 1).any():
            got = f"id {quoted(unique[np.argmax(count > 1)])} stands there more than once"
            raise InputError(place, got, "each id once", "Give a table without ids, with the rows in order.")
    text_of = dict(zip(keys, values, strict=True))
    found = [text_of.get(name, "") for name in ids]
    unknown = len(set(keys) - set(ids))
    if unknown == len(keys):
        raise InputError(str(path), "none of its ids is in the data set", f"ids such as '{ids[0] if ids else ''}'")
    are = "is" if unknown == 1 else "are"
    missing = f"{unknown:,} of {counted(len(keys), 'id')} of {path} {are} not in the data set"
    return found, [missing] if unknown else []


def _named(table: SplitTable, option: str, name: str, names: Sequence[str]) -> str:
    if name and name not in names:
        raise InputError(str(table.path), f"no column {quoted(name)}", hint=f"{nearest(name, names)} See {option}.")
    return name
