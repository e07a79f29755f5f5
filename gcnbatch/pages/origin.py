"""Where results come from: software, machine and command, as `gcnbatch.environment` has recorded them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gcnbatch.pages.elements import Html, code, paragraph


def software(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield facts about the machine and the software of an ``env.json``, which may be damaged."""
    cpu, packages = found.get("cpu"), found.get("packages")
    commit = f", commit {found['commit']}" if found.get("commit") else ""
    yield "gcnbatch", f"{found.get('gcnbatch', 'unknown')}{commit}"
    if isinstance(cpu, dict):
        yield "CPU", f"{cpu.get('model')}, {cpu.get('usable_cores')} of {cpu.get('cores')} usable cores"
    yield "Python", f"{found.get('python', 'unknown')}, {found.get('platform', 'unknown')}"
    if isinstance(packages, dict):
        yield "Packages", ", ".join(f"{name} {version}" for name, version in packages.items() if version)


def command(found: Mapping[str, Any]) -> list[str]:
    """Return the arguments that the command was started with; none for a Python program."""
    arguments = found.get("command")
    return [str(part) for part in arguments] if isinstance(arguments, list) else []


def started(found: Mapping[str, Any], what: str) -> list[Html]:
    """Return the command that made `what`; nothing for a Python program."""
    arguments = command(found)
    if not arguments:
        return []
    return [paragraph(f"The {what} was started with:"), code("gcnbatch " + shlex.join(arguments))]
