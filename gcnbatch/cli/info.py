"""``gcnbatch info``: what this installation can do here."""

from __future__ import annotations


def info() -> None:
    """List backends (ready or why not), devices and versions."""
