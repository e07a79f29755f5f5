"""Kills of runs at an exact call, for the tests of resumption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.runs import fit

# Four steps per epoch, a checkpoint after each, dropout, and a schedule with state.
THOROUGH = (
    "train.checkpoint_seconds=0",
    "train.epochs=3",
    "model.dropout=0.3",
    "train.schedule=plateau",
    "train.schedule_every=1",
)


class Killed(BaseException):
    """Stands for a kill in tests that stop a run at an exact place."""


def die_at(patch: pytest.MonkeyPatch, place: Any, name: str, call: int) -> None:
    """Let the `call`-th call (from 0) of a function raise `Killed` before it does anything."""
    original: Callable[..., Any] = getattr(place, name)
    calls = iter(range(10**6))

    def dying(*arguments: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return original(*arguments)

    patch.setattr(place, name, dying)


def killed(data: Path, folder: Path, assignments: tuple[str, ...], *death: Any) -> bool:
    """Start a run that dies in the given call; return whether it did."""
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, *death)
        try:
            fit(data, folder, *assignments)
        except Killed:
            return True
    return False
