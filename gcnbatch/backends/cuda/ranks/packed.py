"""Exchange of compressed rows: a rank packs those that others need, learns how much it receives, and receives it.

The lengths of compressed rows are known on the device alone, and NCCL takes them from the host. So ranks gather the
lengths of all parts beside the device's stream; the host waits for them while the device computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.ranks.halo import Exchanged
from gcnbatch.backends.cuda.runtime.launch import Launch, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.cuda.spmm.large import CHUNK, CompressedRows

PACKED_ROWS: int = declared("ranks/halo.cu").constant("PACKED_ROWS")
SCAN_THREADS: int = declared("common/scan.cuh").constant("SCAN_THREADS")
SECTOR: int = declared("spmm/compressed.cuh").constant("SECTOR")
EXPECTED = 6  # sectors of a row that the first packed rows have room for
SPARE = 8  # room that must grow, grows by a SPARE-th more


class Arriving(Protocol):
    """An exchange that has started."""

    def arrive(self) -> None:
        """Let kernels launched from now on wait for it."""


class Gathering(Protocol):
    """An all-gather that has started."""

    def read(self) -> NDArray[Any]:
        """Wait for it, and return the arrays of all ranks."""


class Door(Protocol):
    """What a packed exchange needs of `gcnbatch.backends.cuda.runtime.nccl.NcclCommunicator`."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    def exchange_beside(self, parts: Any, rows: Any, out: DeviceArray, follows: bool = True) -> Arriving:
        """Start an exchange beside the device's stream."""

    def gather_beside(self, array: DeviceArray) -> Gathering:
        """Start an all-gather beside the device's stream, for the host."""


class Rooms:
    """Memory for packed rows, kept from one exchange to the next: it is taken before their number is known."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.packed = self.received = DeviceArray(0, (0,), np.dtype(np.uint8))

    def holds(self, packed: int, received: int) -> bool:
        """Make room for so many bytes; return whether there was."""
        held = self.packed.nbytes >= packed and self.received.nbytes >= received
        if self.packed.nbytes < packed:
            self.packed = self._device.empty((packed + packed // SPARE,), np.uint8)
        if self.received.nbytes < received:
            self.received = self._device.empty((received + received // SPARE,), np.uint8)
        return held


class PackedExchange:
    """Compressed rows on their way between ranks, from the packing on.

    Parameters
    ----------
    device : Device
    door : Door
    rooms : Rooms
        Of no other exchange at the same time.
    dense : CompressedRows
        Of own nodes.
    exchanged : Exchanged
    """

    def __init__(self, device: Any, door: Door, rooms: Rooms, dense: CompressedRows, exchanged: Exchanged) -> None:
        self._device, self._door, self._rooms = device, door, rooms
        self._dense, self._exchanged = dense, exchanged
        n_sent, n_ranks = exchanged.rows.size, len(exchanged.sent)
        rooms.holds(EXPECTED * SECTOR * n_sent, EXPECTED * SECTOR * exchanged.n_received + CHUNK)
        self._places = device.empty((n_sent + 1,), np.int32)
        self._halo_places = device.empty((exchanged.n_received,), np.int32)
        self._pack()
        ends = device.empty((n_ranks + 1,), np.int32)
        about = {"ends": ends, "places": self._places, "firsts": exchanged.firsts, "n": ends.size}
        device.launch("halo_ends", elementwise(ends.size), **about)
        self._ends = door.gather_beside(ends)

    def arrive(self) -> CompressedRows:
        """Wait for the lengths, receive the rows, and let kernels launched from now on wait for them."""
        device, door, rooms, exchanged = self._device, self._door, self._rooms, self._exchanged
        ends = self._ends.read().astype(np.int64)  # by sender: where the sectors for each rank begin
        own, sectors = ends[door.rank], np.diff(ends, axis=1)
        coming = sectors[:, door.rank]
        held = rooms.holds(SECTOR * int(own[-1]), SECTOR * int(coming.sum()) + CHUNK)
        if not held:
            self._pack()
        sizes = (SECTOR * coming).tolist()
        parts = parts_of(rooms.packed, (SECTOR * sectors[door.rank]).tolist())
        sending = door.exchange_beside(parts, sizes, rooms.received.view(0, sum(sizes)), follows=not held)
        places = parts_of(self._places, exchanged.sent)
        placing = door.exchange_beside(places, exchanged.received, self._halo_places, follows=False)
        sending.arrive()
        placing.arrive()
        shifts = np.cumsum(coming) - coming - ends[:, door.rank]
        for part, by in zip(parts_of(self._halo_places, exchanged.received), shifts.tolist(), strict=True):
            if part.size and by:
                device.launch("halo_shift", elementwise(part.size), places=part, by=by, n=part.size)
        return self._dense._replace(rows=rooms.received, places=self._halo_places)

    def _pack(self) -> None:
        device, n_sent, packed = self._device, self._exchanged.rows.size, self._rooms.packed
        blocks = n_sent // PACKED_ROWS + 1
        device.launch(
            "halo_pack",
            Launch((blocks, 1, 1), (SCAN_THREADS, 1, 1)),
            packed=packed,
            places=self._places,
            states=device.zeros(blocks, np.uint64),
            ticket=device.zeros(1, np.uint32),
            rows=self._dense.rows,
            sent=self._exchanged.rows,
            n_sent=n_sent,
            capacity=packed.nbytes // SECTOR,
        )


def parts_of(array: DeviceArray, counts: Sequence[int]) -> list[DeviceArray]:
    """Return parts of so many elements, one after the other from the first on."""
    firsts = accumulate(counts, initial=0)
    return [array.view(first, count) for first, count in zip(firsts, counts, strict=False)]
