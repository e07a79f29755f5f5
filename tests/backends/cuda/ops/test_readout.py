"""Readout: its launches and their geometry."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gcnbatch.backends.cuda.ops.readout import ReadoutOps, readout_geometry
from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS
from tests.backends.cuda.ops.recorder import Recorder, covers, of


def test_maximum_readout_saves_the_argmax(device: Recorder) -> None:
    ops, (h,) = ReadoutOps(device), of(device, (9, 5))
    node_ptr = device.empty((4,), np.int32)
    for kind in ("sum", "mean", "max"):
        r, saved = ops.readout(h, node_ptr, kind)
        assert r.shape == (3, 5)
        assert (saved.argmax is not None) == (kind == "max")
        assert ops.readout_backward(r, node_ptr, kind, saved).shape == h.shape
    assert len(device.launched) == 6


@pytest.mark.parametrize(("B", "P"), list(product([0, 1, 11, 10_000], [1, 31, 64, 130])))
def test_a_readout_has_a_block_per_graph(B: int, P: int) -> None:
    launch = readout_geometry(B, P)
    assert launch.grid[0] == B
    assert launch.threads == BLOCK_THREADS
    assert covers(launch.grid[1], launch.block[0], P)
