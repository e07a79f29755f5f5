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

from gcnbatch.backends.cuda.ranks.halo import SECTOR, Exchanged
from gcnbatch.backends.cuda.runtime.launch import Launch, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.cuda.spmm.large import CHUNK, ROW_BYTES, CompressedRows

PACKED_ROWS: int = declared("ranks/halo.cu").constant("PACKED_ROWS")
SCAN_THREADS: int = declared("common/scan.cuh").constant("SCAN_THREADS")
EXPECTED = 6  # sectors of a row that the first buffers can hold
SPARE = 8  # a buffer that must grow, grows by a SPARE-th more


class Arriving(Protocol):
    """An exchange that has started."""

    def arrive(self) -> None:
        """Let kernels launched from now on wait for it."""


class Gathering(Protocol):
    """An all-gather that has started."""

    def read(self) -> NDArray[Any]:
        """Wait for it, and return the arrays of all ranks."""


class SideCommunicator(Protocol):
    """The methods of `gcnbatch.backends.cuda.runtime.nccl.NcclCommunicator` that a packed exchange calls."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    def exchange_beside(self, parts: Any, rows: Any, out: DeviceArray, follows: bool = True) -> Arriving:
        """Start an exchange beside the device's stream."""

    def gather_beside(self, array: DeviceArray) -> Gathering:
        """Start an all-gather beside the device's stream, for the host."""


class PackedBuffers:
    """Memory of compressed rows, kept from one exchange to the next: it is taken before their lengths are known.

    `rows` has those of own nodes, ROW_BYTES each, and after them those of the halo, packed; `packed` those to send.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self.packed = self.rows = DeviceArray(0, (0,), np.dtype(np.uint8))

    def own_rows(self, n: int, exchanged: Exchanged) -> DeviceArray:
        """Return memory for the rows of `n` own nodes, (n, ROW_BYTES), and space for the halo that is expected."""
        expected = EXPECTED * SECTOR * exchanged.n_received + CHUNK
        if self.rows.nbytes < n * ROW_BYTES + expected:
            self.rows = self._device.empty((n * ROW_BYTES + expected,), np.uint8)
        self._make_packed(EXPECTED * SECTOR * exchanged.rows.size)
        return self.rows.view(0, (n, ROW_BYTES))

    def holds(self, packed: int, own: int, received: int) -> bool:
        """Grow to so many bytes, and keep those of own rows; return whether the buffers held them."""
        needed = own + received + CHUNK
        held = self._make_packed(packed) and self.rows.nbytes >= needed
        if self.rows.nbytes < needed:
            before, self.rows = self.rows, self._device.empty((needed + received // SPARE,), np.uint8)
            self._device.copy(before.view(0, own), self.rows.view(0, own))
        return held

    def _make_packed(self, nbytes: int) -> bool:
        if held := self.packed.nbytes >= nbytes:
            return held
        self.packed = self._device.empty((nbytes + nbytes // SPARE,), np.uint8)
        return False


class PackedExchange:
    """Compressed rows on their way between ranks, from the packing on.

    Parameters
    ----------
    device : Device
    communicator : SideCommunicator
    buffers : PackedBuffers
        Of no other exchange at the same time.
    dense : CompressedRows
        Of own nodes, in `PackedBuffers.own_rows`.
    exchanged : Exchanged
    places : int32, (n + m,)
        `gcnbatch.backends.cuda.ranks.halo.MatrixPieces.places`.
    """

    def __init__(
        self,
        device: Any,
        communicator: SideCommunicator,
        buffers: PackedBuffers,
        dense: CompressedRows,
        exchanged: Exchanged,
        places: DeviceArray,
    ) -> None:
        self._device, self._communicator, self._buffers = device, communicator, buffers
        self._dense, self._exchanged, self._places = dense, exchanged, places
        self._sent_places = device.empty((exchanged.rows.size + 1,), np.int32)
        self._pack()
        ends = device.empty((len(exchanged.sent) + 1,), np.int32)
        about = {"ends": ends, "places": self._sent_places, "firsts": exchanged.firsts, "n": ends.size}
        device.launch("halo_ends", elementwise(ends.size), **about)
        self._ends = communicator.gather_beside(ends)

    def arrive(self) -> tuple[CompressedRows, CompressedRows]:
        """Wait for the lengths, receive the rows, and let kernels launched from now on wait for them.

        Return those of the halo, and those of own nodes and halo.
        """
        device, communicator, buffers, exchanged = self._device, self._communicator, self._buffers, self._exchanged
        n, n_halo = self._dense.shape[0], exchanged.n_received
        ends = self._ends.read().astype(np.int64)  # by sender: where the sectors for each rank begin
        sectors = np.diff(ends, axis=1)
        coming = sectors[:, communicator.rank]
        sizes = (SECTOR * coming).tolist()
        held = buffers.holds(SECTOR * int(ends[communicator.rank, -1]), n * ROW_BYTES, sum(sizes))
        if not held:
            self._pack()
        parts = parts_of(buffers.packed, (SECTOR * sectors[communicator.rank]).tolist())
        sending = communicator.exchange_beside(
            parts, sizes, buffers.rows.view(n * ROW_BYTES, sum(sizes)), follows=not held
        )
        of_halo = self._places.view(n, (n_halo,))
        placing = communicator.exchange_beside(
            parts_of(self._sent_places, exchanged.sent), exchanged.received, of_halo, follows=False
        )
        sending.arrive()
        placing.arrive()
        shifts = n * ROW_BYTES // SECTOR + np.cumsum(coming) - coming - ends[:, communicator.rank]
        for part, by in zip(parts_of(of_halo, exchanged.received), shifts.tolist(), strict=True):
            if part.size:
                device.launch("halo_shift", elementwise(part.size), places=part, by=by, n=part.size)
        whole = self._dense._replace(rows=buffers.rows, places=self._places)
        return whole._replace(places=of_halo), whole

    def _pack(self) -> None:
        device, n_sent, packed = self._device, self._exchanged.rows.size, self._buffers.packed
        blocks = n_sent // PACKED_ROWS + 1
        device.launch(
            "halo_pack",
            Launch((blocks, 1, 1), (SCAN_THREADS, 1, 1)),
            packed=packed,
            places=self._sent_places,
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
