"""Memory into which ranks of one host push the rows that others need before a product (cuda_src/ranks/push.cu)."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gcnbatch.backends.cuda.ranks.mailboxes import MAX_RANKS, Mailboxes
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.side_stream import SideStream
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.cuda.spmm.large import MOST_COLUMNS, ROW_BYTES
from gcnbatch.data.graph_part import Halo
from gcnbatch.errors import MachineError
from gcnbatch.ranks.communicator import Communicator

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

PUSH_THREADS: int = declared("ranks/push.cu").constant("PUSH_THREADS")
# Blocks of a push beside kernels, by the number of receive buffers: with one, sparse products hardly run beside it.
BLOCKS_BESIDE = {2: 32, 1: 64}
READ_FLAGS: int = declared("ranks/push.cu").constant("READ_FLAGS")
FLAGS_BYTES = 256  # before the receive buffers
# The share of the device's free memory that so many receive buffers may take, the preferred number first.
MEMORY_SHARES = {2: 0.25, 1: 0.5}
_ONE_WARP = Launch((1, 1, 1), (32, 1, 1))
_NAME_BYTES = 64  # of a host


class Route(NamedTuple):
    """Where the own rows of a product's dense operand go.

    Parameters
    ----------
    slots : int32, (ranks, n)
        By rank, the row of its receive buffer that each own row fills; -1 where it does not need the row.
    n_own, n_halo : int
        Own rows, and rows received.
    """

    slots: DeviceArray
    n_own: int
    n_halo: int


class Side(Protocol):
    """The part of `SideStream` that pushes need."""

    def launch(self, entry: str, launch: Launch, /, **arguments: Any) -> None:
        """Launch a kernel on the stream."""

    def follow(self) -> None:
        """Let later work of the stream wait for what is queued on the device's."""

    def precede(self) -> None:
        """Let later work of the device's stream wait for what is queued on this one."""

    def close(self) -> None:
        """Destroy the stream."""


class Landing:
    """The receive buffers of all ranks, seen from one of them; all ranks create them together.

    Parameters
    ----------
    device : Device
    ranks : Communicator
        Of host arrays.
    boxes : Mailboxes
        Of `nbytes_of` bytes.
    side : Side
    buffers : {2, 1}
        Two: products alternate between them. One: a rank pushes the rows of a product when all ranks have multiplied
        those of the product before, and have called `release`.

    Attributes
    ----------
    nbytes : int
        Of this rank's buffers.
    alternates : bool
        Whether there are two.
    """

    def __init__(self, device: Device, ranks: Communicator, boxes: Mailboxes, side: Side, buffers: int) -> None:
        self.rank, self.size, self.alternates = ranks.rank, ranks.size, buffers > 1
        self._device, self._boxes, self._side, self._buffers = device, boxes, side, buffers
        self.nbytes = boxes.nbytes
        self._buffer_bytes = (boxes.nbytes - FLAGS_BYTES) // buffers
        self._counter = device.zeros(1, np.uint32)
        self._turn = self._number = self._released = 0
        self._is_used = False  # whether rows of the current product have been pushed
        self._pushed: list[object] = []  # arrays that pushes may still read

    def rows(self, count: int, pitch: int) -> DeviceArray:
        """Return so many rows of the own receive buffer of the current product, (count, pitch) bytes."""
        return self._boxes.of[self.rank].view(self._buffer, (count, pitch))

    def begin(self) -> None:
        """Turn to the next buffer, for the next product; its dense operand may be written from now on."""
        self._turn, self._is_used = self._turn + self._is_used, False

    def push(self, route: Route, rows: tuple[int, int], is_last: bool, beside: bool) -> int:
        """Push compressed rows `rows` = (first, stop) of the own buffer; if it is the last push, return its number.

        `beside`: other kernels run meanwhile.
        """
        return self._push("halo_push", route, rows, is_last, beside)

    def push_dense(
        self,
        route: Route,
        rows: tuple[int, int],
        is_last: bool,
        beside: bool,
        x: DeviceArray,
        scale: DeviceArray | None,
        columns: tuple[int, int],
        stride: int,
        place: int,
    ) -> int:
        """As `push`, columns `columns` of rows of x (n, F), scaled, to `place` in rows of `stride` floats."""
        self._pushed.append(x)
        column, stop = columns
        about = {"x": x, "scale": scale, "x_stride": x.shape[1], "column": column, "P": stop - column}
        return self._push("halo_push_dense", route, rows, is_last, beside, **about, stride=stride, place=place)

    def wait(self, number: int) -> None:
        """Let kernels launched from now on wait for the push of this number by all ranks."""
        self._device.launch("halo_wait", _ONE_WARP, flags=self._boxes.of[self.rank], number=number, size=self.size)

    def end(self) -> None:
        """Let kernels launched from now on wait for all own pushes, whose operands they may overwrite."""
        self._side.precede()
        self._pushed.clear()

    def release(self) -> None:
        """Let all ranks overwrite the only buffer when the kernels launched before have read it."""
        self._released += 1
        about = {"mailboxes": self._mailboxes, "rank": self.rank, "size": self.size, "number": self._released}
        self._device.launch("halo_release", _ONE_WARP, **about)

    def wait_for_release(self) -> None:
        """Let pushes launched from now on wait until all ranks have released the buffer as often as this one."""
        flags = self._boxes.of[self.rank].view(READ_FLAGS, 4 * MAX_RANKS)
        self._side.launch("halo_wait", _ONE_WARP, flags=flags, number=self._released, size=self.size)

    def close(self) -> None:
        """Free the memory; all ranks call, after their last product."""
        self._boxes.close()
        self._side.close()

    @property
    def _buffer(self) -> int:
        return FLAGS_BYTES + self._turn % self._buffers * self._buffer_bytes

    @property
    def _mailboxes(self) -> list[DeviceArray | None]:
        return [*self._boxes.of, *[None] * (MAX_RANKS - self.size)]

    def _push(self, entry: str, route: Route, rows: tuple[int, int], is_last: bool, beside: bool, **about: Any) -> int:
        self._side.follow()
        if not (self.alternates or self._is_used):
            self.wait_for_release()
        self._is_used = True
        if is_last:
            self._number += 1
        push = {
            "mailboxes": self._mailboxes,
            "slots": route.slots,
            "counter": self._counter,
            "buffer": self._buffer,
            "rank": self.rank,
            "size": self.size,
            "n": route.n_own,
            "first": rows[0],
            "stop": rows[1],
            "number": self._number if is_last else 0,
        }
        most = self._device.multiprocessors
        blocks = min(BLOCKS_BESIDE[self._buffers], most) if beside else most
        arguments = {"push": push, **about} if about else push
        self._side.launch(entry, Launch((blocks, 1, 1), (PUSH_THREADS, 1, 1)), **arguments)
        return self._number


