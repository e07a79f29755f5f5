"""The witness: a process of rank 0 that reports which rank ended out of order, when a launcher kills all others.

MPICH kills every rank a millisecond after one of them was killed, before Python can run a line of ours. It kills their
process groups; the witness has a session, and so a group, of its own. Every other rank has a connection to it that
carries no data, and rank 0 a pipe. The kernel closes them when a process ends, however it ends: the first one to close
names the rank. epoll returns events in the order in which they came.

Run as a script by `Witness`, with standard modules alone, so that it starts in some milliseconds.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

REPORTED, SILENT = 0, 1  # exit codes
_LEADER_ENDED = b"rank 0 ended"
_CONTROL = 0  # descriptor of the pipe from rank 0


class Witness:
    """The witness, seen from rank 0.

    Parameters
    ----------
    names : sequence of str
        What to call each rank in the message.
    connections : dict of socket
        From each other rank, by rank; closed here.

    Raises
    ------
    OSError
        When no process can be started.
    """

    def __init__(self, names: Sequence[str], connections: Mapping[int, socket.socket]) -> None:
        ranks = {connection.fileno(): rank for rank, connection in connections.items()}
        words = [sys.executable, "-I", "-S", __file__, json.dumps([names, ranks])]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(
            words, stdin=pipe, stdout=nowhere, bufsize=0, pass_fds=list(ranks), start_new_session=True
        )
        for connection in connections.values():
            connection.close()

    def advise(self, text: str, path: Path | None) -> None:
        """Add this text to the message from now on, where `path` exists."""
        self._send([text, None if path is None else str(path)])

    def end(self) -> None:
        """Let it end without a message: the command ends in order, or rank 0 itself reports an error."""
        self._send(None)

    def has_reported(self, seconds: float) -> bool:
        """Return whether it reports, after a rank has ended; wait for that."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds) == REPORTED
        return False

    def _send(self, item: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            self._process.stdin.write(json.dumps(item).encode() + b"\n")


def has_reported_leader(connection: socket.socket, seconds: float) -> bool:
    """Return whether the witness, to which another rank is connected, has reported the end of rank 0."""
    connection.settimeout(seconds)
    with suppress(OSError):
        return connection.recv(len(_LEADER_ENDED)) == _LEADER_ENDED
    return False


def main(names: Sequence[str], ranks: Mapping[int, int]) -> int:
    """Wait for the first process that ends, and report it; return the exit code."""
    advice: tuple[str, str | None] = "", None
    waiting = b""
    with select.epoll() as poll:
        for descriptor in (_CONTROL, *ranks):
            poll.register(descriptor, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                read = _read(descriptor)
                if not read:
                    rank = ranks.get(descriptor, 0)
                    _report(names[rank], *advice)
                    for other in ranks if rank == 0 else ():
                        with suppress(OSError):
                            os.write(other, _LEADER_ENDED)
                    return REPORTED
                if descriptor == _CONTROL:
                    *lines, waiting = (waiting + read).split(b"\n")
                    for item in map(json.loads, lines):
                        if item is None:
                            return SILENT
                        advice = item[0], item[1]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # its host is gone
        return b""


def _report(name: str, advice: str, path: str | None) -> None:
    shown = advice if path is None or os.path.exists(path) else ""
    message = f"error: {name} ended unexpectedly; all ranks stop. {shown}".strip()
    with suppress(OSError):
        os.write(2, f"{message}\n".encode(errors="replace"))


if __name__ == "__main__":
    every, by_descriptor = json.loads(sys.argv[1])
    sys.exit(main(every, {int(descriptor): rank for descriptor, rank in by_descriptor.items()}))
