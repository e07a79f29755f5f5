"""Where results come from: software, machine and command, as `env.json` records them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gcnbatch.pages.elements import Html, code, paragraph


def software(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield facts about the machine and the software of an ``env.json``."""
    commit = f", commit {found['commit']}" if found["commit"] else ""
    yield "gcnbatch", f"{found['gcnbatch']}{commit}"
    if cpu := found["cpu"]:
        yield "CPU", f"{cpu.get('model')}, {cpu.get('usable_cores')} of {cpu.get('cores')} usable cores"
    yield "Python", f"{found['python']}, {found['platform']}"
    if packages := found["packages"]:
        yield "Packages", ", ".join(f"{name} {version}" for name, version in packages.items() if version)


def started(found: Mapping[str, Any], what: str) -> list[Html]:
    """Return the command that made `what`; nothing for a Python program."""
    if not found["command"]:
        return []
    return [paragraph(f"The {what} was started with:"), code("gcnbatch " + shlex.join(found["command"]))]
