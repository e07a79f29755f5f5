"""Configurations as nested tables, before they are checked: read from TOML, set from ``--set section.key=value``.

This module imports nothing large: a command reads its backend here before it builds and checks the configuration.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gcnbatch.errors import InputError
from gcnbatch.fileio import open_regular
from gcnbatch.text import QUOTED, printable

_DEEPEST = 20
_LARGEST = 2**63  # whole numbers are below it, as TOML says
_TOO_LARGE = "a whole number of more than 64 bits"
_MOST_BYTES = 1 << 20


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as nested tables.

    Raises
    ------
    InputError
        When the file is missing, not a regular file, too large, not UTF-8 or not TOML.
    """
    expected = "a TOML configuration"
    try:
        with open_regular(path, expected) as stream:
            raw = stream.read(_MOST_BYTES + 1)
    except InputError as error:
        error.advise("See configs/ for examples.")
        raise
    if len(raw) > _MOST_BYTES:
        raise InputError(str(path), f"more than {_MOST_BYTES >> 20} MiB", expected, "Pass a data set with --data.")
    try:
        return parse_toml(raw.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(str(path), "not text", expected, "Pass a data set with --data.") from error


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """Return TOML as nested tables; `place` is its name in messages.

    Raises
    ------
    InputError
        When it is not TOML, nested too deep, or has a whole number of more than 64 bits.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        got = f"cannot be read as TOML ({printable(str(error), 2 * QUOTED)})"
        raise InputError(place, got, hint="Fix that line.") from error
    except ValueError as error:  # of more than 4,300 digits
        raise InputError(place, _TOO_LARGE, "smaller ones") from error
    except RecursionError:
        tree = None
    if tree is None or deeper(tree, _DEEPEST):
        raise InputError(place, "tables or lists nested too deep", f"at most {_DEEPEST} levels")
    _check_whole_numbers(tree, place)
    return tree


def _check_whole_numbers(value: Any, place: str, key: str = "") -> None:
    """Refuse whole numbers of more than 64 bits."""
    if isinstance(value, dict):
        for name, one in value.items():
            _check_whole_numbers(one, place, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for one in value:
            _check_whole_numbers(one, place, key)
    elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise InputError(f"{place}: {printable(key, QUOTED)}", _TOO_LARGE, "a smaller one")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; NaN and infinities, which JSON lacks, are a ValueError, too."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def deeper(value: Any, levels: int) -> bool:
    """Whether lists and tables are nested in more than `levels` levels."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inside is None:
        return False
    if levels and not any(issubclass(kind, (dict, list)) for kind in set(map(type, inside))):  # as of many numbers
        return False
    return levels == 0 or any(deeper(one, levels - 1) for one in inside if isinstance(one, (dict, list)))


def plain(value: Any) -> Any:
    """Return a copy of a value with Python's numbers and lists in place of NumPy's scalars and arrays."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):  # without importing NumPy
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def parse_assignment(text: str) -> tuple[tuple[str, ...], Any]:
    """Split ``"train.epochs=20"`` into key path and value; the value is TOML, a bare word is a string."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text}", "no '='", "section.key=value, such as train.epochs=20")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except (ValueError, RecursionError):
        value = raw.strip()
    if deeper(value, _DEEPEST):
        raise InputError(f"--set {key.strip()}", "lists nested too deep", f"at most {_DEEPEST} levels")
    _check_whole_numbers({key.strip(): value}, "--set")
    return tuple(part.strip() for part in key.split(".")), value


def put(tree: dict[str, Any], path: Iterable[str], value: Any) -> None:
    """Set ``tree[a][b]… = value`` for `path` (a, b, …), and create missing tables."""
    *tables, last = path
    for depth, name in enumerate(tables):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise InputError(".".join([*tables[: depth + 1], last]), f"{name} is a value", "section.key")
    tree[last] = value
