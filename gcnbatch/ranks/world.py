"""The ranks of this command: joining them, calls from rank 0 to the others, and the end.

Rank 0 runs the command. The others (followers) parse nothing, print nothing and write only what a call of rank 0 lets
them write. When a process ends out of order, all end, and one line names it.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from gcnbatch import __version__, environment
from gcnbatch.errors import GcnbatchError, InputError, MachineError
from gcnbatch.ranks.communicator import CommandEndedError, HostCommunicator
from gcnbatch.ranks.launch import LaunchedProcess
from gcnbatch.ranks.process import LeaderProcess
from gcnbatch.ranks.watch import LINES, WITNESS, Listener, Watch, connect, notice_dead_hosts
from gcnbatch.ranks.witness import Witness, has_reported_leader
from gcnbatch.text import counted, printable
from gcnbatch.timeline import spanned
from gcnbatch.workers.process import answer

MPI4PY = "Install it: pip install 'gcnbatch[mpi]'"
LIBRARY = "Install an MPI library, such as your system's openmpi or mpich package, or: pip install mpich"
_CALL, _ANSWER = 1, 2  # tags
_POLL_SECONDS = 0.002  # MPI itself would wait in a loop, which takes a processor
_GRACE_SECONDS = 4.0  # for a follower to end, and for rank 0 to report its own error first
_MACHINE = MachineError.exit_code
Advice = tuple[str, Path | None]


class _Process(NamedTuple):
    """The properties of a rank that ranks compare."""

    host: str
    pid: int
    arguments: tuple[str, ...]
    versions: dict[str, str | None]
    visible: str | None  # CUDA_VISIBLE_DEVICES


class World:
    """The ranks of this command, seen from one of them.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        For calls and answers.
    processes : sequence of _Process
        By rank.

    Attributes
    ----------
    data : mpi4py.MPI.Comm
        For the data of calls that all ranks run together.
    stop_asked : bool
        Whether rank 0 has asked for a checkpoint and an end of the current call; the command ends then.
    advice : (str, Path or None)
        What to do after a rank has ended, for users, if the path exists.
    own_process : LeaderProcess or None
        That of rank 0, if it has been started.
    """

    def __init__(self, comm: Any, launched: LaunchedProcess, processes: Sequence[_Process]) -> None:
        self.rank, self.size, self.local_rank = comm.Get_rank(), comm.Get_size(), launched.local_rank
        self._comm, self._processes = comm, processes
        self.data = comm.Dup()
        self.stop_asked = False
        self.advice: Advice = ("", None)
        self.own_process: LeaderProcess | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        if self.rank == 0:
            listener = Listener(here=len({process.host for process in processes}) == 1)
            comm.bcast(listener.endpoint)
            connections, for_witness = listener.accept(range(1, self.size))
            self._witness = self._start_witness(for_witness)
            self._watch = Watch(connections, self._received_from_follower)
        else:
            endpoint = comm.bcast(None)
            connection, self._to_witness = (connect(endpoint, self.rank, kind) for kind in (LINES, WITNESS))
            self._watch = Watch({0: connection}, self._received_from_leader)

    def name(self, rank: int) -> str:
        """Return a rank's name for users."""
        return f"rank {rank} on {printable(self._processes[rank].host, 40)}"

    def process(self, rank: int) -> str:
        """Return a rank's name and process for users."""
        return f"{self.name(rank)} (process {self._processes[rank].pid})"

    def _start_witness(self, connections: dict[int, socket.socket]) -> Witness:
        for connection in connections.values():
            notice_dead_hosts(connection)
        try:
            return Witness([self.process(rank) for rank in range(self.size)], connections)
        except OSError as error:
            reason = f"cannot be started ({error.strerror})"
            raise MachineError("a process of rank 0", reason, hint="Raise ulimit -u, or end others.") from error

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""
        return sum(process.host == self._processes[self.rank].host for process in self._processes)

    def communicator(self) -> HostCommunicator:
        """Return the communicator of host arrays, on which all ranks make the same calls."""
        return HostCommunicator(self.data, self._ended.is_set)

    def device(self, first: int) -> int:
        """Return the GPU of this rank among those that it sees: the local rank from `first` on.

        A launcher that shows each rank of a host other devices has chosen already.
        """
        own = self._processes[self.rank]
        shown = [process.visible for process in self._processes if process.host == own.host]
        return first if len(set(shown)) == len(shown) else first + self.local_rank

    # -------------------------------------------------------------------------------------------- rank 0

    def call(self, rank: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function, importable by name, on a follower; return what it returns or raise what it raises."""
        with self._lock:
            self._comm.send((function, args, kwargs, False), rank, _CALL)
        while True:
            with self._lock:
                if self._comm.iprobe(rank, _ANSWER):
                    result, error = self._comm.recv(source=rank, tag=_ANSWER)
                    break
            time.sleep(_POLL_SECONDS)
        if error is not None:
            raise error
        return result

    def start_all(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Start a function on all followers; its errors end all ranks."""
        for rank in range(1, self.size):
            with self._lock:
                self._comm.send((function, args, kwargs, True), rank, _CALL)

    def receive(self, rank: int) -> Any:
        """Return the next item that a function of `start_all` sends from a follower."""
        while not self.data.iprobe(rank):
            time.sleep(_POLL_SECONDS)
        return self.data.recv(source=rank)

    def ask_stop(self) -> None:
        """Ask the followers for a checkpoint and an end of their calls."""
        self._watch.send("stop")

    def end(self, code: int) -> None:
        """End the followers. One that does not end takes all down, with this exit code."""
        self._ended.set()
        self._witness.end()
        self._watch.send("end")
        if not self._watch.wait_for_byes(2 * _GRACE_SECONDS):
            self._quit(code)
        self._watch.send("bye")

    def _received_from_follower(self, rank: int, line: str | None) -> None:
        if line is None and self._ended.is_set():
            return
        if line is None:
            if not self._witness.has_reported(_GRACE_SECONDS):
                _print_error(f"{self.process(rank)} ended unexpectedly; all ranks stop.")
            self._quit(_MACHINE)
        elif line.startswith("fail "):
            _, code, text = line.split(" ", 2)
            self._witness.end()
            _print_error(text)
            self._quit(int(code))

    def advise(self, advice: Advice) -> Advice:
        """Set the advice; return that of before."""
        before, self.advice = self.advice, advice
        self._witness.advise(printable(advice[0]), advice[1])
        return before

    def _quit(self, code: int) -> NoReturn:
        self._watch.send(f"quit {code}")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # MPI would wait for the others

    # -------------------------------------------------------------------------------------------- followers

    def follow(self) -> None:
        """Run the calls of rank 0 until it ends."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # training handles them; else rank 0 ends us
            signal.signal(number, lambda *_: None)
        while not self._ended.is_set():
            if not self._comm.iprobe(0, _CALL):
                time.sleep(_POLL_SECONDS)
                continue
            function, args, kwargs, together = self._comm.recv(source=0, tag=_CALL)
            if together:
                self._run_with_all(function, args, kwargs)
            else:
                self._comm.send(answer(function, args, kwargs), 0, _ANSWER)
        self._watch.send("bye")

    def send(self, item: Any) -> None:
        """Send an item to rank 0, which takes it with `receive`; return when it has, or the command has ended."""
        request = self.data.isend(item, 0)
        while not self._ended.is_set() and not request.test()[0]:
            time.sleep(_POLL_SECONDS)

    def _run_with_all(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except CommandEndedError:
            return
        except Exception as error:
            if self._ended.wait(_GRACE_SECONDS):  # rank 0 has failed, too, and has reported why
                return
            if not isinstance(error, GcnbatchError):
                traceback.print_exc()
            code = error.exit_code if isinstance(error, GcnbatchError) else 1
            self._watch.send(f"fail {code} {self.name(self.rank)}: {printable(str(error) or repr(error))}")
            self._ended.wait()

    def _received_from_leader(self, rank: int, line: str | None) -> None:
        if line is None:
            if self.rank == 1 and not has_reported_leader(self._to_witness, _GRACE_SECONDS):
                _print_error(f"{self.process(0)} ended unexpectedly; all ranks stop.")
            os._exit(_MACHINE)
        elif line == "stop":
            self.stop_asked = True
        elif line == "end":
            self._ended.set()
            timer = threading.Timer(_GRACE_SECONDS, os._exit, (0,))  # while it waits for others in a call
            timer.daemon = True
            timer.start()
        elif line.startswith("quit "):
            os._exit(int(line.split()[1]))


_world: World | None = None


def current() -> World | None:
    """Return the ranks of this command; None where no launcher started several processes."""
    return _world


def stop_is_asked() -> bool:
    """Return whether rank 0 has asked for a checkpoint and an end of the current call."""
    return _world is not None and _world.stop_asked


@contextmanager
def advised(text: str, path: Path) -> Iterator[None]:
    """While entered, add this advice to the message about a rank that has ended, if the path exists."""
    if _world is None:
        yield
        return
    before = _world.advise((text, path.absolute()))
    try:
        yield
    finally:
        _world.advise(before)


@contextmanager
def named() -> Iterator[None]:
    """Name this rank in errors, if it is a follower."""
    try:
        yield
    except GcnbatchError as error:
        if _world is not None and _world.rank:
            raise type(error)(
                f"{_world.name(_world.rank)}: {error.subject}", error.got, error.expected, error.hint
            ) from error
        raise


# ------------------------------------------------------------------------------------------------ joining


@spanned("join the ranks")
def join(launched: LaunchedProcess, arguments: Sequence[str]) -> World:
    """Start MPI and meet the other ranks.

    Raises
    ------
    MachineError
        When MPI is missing or not that of the launcher, or ranks cannot reach each other.
    InputError
        When ranks have other arguments, or other versions of a package.
    """
    global _world  # noqa: PLW0603 -- as global as the launcher's processes
    comm = _mpi(launched).COMM_WORLD
    if comm.Get_size() != launched.size:
        raise MachineError(
            "MPI",
            f"{launched.launcher} started {counted(launched.size, 'process', 'processes')}, the library "
            f"{_library()} sees {comm.Get_size()}",
            "a launcher and a library of the same MPI",
            "Use the mpirun of that library, under Slurm srun --mpi=pmix or pmi2.",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    own = _Process(platform.node(), os.getpid(), tuple(arguments), _versions(), visible)
    processes = comm.allgather(own)
    _check_same(processes)
    _world = World(comm, launched, processes)
    return _world


def _mpi(launched: LaunchedProcess) -> Any:
    started = f"{launched.launcher} started {counted(launched.size, 'process', 'processes')}"
    try:
        return import_module("mpi4py.MPI")
    except ModuleNotFoundError as error:
        raise MachineError("mpi4py", f"not installed on {platform.node()}, but {started}", hint=f"{MPI4PY}.") from error
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it cannot be loaded"
        raise MachineError(
            f"MPI library on {platform.node()}", f"{reason}, but {started}", hint=f"{LIBRARY}."
        ) from error


def _library() -> str:
    return str(import_module("mpi4py.MPI").Get_library_version()).split(",")[0].splitlines()[0].strip()


def _versions() -> dict[str, str | None]:
    return {"gcnbatch": __version__, "Python": platform.python_version(), **environment.packages()}


def _check_same(processes: Sequence[_Process]) -> None:
    """Refuse ranks with other arguments or versions than rank 0."""
    first = processes[0]
    for rank, process in enumerate(processes):
        where = f"rank {rank} on {printable(process.host, 40)}"
        if process.arguments != first.arguments:
            shown = printable(shlex.join(process.arguments), 200)
            raise InputError(f"{where}: command line", shown, "that of rank 0", "Start one command on all ranks.")
        for name, version in first.versions.items():
            if process.versions[name] != version:
                raise InputError(
                    f"{where}: {name}",
                    process.versions[name] or "not installed",
                    f"{version or 'none'}, as on rank 0",
                    "Install the same versions on all hosts.",
                )


def _print_error(message: str) -> None:
    os.write(2, f"error: {message.strip()}\n".encode(errors="replace"))
