"""Dropout: the key of its mask."""

from __future__ import annotations

import numpy as np

from gcnbatch.backends.cuda.ops.dropout import DropoutOps
from gcnbatch.backends.ops import DropoutKey
from tests.backends.cuda.ops.recorder import Recorder, of


def test_a_dropout_mask_is_keyed_by_its_place_in_training(device: Recorder) -> None:
    ops, (x,) = DropoutOps(device), of(device, (3, 7))
    y, mask = ops.dropout(x, 0.5, DropoutKey(2**63 - 1, "123456789", 3, 41))
    assert (y.shape, mask.shape, mask.dtype) == (x.shape, x.shape, np.uint8)
    _, launch, arguments = device.launched[0]
    assert launch.blocks == 1
    keys = ("n", "seed", "purpose", "epoch", "step", "threshold", "scale")
    assert [arguments[name] for name in keys] == [21, 2**63 - 1, 0xCBF43926, 3, 41, 2**31, 2.0]
    assert ops.dropout_backward(y, mask, 0.5).shape == x.shape
