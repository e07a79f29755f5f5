"""Test scores of runs by block: a fold of a repeat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcnbatch.training.finished import FinishedFit

Block = tuple[int, int]


def scores_by_block(fits: Sequence[FinishedFit], metric: str) -> dict[Block, float | None]:
    """Return the test score of each block: the mean over the models of an ensemble; None where it is not defined."""
    found: dict[Block, list[float | None]] = {}
    for fit in fits:
        value = fit.metrics.get("test", {}).get(metric)
        found.setdefault(fit.block, []).append(float(value) if isinstance(value, int | float) else None)
    return {
        block: None if None in values else float(np.mean([value for value in values if value is not None]))
        for block, values in found.items()
    }


def overlap(fits: Sequence[FinishedFit]) -> float:
    """Return test rows / training rows, the mean over the fits: the correction for folds that share training rows."""
    return float(np.mean([len(fit.split.test) / max(len(fit.split.train), 1) for fit in fits]))
