"""What each column of a table of molecules is used for, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gcnbatch.data.importers.cells import MISSING, NUMBER, about_no_number, check_stored_labels, check_stored_names
from gcnbatch.data.importers.labels import ColumnReading, as_numbers, in_unit_of, read_classes, read_labels
from gcnbatch.data.importers.molecule_tables import MoleculeTable
from gcnbatch.data.importers.quantities import read_quantity
from gcnbatch.data.importers.split_columns import looks_like_split
from gcnbatch.data.importers.targets import check_classes
from gcnbatch.data.schema import Target
from gcnbatch.data.tables.delimited import ROW_INDEX
from gcnbatch.errors import InputError, nearest
from gcnbatch.options.imports import ColumnOptions
from gcnbatch.text import counted, listed, quoted

_IDENTIFIER = re.compile(
    r"(?:.*(?:^|[ _.-]))?(?:id|ids|cid|sid|aid|cas|casrn|index|idx|number|no|num|row|rank)\.?", re.I
)
_ROW_WEIGHTS = re.compile(r"w|(?:(?:sample|row)?[ _.-]?weights?)", re.I)
_WEIGHTS = "looks like weights of rows; --weight-column takes it"
_SPLIT = "looks like a split; --split-column keeps it"


@dataclass(frozen=True)
class ColumnRole:
    """Use of a column: smiles, id, target, feature, split, weight, time or ignored.

    `reading` describes targets, `why` the others.
    """

    name: str
    role: str
    reading: ColumnReading | None = None
    why: str = ""

    def cells(self) -> tuple[str, str, str | None, int | None, str]:
        """Return name, role, kind, rows with a value, and the mapping of labels or the reason."""
        if self.role != "target" or self.reading is None:
            return self.name, self.role, None, None, self.why
        mapping = ", ".join(f"{text} = {number}" for number, text in enumerate(self.reading.classes[:10]))
        more = ", …" if len(self.reading.classes) > 10 else ""
        if self.reading.unit:
            mapping = f"in {self.reading.unit}"
        return self.name, self.role, self.reading.kind, self.reading.labelled, mapping + more


def assign_roles(table: MoleculeTable, given: ColumnOptions, no_targets: bool = False) -> list[ColumnRole]:
    """Return the role of every column, in the order of the table; `no_targets`: no column is a target.

    Targets are the only column that can be one, or all if their values are labels of two classes. Names that look like
    classes (of unknown meaning) are targets only where no other column is.

    Raises
    ------
    InputError
        When targets are missing or not clear, numbers are mixed with text, a named column is not there, or the name
        of a target or feature cannot be stored.
    """
    if given.target_columns is not None:
        if no_targets:
            raise InputError("--no-targets", "given with --target-columns", "one of them")
        if not given.target_columns:
            raise InputError("--target-columns", "no name", "names of columns, separated by commas")
    roles = {table.smiles_column: ColumnRole(table.smiles_column, "smiles")}
    if table.id_column:
        roles[table.id_column] = ColumnRole(table.id_column, "id")
    roles |= {name: ColumnRole(name, role) for name, role in _uses(table, given).items() if role != "target"}
    rest = [name for name in table.others if name not in roles]
    if given.target_columns is not None:
        chosen = _named_targets(table, given.target_columns, given.task)
        roles |= _unused(table, rest, "not in --target-columns") | chosen
    elif no_targets:
        roles |= _unused(table, rest, "--no-targets")
    else:
        roles |= _detected(table, rest, given.task)
    stored = [name for name, role in roles.items() if role.role in ("target", "feature")]
    check_stored_names(table.path, stored)
    for role in roles.values():
        if role.role == "target" and role.reading is not None:
            check_stored_labels(table.path, role.name, role.reading.classes)
    return [roles[name] for name in table.names]


def _unused(table: MoleculeTable, names: Sequence[str], why: str) -> dict[str, ColumnRole]:
    def reason(name: str) -> str:
        if looks_like_split(name, table.others[name]):
            return _SPLIT
        return _WEIGHTS if _ROW_WEIGHTS.fullmatch(name) else why

    return {name: ColumnRole(name, "ignored", why=reason(name)) for name in names}


def _uses(table: MoleculeTable, given: ColumnOptions) -> dict[str, str]:
    """Return the role of each column that the user names; each must be there and have one role."""
    uses: dict[str, str] = {}
    for option, role, names in (
        ("--target-columns", "target", given.target_columns or ()),
        ("--split-column", "split", [given.split_column]),
        ("--weight-column", "weight", [given.weight_column]),
        ("--time-column", "time", [given.time_column]),
        ("--feature-columns", "feature", given.feature_columns),
    ):
        for place, name in enumerate(names):
            if not name:
                continue
            own = {table.smiles_column: "SMILES", table.id_column: "ids"}
            if name in own:
                raise InputError(option, f"{quoted(name)} is the column of {own[name]}", "another column")
            if name not in table.others:
                what = "target column" if role == "target" else "column"
                hint = f"{nearest(name, table.others)} See {option}."
                raise InputError(str(table.path), f"no {what} {quoted(name)}", hint=hint)
            if name in names[:place]:
                raise InputError(option, f"{quoted(name)} twice", "different columns")
            if name in uses:
                article = "a" if uses[name] in ("target", "feature") else "the"
                raise InputError(option, f"{quoted(name)} is {article} {uses[name]}", "another column")
            uses[name] = role
    return uses


# ------------------------------------------------------------------------------------------------ named targets


def _named_targets(table: MoleculeTable, names: Sequence[str], task: Target | None) -> dict[str, ColumnRole]:
    if task == "multiclass" and len(names) != 1:
        got = f"{len(names)} target columns for --task multiclass"
        raise InputError(str(table.path), got, "one column of classes", "Name it with --target-columns.")
    readings = {name: _read_as(table, name, task) for name in names}
    kinds = {reading.kind for reading in readings.values()}
    if task is None and len(kinds) > 1 and all(map(as_numbers, readings.values())):
        readings = {name: _as_regression(reading) for name, reading in readings.items()}
    elif len(kinds) > 1 or (kinds == {"multiclass"} and len(names) > 1):
        shown = listed(f"{quoted(name)} {reading.kind}" for name, reading in readings.items())
        raise InputError(
            str(table.path), f"targets of different kinds or several columns of classes: {shown}", "one kind of target"
        )
    found = {name: in_unit_of(name, reading, table.others[name]) for name, reading in readings.items()}
    return {name: ColumnRole(name, "target", reading) for name, reading in found.items()}


def _read_as(table: MoleculeTable, name: str, task: Target | None) -> ColumnReading:
    """Read a column that the user named, as `task` if given."""
    texts = table.others[name]
    reading = read_labels(texts, measured=task == "regression")
    if not reading.labelled:
        raise InputError(f"{table.path}, column {quoted(name)}", "no value in any row", "a target with values")
    if task == "multiclass":
        reading = read_classes(texts)
        check_classes(table.path, name, reading.classes, reading.labelled)
        return reading
    if reading.mixed is not None:
        raise _mixed(table, name, reading)
    if task == "regression" and not as_numbers(reading):
        row = next(row for row, text in enumerate(texts) if text in (reading.codes or {}))
        hint = about_no_number(name, reading.codes or {})
        raise InputError(f"{table.path}, row {row + 1}, column {quoted(name)}", quoted(texts[row]), NUMBER, hint)
    if task == "regression":
        return _as_regression(reading)
    if task == "binary" and reading.kind != "binary":
        if not as_numbers(reading):
            got = counted(len(reading.classes), "different label") if reading.classes else reading.reason
            place = f"{table.path}, column {quoted(name)}"
            raise InputError(place, got, "two labels of a known meaning", "Use --task multiclass.")
        return replace(_as_regression(reading), kind="binary")
    if reading.kind is None:
        raise InputError(f"{table.path}, column {quoted(name)}", reading.reason, "values that differ")
    if reading.named:
        check_classes(table.path, name, reading.classes, reading.labelled)
    return reading


def _as_regression(reading: ColumnReading) -> ColumnReading:
    """Return the reading of numbers as they are, also of those that were read as classes."""
    return replace(reading, kind="regression", codes=None, classes=())


def _mixed(table: MoleculeTable, name: str, reading: ColumnReading) -> InputError:
    assert reading.mixed is not None
    row, text = reading.mixed
    place = f"{table.path}, row {row + 1}, column {quoted(name)}"
    strange = [one for one in table.others[name] if one.lower() not in MISSING and read_quantity(one) is None]
    hint = about_no_number(name, strange) or "Correct the cell."
    return InputError(place, quoted(text), NUMBER, f"{hint} --target-columns names other targets.")


# ------------------------------------------------------------------------------------------------ detected targets


def _detected(table: MoleculeTable, names: Sequence[str], task: Target | None) -> dict[str, ColumnRole]:
    readings = {name: _suspect(name, table.others[name], read_labels(table.others[name])) for name in names}
    for name, reading in readings.items():
        if reading.mixed is not None and not _IDENTIFIER.fullmatch(name):
            raise _mixed(table, name, reading)
    clear = [name for name, reading in readings.items() if reading.kind and not reading.reason and not reading.named]
    pool = clear or [name for name, reading in readings.items() if reading.named and not reading.reason]
    if not pool and all(reading.labelled == 0 for reading in readings.values()):
        return _ignored(readings, set())
    if not pool:
        shown = listed((f"{quoted(name)}: {reading.reason}" for name, reading in readings.items()), "; ")
        raise InputError(
            str(table.path),
            f"no column that is clearly a target ({shown})",
            hint="Name the targets with --target-columns, or import without with --no-targets.",
        )
    if len(pool) > 1 and not (task != "multiclass" and all(readings[name].kind == "binary" for name in pool)):
        shown = listed(map(quoted, pool))
        raise InputError(
            str(table.path),
            f"not clear which of the columns are targets ({shown})",
            hint="Name them with --target-columns.",
        )
    return _ignored(readings, set(pool)) | _named_targets(table, pool, task)


def _suspect(name: str, texts: Sequence[str], reading: ColumnReading) -> ColumnReading:
    """Return the reading with a reason where the name or the values speak against a target."""
    if name == ROW_INDEX:
        return replace(reading, reason="no name: taken for row numbers", mixed=None)
    if looks_like_split(name, texts):
        return replace(reading, reason=_SPLIT, mixed=None)
    if _ROW_WEIGHTS.fullmatch(name):
        return replace(reading, reason=_WEIGHTS, mixed=None)
    if reading.kind and _IDENTIFIER.fullmatch(name) and _all_whole(texts):
        return replace(reading, reason="named like an identifier")
    return reading


def _all_whole(texts: Sequence[str]) -> bool:
    return all(text.lstrip("+-").isdigit() for text in set(texts) if text)


def _ignored(readings: dict[str, ColumnReading], targets: set[str]) -> dict[str, ColumnRole]:
    return {
        name: ColumnRole(name, "ignored", why=reading.reason or "names of classes; --target-columns predicts them")
        for name, reading in readings.items()
        if name not in targets
    }
