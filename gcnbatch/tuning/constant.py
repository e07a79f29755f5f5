"""The objective of a model that learned nothing: it gives all rows the mean of the training labels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import metrics
from gcnbatch.data.graphs import Split
from gcnbatch.moments import moments
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.targets import left_out


def constant_value(experiment: Experiment, splits: Sequence[Split]) -> float | None:
    """Return the mean objective of constant outputs on these splits; None for the loss, and where it is not defined."""
    if experiment.monitor == "loss":
        return None
    target, y = experiment.header.target, experiment.y
    values = []
    for split in splits:
        mean = _mean_labels(y[split.train], experiment.header.n_outputs)
        outputs = np.tile(mean, (len(split.valid), 1))
        labels = metrics.without_tasks(experiment.measured[split.valid], left_out(experiment.header, y[split.train]))
        values.append(metrics.score(experiment.monitor, target, labels, outputs))
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _mean_labels(y: NDArray[Any], outputs: int) -> NDArray[np.floating]:
    """Return the mean of each column, or the shares of the classes."""
    if y.dtype.kind == "i":
        counts = np.bincount(y[y >= 0], minlength=outputs)
        return (counts / max(counts.sum(), 1)).astype(np.float32)
    return moments(y)[0].astype(y.dtype)
