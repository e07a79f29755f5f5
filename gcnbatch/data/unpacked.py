"""Unpacked chunks on disk: where the part of a set that memory does not hold is read from, once it is read again.

Training draws graphs in random order, so each batch needs a few rows of many chunks. To unpack whole chunks for them
takes about ten times as long as to read the rows. So a chunk that is unpacked for the second time goes to a file
without a name, and from then on its rows are read from there alone.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from typing import IO, Any

from numpy.typing import NDArray


class UnpackedFile:
    """A file without a name in the folder of temporary files: it vanishes with the process. Threads may share it."""

    def __init__(self) -> None:
        self._stream: IO[bytes] | None = None
        self._bytes, self._process, self._stopped = 0, os.getpid(), False
        self._lock = threading.Lock()

    def add(self, values: NDArray[Any]) -> int | None:
        """Write C-contiguous values and return their place; None if there is no room, or in a forked process."""
        if self._stopped or os.getpid() != self._process:
            return None
        with self._lock:
            try:
                if self._stream is None:
                    self._stream = tempfile.TemporaryFile(dir=folder(), buffering=0)  # noqa: SIM115 - close() does
                place = self._bytes
                self._bytes += values.nbytes
                rest = values.data.cast("B")
                while rest:
                    rest = rest[os.pwrite(self._stream.fileno(), rest, self._bytes - len(rest)) :]
            except OSError:  # no room: chunks are unpacked again, as before
                self._stopped = True
                return None
        return place

    def read_into(self, values: NDArray[Any], place: int) -> bool:
        """Read C-contiguous values from their place; False when that failed."""
        rest = values.data.cast("B")
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed by another thread
            return os.preadv(self._stream.fileno(), [rest], place) == len(rest)  # type: ignore[union-attr]
        return False

    def close(self) -> None:
        """Delete the file, and write none from now on."""
        with self._lock:
            self._stopped = True
            if self._stream is not None:
                self._stream.close()


def folder() -> str | None:
    """Return the folder of the file: TMPDIR, else /var/tmp, which is on a disk where /tmp is often in memory."""
    on_disk = "/var/tmp"  # noqa: S108 - the file has no name there
    return None if "TMPDIR" in os.environ or not os.access(on_disk, os.W_OK) else on_disk
