"""Operations on a rank's part of a global batch: their launches and exchanges, in order, on the recording device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ranks import halo
from gcnbatch.backends.cuda.ranks.halo import GraphPartBatch
from gcnbatch.backends.cuda.ranks.ops import DeviceDistributedOps
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import Reader
from gcnbatch.data.graph_part import read_part
from gcnbatch.data.sparse import Csr
from gcnbatch.data.store import Dataset
from tests.backends.cuda.ops.recorder import Recorder, of
from tests.backends.cuda.spmm.test_compressed import MANY, N_COLUMNS, square
from tests.ops.test_dropout import KEY
from tests.ranks.test_large_graph import write_one_graph
from tests.ranks.threads import on_ranks


class Machine(Recorder):
    """A recording device with L2 that also records copies."""

    l2_bytes = 60 << 20

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

    def exchange_beside(self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray) -> Arriving:
        self._called("exchange beside", parts=parts, rows=list(rows), out=out)
        return Arriving(self._called)

    def exchange(
        self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray | None = None
    ) -> list[DeviceArray]:
        self._called("exchange", parts=parts, rows=list(rows), out=out)
        return [self._device.empty((count, *parts[0].shape[1:])) for count in rows]


class Arriving:
    """An exchange whose arrival is recorded."""

    def __init__(self, called: Any) -> None:
        self._called = called

    def arrive(self) -> None:
        self._called("arrive")


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


def halo_batch(device: Machine, tmp_path: Path, **options: Any) -> tuple[Any, Any]:
    """Return rank 0's part of a graph on two ranks, and its batch."""
    path = write_one_graph(tmp_path / "set.h5", **options)
    with Dataset(path) as dataset:
        part = on_ranks(2, lambda door: read_part(dataset, True, door))[0]
    batch = GraphPartBatch(device, part, np.zeros((60, 1), np.int32), 0, "csr").batch(0)  # type: ignore[arg-type]
    return part, batch


@pytest.mark.parametrize("backward", [False, True])
def test_a_product_sends_rows_and_receives_its_halo(device: Machine, tmp_path: Path, backward: bool) -> None:
    part, batch = halo_batch(device, tmp_path, n_channels=2)
    found = part.adjacency.of_transpose if backward else part.adjacency.of_forward
    n, sent, received = batch.layout.n_nodes, len(found.sent[1]), found.received[1]
    assert min(sent, received) > 0
    assert batch.targets.shape == (n, 1)
    ops, P = ops_on(device), 8 if backward else 16
    (h,) = of(device, (n, P))
    y = (ops.spmm_backward if backward else ops.spmm)(batch.adjacency, h)
    assert y.shape == (n, 16 if backward else 8)
    assert device.entries[:3] == ["take_rows", "exchange", "copy"]
    packed, exchanged, copied, product = (about for _, _, about in device.launched)
    assert (packed["M"], packed["P"], packed["rows"].size) == (sent, P, sent)
    assert exchanged["rows"] == [0, received]
    assert [part.shape for part in exchanged["parts"]] == [(0, P), (sent, P)]
    assert exchanged["parts"][1].ptr == packed["y"].ptr
    assert exchanged["out"].ptr == copied["out"].ptr + 4 * n * P == product["dense"].ptr + 4 * n * P
    assert product["n_rows"] == (2 * n if backward else n)


def test_long_rows_are_multiplied_in_two_parts_while_the_halo_is_on_its_way(
    device: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halo, "LARGE_ENTRIES", 1)
    monkeypatch.setattr(halo, "DENSE_ROWS", 1)
    part, batch = halo_batch(device, tmp_path, n_channels=2, weights=True)
    found, n = part.adjacency.of_forward, batch.layout.n_nodes
    (h,) = of(device, (n, 2 * 8))
    device.launched.clear()
    y = ops_on(device).spmm(batch.adjacency, h)
    names = ["take_rows", "exchange beside", "spmm_large_weighted", "arrive", "spmm_large_weighted_add"]
    assert device.entries == names
    _, exchanged, own, _, others = (about for _, _, about in device.launched)
    assert (own["results"]["out"], others["results"]["out"]) == (y, y)
    assert (own["dense"], others["dense"]) == (h, exchanged["out"])
    assert exchanged["out"].shape == (found.received[1], 16)
    rows = batch.adjacency.of_forward
    assert (rows.own.n_cols, rows.halo.n_cols) == (2 * n, 2 * len(found.nodes))
    assert rows.own.indices.size + rows.halo.indices.size == len(part.adjacency.forward.indices)


def test_the_two_parts_of_a_matrix_are_its_columns() -> None:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((30, 50)) < 0.3, rng.random((30, 50)), 0).astype(np.float32)
    matrix = sp.csr_array(dense)
    given = Csr(matrix.indptr, matrix.indices, matrix.data, 50)
    scales = rng.random(30).astype(np.float32), rng.random(50).astype(np.float32)
    for n_own in (0, 20, 50):
        (own, _), (others, _) = halo.split(given, n_own, None)
        found = [sp.csr_array((part.data, part.indices, part.indptr), (30, part.n_cols)) for part in (own, others)]
        np.testing.assert_array_equal(np.hstack([part.toarray() for part in found]), dense)
        (own, first), (others, second) = halo.split(given, n_own, scales)
        assert own.data.size == others.data.size == 0
        np.testing.assert_array_equal(np.concatenate([first.columns, second.columns]), scales[1])
        assert first.rows is second.rows is scales[0]
