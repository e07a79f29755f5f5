"""Operations on a rank's part of a global batch: their launches and exchanges, in order, on the recording device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ranks.halo import GraphPartBatch
from gcnbatch.backends.cuda.ranks.ops import DeviceDistributedOps
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import Reader
from gcnbatch.data.graph_part import read_part
from gcnbatch.data.store import Dataset
from tests.backends.cuda.ops.recorder import Recorder, of
from tests.backends.cuda.spmm.test_compressed import MANY, N_COLUMNS, square
from tests.ops.test_dropout import KEY
from tests.ranks.test_large_graph import write_one_graph
from tests.ranks.threads import on_ranks


class Machine(Recorder):
    """A recording device that also records copies."""

    def copy(self, source: DeviceArray, out: DeviceArray) -> None:
        assert source.nbytes == out.nbytes
        self.launched.append(("copy", None, {"source": source, "out": out}))  # type: ignore[arg-type]

    def upload(self, host: Any) -> DeviceArray:
        return self.empty(host.shape, host.dtype)


class Exchanges:
    """A communicator of two ranks that records its calls among the device's launches."""

    rank, size = 0, 2

    def __init__(self, device: Machine) -> None:
        self._device = device

    def _called(self, name: str, **about: Any) -> None:
        self._device.launched.append((name, None, about))  # type: ignore[arg-type]

    def all_reduce(self, array: DeviceArray, out: DeviceArray | None = None) -> None:
        self._called("all_reduce", array=array, out=out)

    def all_gather(self, array: DeviceArray) -> DeviceArray:
        self._called("all_gather", array=array)
        return self._device.empty((2, *array.shape), array.dtype)

    def exchange(
        self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray | None = None
    ) -> list[DeviceArray]:
        self._called("exchange", parts=parts, rows=list(rows), out=out)
        return [self._device.empty((count, *parts[0].shape[1:])) for count in rows]


@pytest.fixture
def device() -> Machine:
    return Machine()


def ops_on(device: Machine, sync: bool = True) -> DeviceDistributedOps:
    return DeviceDistributedOps(BatchedOps(device, "fp32", "csr"), Exchanges(device), sync)  # type: ignore[arg-type]


def test_batch_norm_exchanges_moments_forward_and_both_sums_back(device: Machine) -> None:
    x, gamma, beta, mean, var, dgamma, dbeta = of(device, (950, 64), *[(64,)] * 6)
    ops = ops_on(device)
    y, saved = ops.batch_norm(x, gamma, beta, mean, var, 1e-5, 0.1, training=True, relu=True)
    forward = ["ranks_batch_norm_begin", "batch_norm_statistics", "all_gather", "ranks_batch_norm_combine"]
    assert device.entries == [*forward, "batch_norm_normalise"]
    combined = device.launched[3][2]
    assert (combined["ranks"], combined["N"], combined["momentum"]) == (2, 950, 0.1)
    assert device.launched[1][2]["momentum"] == 1.0  # its running statistics become the rank's own
    assert (combined["running_mean"], combined["running_var"]) == (mean, var)
    device.launched.clear()
    dx, *gradients = ops.batch_norm_backward(y, saved, gamma, out=(dgamma, dbeta))
    assert gradients == [dgamma, dbeta]
    assert dx.shape == x.shape
    backward = ["batch_norm_backward_sums", "all_reduce", "ranks_batch_norm_share", "batch_norm_backward_dx"]
    assert device.entries == backward
    found, exchanged, shared, used = (about for _, _, about in device.launched)
    both = exchanged["array"]
    assert (both.shape, exchanged["out"]) == ((2, 64), None)
    for launched in (found, used):  # of all ranks, side by side
        assert (launched["dgamma"].ptr, launched["dbeta"].ptr) == (both.ptr, both.ptr + 4 * 64)
    assert (shared["dgamma"], shared["dbeta"], shared["ranks"], shared["N"]) == (dgamma, dbeta, 2, 950)


@pytest.mark.parametrize("training", [True, False])
def test_without_sync_or_training_batch_norm_exchanges_nothing(device: Machine, training: bool) -> None:
    x, gamma, beta, mean, var = of(device, (950, 64), *[(64,)] * 4)
    ops = ops_on(device, sync=not training)
    y, saved = ops.batch_norm(x, gamma, beta, mean, var, 1e-5, 0.1, training)
    if training:
        ops.batch_norm_backward(y, saved, gamma)
    assert not {"all_gather", "all_reduce"} & set(device.entries)


