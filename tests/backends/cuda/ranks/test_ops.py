"""Operations on a rank's part of a global batch: their launches and exchanges, in order, on the recording device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ranks import halo
from gcnbatch.backends.cuda.ranks.halo import GraphPartBatch
from gcnbatch.backends.cuda.ranks.ops import DeviceDistributedOps
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.large import CHUNK, CompressedRows
from gcnbatch.backends.ops import Reader
from gcnbatch.data import synthetic
from gcnbatch.data.graph_part import read_part
from gcnbatch.data.sparse import Csr
from gcnbatch.data.store import Dataset
from tests.backends.cuda.ops.recorder import Recorder, of
from tests.backends.cuda.spmm.test_compressed import MANY
from tests.ops.test_dropout import KEY
from tests.ranks.test_large_graph import write_one_graph
from tests.ranks.threads import on_ranks


class Machine(Recorder):
    """A recording device with L2 that also records copies."""

    l2_bytes = 60 << 20
    free = 1 << 40

    def memory(self) -> Any:
        return SimpleNamespace(free=self.free, total=self.free)

    def copy(self, source: DeviceArray, out: DeviceArray) -> None:
        assert source.nbytes == out.nbytes
        self.launched.append(("copy", None, {"source": source, "out": out}))  # type: ignore[arg-type]

    def zeros(self, shape: Any, dtype: Any) -> DeviceArray:
        return self.empty((shape,), dtype)

    def upload(self, host: Any) -> DeviceArray:
        return self.empty(host.shape, host.dtype)


class Exchanges:
    """A communicator of two ranks that records its calls among the device's launches."""

    rank, size = 0, 2

    def __init__(self, device: Machine, packed: tuple[int, int] = (0, 0)) -> None:
        self._device = device
        self._sectors, self._received = packed  # of each compressed row; rows from rank 1

    def _called(self, name: str, **about: Any) -> None:
        self._device.launched.append((name, None, about))  # type: ignore[arg-type]

    def all_reduce(self, array: DeviceArray, out: DeviceArray | None = None) -> None:
        self._called("all_reduce", array=array, out=out)

    def all_gather(self, array: DeviceArray) -> DeviceArray:
        self._called("all_gather", array=array)
        return self._device.empty((2, *array.shape), array.dtype)

    def exchange_beside(
        self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray, follows: bool = True
    ) -> Arriving:
        self._called("exchange beside", parts=parts, rows=list(rows), out=out, follows=follows)
        return Arriving(self._called)

    def gather_beside(self, array: DeviceArray) -> Arriving:
        (ends,) = (about for name, _, about in self._device.launched[-1:] if name == "halo_ends")
        sent = self._device.launched[-2][2]["n_sent"]
        assert ends["ends"] is array
        self._called("gather beside", array=array)
        return Arriving(self._called, self._sectors * np.array([[0, 0, sent], [0, self._received, self._received]]))

    def exchange(
        self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray | None = None
    ) -> list[DeviceArray]:
        self._called("exchange", parts=parts, rows=list(rows), out=out)
        return [self._device.empty((count, *parts[0].shape[1:])) for count in rows]


class Arriving:
    """An exchange whose arrival is recorded."""

    def __init__(self, called: Any, found: Any = None) -> None:
        self._called, self._found = called, found

    def arrive(self) -> None:
        self._called("arrive")

    def read(self) -> Any:
        return self._found


@pytest.fixture
def device() -> Machine:
    return Machine()


def ops_on(device: Machine, sync: bool = True, packed: tuple[int, int] = (0, 0)) -> DeviceDistributedOps:
    local: Any = BatchedOps(device, "fp32", "csr")  # type: ignore[arg-type]
    return DeviceDistributedOps(local, Exchanges(device, packed), sync)


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