def nbytes_of(rows: int, buffers: int) -> int:
    """Return the bytes of a mailbox with so many receive buffers of so many rows.

    >>> nbytes_of(2_449_029, 2)
    2821281664
    """
    return FLAGS_BYTES + buffers * rows * ROW_BYTES


def buffers_of(rows: int, free: int) -> int:
    """Return how many receive buffers of so many rows fit the free memory: 2, 1 or 0.

    >>> [buffers_of(rows, 140 << 30) for rows in (30_000_000, 110_000_000, 140_000_000)]
    [2, 1, 0]
    """
    return next((count for count, share in MEMORY_SHARES.items() if nbytes_of(rows, count) <= share * free), 0)


def open_landing(device: Device, ranks: Communicator, halos: Sequence[tuple[int, Halo]]) -> Landing | None:
    """Return receive buffers for operands of products, given the own columns and the halo of each matrix; or None.

    All ranks call, and get the same: None, if they are on several hosts, do not reach each other's memory, or have not
    enough of it.
    """
    rows = max(n_own + sum(halo.received) for n_own, halo in halos)
    about = np.zeros(3 * 8 + _NAME_BYTES, np.uint8)
    about[: 3 * 8] = np.array([rows, device.memory().free, ranks.size <= MAX_RANKS], np.int64).view(np.uint8)
    name = platform.node().encode()[:_NAME_BYTES]
    about[3 * 8 : 3 * 8 + len(name)] = np.frombuffer(name, np.uint8)
    found = ranks.all_gather(about)
    numbers = found[:, : 3 * 8].copy().view(np.int64)
    one_host = (found[:, 3 * 8 :] == found[0, 3 * 8 :]).all()
    most = int(numbers[:, 0].max())
    buffers = buffers_of(most, int(numbers[:, 1].min()))
    if ranks.size == 1 or not one_host or not buffers or not numbers[:, 2].all():
        return None
    try:
        boxes = Mailboxes(device, ranks, nbytes_of(most, buffers))
    except MachineError:  # on all ranks alike
        return None
    return Landing(device, ranks, boxes, SideStream(device), buffers)


def route_of(device: Device, ranks: Communicator, n_own: int, halo: Halo) -> Route:
    """Return where the own rows of a product's dense operand go; all ranks call."""
    counts = np.array([n_own, *halo.received], np.int64)
    counts[1 + ranks.rank] = 0
    of_ranks = ranks.all_gather(counts)
    before = np.cumsum(of_ranks, axis=1)  # by receiver: its own rows, then those of each sender
    slots = np.full((ranks.size, n_own), -1, np.int32)
    for rank, rows in enumerate(halo.sent):
        if rank != ranks.rank:
            slots[rank, rows] = before[rank, ranks.rank] + np.arange(len(rows))
    return Route(device.upload(slots), n_own, int(counts[1:].sum()))


def slices_of(width: int, most: int = MOST_COLUMNS) -> list[tuple[int, int]]:
    """Return the columns of each product of a dense operand, `most` at most: those of a row that fit a receive buffer.

    >>> slices_of(47), slices_of(300), slices_of(128, 64)
    ([(0, 47)], [(0, 128), (128, 256), (256, 300)], [(0, 64), (64, 128)])
    """
    return [(first, min(first + most, width)) for first in range(0, max(width, 1), most)]
