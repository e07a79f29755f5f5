"""Typer commands from declarations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any

import typer

from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath
from gcnbatch.options.declaration import Argument, Option, Parameter, parameters

RunsAndData = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN_DIR... DATA",
        help="Folders of runs; then an HDF5 data set, molecules (.csv, .smi, .sdf, .xlsx, .parquet), a SMILES, or - "
        "for standard input.",
        show_default=False,
    ),
]
_PATHS: dict[Any, Any] = {str(StrPath): Path, str(StrPath | None): Path}


def command(declaration: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a function the options of a declaration, before its own parameters.

    It receives them as keyword arguments for the Python function of the declaration, without those that were not given.
    """
    options = [one for one in parameters(declaration).values() if isinstance(one.form, Option)]
    read = {one.name: one.form.read for one in options if one.form.read is not None}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(**values: Any) -> None:
            given = {name: value for name, value in values.items() if value is not None}
            function(**{name: read[name](value) if name in read else value for name, value in given.items()})

        own = inspect.signature(function, eval_str=True).parameters.values()
        every = list(map(_parameter, options))
        every += [one.replace(kind=one.KEYWORD_ONLY) for one in own if one.kind is not one.VAR_KEYWORD]
        call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in every}
        return call

    return decorate


def runs_and_data(paths: list[str]) -> tuple[list[str], str]:
    """Return the folders of runs, and the data after them.

    Raises
    ------
    InputError
        When there is only one path.
    """
    *runs, data = paths
    if not runs:
        raise InputError("DATA", "missing", f"a data set or a file of molecules after the run {data}")
    return runs, data


def messages(quiet: bool) -> Callable[[str], None]:
    """Return the function that writes a message to stderr; with `quiet`, one that drops it."""

    def say(line: str) -> None:
        if not quiet:
            from gcnbatch.progress import write_line  # late: it imports tqdm

            write_line(line)

    return say


def _parameter(declared: Parameter) -> inspect.Parameter:
    """Return Typer's parameter."""
    name, kind, form, default = declared
    assert isinstance(form, Option)
    if form.typed is None:
        kind = _PATHS.get(str(kind), kind)
    else:
        kind = form.typed
        if default is not MISSING and not (kind is str and isinstance(default, str)):
            default = None  # a value of the other type
    form_of = typer.Argument if isinstance(form, Argument) else typer.Option
    info = form_of(
        *(() if form_of is typer.Argument else declared.flags),
        help=form.help,
        metavar=form.metavar,
        min=form.min,
        max=form.max,
        show_default=form.shown or default not in ("", None, MISSING),
    )
    made = inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind | None if default is None else kind, info]
    )
    return made if default is MISSING else made.replace(default=default)