@pytest.mark.parametrize(
    "loss", ["sigmoid_cross_entropy", "softmax_cross_entropy", "mean_squared_error", "weighted_loss"]
)
@pytest.mark.parametrize("rows", [50, 0])
def test_a_loss_adds_both_numbers_of_the_ranks_at_once(device: Machine, loss: str, rows: int) -> None:
    (logits, weights), totals = of(device, (rows, 4), (4,)), device.empty((2,), np.float64)
    y = device.empty((rows, 1), np.int32) if loss.startswith("softmax") else device.empty((rows, 4))
    about: list[Any] = [] if loss == "mean_squared_error" else [weights]
    if loss == "weighted_loss":
        y, about = device.empty((rows, 12)), ["huber", weights]
    total, weight, dlogits = getattr(ops_on(device), loss)(logits, y, *about, totals=totals)
    assert device.entries == [loss, "all_reduce", "ranks_loss"]
    own, both = device.launched[1][2].values()
    local = device.launched[0][2]
    assert local["totals"] is None
    assert (own.ptr, own.ptr + 4, own.shape) == (local["total"].ptr, local["weight"].ptr, (2,))
    last = device.launched[2][2]
    assert (last["own"], last["sums"], last["totals"], last["dlogits"]) == (own, both, totals, dlogits)
    assert (total.ptr, weight.ptr) == (both.ptr, both.ptr + 4)


