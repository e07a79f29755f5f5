"""A model alone as the fused engine receives it, for tests of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcnbatch.backends.cuda.fused.shared.cohort import Cohort, upload_labels
from gcnbatch.backends.cuda.fused.shared.data import FusedSet
from gcnbatch.backends.cuda.fused.shared.form import Form
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel, member_values
from gcnbatch.backends.cuda.fused.shared.ranks import Ranks
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.runners.fused_graphs import labels_of
from gcnbatch.runners.fused_stack import describe
from gcnbatch.runners.task import RunnerTask


def cohort_of(
    device: Any, task: RunnerTask, training: tuple[type[Form], ...], ranks: Callable[[Stack], Ranks] | None = None
) -> Cohort:
    """Return a model alone on its data set, or on ranks."""
    layout = task.model.layout()
    flat = [device.zeros(layout.n_trainable) for _ in range(6)]
    buffers, shifts = device.zeros(layout.n_buffers), device.zeros(layout.n_buffers)
    weights, totals = device.upload(task.loss.weights), device.zeros(2, np.float64)
    values = device.upload(member_values(task.seed, 0.0, task.train.clip_norm))
    moments, of_parameters = (flat[2], flat[3]), (flat[4], flat[5])
    model = DeviceModel(flat[0], buffers, flat[1], moments, *of_parameters, weights, totals, shifts, values)
    stack = describe(task)
    held = FusedSet(device, task.source, training[-1])
    labels, clips = upload_labels(device, [labels_of(task)]), task.train.clip_norm > 0
    return Cohort(device, stack, model, held, labels, clips, ranks(stack) if ranks else None)
