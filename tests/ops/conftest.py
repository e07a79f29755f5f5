"""Fixtures of the operation tests: each test that asks for both runs on every backend and every named case."""

from __future__ import annotations

import pytest

from tests.ops.adapters import BACKENDS, SPMM_BACKENDS, Adapter, open_adapter
from tests.ops.cases import CASES, Case


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Adapter:
    return open_adapter(request.param)


@pytest.fixture(params=SPMM_BACKENDS)
def spmm_backend(request: pytest.FixtureRequest) -> Adapter:
    """A backend with each of its SpMM kernels."""
    return open_adapter(request.param)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param