def halo_batch(device: Machine, path: Path) -> tuple[Any, Any]:
    """Return rank 0's part of a graph on two ranks, and its batch."""
    with Dataset(path) as dataset:
        part = on_ranks(2, lambda communicator: read_part(dataset, True, communicator))[0]
    targets = np.zeros((int(part.bounds[-1]), 1), np.int32)
    only: Any = SimpleNamespace(rank=0, size=2, all_gather=lambda array: np.stack([array, array // 2]))
    return part, GraphPartBatch(device, part, targets, only, "csr").batch(0)  # type: ignore[arg-type]


def reddit(path: Path) -> Path:
    """Write an unweighted graph, whose adjacency has scales."""
    synthetic.write("reddit", path, scale=0.002)
    return path


@pytest.fixture
def long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranks multiply every other row of any matrix in two parts."""
    monkeypatch.setattr(halo, "LARGE_ENTRIES", 1)
    monkeypatch.setattr(halo, "MEAN_ROW", 1)
    monkeypatch.setattr(halo, "long_rows", lambda lengths: np.arange(len(lengths)) % 2 == 0)


@pytest.mark.parametrize("backward", [False, True])
def test_a_product_sends_rows_and_receives_its_halo(device: Machine, tmp_path: Path, backward: bool) -> None:
    part, batch = halo_batch(device, write_one_graph(tmp_path / "set.h5", n_channels=2))
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


@pytest.mark.usefixtures("long_rows")
def test_own_columns_of_long_rows_are_multiplied_while_the_halo_is_on_its_way(device: Machine, tmp_path: Path) -> None:
    part, batch = halo_batch(device, write_one_graph(tmp_path / "set.h5", n_channels=2, weights=True))
    found, n = part.adjacency.of_forward, batch.layout.n_nodes
    (h,) = of(device, (n, 2 * 8))
    device.launched.clear()
    y = ops_on(device).spmm(batch.adjacency, h)
    begun = ["halo_take", "exchange beside", "halo_take", "spmm_large_weighted", "arrive"]
    assert device.entries == [*begun, "spmm_large_weighted_add", "spmm_large_weighted"]
    sent, exchanged, taken, own, _, others, rest = (about for _, _, about in device.launched)
    m = found.received[1]
    assert own["results"]["out"] is others["results"]["out"] is rest["results"]["out"] is y
    assert (sent["scale"], sent["sent"].size, taken["sent"], taken["n_sent"]) == (None, len(found.sent[1]), None, n)
    assert [(part.ptr, part.shape) for part in exchanged["parts"]][1] == (sent["y"].ptr, (len(found.sent[1]), 16))
    assert taken["y"].ptr == own["dense"].ptr == rest["dense"].ptr
    assert others["dense"].ptr == exchanged["out"].ptr == own["dense"].ptr + 4 * 16 * n
    assert (exchanged["out"].shape, rest["dense"].shape) == ((m, 16), (n + m, 16))
    assert own["dense_stride"] == others["dense_stride"] == rest["dense_stride"] == 8


@pytest.mark.usefixtures("long_rows")
def test_rows_with_many_zeros_are_packed_and_received_while_own_columns_are_multiplied(
    device: Machine, tmp_path: Path
) -> None:
    part, batch = halo_batch(device, reddit(tmp_path / "set.h5"))
    found, n = part.adjacency.of_forward, batch.layout.n_nodes
    m, rows = found.received[1], batch.adjacency.of_forward.matrix
    ops = ops_on(device, packed=(5, m))
    (x,) = of(device, (n, 128))
    device.launched.clear()
    h, kept = ops.relu_dropout(x, 0.5, KEY, out=x, reader=Reader(batch.adjacency, MANY))
    assert isinstance(h, CompressedRows)
    assert kept.bits.size == n * 16
    y = ops.spmm(batch.adjacency, h, MANY)
    assert y.shape == (n, 128)
    exchange = ["gather beside", "spmm_compressed", "exchange beside", "exchange beside", "arrive", "arrive"]
    packing, products = (
        ["halo_pack", "halo_ends"],
        ["halo_shift", "spmm_compressed_packed_add", "spmm_compressed_packed"],
    )
    assert device.entries == ["spmm_compress_relu_dropout", *packing, *exchange, *products]
    by_name = {name: about for name, _, about in device.launched}
    assert by_name["halo_pack"]["rows"] is by_name["spmm_compressed"]["rows"] is h.rows
    assert by_name["spmm_compress_relu_dropout"]["column_scale"] is rows.column_scale
    others, rest = (by_name[name] for name in products[1:])
    assert others["rows"].ptr == rest["rows"].ptr == h.rows.ptr
    assert (rest["places"], others["places"].ptr) == (rows.places, rows.places.ptr + 4 * n)
    (_, _, received), (_, _, places) = (one for one in device.launched if one[0] == "exchange beside")
    assert received["out"].ptr == h.rows.ptr + 576 * n
    assert places["out"].ptr == others["places"].ptr
    assert (by_name["halo_shift"]["by"], by_name["halo_shift"]["n"]) == (18 * n, m)
    assert (received["rows"], received["follows"]) == ([0, 32 * 5 * m], False)
    assert [part.size for part in received["parts"]] == [0, 32 * 5 * len(found.sent[1])]
    assert (places["rows"], places["follows"]) == ([0, m], False)
    device.launched.clear()
    ops.spmm_backward(batch.adjacency, y, MANY)
    assert device.entries == ["spmm_compress", *packing, *exchange, *products]


@pytest.mark.usefixtures("long_rows")
def test_dense_rows_are_scaled_and_padded_by_their_sender(device: Machine, tmp_path: Path) -> None:
    part, batch = halo_batch(device, reddit(tmp_path / "set.h5"))
    n, rows = batch.layout.n_nodes, batch.adjacency.of_transpose.matrix
    (dy,) = of(device, (n, 47))
    device.launched.clear()
    dh = ops_on(device).spmm_backward(batch.adjacency, dy)
    begun = ["halo_take", "exchange beside", "halo_take", "spmm_large_unweighted", "arrive"]
    assert device.entries == [*begun, "spmm_large_unweighted_add", "spmm_large_unweighted"]
    sent, exchanged, taken, *products = (about for name, _, about in device.launched if name != "arrive")
    assert sent["scale"] is taken["scale"] is rows.column_scale
    assert (sent["P"], sent["stride"], exchanged["out"].shape) == (
        47,
        48,
        (part.adjacency.of_transpose.received[1], 48),
    )
    for product in products:
        assert (product["dense_stride"], product["slice_width"], product["results"]["out_stride"]) == (48, 48, 47)
        assert product["results"]["out"] is dh


@pytest.mark.usefixtures("long_rows")
def test_columns_of_dense_rows_are_exchanged_in_turn_where_memory_is_short(device: Machine, tmp_path: Path) -> None:
    path = reddit(tmp_path / "set.h5")
    part, _ = halo_batch(device, path)
    found = part.adjacency.of_forward
    rows = part.adjacency.forward.n_cols + len(found.sent[1])
    device.free = 5 * 2 * 4 * rows * 39  # a fifth of it on the rank with half as much holds 39 columns
    _, batch = halo_batch(device, path)
    n, (x,) = batch.layout.n_nodes, of(device, (batch.layout.n_nodes, 72))
    device.launched.clear()
    y = ops_on(device).spmm(batch.adjacency, x)
    one = ["halo_take", "exchange beside", "halo_take", "spmm_large_unweighted", "arrive", "spmm_large_unweighted_add"]
    assert device.entries == [*one, "spmm_large_unweighted"] * 3
    taken = [about for name, _, about in device.launched if name == "halo_take"]
    columns = [((about["x"].ptr - x.ptr) // 4, about["P"], about["stride"], about["x_stride"]) for about in taken]
    assert columns[::2] == columns[1::2] == [(0, 32, 32, 72), (32, 32, 32, 72), (64, 8, 8, 72)]
    received = [about["out"].shape for name, _, about in device.launched if name == "exchange beside"]
    assert received == [(found.received[1], 32), (found.received[1], 32), (found.received[1], 8)]
    products = [about for name, _, about in device.launched if name.startswith("spmm")]
    results = [about["results"] for about in products]
    assert [(result["out"], result["out_first"], result["width"]) for result in results[::3]] == [
        (y, 0, 32),
        (y, 32, 32),
        (y, 64, 8),
    ]
    assert {result["out_stride"] for result in results} == {72}
    assert n == len(y)


@pytest.mark.usefixtures("long_rows")
def test_rows_that_do_not_fit_their_buffer_are_packed_again_and_sent_behind_all_kernels(
    device: Machine, tmp_path: Path
) -> None:
    part, batch = halo_batch(device, reddit(tmp_path / "set.h5"))
    n, m = batch.layout.n_nodes, part.adjacency.of_forward.received[1]
    ops = ops_on(device, packed=(17, m))
    (x,) = of(device, (n, 128))
    h, _ = ops.relu_dropout(x, 0.5, KEY, out=x, reader=Reader(batch.adjacency, MANY))
    device.launched.clear()
    ops.spmm(batch.adjacency, h, MANY)
    first, again = (about for name, _, about in device.launched if name == "halo_pack")
    assert first["capacity"] < again["capacity"]
    assert again["packed"].nbytes >= 17 * 32 * again["n_sent"]
    assert [about["follows"] for name, _, about in device.launched if name == "exchange beside"] == [True, False]
    kept = next(about for name, _, about in device.launched if name == "copy")
    rest = device.launched[-1][2]["rows"]
    assert (kept["source"].ptr, kept["source"].nbytes, kept["out"].ptr) == (h.rows.ptr, 576 * n, rest.ptr)
    assert rest.nbytes >= 576 * n + 17 * 32 * m + CHUNK
    h, _ = ops.relu_dropout(x, 0.5, KEY, out=x, reader=Reader(batch.adjacency, MANY))
    device.launched.clear()
    ops.spmm(batch.adjacency, h, MANY)
    assert device.entries.count("halo_pack") == 1
    assert "copy" not in device.entries


@pytest.mark.parametrize("split_row", [0, 10, 15, 100])
def test_the_parts_of_a_matrix_are_its_rows_and_columns(split_row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halo, "SPLIT_ROW", split_row)
    rng, host = np.random.default_rng(0), Host()
    dense = np.where(rng.random((30, 50)) < rng.random((30, 1)), rng.random((30, 50)), 0).astype(np.float32)
    matrix = sp.csr_array(dense)
    given = Csr(matrix.indptr, matrix.indices, matrix.data, 50)
    lengths = np.diff(matrix.indptr)
    scales = rng.random(30).astype(np.float32), rng.random(50).astype(np.float32)
    for n_own in (0, 20, 50):
        parts = halo.matrix_pieces(host, given, n_own, None, 128)  # type: ignore[arg-type]
        assert parts.places.tolist() == list(range(0, 18 * 50, 18))
        found, columns = np.zeros_like(dense), {"own": (0, n_own), "halo": (n_own, 50), "rest": (0, 50)}
        assert (parts.rest is None) == (split_row in (0, 100))
        for name, (first, stop) in columns.items():
            held = getattr(parts, name)
            if held is not None:
                assert held.n_cols == stop - first
                rows = rows_of(held)
                assert (split_row == 100 or (lengths[rows] < split_row).all()) == (name == "rest" or split_row == 100)
                arrays = held.data, held.indices, held.indptr
                np.add.at(found[:, first:stop], rows, sp.csr_array(arrays, (len(rows), stop - first)).toarray())
        np.testing.assert_array_equal(found, dense)
        scaled = halo.matrix_pieces(host, given, n_own, scales, 128)  # type: ignore[arg-type]
        np.testing.assert_array_equal(scaled.column_scale, scales[1][:n_own])
        assert scaled.own.data.size == 0
        assert scaled.own.large.scales.columns is None
        np.testing.assert_array_equal(scaled.own.large.scales.rows, scales[0])


class Host:
    """A device whose arrays are on the host."""

    l2_bytes = 60 << 20

    def upload(self, array: np.ndarray) -> np.ndarray:
        return array


def rows_of(matrix: Any) -> np.ndarray:
    """Return the numbers of a matrix's rows, from its pieces."""
    target = matrix.large.pieces.target
    assert (target >= 0).all()
    return target
