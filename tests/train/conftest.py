"""What the tests of training share."""

from __future__ import annotations

import os

import pytest

from gcnbatch.train import plots


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out pictures, which have tests of their own, and syncing: together most of a small run's time."""
    for name in ("learning_curves", "roc_pr", "confusion", "parity"):
        monkeypatch.setattr(plots, name, lambda *about: None)
    monkeypatch.setattr(os, "fsync", lambda file: None)
