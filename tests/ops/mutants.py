"""Mutants: wrong implementations on the host, which the bounds of each operation's test must reject."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends.cpu import CpuOps
from tests.ops.adapters import Adapter
from tests.ops.cases import CASES
from tests.ops.parity import Problem, error_ratios

Method = Callable[..., Any]

# Batches on which a mutant must fail: short and long sums, and several channels.
TELLING = [case for case in CASES if case.name in ("one graph of 33", "eleven mixed sizes", "four channels")]
on_telling_cases = pytest.mark.parametrize("case", TELLING, ids=lambda case: case.name)


def mutant(**methods: Method) -> Adapter:
    """Return the backend ``cpu`` with replaced methods; each receives the right implementation as first argument."""
    right = CpuOps()

    def bound_to(name: str, method: Method) -> Method:
        return lambda self, *arguments, **keywords: method(getattr(right, name), *arguments, **keywords)

    form = type("Mutant", (CpuOps,), {name: bound_to(name, method) for name, method in methods.items()})
    return Adapter(form(), np.array, np.array)


def assert_rejected(adapter: Adapter, problem: Problem) -> None:
    """Assert that a mutant's error exceeds the bound of at least one result."""
    ratios = error_ratios(adapter, problem)
    assert max(ratios.values()) > 1, f"within its bounds: {ratios}"


def half(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to float16 and back."""
    return values.astype(np.float16).astype(np.float32)
