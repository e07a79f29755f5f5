"""Streaming on the stand-in for PyCUDA: contents of batches in every order of execution, and waits of the host."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches import streaming
from gcnbatch.backends.cuda.batches.batch import DeviceBatch
from gcnbatch.backends.cuda.batches.streaming import StreamingSet
from gcnbatch.backends.cuda.runtime import context, copies
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.events import Event
from gcnbatch.data.batches import BatchSource, GraphBatch
from gcnbatch.data.sparse import Csr
from gcnbatch.errors import DeviceLost, MachineError
from tests.backends.cuda.fake_pycuda import Fake, Stream
from tests.builders import build_graphset

BATCHES = st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=5)


def numbers(batches: list[list[int]]) -> list[NDArray[np.int64]]:
    return [np.array(graphs, dtype=np.int64) for graphs in batches]


def assert_same_batch(found: Any, expected: GraphBatch, targets: NDArray[Any]) -> None:
    np.testing.assert_array_equal(found.node_ptr, expected.node_ptr)
    np.testing.assert_array_equal(found.targets, targets[expected.rows])
    pairs = [(found.adjacency.forward, expected.adjacency.forward)]
    pairs.append((found.adjacency.transpose, expected.adjacency.transpose))
    if isinstance(expected.x, Csr):
        pairs.append((found.x, expected.x))
    else:
        np.testing.assert_array_equal(found.x, expected.x)
    joined, wanted = found.graph_features, expected.graph_features
    assert (joined is None) == (wanted is None)
    if wanted is not None:
        np.testing.assert_array_equal(joined.values[joined.rows], wanted.values[wanted.rows])
    for got, want in pairs:
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES, st.sampled_from(["float32", "uint8", "csr"]), st.sampled_from(["graph", "node"]))
def test_streamed_batches_equal_those_of_the_source(
    opened: Device, batches: list[list[int]], features: str, level: Any
) -> None:
    graphs = build_graphset(features=features, level=level, graph_features=2 * (level == "graph"))
    source = BatchSource(graphs, graph_features=True)
    found = StreamingSet(opened, source, graphs.y)
    for _ in range(2):
        found.begin_epoch(numbers(batches))
        for index, ids in enumerate(numbers(batches)):
            assert_same_batch(found.batch(index).map(opened.download), source.batch(ids), graphs.y)
    assert_same_batch(found.gather(np.array([3, 0])).map(opened.download), source.batch(np.array([3, 0])), graphs.y)
    found.close()


def test_an_error_in_the_thread_is_raised_when_its_batch_is_requested(opened: Device, assembled: bool) -> None:
    graphs = build_graphset()
    found = StreamingSet(opened, BatchSource(graphs), graphs.y)
    found.begin_epoch(numbers([[0], [99]]))
    found.batch(0)
    with pytest.raises(IndexError):
        found.batch(1)
    found.close()


# ---- copies and kernels in every order

SIZES = [[0, 1], [2, 3, 4], [5], [1, 2, 3, 4, 5], [0], [4, 1, 0], [3], [2, 5]]  # batches of graphs
POLICIES = ("kernels late", "copies late", "both late")


@pytest.fixture(params=[True, False], ids=["assembled", "assembled late"])
def assembled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a batch is assembled as soon as it is queued, or only when it is requested."""

    class Late(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            if not self.done():
                work(self)
            return super().result(timeout)

    def work(future: Any) -> None:
        try:
            future.set_result(future.call())
        except IndexError as error:
            future.set_exception(error)

    class Thread:
        def __init__(self, **_: Any) -> None:
            pass

        def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
            future: Any = Late()
            future.call = lambda: function(*arguments)
            if request.param:
                work(future)
            return future

        def shutdown(self) -> None:
            pass

    monkeypatch.setattr(streaming, "ThreadPoolExecutor", Thread)
    return bool(request.param)


def policy(name: str, kernels: Stream, seed: int) -> Callable[[list[Stream]], Stream | None]:
    """Return a scheduler of streams: kernels as late as possible, copies as late as possible, both, or random."""
    draw = Random(seed)

    def pick(ready: list[Stream]) -> Stream | None:
        if name == "at random":
            return draw.choice([*ready, None])
        allowed = {
            "kernels late": lambda stream: stream is not kernels,
            "copies late": lambda stream: stream is kernels,
        }
        return next(filter(allowed.get(name, lambda _: False), ready), None)

    return pick


class Step(NamedTuple):
    """The contents of a batch at the first and last kernel of its step, and marks around the kernels."""

    ids: NDArray[np.int64]
    found: list[DeviceBatch]
    began: Any
    ended: Any


class Steps:
    """Training on the stand-in: a step reads its batch twice and writes to other memory in between."""

    def __init__(self, device: Device, fake: Fake, largest: int) -> None:
        self.device, self.fake, self.largest = device, fake, largest
        self.all: list[Step] = []

    def run(self, ids: NDArray[np.int64], batch: DeviceBatch) -> None:
        began, found = self.device.event(), [batch.map(self.read)]
        self.device.clear(self.device.empty(self.largest, np.uint8))
        found.append(batch.map(self.read))
        self.all.append(Step(ids, found, *(event._event.mark for event in (began, self.device.event()))))

    def read(self, array: Any) -> NDArray[Any]:
        host = np.full(array.shape, 77, array.dtype)
        if array.nbytes:
            self.fake.driver.memcpy_dtoh_async(host, array.ptr, self.device.stream)
        return host

    @property
    def done(self) -> int:
        return sum(step.ended.passed for step in self.all)


@pytest.fixture
def graphs() -> Any:
    return build_graphset(features="csr")


@pytest.fixture
def steps(opened: Device, fake: Fake, monkeypatch: pytest.MonkeyPatch, graphs: Any) -> Steps:
    monkeypatch.setattr(context, "SMALL_BYTES", 0)  # every array may reuse memory that another has just freed
    found = StreamingSet(opened, BatchSource(graphs), graphs.y)
    sent = [opened.copies.send(found._assemble(ids)) for ids in numbers(SIZES)]
    for batch in sent:
        batch.arrive()
    found.close()
    return Steps(opened, fake, max(batch.nbytes for batch in sent))


@pytest.mark.parametrize(("name", "seed"), [*((name, 0) for name in POLICIES), *(("at random", k) for k in range(4))])
def test_kernels_read_their_batch_in_every_order_of_execution(
    opened: Device, fake: Fake, assembled: bool, steps: Steps, graphs: Any, name: str, seed: int
) -> None:
    source = BatchSource(graphs)
    found = StreamingSet(opened, source, graphs.y)
    fake.pick = policy(name, opened.stream, seed)
    for stop in (len(SIZES), 3, len(SIZES)):  # the second epoch ends early, so batches sent in advance are dropped
        batches = numbers(SIZES)
        found.begin_epoch(batches)
        for index in range(stop):
            steps.run(batches[index], found.batch(index))
            if index == 1:
                steps.run(np.array([3, 0]), found.gather(np.array([3, 0])))
    found.close()
    opened.clear(opened.empty(steps.largest, np.uint8))
    opened.synchronize()
    assert steps.done == len(steps.all)
    for step in steps.all:
        for seen in step.found:
            assert_same_batch(seen, source.batch(step.ids), graphs.y)


def test_a_copy_overlaps_with_the_kernels_of_the_batch_before(
    opened: Device, fake: Fake, assembled: bool, steps: Steps, graphs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    send = opened.copies.send
    monkeypatch.setattr(opened.copies, "send", lambda *about: (sent.append(send(*about)), sent[-1])[1])
    found = StreamingSet(opened, BatchSource(graphs), graphs.y)
    batches = numbers([SIZES[3]] * 6)
    found.begin_epoch(batches)
    fake.pick = policy("kernels late", opened.stream, 0)
    for index, ids in enumerate(batches):
        batch = found.batch(index)
        if index:
            steps.all[index - 1].began.come()
            fake.advance()
            assert sent[index].copied._event.mark.passed, "it is there"
            assert steps.done == index - 1, "while the step before is still to run"
        steps.run(ids, batch)
    found.close()


def test_a_step_waits_only_for_copies_never_for_recent_steps(
    opened: Device, fake: Fake, assembled: bool, steps: Steps, graphs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Any] = []
    synchronize = Event.synchronize
    monkeypatch.setattr(Event, "synchronize", lambda event: (waited.append(event.stream), synchronize(event))[1])
    found = StreamingSet(opened, BatchSource(graphs), graphs.y)
    batches = numbers(SIZES)
    found.begin_epoch(batches)
    fake.pick = policy("kernels late", opened.stream, 0)
    synchronized, left = len(fake.named("synchronize")), []
    for index, ids in enumerate(batches):
        batch = found.batch(index)
        left.append(len(steps.all) - steps.done)
        steps.run(ids, batch)
    assert len(fake.named("synchronize")) == synchronized
    assert waited
    assert set(waited) == {opened.copies.stream}
    assert left[: copies.SLOTS + 1] == [0, 1, 2]
    assert min(left[copies.SLOTS :]) == copies.SLOTS, "whole steps are queued while the host waits for a copy"
    assert max(left) <= copies.SLOTS + 1, "the host does not run ahead without bound"
    found.close()


def test_memory_is_freed_and_pinned_buffers_are_allocated_once(
    opened: Device, fake: Fake, assembled: bool, monkeypatch: pytest.MonkeyPatch, steps: Steps, graphs: Any
) -> None:
    pinned: list[int] = []
    take = opened.pinned
    monkeypatch.setattr(opened, "pinned", lambda nbytes, dtype: (pinned.append(nbytes), take(nbytes, dtype))[1])
    active, taken = opened.active_bytes, []
    for _ in range(3):
        found = StreamingSet(opened, BatchSource(graphs), graphs.y)
        found.begin_epoch(numbers([SIZES[3]] * 4))
        for index in range(2):
            found.batch(index)
        assert opened.active_bytes > active
        found.close()
        assert opened.active_bytes == active
        taken.append(len(pinned))
    assert taken[1] == taken[2]


def test_an_unused_batch_keeps_its_memory_until_its_copy_ends(
    opened: Device, fake: Fake, steps: Steps, graphs: Any
) -> None:
    found = StreamingSet(opened, BatchSource(graphs), graphs.y)
    host, active = found._assemble(np.array([1])), opened.active_bytes
    fake.pick = lambda ready: None
    copied = opened.copies.send(host).copied._event.mark
    for _ in range(copies.SLOTS - 1):
        opened.copies.send(host)
    held = opened.active_bytes - active
    opened.copies.send(host)
    assert copied.passed
    assert opened.active_bytes - active == held
    found.close()


def test_failed_copies_raise_machine_errors(opened: Device, fake: Fake, steps: Steps, graphs: Any) -> None:
    found = StreamingSet(opened, BatchSource(graphs), graphs.y)
    for where, error, raised in (
        ("allocate", fake.driver.MemoryError("out of memory"), MachineError),
        ("synchronize event", fake.driver.LogicError("an illegal memory access"), DeviceLost),
        ("upload", fake.driver.LogicError("an illegal memory access"), DeviceLost),
        ("wait for event", fake.driver.LogicError("an illegal memory access"), DeviceLost),
    ):
        fake.failures[where] = error
        with pytest.raises(raised, match=str(error)):
            found.gather(np.array([1]))
        del fake.failures[where]
    found.close()
