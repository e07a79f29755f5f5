"""Calls of a library that a hostile file can crash or keep busy: in a forked process with limits, which returns bytes.

The process is a fork, because a new interpreter needs longer to import the library than the call takes. It keeps no
file, terminal or signal handler of its parent. It cannot write to files or start processes, and it ends without any
clean-up of what it inherited (a GPU context, temporary files).
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import os
import resource
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import IO, NoReturn

from gcnbatch.errors import MachineError

_LENGTH_BYTES = 8  # the answer begins with its length, so a part of an answer is never taken for all of it
_PART_BYTES = 1 << 20
_NO_MEMORY, _FAILED = 3, 4  # exit codes of the process
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_PIPE = 3  # the only descriptor that the process keeps beside the standard ones


class Failed(Exception):
    """The confined call gave no answer; the text says what happened, as in "crashes libhdf5 (SIGSEGV)".

    `signal` is the one that ended the process, 0 if it ended by itself.
    """

    def __init__(self, text: str, signal: int = 0) -> None:
        super().__init__(text)
        self.signal = signal


def call(function: Callable[[], bytes], library: str, seconds: int, memory_bytes: int, answer_bytes: int) -> bytes:
    """Return what `function` returns in a forked process.

    Parameters
    ----------
    function : callable
        It must not need other threads, a GPU or an open file of this process.
    library : str
        The library that it calls, for messages.
    seconds : int
        Limit on the processor time.
    memory_bytes : int
        Limit on the address space beyond what this process has now.
    answer_bytes : int
        Limit on the length of the answer.

    Raises
    ------
    Failed
        When the process crashes, exceeds a limit or gives no answer.
    MachineError
        When the process cannot be started, is killed from outside, or is refused memory by a limit of the user's.
    """
    memory, users_limit = _address_space(memory_bytes)
    reader, writer = os.pipe()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # no handler of ours may run in the fork
    try:
        child = _fork()
        if child == 0:
            _serve(function, writer, seconds, memory)
    except OSError as error:
        os.close(reader)
        raise MachineError(
            f"a process for {library}", f"cannot be started ({error.strerror})", hint="Raise ulimit -u, or end others."
        ) from error
    finally:
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    try:
        with open(reader, "rb") as stream:
            answer = _read(stream, _LENGTH_BYTES + answer_bytes)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # it has answered, ended or said too much; or this process is interrupted
        status = _status(child)
    length = int.from_bytes(answer[:_LENGTH_BYTES], "little")
    if len(answer) >= _LENGTH_BYTES and len(answer) - _LENGTH_BYTES == length:
        return answer[_LENGTH_BYTES:]
    if len(answer) == _LENGTH_BYTES + answer_bytes:
        raise Failed(f"{library} answers with more than {answer_bytes} bytes")
    raise _failure(status, library, seconds, memory_bytes, users_limit)


def _read(stream: IO[bytes], most: int) -> bytes:
    """Return at most `most` bytes; `stream.read(most)` would allocate as many at once."""
    parts: list[bytes] = []
    while most > 0 and (part := stream.read(min(most, _PART_BYTES))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of locks that other threads hold. HDF5's lock is h5py's, which takes it around every fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _address_space(more: int) -> tuple[int, bool]:
    """Return the limit on the address space, and whether it is the user's own."""
    with open("/proc/self/statm", "rb") as stream:
        limit = int(stream.read().split()[0]) * resource.getpagesize() + more
    users = resource.getrlimit(resource.RLIMIT_AS)[0]
    return (users, True) if users != resource.RLIM_INFINITY and users < limit else (limit, False)


def limit_memory(more: int) -> None:
    """Limit the address space of this process to `more` bytes beyond what it has now, or to the user's lower limit.

    The process may raise the limit again, for memory of its pool that it maps (`gcnbatch.workers.shared`).
    """
    resource.setrlimit(resource.RLIMIT_AS, (_address_space(more)[0], resource.getrlimit(resource.RLIMIT_AS)[1]))


def _serve(function: Callable[[], bytes], writer: int, seconds: int, memory: int) -> NoReturn:
    """Run `function` in the forked process and write its answer; never return."""
    code = _FAILED
    try:
        gc.disable()  # a collection could free objects of other libraries
        faulthandler.disable()
        for name in _SIGNALS | {signal.SIGXCPU}:
            signal.signal(name, signal.SIG_DFL)
        _keep_only(writer)
        _limit(resource.RLIMIT_AS, memory)
        _limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # at the second limit the signal is SIGKILL
        for none in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
            _limit(none, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        answer = function()
        with open(_PIPE, "wb") as stream:
            stream.write(len(answer).to_bytes(_LENGTH_BYTES, "little"))
            stream.write(answer)
        code = 0
    except MemoryError:
        code = _NO_MEMORY
    finally:
        os._exit(code)


def _keep_only(writer: int) -> None:
    """Leave this process the pipe, and /dev/null as standard input, output and error."""
    pipe = fcntl.fcntl(writer, fcntl.F_DUPFD, _PIPE + 1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(_PIPE):
        os.dup2(null, descriptor)
    os.dup2(pipe, _PIPE)
    os.closerange(_PIPE + 1, os.sysconf("SC_OPEN_MAX"))


def _limit(which: int, soft: int, hard: int | None = None) -> None:
    """Set a limit of this process, within the limit that it has inherited."""
    hard = soft if hard is None else hard
    inherited = resource.getrlimit(which)[1]
    if inherited != resource.RLIM_INFINITY:
        soft, hard = min(soft, inherited), min(hard, inherited)
    resource.setrlimit(which, (soft, hard))


def _status(child: int) -> int | None:
    """Return the process's exit code, -N after signal N, or None if another part of the program took it."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:
        return None


def _failure(status: int | None, library: str, seconds: int, memory: int, users_limit: bool) -> Exception:
    if status == _NO_MEMORY:
        if users_limit:
            return MachineError(library, "not enough memory", hint="Raise ulimit -v.")
        return Failed(f"{library} takes more than {memory >> 20} MiB of memory")
    if status is None or status >= 0:
        return Failed(f"{library} gives no answer")
    if -status == signal.SIGKILL:
        return MachineError(library, "its process was killed", hint="Free some memory and run again.")
    if -status == signal.SIGXCPU:
        return Failed(f"{library} takes more than {seconds} s of processor time", -status)
    return Failed(f"crashes {library} ({signal.Signals(-status).name})", -status)
