"""Join: its launches and their geometry."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.backends.cuda.ops.join import JoinOps
from gcnbatch.backends.ops import GraphFeatures
from tests.backends.cuda.ops.recorder import Recorder, covers, of


@pytest.mark.parametrize(("B", "P", "D"), [(0, 64, 5), (1, 1, 1), (50, 64, 2265), (33, 31, 130)])
def test_a_join_has_a_thread_per_element(device: Recorder, B: int, P: int, D: int) -> None:
    r, values, mean, scale = of(device, (B, P), (9, D), (D,), (D,))
    y = JoinOps(device).join(r, GraphFeatures(values, device.empty((B,), np.int32)), mean, scale, 10.0)
    assert y.shape == (B, P + D)
    assert JoinOps(device).join_backward(y, P).shape == r.shape
    for (entry, launch, _), columns in zip(device.launched, (P + D, P), strict=B > 0):
        assert entry.startswith("join_")
        assert covers(launch.grid[0], launch.block[1], B)
        assert covers(launch.grid[1], launch.block[0], columns)
