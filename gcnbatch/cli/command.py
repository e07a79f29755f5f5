"""Typer commands from declarations."""

from __future__ import annotations

import functools
import inspect
import json
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


def command(
    declaration: type | None = None,
    as_json: str = "",
    quiet: str = "",
    epilog: str = "",
    group: typer.Typer | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a function the options of a declaration, before its own parameters.

    It receives them as keyword arguments for the Python function of the declaration, without those that were not given.
    Its parameters `as_json` and `quiet` are ``--json`` and ``--quiet``. Its docstring is the help; from the first
    paragraph with two blanks in a row on, such as examples, it stands below the options.

    Parameters
    ----------
    declaration : type or None
    as_json, quiet : str
        Help of these two options.
    epilog : str
        Text below the examples.
    group : Typer or None
        The group of the command; None: it is one of the program itself.
    name : str or None
        Its name in the group; None: that of the function.
    """
    options = [] if declaration is None else parameters(declaration).values()
    options = [one for one in options if isinstance(one.form, Option)]
    read = {one.name: one.form.read for one in options if one.form.read is not None}
    flags = {
        "as_json": Annotated[bool, typer.Option("--json", help=as_json)],
        "quiet": Annotated[bool, typer.Option("--quiet", "-q", help=quiet)],
    }

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(**values: Any) -> None:
            given = {name: value for name, value in values.items() if value is not None}
            function(**{name: read[name](value) if name in read else value for name, value in given.items()})

        every = list(map(_parameter, options))
        for one in inspect.signature(function, eval_str=True).parameters.values():
            if one.name in flags:
                every.append(one.replace(kind=one.KEYWORD_ONLY, annotation=flags[one.name], default=False))
            elif one.kind is not one.VAR_KEYWORD:
                every.append(one.replace(kind=one.KEYWORD_ONLY))
        call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in every}
        call.__doc__, examples = _split(inspect.getdoc(function) or "")
        call.epilog = f"{examples}\n\n{epilog}"  # type: ignore[attr-defined]
        if group is not None:
            group.command(name, epilog=call.epilog)(call)  # type: ignore[attr-defined]
        return call

    return decorate


def _split(text: str) -> tuple[str, str]:
    """Return the paragraphs before the first preformatted one, and the others; Typer's mark keeps the lines of such."""
    paragraphs = [f"\b\n{one}" if "  " in one else one for one in text.split("\n\n")]
    start = next((place for place, one in enumerate(paragraphs) if one.startswith("\b")), len(paragraphs))
    return "\n\n".join(paragraphs[:start]), "\n\n".join(paragraphs[start:])


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


def print_result(as_json: bool, value: Any, text: object) -> None:
    """Print a value as JSON, or else a text."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False) if as_json else text)


def messages(quiet: bool = False) -> Callable[[str], None]:
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
        show_default=form.shown or default not in ("", None, MISSING),
        **form.form,
    )
    made = inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind | None if default is None else kind, info]
    )
    return made if default is MISSING else made.replace(default=default)
