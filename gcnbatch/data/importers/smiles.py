"""``data import smiles``: molecules from a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from gcnbatch import fileio
from gcnbatch.data.featurizer import FEATURE_NAMES, BadMolecule, FeaturizerOptions
from gcnbatch.data.importers.common import ImportSummary, output_path
from gcnbatch.data.importers.csv_tables import is_numeric, numbers
from gcnbatch.data.importers.targets import Targets, make_targets
from gcnbatch.data.molecule_graphs import MoleculeTable, featurize, graph_part, read_molecules
from gcnbatch.data.schema import Header, Target
from gcnbatch.data.store import DatasetWriter
from gcnbatch.errors import InputError, nearest
from gcnbatch.fileio import StrPath, sha256


def import_smiles(
    source: StrPath,
    out: StrPath,
    options: FeaturizerOptions,
    *,
    smiles_column: str = "",
    id_column: str = "",
    target_columns: list[str] | None = None,
    task: Target | None = None,
    skip_bad_rows: bool = False,
    processes: int = 0,
    name: str = "",
    progress: bool = False,
) -> ImportSummary:
    """Convert a CSV file of molecules into the data set `out`, with Murcko scaffolds as groups.

    Parameters
    ----------
    source, out : path
        CSV (also .gz) and HDF5 file.
    options : FeaturizerOptions
        Contents of a graph; stored in the header, so that predictions can repeat the conversion.
    smiles_column, id_column : str
        See `read_molecules`.
    target_columns : list of str
        None: detected if unambiguous (see `find_targets`).
    task : str
        Kind of the targets; None: binary if all values are 0, 1 or blank, else regression.
    skip_bad_rows : bool
        Skip molecules that give no graph and list them in ``OUT.skipped.csv``, instead of stopping at the first.

    Raises
    ------
    InputError
        For an invalid table and, without `skip_bad_rows`, for the first molecule that gives no graph.
    """
    path = output_path(out)
    table = read_molecules(source, smiles_column, id_column)
    names = find_targets(table) if target_columns is None else _known_targets(table, target_columns)
    targets = make_targets(table.path, {column: table.others[column] for column in names}, task)
    header = _header(table, options, targets, name)
    summary = ImportSummary(path, header)
    bad: list[BadMolecule] = []
    scaffold_number: dict[str, int] = {}
    with DatasetWriter(path) as writer:
        for arrays in featurize(table.smiles, options, processes=processes, progress=progress, scaffolds=True):
            if arrays.bad and not skip_bad_rows:
                _refuse(table, arrays.bad[0], options)
            bad.extend(arrays.bad)
            groups = [scaffold_number.setdefault(scaffold, len(scaffold_number)) for scaffold in arrays.scaffolds]
            ids = np.array([table.ids[row] for row in arrays.rows], dtype=np.str_)
            part = graph_part(arrays, header, targets.y[arrays.rows], ids, np.array(groups, dtype=np.int32))
            writer.append(part)
            summary.add(part)
        if summary.graphs == 0:
            raise InputError(table.describe(bad[0].index), bad[0].reason, "at least one molecule that gives a graph")
        writer.finish(header)
    if skip_bad_rows:
        report = path.with_suffix(".skipped.csv")
        _write_report(report, table, bad)
        summary.skipped = len(bad)
        summary.notes = (
            (f"{len(bad)} of {len(table.smiles)} rows left out; the reasons are in {report}",) if bad else ()
        )
    return summary


def find_targets(table: MoleculeTable) -> list[str]:
    """Return the target columns if unambiguous: one numeric column, or several with only 0, 1 and blanks.

    Columns of text are never targets.

    Raises
    ------
    InputError
        When no column is numeric, or several are and not all look like binary labels.
    """
    numeric = [name for name, column in table.others.items() if is_numeric(column)]
    if not numeric:
        raise InputError(
            str(table.path), "no numeric column beside SMILES and ids", hint="Name the targets with --target-columns."
        )
    if len(numeric) == 1:
        return numeric
    for name in numeric:
        values = numbers(table.path, name, table.others[name])
        if not np.all(np.isnan(values) | (values == 0.0) | (values == 1.0)):
            shown = ", ".join(f"'{column}'" for column in numeric)
            raise InputError(
                str(table.path),
                f"not clear which of the numeric columns are targets ({shown})",
                hint="Name them with --target-columns.",
            )
    return numeric


def _known_targets(table: MoleculeTable, names: list[str]) -> list[str]:
    if not names:
        raise InputError("--target-columns", "no name", "names of columns, separated by commas")
    for place, name in enumerate(names):
        if name not in table.others:
            raise InputError(
                str(table.path),
                f"no target column '{name}'",
                hint=nearest(name, table.others) + " See --target-columns.",
            )
        if name in names[:place]:
            raise InputError("--target-columns", f"'{name}' twice", "different columns")
    return names


def _header(table: MoleculeTable, options: FeaturizerOptions, targets: Targets, name: str) -> Header:
    recorded = {"smiles_column": table.smiles_column, "id_column": table.id_column}
    return Header(
        name=name or table.path.name.split(".")[0],
        level="graph",
        target=targets.kind,
        task_names=targets.task_names,
        class_names=targets.class_names,
        n_features=len(FEATURE_NAMES),
        feature_names=FEATURE_NAMES,
        channel_names=options.channel_names,
        normalized=options.normalize,
        group_kind="murcko scaffold",
        featurizer=options.to_header() | recorded,
        source={"file": table.path.name, "sha256": sha256(table.path)},
    )


def _refuse(table: MoleculeTable, bad: BadMolecule, options: FeaturizerOptions) -> None:
    limit = (
        f"at most {options.max_nodes} atoms (--max-nodes)"
        if bad.reason.endswith(f"more than {options.max_nodes}")
        else ""
    )
    raise InputError(
        table.describe(bad.index), bad.reason, limit, "Fix the row, or leave such rows out with --on-bad-row skip."
    )


def _write_report(path: Path, table: MoleculeTable, bad: list[BadMolecule]) -> None:
    with fileio.atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("row", "id", "smiles", "reason"))
        writer.writerows((row.index + 1, table.ids[row.index], table.smiles[row.index], row.reason) for row in bad)
