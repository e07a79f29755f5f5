"""Rows that ranks push into each other's memory: where they go, in which order, and what waits for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ranks import halo, landing, pipeline
from gcnbatch.backends.cuda.ranks.halo import GraphPartBatch, PushedRows
from gcnbatch.backends.cuda.ranks.landing import FLAGS_BYTES, READ_FLAGS, Landing, nbytes_of, route_of
from gcnbatch.backends.cuda.ranks.ops import DeviceDistributedOps
from gcnbatch.backends.cuda.ranks.pipeline import (
    ALIGNED_ROWS,
    CHUNK_ROWS,
    MOST_CHUNKS,
    RowWork,
    product_bounds,
    row_bounds,
    rows_of,
)
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.large import CompressedRows
from gcnbatch.backends.ops import Reader
from gcnbatch.config import resolve
from gcnbatch.config_sections import CudaConfig, KipfConfig, TrainConfig
from gcnbatch.data import synthetic
from gcnbatch.data.graph_part import read_part
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.errors import MachineError
from gcnbatch.model.gcn import Gcn, Loss, build, uniform_weights
from gcnbatch.runners.distributed import DistributedRunner
from gcnbatch.runners.task import RunnerTask
from tests.backends.cuda.ops.recorder import of
from tests.backends.cuda.ranks.test_ops import Exchanges, Machine, reddit
from tests.backends.cuda.spmm.test_compressed import MANY
from tests.ops.test_dropout import KEY
from tests.ranks.test_large_graph import MODELS
from tests.ranks.threads import on_ranks


@pytest.mark.parametrize("n", [0, 1, 63, CHUNK_ROWS - 1, 2 * CHUNK_ROWS, 3 * CHUNK_ROWS + 1, 612_257, 27_764_989])
@pytest.mark.parametrize("bounds_of", [row_bounds, product_bounds])
def test_chunks_cover_all_rows_and_begin_at_aligned_ones(bounds_of: Any, n: int) -> None:
    bounds = bounds_of(n)
    assert (bounds[0], bounds[-1]) == (0, n)
    assert len(bounds) - 1 <= MOST_CHUNKS
    assert all(first % ALIGNED_ROWS == 0 for first in bounds[:-1])
    assert n == 0 or all(first < stop for first, stop in pairwise(bounds))


def test_operations_on_rows_are_launched_chunk_by_chunk() -> None:
    n, said = 2 * CHUNK_ROWS, list[Any]()
    work = RowWork((0, CHUNK_ROWS, n))
    work.add(lambda *rows: said.append(("first", *rows)), None)
    work.add(lambda *rows: said.append(("second", *rows)), None)
    half = CHUNK_ROWS
    assert said == [("first", 0, half), ("second", 0, half)]  # the first chunk does not wait
    work.launch(lambda *rows: said.append(("then", *rows)))
    assert said[2:] == [("then", 0, half, False), ("first", half, n), ("second", half, n), ("then", half, n, True)]


class OnHost:
    """A device whose arrays are on the host."""

    def upload(self, array: np.ndarray) -> np.ndarray:
        return array


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_pushed_rows_land_where_products_read_them(ranks: int, tmp_path: Path) -> None:
    synthetic.write("reddit", tmp_path / "set.h5", scale=0.002)

    def pushed(communicator: Any) -> Any:
        part = read_part(dataset, True, communicator)
        first, stop = (int(bound) for bound in part.bounds[communicator.rank : communicator.rank + 2])
        found = part.adjacency.of_forward
        device: Any = OnHost()
        return np.arange(first, stop), found.nodes, route_of(device, communicator, stop - first, found)

    with Dataset(tmp_path / "set.h5") as dataset:
        of_ranks = on_ranks(ranks, pushed)
    for receiver, (own, foreign, route) in enumerate(of_ranks):
        assert (route.n_own, route.n_halo) == (len(own), len(foreign))
        buffer = np.full(len(own) + len(foreign), -1)
        buffer[: len(own)] = own
        for sender, (nodes, _, sent) in enumerate(of_ranks):
            slots = sent.slots[receiver]
            assert sender != receiver or (slots == -1).all()
            assert (buffer[slots[slots >= 0]] == -1).all()
            buffer[slots[slots >= 0]] = nodes[slots >= 0]
        np.testing.assert_array_equal(buffer, np.concatenate([own, foreign]))


class Boxes:
    """Mailboxes of two ranks at known addresses."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.of = tuple(DeviceArray(address, (nbytes,), np.dtype(np.uint8)) for address in (1 << 40, 1 << 41))

    def close(self) -> None:
        pass


