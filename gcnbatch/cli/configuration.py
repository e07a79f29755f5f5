"""How the commands that train arrive at a configuration: a TOML file, named options, ``--set``, the later winning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def gather(config: Path | None, options: dict[tuple[str, ...], Any], assignments: list[str]) -> dict[str, Any]:
    """Merge TOML file, named options (None: not given) and ``--set``. Nothing given means the quickstart.

    A run without a name of its own is named after its configuration, else after its data.
    """
    from gcnbatch.config import parse_assignment, put, read_toml
    from gcnbatch.resources import shipped_config

    given = {path: value for path, value in options.items() if value is not None}
    pairs = [parse_assignment(text) for text in assignments]
    named = {*given, *(path for path, _ in pairs)}
    if config is None and named.isdisjoint({("data", "path"), ("data", "synthetic")}):
        config = shipped_config("quickstart")
    tree = read_toml(config) if config is not None else {}
    if config is not None and "name" not in tree:
        tree["name"] = _run_name(config)
    elif config is None and ("data", "path") in given:
        tree["name"] = _run_name(Path(given["data", "path"]))
    for path, value in [*given.items(), *pairs]:
        put(tree, path, value)
    if ("data", "path") in given:
        put(tree, ("data", "synthetic"), "")
    return tree


def _run_name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem)[:80]
