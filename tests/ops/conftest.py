"""Fixtures of the operation tests: each test that asks for both runs on every backend and every named case."""

from __future__ import annotations

import pytest

from tests.ops.adapters import BACKENDS, Adapter, open_adapter
from tests.ops.cases import CASES, Case


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Adapter:
    return open_adapter(request.param)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param