class Side:
    """A side stream that records among the launches of the device, with a mark."""

    def __init__(self, device: Machine) -> None:
        self._device = device

    def launch(self, entry: str, launch: Any, /, **arguments: Any) -> None:
        self._device.launch(entry, launch, **arguments)

    def _said(self, name: str) -> None:
        self._device.launched.append((name, None, {}))  # type: ignore[arg-type]

    def follow(self) -> None:
        pass

    def precede(self) -> None:
        self._said("precede")

    def close(self) -> None:
        self._said("close")


def receive_buffers(device: Any, ranks: Any, halos: Any, buffers: int = 2) -> Landing:
    boxes: Any = Boxes(nbytes_of(max(n_own + sum(found.received) for n_own, found in halos), buffers))
    return Landing(device, ranks, boxes, Side(device), buffers)


def part_of_rank_0(path: Path, buffers: int = 2) -> tuple[Machine, Any]:
    """Return a recording device, and the batch of rank 0 of two."""
    opened = partial(receive_buffers, buffers=buffers)

    def batch(communicator: Any) -> tuple[Machine, Any]:
        part, device = read_part(dataset, True, communicator), Machine()
        targets = np.zeros((int(part.bounds[-1]), 1), np.int32)
        any_device: Any = device
        return device, GraphPartBatch(any_device, part, targets, communicator, "csr", opened).batch(0)

    with Dataset(path) as dataset:
        return on_ranks(2, batch)[0]


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let ranks push rows of any matrix, in several chunks."""
    monkeypatch.setattr(halo, "PUSHED_NODES", 1)
    monkeypatch.setattr(halo, "is_large", lambda entries, lengths: True)
    monkeypatch.setattr(pipeline, "CHUNK_ROWS", 100)
    for bounds in (row_bounds, product_bounds):
        bounds.cache_clear()
    yield
    for bounds in (row_bounds, product_bounds):
        bounds.cache_clear()


def ops_on(device: Machine) -> DeviceDistributedOps:
    any_device: Any = device
    return DeviceDistributedOps(BatchedOps(any_device, "fp32", "csr"), Exchanges(device), True)


@pytest.mark.usefixtures("pushes")
def test_rows_leave_in_chunks_while_the_next_are_computed(tmp_path: Path) -> None:
    device, batch = part_of_rank_0(reddit(tmp_path / "set.h5"))
    n, ops, matrix = batch.layout.n_nodes, ops_on(device), batch.adjacency.of_forward.matrix
    assert isinstance(matrix, PushedRows)
    bounds, behind = row_bounds(n), product_bounds(n)
    chunks, later = len(bounds) - 1, len(behind) - 1
    assert min(chunks, later) > 1
    assert later == len(matrix.chunks)
    x, w, v, dw = of(device, (n, 128), (128, 128), (128, 47), (128, 128))
    ops.spmm(batch.adjacency, x)
    device.launched.clear()
    with ops.in_chunks():
        h = ops.matmul(x, w)
        h, kept = ops.relu_dropout(h, 0.5, KEY, out=h, reader=Reader(batch.adjacency, MANY))
        assert isinstance(h, CompressedRows)
        assert len(device.entries) == 2  # of the first chunk: nothing is known yet of what follows
        p = ops.matmul(ops.spmm(batch.adjacency, h, MANY), v)
        assert ops.matmul_backward(x, x, w, need_dx=False, out=dw) == (None, dw)
        y = ops.spmm(batch.adjacency, p)
    first, of_chunk, products = device.entries, 3, 3
    dense = next(entry for entry in first if entry.startswith("matmul"))
    assert first[: of_chunk * chunks] == [dense, "spmm_compress_relu_dropout", "halo_push"] * chunks
    rest = first[of_chunk * chunks :]
    assert rest[:2] == ["halo_wait", "precede"]
    second = rest[2 : 2 + products * later]
    assert second[::products] == ["spmm_compressed"] * later
    assert second[2::products] == ["halo_push_dense"] * later
    rest = rest[2 + products * later :]
    assert rest[0].endswith("wgrad") or rest[0] == "matmul_32x32_backward"  # while rows are on their way
    assert rest[1:] == ["halo_wait", "precede", *["spmm_large_unweighted"] * later]
    pushed = [about for entry, _, about in device.launched if entry.startswith("halo_push")]
    pushed = [about.get("push", about) for about in pushed]
    assert [(about["first"], about["stop"]) for about in pushed] == [*pairwise(bounds), *pairwise(behind)]
    assert [about["number"] for about in pushed] == [*[0] * (chunks - 1), 3, *[0] * (later - 1), 4]
    waited = [about["number"] for entry, _, about in device.launched if entry == "halo_wait"]
    assert waited == [3, 4]  # the product before took two
    assert y.shape == (n, 47)
    assert kept.bits.size == 16 * n
    dropped = [about for entry, _, about in device.launched if entry == "spmm_compress_relu_dropout"]
    assert [about["first"] for about in dropped] == [KEY.first + 128 * at for at in bounds[:-1]]
    assert [about["kept"].ptr - kept.bits.ptr for about in dropped] == [16 * at for at in bounds[:-1]]


@pytest.mark.usefixtures("pushes")
def test_products_alternate_between_the_receive_buffers(tmp_path: Path) -> None:
    device, batch = part_of_rank_0(reddit(tmp_path / "set.h5"))
    n, ops, nbytes = batch.layout.n_nodes, ops_on(device), batch.adjacency.of_forward.matrix.landing._boxes.nbytes
    (x,) = of(device, (n, 8))
    device.launched.clear()
    for _ in range(3):
        ops.spmm(batch.adjacency, x)
    places = [about["push"]["buffer"] for entry, _, about in device.launched if entry == "halo_push_dense"]
    half = (nbytes - FLAGS_BYTES) // 2
    of_product = len(places) // 3
    assert places == [FLAGS_BYTES + half * (i // of_product % 2) for i in range(len(places))]
    reads = [about["dense"].ptr for entry, _, about in device.launched if entry.startswith("spmm_large")]
    assert sorted(set(reads)) == [(1 << 40) + FLAGS_BYTES, (1 << 40) + FLAGS_BYTES + half]


@pytest.mark.usefixtures("pushes")
def test_rows_fill_the_only_buffer_when_all_ranks_have_multiplied_those_before(tmp_path: Path) -> None:
    device, batch = part_of_rank_0(reddit(tmp_path / "set.h5"), buffers=1)
    n, ops = batch.layout.n_nodes, ops_on(device)
    own, (x,) = batch.adjacency.of_forward.matrix.landing._boxes.of[0], of(device, (n, 128))
    device.launched.clear()
    with ops.in_chunks():
        for zeros in (0.0, MANY, MANY, 0.0):
            x = ops.spmm(batch.adjacency, x, zeros)
    order = []
    for entry, _, about in device.launched:
        if entry == "halo_wait":
            kind = {own.ptr: "rows of", own.ptr + READ_FLAGS: "all have read"}[about["flags"].ptr]
            order.append((kind, about["number"]))
        elif entry == "halo_release":
            order.append(("released", about["number"]))
        elif entry.startswith(("halo_push", "spmm_large", "spmm_compressed")) and order[-1] != entry[:9]:
            order.append(entry[:9])
    wide, packed = ["halo_push", ("rows of", 1), "spmm_larg", ("rows of", 2), "spmm_larg"], "spmm_comp"
    assert order == [
        *[("all have read", 0), *wide, ("released", 1)],
        *[("all have read", 1), "halo_push", ("rows of", 3), packed, ("released", 2)],
        *[("all have read", 2), "halo_push", ("rows of", 4), packed, ("released", 3)],
        *[("all have read", 3), "halo_push", ("rows of", 5), "spmm_larg", ("rows of", 6), "spmm_larg", ("released", 4)],
    ]
    pushed = [about.get("push", about) for entry, _, about in device.launched if entry.startswith("halo_push")]
    assert {about["buffer"] for about in pushed} == {FLAGS_BYTES}
    chunks = [*pairwise(row_bounds(n))]  # of rows that are compressed
    assert [(about["first"], about["stop"]) for about in pushed] == [*[(0, n)] * 2, *chunks * 2, *[(0, n)] * 2]
    assert len(chunks) > 1


@pytest.mark.usefixtures("pushes")
def test_the_first_columns_of_wide_rows_are_multiplied_while_the_others_are_on_their_way(tmp_path: Path) -> None:
    device, batch = part_of_rank_0(reddit(tmp_path / "set.h5"))
    n, ops = batch.layout.n_nodes, ops_on(device)
    chunks = len(product_bounds(n)) - 1
    (x,) = of(device, (n, 130))
    device.launched.clear()
    y = ops.spmm(batch.adjacency, x)
    first = ["halo_push_dense", "halo_push_dense", "halo_wait", *["spmm_large_unweighted"] * chunks]
    second = ["halo_wait", "precede", *["spmm_large_unweighted"] * chunks]
    others = ["halo_push_dense", "halo_wait", "precede", *["spmm_large_unweighted"] * chunks]
    assert device.entries == [*first, *second, *others]  # of 128 columns, and of 2
    columns = [(about["column"], about["P"], about["place"]) for entry, _, about in device.launched if "push" in entry]
    assert columns == [(0, 64, 0), (64, 64, 64), (128, 2, 0)]
    results = [about["results"] for entry, _, about in device.launched if entry.startswith("spmm")]
    assert {result["out"].ptr for result in results} == {y.ptr}
    assert [result["out_first"] for result in results[::chunks]] == [0, 64, 128]


class Training(Machine):
    """A recording device that stands for one that trains: what it holds reads as zeros."""

    def zeros(self, shape: Any, dtype: Any = np.float32) -> DeviceArray:
        return self.empty(shape if isinstance(shape, tuple) else (shape,), dtype)

    def empty(self, shape: Any, dtype: Any = np.float32) -> DeviceArray:
        return super().empty(shape if isinstance(shape, tuple) else (shape,), dtype)

    def upload(self, host: Any, out: DeviceArray | None = None) -> DeviceArray:
        return self.empty(host.shape, host.dtype) if out is None else out

    def download(self, array: DeviceArray) -> np.ndarray:
        return np.zeros(array.shape, array.dtype)


class Counting(Training):
    """A device that counts the arrays (n, 128) that live at once; it keeps no launches, which refer to arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.most = Counter[int](), Counter[int]()  # by n

    def empty(self, shape: Any, dtype: Any = np.float32) -> DeviceArray:
        array = super().empty(shape, dtype)
        self.launched.clear()
        if array.shape[1:] == (128,):
            array.owner = Owner()
            finalize(array.owner, self.live.subtract, [len(array)])
            self.live[len(array)] += 1
            self.most |= self.live
        return array


