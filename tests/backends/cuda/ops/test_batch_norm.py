"""Batch normalisation: its launches."""

from __future__ import annotations

from gcnbatch.backends.cuda.ops.batch_norm import BatchNormOps
from tests.backends.cuda.ops.recorder import Recorder, of


def test_batch_norm_takes_two_launches_forward_and_two_back(device: Recorder) -> None:
    ops = BatchNormOps(device)
    x, gamma, beta, mean, var, dgamma, dbeta = of(device, (950, 64), *[(64,)] * 6)
    y, saved = ops.batch_norm(x, gamma, beta, mean, var, 1e-5, 0.1, training=True)
    dx, *gradients = ops.batch_norm_backward(y, saved, gamma, out=(dgamma, dbeta))
    assert dx.shape == x.shape
    assert gradients == [dgamma, dbeta]
    assert len(device.launched) == 4
    _, nothing = ops.batch_norm(x, gamma, beta, mean, var, 1e-5, 0.1, training=False)
    assert nothing is None
    assert device.entries[4:] == ["batch_norm_evaluate"]
