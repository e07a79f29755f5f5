"""HDF5 files for output: errors of the disk and signals reach the program, and never libhdf5, which mistakes them."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from gcnbatch.fileio import StrPath, write_error

if TYPE_CHECKING:
    import h5py
    from _typeshed import ReadableBuffer


class HeldErrors(io.FileIO):
    """A file for a library that crashes when a write fails: `check` and the end of the block raise the error instead.

    Parameters
    ----------
    path : path
        An existing file to write to.
    target : path
        The name in the error message.
    """

    def __init__(self, path: StrPath, target: StrPath) -> None:
        super().__init__(path, "r+")
        self._target = Path(target)
        self._failure: OSError | None = None

    def write(self, data: ReadableBuffer) -> int:
        """Write; do nothing after a failed write."""
        return self._attempt(super().write, data, memoryview(data).nbytes)

    def truncate(self, size: int | None = None) -> int:
        """Resize; do nothing after a failed write."""
        return self._attempt(super().truncate, size, self.tell() if size is None else size)

    def _attempt(self, call: Callable[[Any], int], value: Any, otherwise: int) -> int:
        if self._failure is None:
            try:
                return call(value)
            except OSError as error:
                self._failure = error
        return otherwise

    def check(self) -> None:
        """Raise MachineError if a write has failed."""
        if self._failure is not None:
            raise write_error(self._target, self._failure) from self._failure

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None:
            self.check()


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