class Owner:
    """An array's memory."""


class Ranked(CudaBackend):
    """Backend ``batched`` on a recording device."""

    buffers = 2

    def communicator(self, ranks: Any) -> Any:
        return Exchanges(self.device)  # type: ignore[arg-type]

    def part_feed(self, part: Any, targets: Any, ranks: Any) -> Any:
        return GraphPartBatch(self.device, part, targets, ranks, "csr", partial(receive_buffers, buffers=self.buffers))


class OneBuffer(Ranked):
    """The same with one receive buffer."""

    buffers = 1


def launched_in_a_step(model: Any, share: float, path: Path) -> list[list[Any]]:
    """Return what each of two ranks launches in the second step of a model, with `share` of the nodes labelled."""
    return [device.launched for device in after_a_step(model, share, path, Ranked, Training)]


def after_a_step(model: Any, share: float, path: Path, backend: type[Ranked], machine: type[Training]) -> list[Any]:
    """Return the device of each of two ranks after the second step of a model, as `launched_in_a_step`."""
    synthetic.write("reddit", path, scale=0.002)

    def step(communicator: Any) -> Any:
        device: Any = machine()
        with Dataset(path) as dataset:
            targets = np.where(np.arange(dataset.node_ptr[-1])[:, None] % 100 < 100 * share, 1, -1).astype(np.int32)
            source: Any = SimpleNamespace(n_graphs=1, header=dataset.header, file=dataset, normalize=True)
            loss = Loss("multiclass", uniform_weights(dataset.header))
            task = RunnerTask(model(dataset.header), loss, source, targets, TrainConfig(), 0)
            runner = DistributedRunner(backend("batched", device, CudaConfig()), task, communicator)
            runner.begin_epoch([MemberEpoch(0, [np.zeros(1, np.int64)], 0.01)])
            runner.step(0)  # it prepares A X and counts the labels
            device.launched.clear()
            runner.step(0)
            runner.close()
        return device

    return on_ranks(2, step)


