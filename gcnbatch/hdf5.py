"""HDF5 files for output: errors of the disk and signals reach the program, and never libhdf5, which mistakes them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from gcnbatch.fileio import HeldErrors, StrPath

if TYPE_CHECKING:
    import h5py


@contextmanager
def open_output(path: StrPath, target: StrPath, **options: Any) -> Iterator[tuple[h5py.File, HeldErrors]]:
    """Open an existing empty file for HDF5; yield it with the stream that keeps the error of a failed write.

    Parameters
    ----------
    path : path
    target : path
        The name in the error message.
    options : dict
        Of `h5py.File`.

    Raises
    ------
    MachineError
        When a write fails: at the end of the block, or earlier by `HeldErrors.check`.
    """
    import h5py

    with HeldErrors(path, target) as stream:
        file = None
        try:
            with late_signals():
                file = h5py.File(stream, "w", **options)
            yield file, stream
        finally:
            if file is not None:
                with late_signals():
                    file.close()


@contextmanager
def late_signals() -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP at the end of the block.

    libhdf5 calls `HeldErrors` to write. The exception of a signal handler there would be lost, or end in a traceback.
    """
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main thread only
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for came in arrived:
            signal.raise_signal(came)
