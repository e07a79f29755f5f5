"""Names of arrays in one flat dict, as safetensors keeps them: ``kernel.landmarks.scores``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcnbatch.mixture.normal_scores import Arrays


def join(parts: Mapping[str, Arrays]) -> Arrays:
    """Return one dict of arrays; the name of its part comes before each name."""
    return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def split(arrays: Mapping[str, Any]) -> dict[str, Arrays]:
    """Return the parts that `join` joined."""
    found: dict[str, Arrays] = {}
    for key, array in arrays.items():
        part, _, name = key.partition(".")
        found.setdefault(part, {})[name] = array
    return found