def test_a_rank_without_rows_joins_the_exchanges(device: Machine) -> None:
    x, gamma, beta, mean, var = of(device, (0, 8), *[(8,)] * 4)
    ops = ops_on(device)
    y, saved = ops.batch_norm(x, gamma, beta, mean, var, 1e-5, 0.1, training=True)
    ops.batch_norm_backward(y, saved, gamma)
    exchanged = ["ranks_batch_norm_begin", "all_gather", "ranks_batch_norm_combine", "batch_norm_backward_sums"]
    assert device.entries == [*exchanged, "all_reduce", "ranks_batch_norm_share"]


@pytest.mark.parametrize("loss", ["sigmoid_cross_entropy", "softmax_cross_entropy", "mean_squared_error"])
@pytest.mark.parametrize("rows", [50, 0])
def test_a_loss_adds_both_numbers_of_the_ranks_at_once(device: Machine, loss: str, rows: int) -> None:
    (logits, weights), totals = of(device, (rows, 4), (4,)), device.empty((2,), np.float64)
    y = device.empty((rows, 1), np.int32) if loss.startswith("softmax") else device.empty((rows, 4))
    about = [] if loss == "mean_squared_error" else [weights]
    total, weight, dlogits = getattr(ops_on(device), loss)(logits, y, *about, totals=totals)
    assert device.entries == [loss, "all_reduce", "ranks_loss"]
    own, both = device.launched[1][2].values()
    local = device.launched[0][2]
    assert local["totals"] is None
    assert (own.ptr, own.ptr + 4, own.shape) == (local["total"].ptr, local["weight"].ptr, (2,))
    last = device.launched[2][2]
    assert (last["own"], last["sums"], last["totals"], last["dlogits"]) == (own, both, totals, dlogits)
    assert (total.ptr, weight.ptr) == (both.ptr, both.ptr + 4)


def test_activations_that_other_ranks_read_are_dense(device: Machine) -> None:
    (x,), reader = of(device, (N_COLUMNS, 128)), Reader(square(np.random.default_rng(0)), MANY)
    h, _ = ops_on(device).relu_dropout(x, 0.5, KEY, out=x, reader=reader)
    assert (h, device.entries) == (x, ["relu_dropout_forward"])


def test_a_product_sends_rows_receives_its_halo_and_adds_what_others_computed(device: Machine, tmp_path) -> None:
    path = write_one_graph(tmp_path / "set.h5", n_channels=2)
    with Dataset(path) as dataset:
        parts = on_ranks(2, lambda door: read_part(dataset, True, door))
    part, targets = parts[0], np.zeros((60, 1), np.int32)
    batch = GraphPartBatch(device, part, targets, 0, "csr").batch(0)  # type: ignore[arg-type]
    n, sent, received = batch.layout.n_nodes, len(part.adjacency.sent[1]), part.adjacency.received[1]
    assert min(sent, received) > 0
    assert batch.targets.shape == (n, 1)
    ops, (h,) = ops_on(device), of(device, (n, 2 * 8))
    y = ops.spmm(batch.adjacency, h)
    assert y.shape == (n, 8)
    assert device.entries[:3] == ["take_rows", "exchange", "copy"]
    packed, exchanged, copied, product = (about for _, _, about in device.launched)
    assert (packed["M"], packed["P"], packed["rows"].size) == (sent, 16, sent)
    assert exchanged["rows"] == [0, received]
    assert [part.shape for part in exchanged["parts"]] == [(0, 16), (sent, 16)]
    assert exchanged["parts"][1].ptr == packed["y"].ptr
    assert exchanged["out"].ptr == copied["out"].ptr + 4 * n * 16 == product["dense"].ptr + 4 * n * 16
    assert product["n_rows"] == n
    device.launched.clear()
    dh = ops.spmm_backward(batch.adjacency, y)
    assert dh.shape == (n, 16)
    product, exchanged, added = (about for _, _, about in device.launched)
    assert product["n_rows"] == 2 * (n + received)
    assert exchanged["rows"] == [0, sent]
    assert exchanged["parts"][1].ptr == product["out"].ptr + 4 * n * 16
    assert (added["x"].ptr, added["n_rows"], added["P"]) == (product["out"].ptr, sent, 16)
    assert device.entries[-1] == "halo_add"