@pytest.mark.parametrize("once", [True, False], ids=["A X once", "A (X W)"])
@pytest.mark.parametrize(("classes", "expected"), [(41, 3), (172, 2)])  # of more than 128 classes, A X comes before W
@pytest.mark.usefixtures("pushes")
def test_with_one_buffer_few_activations_of_all_rows_live_at_once(
    once: bool, classes: int, expected: int, tmp_path: Path
) -> None:
    config = KipfConfig(kind="kipf", widths=(128, 128), input_dropout=False)

    def model(header: Header) -> Gcn:
        names = tuple(f"c{number}" for number in range(classes))
        return build(config, header.model_copy(update={"class_names": names}), once)

    for device in after_a_step(model, 0.1, tmp_path / "set.h5", OneBuffer, Counting):
        n, most = max(device.most.items())
        assert (n > 100, most) == (True, expected)


@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("pushes")
def test_rows_of_a_product_are_read_behind_the_launch_of_their_chunk(model: str, share: float, tmp_path: Path) -> None:
    config = resolve({"data": {"path": str(tmp_path / "set.h5")}, "model": MODELS[model]}).model
    for launched in launched_in_a_step(lambda header: build(config, header, True), share, tmp_path / "set.h5"):
        products = [about["results"]["out"] for _, _, about in launched if "results" in about]
        outs, missing = {out.ptr: out for out in products}, Counter(out.ptr for out in products)
        assert max(len(product_bounds(len(out))) for out in products) > 2
        for entry, _, about in launched:
            if "results" in about:
                missing[about["results"]["out"].ptr] -= 1
                continue
            for array, out in product(arrays_of(about), outs.values()):
                if out.ptr <= array.ptr < out.ptr + out.nbytes:
                    bounds = product_bounds(len(out))
                    there = bounds[max(-1 - missing[out.ptr], -len(bounds))]
                    assert array.ptr + array.nbytes <= out.ptr + out.nbytes // len(out) * there, entry


