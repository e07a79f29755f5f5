"""Reading the files of a run folder, which may be damaged or a stranger's.

Each is a regular file of bounded size inside the folder, of the right syntax and with the keys that its readers use.
Anything else is an InputError that names the file. No symbolic link in a run folder is followed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter, ValidationError, model_validator

from gcnbatch import environment, fileio
from gcnbatch.config_tree import deeper, parse_json, parse_toml
from gcnbatch.errors import InputError, misfit
from gcnbatch.text import QUOTED, counted, printable, quoted

CONFIG, STUDY = "config.toml", "study.json"  # of a run or a study; of a study alone
ENVIRONMENT = "env.json"
_MOST_BYTES = 1 << 28  # a history of a million epochs; metrics of 4,096 tasks
_CONFIG_BYTES = 1 << 20
_DEEPEST = 20  # lists and objects within each other
_HINT = "Restore the file, or train anew."

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Split(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    kind: str
    seed: int
    sizes: list[int] | list[list[int]]


class _Uncertainty(BaseModel):
    """What is printed of the uncertainty; its other entries are only kept."""

    model_config = ConfigDict(extra="allow", strict=True)
    level: Number
    ece: Number | None = None
    ece_calibrated: Number | None = None
    coverage: Number | None = None
    notes: list[str] = []


class _Baseline(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    verdict: str


class _Metrics(BaseModel):
    """What metrics.json says of a run or a fold beside its figures."""

    model_config = ConfigDict(extra="allow", strict=True)
    backend: str
    seconds: Number
    split: _Split
    train: dict[str, Any] = {}
    valid: dict[str, Any] = {}
    test: dict[str, Any] = {}
    model: str = ""
    uncertainty: _Uncertainty | None = None
    baseline: _Baseline | None = None


class _Member(_Metrics):
    """A fit, or a cross-fitted model, which has no best epoch."""

    epochs: int


class _Fit(_Member):
    best_epoch: int


class _Members(_Member):
    folds: list[_Member] | None = Field(default=None, min_length=1)
    members: list[_Member] | None = Field(default=None, min_length=1)
    mean: dict[str, dict[str, Number]]
    std: dict[str, dict[str, Number | None]]  # None where a single member has the metric

    @model_validator(mode="after")
    def _has_some(self) -> _Members:
        if self.folds is None and self.members is None:
            raise ValueError("neither folds nor members")
        return self


class _Share(BaseModel):
    """A row of the table of members."""

    model_config = ConfigDict(extra="allow", strict=True)
    name: str
    weight: Number
    out_of_fold: Number | None
    test: Number | None


class _CrossFitted(_Member):
    parts: list[_Fit] = Field(min_length=1)
    metric: str = ""
    members: list[_Share] = []


class _Environment(BaseModel):
    """What pages show of env.json; a file that is gone has none of it."""

    model_config = ConfigDict(extra="allow", strict=True)
    gcnbatch: str = "unknown"
    commit: str | None = None
    python: str = "unknown"
    platform: str = "unknown"
    cpu: dict[str, Any] = {}
    packages: dict[str, str | None] = {}
    command: list[str] = []


class _Epoch(RootModel[dict[str, Number | None]]):
    """A row of the history."""


Schema = TypeVar("Schema")
_adapter: Any = cache(TypeAdapter)  # one for each schema


def lacking(folder: Path, file: str, commands: str = "'gcnbatch train'") -> InputError:
    """Return the error for a folder without a file that a run has: it is stopped, a study, or something else."""
    if not folder.is_dir():
        got = "not a folder" if folder.exists() else "no such folder"
        return InputError(str(folder), got, "the folder of a run", f"Make one with {commands}.")
    place, got = shlex.quote(str(folder)), f"no {file} in it"
    if (folder / STUDY).is_file():
        hint = f"It is a study: train its best configuration with 'gcnbatch train {place}/best.toml'."
        return InputError(str(folder), got, "the folder of a run", hint)
    if (folder / CONFIG).is_file():
        got = f"{got}: the run was stopped before it wrote one"
        return InputError(str(folder), got, hint=f"Go on with: gcnbatch train --resume {place}")
    return InputError(str(folder), got, "the folder of a run", f"Make one with {commands}.")


def refuse_links(folder: Path) -> None:
    """Refuse a run folder with a symbolic link anywhere in it: reading or writing could lead outside.

    Raises
    ------
    InputError
    """
    for place, folders, files in os.walk(folder):  # which follows no link
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink():
                expected = "files in the run folder itself"
                raise InputError(str(path), "a symbolic link", expected, "Replace it by a file.")


def remove(path: Path) -> None:
    """Remove a file if it is there.

    Raises
    ------
    InputError
        When it is not a regular file.
    """
    if path.exists():
        fileio.open_regular(path, "a file of a run", follow=False).close()
        path.unlink()


def read_toml(path: Path) -> dict[str, Any]:
    """Return a configuration as nested tables.

    Raises
    ------
    InputError
    """
    return parse_toml(read_text(path, "a TOML configuration", _CONFIG_BYTES), str(path))


def read_text(path: Path, expected: str, most: int = _MOST_BYTES, follow: bool = False) -> str:
    """Return the text of a file of at most `most` bytes. With `follow`, for a file of the user's, it may be a link.

    Raises
    ------
    InputError
        When it is not a regular file, too large or not UTF-8.
    """
    with fileio.open_regular(path, expected, follow) as stream:
        raw = stream.read(min(os.fstat(stream.fileno()).st_size, most) + 1)  # Python allocates all of it first
    if len(raw) > most:
        raise InputError(str(path), f"more than {most >> 20} MiB", expected, _HINT)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(str(path), "not UTF-8", expected, _HINT) from error


def read_metrics(path: Path, members: bool, cross_fitted: bool = False) -> dict[str, Any]:
    """Return metrics.json of a finished run with members, which may be cross-fitted, or of one fit.

    Raises
    ------
    InputError
    """
    return _metrics(path, _CrossFitted if cross_fitted else _Members if members else _Fit)


def read_figures(path: Path) -> dict[str, Any]:
    """Return metrics.json of any model's fit; a baseline has no epochs.

    Raises
    ------
    InputError
    """
    found = _metrics(path, _Metrics)
    return _metrics(path, _CrossFitted) if "parts" in found else found


def read_json(path: Path, expected: str) -> Any:
    """Return the value of a JSON file of bounded size and depth.

    Raises
    ------
    InputError
    """
    return _parsed(str(path), read_text(path, expected), expected)


def write_environment(folder: Path, **more: Any) -> dict[str, Any]:
    """Write env.json: machine, software, the command, and `more`; return it."""
    found = {**environment.host(), **more, "command": environment.command()}
    fileio.write_json(folder / ENVIRONMENT, found)
    return found


def read_environment(folder: Path) -> dict[str, Any]:
    """Return env.json, with defaults for what it lacks; defaults alone where there is no such file.

    Raises
    ------
    InputError
    """
    path, expected = folder / ENVIRONMENT, "the environment of a run"
    value = read_json(path, expected) if path.exists() else {}
    return checked(str(path), value, _Environment, expected).model_dump()


@contextmanager
def damaged(place: Path, expected: str) -> Iterator[None]:
    """Refuse a folder or file in whose values the block fails, which renders them without checks of its own.

    Raises
    ------
    InputError
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        got = f"{type(error).__name__}: {printable(str(error), QUOTED)}"
        raise InputError(str(place), got, expected, _HINT) from error


