"""``data import smiles``: molecules from a table or a structure file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import outputs, tables
from gcnbatch.data.featurizer import BadMolecule, FeaturizerOptions, load_rdkit
from gcnbatch.data.featurizer_worker import early_workers
from gcnbatch.data.graphs import Split
from gcnbatch.data.importers.cells import FLOAT32_MAX, about_no_number, finite_numbers, numbers, refuse
from gcnbatch.data.importers.chemistry import MoleculeNotes
from gcnbatch.data.importers.column_roles import ColumnRole, assign_roles
from gcnbatch.data.importers.common import ImportSummary
from gcnbatch.data.importers.labels import LIKE_IDS, class_codes, quantities
from gcnbatch.data.importers.molecule_tables import MoleculeTable, read_molecules
from gcnbatch.data.importers.quantities import read_quantity
from gcnbatch.data.importers.split_columns import find_parts, read_splits, split_name
from gcnbatch.data.importers.targets import Targets, joined_targets, missing_notes
from gcnbatch.data.importers.times import read_times
from gcnbatch.data.molecule_features import count_columns, graph_feature_names, rdkit_version
from gcnbatch.data.molecule_graphs import featurize, graph_part
from gcnbatch.data.outputs import output_path
from gcnbatch.data.schema import MURCKO, TARGET_TYPES, UNLABELLED, Header
from gcnbatch.data.store import DatasetWriter
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.errors import InputError
from gcnbatch.fileio import Output, StrPath, sha256
from gcnbatch.options.imports import ColumnOptions
from gcnbatch.outputs import Kind, begins_with
from gcnbatch.text import counted, printable, quoted, some_of
from gcnbatch.workers.pool import Workers

_SHOWN_BAD_ROWS = 5
_SKIPPED_COLUMNS = ("row", "id", "smiles", "reason")
SKIPPED = Kind("a list of skipped rows", begins_with(",".join(_SKIPPED_COLUMNS).encode() + b"\n"))


def import_smiles(
    source: StrPath,
    out: StrPath,
    options: FeaturizerOptions,
    *,
    no_targets: bool = False,
    find_split: bool = False,
    table_format: TableFormat | None = None,
    skip_bad_rows: bool = False,
    processes: int = 0,
    name: str = "",
    progress: bool = False,
    workers: Workers | None = None,
    **columns: Any,
) -> ImportSummary:
    """Convert a file of molecules into the data set `out`.

    Murcko scaffolds are computed from the stored SMILES when a split asks for them.

    Parameters
    ----------
    source, out : path
        File of molecules (see `read_molecules`) and HDF5 file.
    options : FeaturizerOptions
        Contents of a graph; stored in the header, so that predictions can repeat the conversion.
    no_targets : bool
        Import molecules without targets.
    find_split : bool
        Without `split_column`, take the only column of train and test rows.
    table_format : TableFormat or None
        See `read_molecules`.
    skip_bad_rows : bool
        Skip molecules that give no graph and list them in ``OUT.skipped.csv``, instead of refusing the file.
    workers : Workers or None
        Processes of `early_workers`; None: they are started here.
    columns
        What the columns are: fields of `ColumnOptions`.

    Raises
    ------
    InputError
        For an invalid table and, without `skip_bad_rows`, for molecules that give no graph.
    """
    target = output_path(out, [source])
    report = target.path.with_suffix(".skipped.csv")
    skipped = outputs.check(report, SKIPPED, [source]) if skip_bad_rows else None
    with nullcontext(workers) if workers else early_workers(source, processes) as pool:
        given = ColumnOptions(**columns)
        table = read_molecules(source, given.smiles_column, given.id_column, table_format)
        if find_split and not given.split_column:
            used = {*given.feature_columns, given.weight_column, given.time_column}
            found = find_parts({name: texts for name, texts in table.others.items() if name not in used})
            given = replace(given, split_column=found)
        roles = assign_roles(table, given, no_targets)
        times, roles = _times(table, roles)
        targets = _targets(table, [role for role in roles if role.role == "target"])
        _splits(table, given.split_column, np.arange(len(table.smiles)))  # refused before the molecules are read
        header = _header(table, options, targets, given.feature_columns, name)
        weights, features = _weights(table, given.weight_column), _features(table, given.feature_columns)
        summary = ImportSummary(target.path, header, columns=tuple(role.cells() for role in roles))
        notes = MoleculeNotes(table.smiles, options, pool)
        bad: list[BadMolecule] = []
        kept: list[NDArray[np.int64]] = []
        with DatasetWriter(target) as writer:
            for arrays in featurize(table.smiles, options, processes=processes, progress=progress, workers=pool):
                bad.extend(arrays.bad)
                ids = np.array([table.ids[row] for row in arrays.rows], dtype=np.str_)
                own = None if features is None else features[arrays.rows]
                part = graph_part(arrays, header, targets.y[arrays.rows], ids, columns=own)
                more: dict[str, Any] = {"censored": targets.censored, "sample_weight": weights, "times": times}
                part = replace(part, **{one: of[arrays.rows] for one, of in more.items() if of is not None})
                writer.append(part)
                summary.add(part)
                notes.add(arrays, part)
                kept.append(arrays.rows)
            if bad and (not skip_bad_rows or summary.graphs == 0):
                raise _refusal(table, bad, options)
            rows = np.concatenate(kept)
            splits = _splits(table, given.split_column, rows)
            summary.splits = tuple(splits)
            writer.finish(header, splits, [table.smiles[row].strip() for row in rows])
            if skipped:  # while no other process may write the set
                _write_report(skipped, table, bad)
        said = [*table.notes, *_about_roles(roles, no_targets), *targets.notes]
        lines = [*said, *notes.lines(targets.y[rows], splits)]
    summary.skipped = len(bad)
    if bad:
        lines.append(f"{len(bad)} of {counted(len(table.smiles), 'row')} left out; the reasons are in {report}")
    summary.notes = tuple(lines)
    return summary


def _targets(table: MoleculeTable, roles: list[ColumnRole]) -> Targets:
    """Return the targets of all rows; without a target column, one task without any label."""
    if not roles:
        return Targets(np.full((len(table.smiles), 1), np.nan, TARGET_TYPES["binary"][0]), "binary", (UNLABELLED,))
    readings = {role.name: role.reading for role in roles if role.reading is not None}
    first = next(iter(readings.values()))
    if first.kind == "multiclass":
        codes = class_codes(first, table.others[roles[0].name])
        notes = missing_notes([first.missing], first.named)
        return Targets(codes, "multiclass", tuple(readings), first.classes, notes=notes)
    columns = [quantities(table.path, name, reading, table.others[name]) for name, reading in readings.items()]
    labels = {name: (reading.classes[0], reading.classes[1]) for name, reading in readings.items() if reading.classes}
    return replace(joined_targets(table.path, list(readings), columns, first.kind), label_names=labels)


def _times(table: MoleculeTable, roles: list[ColumnRole]) -> tuple[NDArray[np.float64] | None, list[ColumnRole]]:
    """Return the time of each row, if a column has it, and the roles with what was read."""
    for number, role in enumerate(roles):
        if role.role == "time":
            times, why = read_times(f"{table.path}, column {quoted(role.name)}", table.others[role.name])
            return times, [*roles[:number], replace(role, why=why), *roles[number + 1 :]]
    return None, roles


def _about_roles(roles: Sequence[ColumnRole], no_targets: bool) -> list[str]:
    """Return notes on columns that may be targets and were not taken for them, and on a set without targets."""
    if not no_targets and not any(role.role == "target" for role in roles):
        return ["there is no column of targets: the set has no labels, as with --no-targets"]
    notes = [
        f"column {quoted(role.name)} is no target: its whole numbers all differ, as ids do; if it is one, name it with "
        "--target-columns"
        for role in roles
        if role.why == LIKE_IDS
    ]
    for role in roles:
        classes = role.reading.classes if role.reading and role.reading.named and role.role == "target" else ()
        numbers = [text for text in classes if read_quantity(text) is not None]
        if numbers and (hint := about_no_number(role.name, set(classes) - set(numbers))):
            notes.append(f"column {quoted(role.name)} has the number {quoted(numbers[0])} among its classes. {hint}")
    return notes


def _weights(table: MoleculeTable, column: str) -> NDArray[np.float32] | None:
    """Return the weight of each row (R,); None without a column."""
    if not column:
        return None
    values = numbers(table.path, column, table.others[column])
    wrong = ~((values >= 0) & (values <= FLOAT32_MAX))
    refuse(table.path, column, table.others[column], wrong, "a weight: a number that is not negative")
    return values.astype(np.float32)


def _features(table: MoleculeTable, columns: Sequence[str]) -> NDArray[np.float32] | None:
    """Return the user's features of molecules (R, D'), NaN where missing; None without a column."""
    values = [finite_numbers(table.path, name, table.others[name], missing=True) for name in columns]
    return np.stack(values, axis=1).astype(np.float32) if values else None


def _splits(table: MoleculeTable, column: str, rows: NDArray[np.int64]) -> dict[str, Split]:
    """Return the splits in `column` of the table's `rows`."""
    if not column:
        return {}
    texts = table.others[column]
    return read_splits(f"{table.path}, column {quoted(column)}", split_name(column), [texts[row] for row in rows])


