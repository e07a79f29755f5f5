"""Fixture: a recording device for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.backends.cuda.ops.recorder import Recorder


@pytest.fixture
def device() -> Recorder:
    return Recorder()
