"""Configurations as nested tables, before they are checked: read from TOML, set from ``--set section.key=value``.

This module imports nothing large: a command reads its backend here before it builds and checks the configuration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gcnbatch.errors import InputError


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as nested tables.

    Raises
    ------
    InputError
        When the file is missing, not UTF-8 or not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(str(path), "no such file", "a TOML configuration", "See configs/ for examples.") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "not text", "a TOML configuration", "Pass a data set with --data.") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(path), f"cannot be read as TOML ({error})", hint="Fix that line.") from error
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "a TOML configuration") from error


def parse_assignment(text: str) -> tuple[tuple[str, ...], Any]:
    """Split ``"train.epochs=20"`` into key path and value; the value is TOML, a bare word is a string."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text}", "no '='", "section.key=value, such as train.epochs=20")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    return tuple(part.strip() for part in key.split(".")), value


def put(tree: dict[str, Any], path: Iterable[str], value: Any) -> None:
    """Set ``tree[a][b]… = value`` for `path` (a, b, …), and create missing tables."""
    *tables, last = path
    for depth, name in enumerate(tables):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise InputError(".".join([*tables[: depth + 1], last]), f"{name} is a value", "section.key")
    tree[last] = value
