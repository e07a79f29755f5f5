"""Start and end of the server: address, runs, signals."""

from __future__ import annotations

import errno
import gc
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from gcnbatch.backends.blas import shared_processors
from gcnbatch.backends.registry import close_devices
from gcnbatch.config_sections import CudaConfig
from gcnbatch.errors import InputError
from gcnbatch.inference.loaded import LoadedRun, Machine
from gcnbatch.inference.trust import Level
from gcnbatch.runners.choice import FEW
from gcnbatch.serving.app import Service
from gcnbatch.serving.bodies import Limits
from gcnbatch.serving.keys import read_keys
from gcnbatch.serving.queue import PredictionQueue, Runs

Say = Callable[[str], object]
_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "SAMEORIGIN"),
]
_END_SECONDS = 10  # after a signal, for answers in progress
_CONNECTIONS = 1000


@dataclass(frozen=True)
class Models:
    """The runs to load, and where they predict."""

    folders: Sequence[Path]
    backend: str = "auto"
    device: int = 0
    cuda: CudaConfig | None = None
    processes: int = 0
    level: Level = "training"

    def names(self) -> list[str]:
        """Return the names of the models: those of the folders.

        Raises
        ------
        InputError
            For no run, and for two of one name.
        """
        names = [folder.resolve().name for folder in self.folders]
        if not names:
            raise InputError("runs", "none", "at least one")
        if twice := next((name for index, name in enumerate(names) if name in names[:index]), ""):
            raise InputError(f"model {twice}", "the name of two folders", "different names", "Rename one of them.")
        return names


def serve(
    models: Models,
    host: str,
    port: int,
    limits: Limits,
    token_file: Path | None = None,
    private: bool = False,
    ready: Say = lambda line: None,
    say: Say = lambda line: None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Parameters
    ----------
    models : Models
    host, port
        Address; port 0: a free one.
    limits : Limits
    token_file : Path or None
        Keys of users.
    private : bool
        Show no training molecules.
    ready : callable
        Called with the URL when requests are answered.
    say : callable
        Called with each message for the user.

    Raises
    ------
    InputError
        For runs that cannot be served, an address that cannot be used, and one that other hosts reach, without keys.
    """
    models.names()
    keys = read_keys(token_file) if token_file is not None else ()
    with _bound(host, port, only_local=not keys) as listener:
        queue = PredictionQueue(lambda: loaded(models, say), limits.waiting)
        try:
            service = Service(queue, queue.start(), limits, keys, private)
            _run(service.app(), listener, lambda: ready(_url(host, listener, say)))
        finally:
            queue.close()


@contextmanager
def loaded(models: Models, say: Say = lambda line: None) -> Iterator[Runs]:
    """Load the runs; close their processes and the GPU at the end, in the same thread.

    Raises
    ------
    InputError
        As `Models.names` and `LoadedRun`.
    """
    try:
        machine = Machine.open(models.backend, models.device, models.cuda, models.processes)
        fastest, few = machine.choice.fastest.name, machine.choice.for_few
        if few is not None:
            say(f"fewer than {FEW} molecules at once are predicted by {few.fastest.name}, more by {fastest}")
        with machine.workers, shared_processors():
            runs = {
                name: LoadedRun(folder, machine, models.level, say)
                for name, folder in zip(models.names(), models.folders, strict=True)
            }
            for run in runs.values():
                for count in (1, FEW)[: 1 if few is None else 2]:  # else the first requests wait for compilation
                    run.predict(["C"] * count, applicability=True)
            gc.collect()
            gc.freeze()  # else a request that starts a full collection waits for 60 ms
            try:
                yield runs
            finally:
                gc.unfreeze()
    finally:
        close_devices()


@contextmanager
def _bound(host: str, port: int, only_local: bool) -> Iterator[socket.socket]:
    """Yield a socket that is bound to the address; it does not listen yet. `only_local`: no other host may reach it."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError("--host", f"{host}: {error.strerror}", "an address of this machine") from error
    if only_local and not all(_ip(address).is_loopback for *_, address in found):
        raise InputError("--token-file", f"missing, with --host {host}", "a file of keys", "Or serve 127.0.0.1 alone.")
    family, kind, number, _, address = found[0]
    with socket.socket(family, kind, number) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _unusable(host, port, error) from error
        yield listener


def _ip(address: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(str(address[0]).partition("%")[0])


def _unusable(host: str, port: int, error: OSError) -> InputError:
    if error.errno == errno.EADDRINUSE:
        return InputError("--port", f"{port} is in use", "a free one", "Port 0 takes any.")
    if error.errno == errno.EACCES:
        return InputError("--port", f"{port} may not be used", "one above 1023")
    return InputError("--host", f"{host}: {error.strerror}", "an address of this machine")


def _url(host: str, listener: socket.socket, say: Say) -> str:
    """Return the URL for a browser on this machine; say if the server listens on all addresses."""
    address = listener.getsockname()
    if _ip(address).is_unspecified:
        say(f"listening on all addresses of this machine, port {address[1]}")
        host = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{address[1]}/"


class _Server(uvicorn.Server):
    """A server that says when it is ready, and ends without an error after a signal."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True  # uvicorn would also raise the signal again at the end


def _run(app: Starlette, listener: socket.socket, ready: Callable[[], object]) -> None:
    """Answer requests until a signal; then finish those in progress, for at most _END_SECONDS."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        loop="asyncio",
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=_HEADERS,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_END_SECONDS,
    )
    server = _Server(config, ready)
    before = signal.signal(signal.SIGHUP, server.handle_exit)  # as uvicorn does for SIGINT and SIGTERM
    try:
        server.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGHUP, before)
