"""The process that computes for rank 0."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from gcnbatch.workers.pool import Workers


class LeaderProcess(Workers):
    """A process that computes for rank 0, so that rank 0 itself stays free to answer signals and to write results.

    Parameters
    ----------
    initializer, initargs
        As of `Workers`.
    """

    def __init__(self, initializer: Callable[..., object] | None = None, *initargs: Any) -> None:
        self._ends = socket.socketpair()
        super().__init__(1, initializer, initargs, one_blas_thread=False, keep_open=(self._ends[1].fileno(),))

    def hold(self, descriptor: int) -> None:
        """Let the process, too, hold a file descriptor open: the kernel keeps it in a message that is never read."""
        socket.send_fds(self._ends[0], [b" "], [descriptor])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the process, as `Workers.shutdown`."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for end in self._ends:
                end.close()