def _header(
    table: MoleculeTable, options: FeaturizerOptions, targets: Targets, features: Sequence[str], name: str
) -> Header:
    recorded: dict[str, Any] = {"smiles_column": table.smiles_column, "id_column": table.id_column}
    computed = computed_names(options, features)
    if computed:
        recorded["rdkit"] = rdkit_version()
    return Header(
        name=name or printable(table.path.name.split(".")[0]),
        level="graph",
        **targets.in_header(),
        n_features=len(options.feature_names),
        feature_names=options.feature_names,
        graph_feature_names=(*features, *computed),
        graph_feature_counts=count_columns(options),
        channel_names=options.channel_names,
        normalized=options.normalize,
        group_kind=MURCKO,
        featurizer=options.to_header() | recorded,
        source={"file": printable(table.path.name), "sha256": sha256(table.path)},
    )


def computed_names(options: FeaturizerOptions, own: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the features that RDKit computes.

    Raises
    ------
    InputError
        When one of the user's own columns has such a name.
    """
    if not options.of_molecules:
        return ()
    load_rdkit()
    names = graph_feature_names(options)
    for name in own:
        if name in names:
            raise InputError("--feature-columns", f"{quoted(name)} is a descriptor, too", "another name in the table")
    return names


def _refusal(table: MoleculeTable, bad: list[BadMolecule], options: FeaturizerOptions) -> InputError:
    """Return the error for all bad rows, with the first few of them."""
    limit = f"at most {counted(options.max_nodes, 'atom')} (--max-nodes)" if any(row.too_large for row in bad) else ""
    shown = "; ".join(f"{table.describe(row.index)}: {row.reason}" for row in bad[:_SHOWN_BAD_ROWS])
    rest = len(bad) - _SHOWN_BAD_ROWS
    shown += f"; and {rest} more" if rest > 0 else ""
    hint = "Correct these rows, or leave them out with --on-bad-row skip."
    if len(bad) == len(table.smiles):
        limit, hint = limit or "at least one molecule that gives a graph", ""
    return InputError(
        f"{table.path}: {some_of(len(bad), len(table.smiles), 'row', 'gives', 'give')} no graph", shown, limit, hint
    )


def _write_report(path: Output, table: MoleculeTable, bad: list[BadMolecule]) -> None:
    found = (
        [row.index + 1 for row in bad],
        [table.ids[row.index] for row in bad],
        [table.smiles[row.index] for row in bad],
        [row.reason for row in bad],
    )
    tables.write(path, dict(zip(_SKIPPED_COLUMNS, found, strict=True)))
