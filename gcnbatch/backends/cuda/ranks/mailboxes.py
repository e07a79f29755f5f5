"""Memory of the devices of all ranks of a host, into which each rank writes (cuda_src/ranks/flags.cuh).

A rank opens the others' memory through CUDA's interprocess handles. They work over NVLink and PCIe, also where a
process does not see the other's device (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.errors import GcnbatchError, MachineError
from gcnbatch.ranks.communicator import Communicator

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

T = TypeVar("T")
MAX_RANKS = declared("ranks/flags.cuh").constant("MAX_RANKS")
_REASON_BYTES = 200  # of the reason why a rank has failed


class Mailboxes:
    """A mailbox on each rank's device, of zeros at first; all ranks create them together.

    Parameters
    ----------
    device : Device
        A different one on each rank, all of one host.
    ranks : Communicator
        Of host arrays.
    nbytes : int
        Of a mailbox.

    Attributes
    ----------
    of : tuple of DeviceArray, uint8 (nbytes,)
        Of each rank, as this one reaches it.
    turns : int
        Steps that all ranks have run or queued together so far.

    Raises
    ------
    MachineError
        On all ranks alike, when one of them has no memory or does not reach that of another.
    """

    def __init__(self, device: Device, ranks: Communicator, nbytes: int) -> None:
        self.nbytes, self.turns, self._device, self._ranks = nbytes, 0, device, ranks
        own, handle = on_all(ranks, lambda: device.shared(nbytes))
        handles = ranks.all_gather(np.frombuffer(handle, np.uint8))

        def opened(rank: int) -> DeviceArray:
            return own if rank == ranks.rank else device.open_shared(handles[rank].tobytes(), nbytes)

        self.of = on_all(ranks, lambda: tuple(opened(rank) for rank in range(ranks.size)))
        atexit.register(self._forget)  # before the context goes

    def settle(self) -> None:
        """Wait until all ranks have run all their steps."""
        on_all(self._ranks, self._device.synchronize)

    def close(self) -> None:
        """Free the memory; all ranks call, after their last step. Those that opened it must let go of it first."""
        self.settle()
        own, self.of = self.of[self._ranks.rank], ()
        self.settle()
        del own
        atexit.unregister(self._forget)

    def _forget(self) -> None:
        self.of = ()


def on_all(ranks: Communicator, work: Callable[[], T]) -> T:
    """Return the result of `work`, which all ranks do together.

    Raises
    ------
    MachineError
        On all ranks, if it failed on one.
    """
    failure, done = "", list[T]()
    try:
        done.append(work())
    except GcnbatchError as error:
        failure = f"{error.subject}: {error.got}"
    raw = np.zeros(1 + _REASON_BYTES, np.uint8)
    text = failure.encode()[:_REASON_BYTES]
    raw[0], raw[1 : 1 + len(text)] = not done, np.frombuffer(text, np.uint8)
    for rank, found in enumerate(ranks.all_gather(raw)):
        if found[0]:
            reason = found[1:].tobytes().rstrip(b"\0").decode(errors="replace")
            raise MachineError("memory that ranks share", f"rank {rank}: {reason}", hint="Use --backend batched.")
    return done[0]


def why_apart(ranks: Communicator, open_device: Callable[[], Device]) -> str | None:
    """Return why ranks cannot reach each other's device memory, or None; all ranks call, and get the same."""
    try:
        Mailboxes(on_all(ranks, open_device), ranks, 1).close()
    except MachineError as error:
        return error.got
    return None