def _metrics(path: Path, schema: type[_Metrics]) -> dict[str, Any]:
    expected = "the metrics of a finished run"
    value = read_json(path, expected)
    checked(str(path), value, schema, expected)
    return dict(value)


def read_history(path: Path, epochs: int) -> list[dict[str, Any]]:
    """Return the first `epochs` rows of history.jsonl; a run that was killed may have written more.

    Raises
    ------
    InputError
    """
    expected = "a line of JSON per epoch"
    lines = read_text(path, expected).splitlines()[:epochs] if epochs or path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        place = f"{path}, line {number}"
        row = _parsed(place, line, expected)
        checked(place, row, _Epoch, expected)
        if row.get("epoch") != number:
            raise InputError(place, f"epoch {quoted(row.get('epoch'))}", f"{number}", _HINT)
        rows.append(row)
    if len(rows) < epochs:
        raise InputError(str(path), counted(len(rows), "epoch"), f"{epochs}, as in the checkpoint", _HINT)
    return rows


def read_as(path: Path, schema: type[Schema], expected: str) -> Schema:
    """Return the value of a JSON file as the schema, a model or dataclass, has it.

    Raises
    ------
    InputError
    """
    return checked(str(path), read_json(path, expected), schema, expected)


def checked(place: str, value: Any, schema: type[Schema], expected: str) -> Schema:
    """Return the value as the schema, a model or dataclass, has it.

    Raises
    ------
    InputError
        Names the first key that does not fit.
    """
    try:
        found: Schema = _adapter(schema).validate_python(value)
    except ValidationError as error:
        raise InputError(place, misfit(error), expected, _HINT) from error
    return found


def _parsed(place: str, text: str, expected: str) -> Any:
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(place, "not JSON", expected, _HINT) from error
    if deeper(value, _DEEPEST):
        raise InputError(place, "JSON nested too deep", expected, _HINT)
    return value
