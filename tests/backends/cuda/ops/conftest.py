"""The recording device of this folder's tests."""

from __future__ import annotations

import pytest

from tests.backends.cuda.ops.recorder import Recorder


@pytest.fixture
def device() -> Recorder:
    return Recorder()