def arrays_of(about: Any) -> Iterator[DeviceArray]:
    """Return the arrays among a launch's arguments; of one that a push reads, its rows."""
    if isinstance(about, DeviceArray):
        yield about
    elif isinstance(about, dict) and "push" in about:
        yield rows_of(about["x"], about["push"]["first"], about["push"]["stop"])
    elif isinstance(about, dict | list):
        for value in about.values() if isinstance(about, dict) else about:
            yield from arrays_of(value)


@pytest.mark.parametrize("once", [True, False], ids=["A X once", "A (X W)"])
@pytest.mark.parametrize("share", [0.1, 1.0])  # of the nodes, in the training part
@pytest.mark.usefixtures("pushes")
def test_every_exchange_of_a_step_begins_before_work_that_does_not_need_it(
    once: bool, share: float, tmp_path: Path
) -> None:
    config = KipfConfig(kind="kipf", widths=(128, 128), input_dropout=False)
    launched = launched_in_a_step(lambda header: build(config, header, once), share, tmp_path / "set.h5")
    of_ranks = [[entry for entry, *_ in found] for found in launched]
    entries = of_ranks[0]
    together = {"halo_wait", "all_reduce", "all_gather", "exchange", "exchange beside", "gather beside"}
    first, second = ([entry for entry in found if entry in together] for found in of_ranks)
    assert first == second  # all ranks meet in every exchange
    pushes = [i for i, entry in enumerate(entries) if entry.startswith("halo_push")]
    waits = [i for i, entry in enumerate(entries) if entry == "halo_wait"]
    exchanges = 4 if once else 6 + 1  # of 128 columns of X W, in two parts
    assert len(waits) == exchanges
    assert all("spmm" in " ".join(entries[wait:then]) for wait, then in pairwise(waits))  # products between them
    weights = [i for i, entry in enumerate(entries) if "wgrad" in entry or entry == "matmul_32x32_backward"]
    assert len(weights) == 3
    between = [any(push < at < wait for push, wait in pairwise(sorted([*pushes, *waits]))) for at in weights]
    assert sum(between) >= 1  # weight gradients while rows are on their way
    assert entries.count("all_reduce") == 2  # of the loss and of the gradients, behind all others
    assert entries.index("all_reduce") > waits[-1]
    assert entries[-2:] == ["adam_step", "close"]


