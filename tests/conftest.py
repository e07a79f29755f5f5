"""What all tests share: those marked ``gpu`` are skipped, with the reason, where the CUDA backends cannot start."""

from __future__ import annotations

from functools import cache

import pytest

from gcnbatch.backends import registry


@cache
def _why_no_gpu() -> str:
    state = next(state for state in registry.status() if state.name == "batched")
    return "" if state.ready else state.reason


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := _why_no_gpu()):
        pytest.skip(reason)
