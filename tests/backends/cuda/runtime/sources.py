"""What the tests of geometries share: constants that host and source must both have."""

from __future__ import annotations

import re
from collections.abc import Mapping


def assert_numbers(source: str, numbers: Mapping[str, int]) -> None:
    """Hold these constants of the host to those that the source defines."""
    for name, number in numbers.items():
        assert re.search(rf"\b{name} = {number}\b", source), name