@pytest.mark.parametrize("apart", ["another host", "little memory", "no access", "one rank", None, "memory for one"])
def test_receive_buffers_are_opened_on_all_ranks_or_on_none(apart: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = 1 if apart == "memory for one" else 2
    found = halo.Halo(np.zeros(3, np.int64), [], [2, 1], [9, 9])
    asked: list[Any] = []

    class Ranks:
        rank, size = 0, 1 if apart == "one rank" else 2

        def all_gather(self, array: np.ndarray) -> np.ndarray:
            other = array.copy()
            if apart == "another host":
                other[-1] ^= 1
            if apart in ("little memory", "memory for one"):
                free = 0 if apart == "little memory" else 2 * nbytes_of(9, 1)
                other[8:16] = np.array([free]).view(np.uint8)
            return np.stack([array, other])

    def boxes(device: Any, ranks: Any, nbytes: int) -> Any:
        asked.append(nbytes)
        if apart == "no access":
            raise MachineError("memory that ranks share", "rank 1: no access")
        return Boxes(nbytes)

    monkeypatch.setattr(landing, "Mailboxes", boxes)
    monkeypatch.setattr(landing, "SideStream", Side)
    device: Any = Machine()
    device.memory = lambda: type("Info", (), {"free": 1 << 30})
    opened = landing.open_landing(device, Ranks(), [(5, found), (6, found)])  # type: ignore[arg-type]
    assert (opened is not None) == (apart in (None, "memory for one"))
    assert opened is None or opened.alternates == (buffers == 2)
    assert asked == ([nbytes_of(9, buffers)] if apart in (None, "no access", "memory for one") else [])
