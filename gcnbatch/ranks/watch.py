"""The watch: a connection from every rank to rank 0, which closes when a process ends.

MPI does not report that a process is gone: the others wait in their next collective for ever, unless their launcher
kills them. The operating system closes the connections of a process that ends, however it ends. No data go through
them, only the lines below. A connection that does not send the secret of this command is closed. The witness
(`gcnbatch.ranks.witness`), which outlives the ranks, has connections of its own and reports which rank has ended.

- ``stop``: rank 0 asks for a checkpoint and an end, as after Ctrl-C.
- ``end``: the command has ended.
- ``bye``: the sender ends in order.
- ``fail CODE TEXT``: the sender cannot go on; all end with this exit code and message.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from gcnbatch.errors import MachineError

CONNECT_SECONDS = 20.0
LINES, WITNESS = 0, 1  # connections of a rank: for lines, and for the witness, which carries none
_LOCAL = "127.0.0.1"
_TOKEN = 32  # bytes


class Endpoint(NamedTuple):
    """Where rank 0 listens: its host, addresses and port, and the secret of this command."""

    host: str
    addresses: tuple[str, ...]
    port: int
    token: bytes


class Watch:
    """The connections of a rank: of rank 0 to all others, of another rank to rank 0.

    Parameters
    ----------
    connections : dict of socket
        By rank.
    received : callable
        Called, in a thread of its own, with the rank and each line from it, and with None when its process ended
        without a ``bye``.
    """

    def __init__(self, connections: dict[int, socket.socket], received: Callable[[int, str | None], object]) -> None:
        self._connections, self._received = connections, received
        self._left = set(connections)
        self._changed = threading.Condition()
        for connection in connections.values():
            notice_dead_hosts(connection)
        threading.Thread(target=self._listen, name="watch of ranks", daemon=True).start()

    def send(self, line: str) -> None:
        """Send a line to all; `_listen` notices a process that has ended."""
        for connection in self._connections.values():
            with suppress(OSError):
                connection.sendall(line.encode() + b"\n")

    def wait_for_byes(self, seconds: float) -> bool:
        """Wait until all others have sent ``bye``; return whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, seconds)

    def _listen(self) -> None:
        waiting = dict.fromkeys(self._connections, b"")
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while waiting:
                for key, _ in selector.select():
                    rank = key.data
                    try:
                        read = self._connections[rank].recv(4096)
                    except OSError:
                        read = b""
                    *lines, waiting[rank] = (waiting[rank] + read).split(b"\n")
                    ended = not read
                    for line in lines:
                        ended |= self._take(rank, line.decode(errors="replace"))
                    if ended:
                        selector.unregister(key.fileobj)
                        del waiting[rank]
                        if rank in self._left:
                            self._received(rank, None)

    def _take(self, rank: int, line: str) -> bool:
        """Handle a line; return whether it was the last one."""
        if line != "bye":
            self._received(rank, line)
            return False
        with self._changed:
            self._left.discard(rank)
            self._changed.notify_all()
        return True


class Listener:
    """The socket of rank 0, on which the other ranks connect.

    Parameters
    ----------
    here : bool
        Whether all ranks are on this host.
    """

    def __init__(self, here: bool) -> None:
        self._socket = socket.create_server((_LOCAL if here else "", 0))
        host = socket.gethostname()
        self.endpoint = Endpoint(host, _addresses(host), self._socket.getsockname()[1], secrets.token_bytes(_TOKEN))

    def accept(self, ranks: Sequence[int]) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
        """Return the connections of these ranks by rank: those for lines, and those for the witness.

        Raises
        ------
        MachineError
            When one does not connect in time.
        """
        found: dict[tuple[int, int], socket.socket] = {}
        wanted = {(rank, kind) for rank in ranks for kind in (LINES, WITNESS)}
        self._socket.settimeout(CONNECT_SECONDS)
        with self._socket:
            while missing := sorted(wanted - found.keys()):
                try:
                    connection, _ = self._socket.accept()
                    connection.settimeout(CONNECT_SECONDS)
                    token, about = _receive(connection, _TOKEN), _receive(connection, 5)
                except TimeoutError as error:
                    raise _unreachable(missing[0][0], self.endpoint) from error
                except OSError:
                    continue
                key = int.from_bytes(about[:4], "big"), about[4]
                if hmac.compare_digest(token, self.endpoint.token) and key in missing:
                    connection.settimeout(None)
                    found[key] = connection
                else:
                    connection.close()
        lines, witness = ({rank: found[rank, kind] for rank in ranks} for kind in (LINES, WITNESS))
        return lines, witness


def connect(endpoint: Endpoint, rank: int, kind: int = LINES) -> socket.socket:
    """Return a connection of a rank to rank 0.

    Raises
    ------
    MachineError
        When rank 0 cannot be reached.
    """
    local = endpoint.host == socket.gethostname()
    for address in (_LOCAL,) if local else (endpoint.host, *endpoint.addresses):
        with suppress(OSError):
            connection = socket.create_connection((address, endpoint.port), CONNECT_SECONDS / 4)
            connection.settimeout(None)
            connection.sendall(endpoint.token + rank.to_bytes(4, "big") + bytes([kind]))
            return connection
    raise _unreachable(rank, endpoint)


def _unreachable(rank: int, endpoint: Endpoint) -> MachineError:
    return MachineError(
        f"rank {rank}",
        f"no TCP connection to rank 0 on {endpoint.host}",
        hint="Let the hosts of the ranks reach each other, or start all ranks on one host.",
    )


def _addresses(host: str) -> tuple[str, ...]:
    with suppress(OSError):
        return tuple(dict.fromkeys(str(about[4][0]) for about in socket.getaddrinfo(host, None, socket.AF_INET)))
    return ()


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        if not (part := connection.recv(count - len(received))):
            raise ConnectionError
        received += part
    return received


def notice_dead_hosts(connection: socket.socket) -> None:
    """Let the connection end seven seconds after its host has lost power or network."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 3), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 2)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
