"""The ``gcnbatch`` command: finds its commands and reports an error as one line and an exit code."""

from __future__ import annotations

import atexit
import codecs
import errno
import gc
import io
import os
import signal
import sys
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core

from gcnbatch import __version__, machine
from gcnbatch.errors import DeviceLost, GcnbatchError, InputError, MachineError
from gcnbatch.ranks.launch import launched
from gcnbatch.text import QUOTED, printable

EXIT_CODES = "Exit codes: 0 done; 1 a comparison or check failed; 2 input or configuration; 3 machine; 130 interrupted."
_LONGEST_NAME = 255
_NEW_OBJECTS = 20_000  # before Python looks for garbage; its 700 would take 7 % of the time of imports
# What the system says of a path that cannot be used, and what it could be.
_OF_PATHS = {
    errno.ENAMETOOLONG: "",
    errno.EACCES: "a path that this user may use",
    errno.EPERM: "a path that this user may use",
    errno.ELOOP: "a path without a circle of links",
    errno.ENOTDIR: "a path through folders",
    errno.EISDIR: "the name of a file",
}
_READER_GONE = 128 + signal.SIGPIPE  # what a shell reports for a program that SIGPIPE has ended


# Commands and groups of commands in the order of the help, and the module in this folder that has each by its name.
_MODULES = {
    "train": "training",
    "infer": "prediction",
    "select": "prediction",
    "tune": "training",
    "baseline": "training",
    "explain": "prediction",
    "serve": "prediction",
    "embed": "prediction",
    "export": "results",
    "card": "results",
    "compare-runs": "results",
    "report": "results",
    "compare-backends": "lab",
    "info": "machine",
    "data": "data",
    "bench": "lab",
    "benchmark": "lab",
    "kernels": "machine",
}


class _OnDemand(UserDict[str, Any]):
    """The commands by name. Each is built when it is first asked for, because Typer takes long to build them all."""

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _built(name)
        return self.data[name]


@cache
def _built(name: str) -> Any:
    module, alone = import_module(f"gcnbatch.cli.{_MODULES[name]}"), typer.Typer(rich_markup_mode=None)
    found = getattr(module, name.replace("-", "_"))
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, epilog=found.epilog)(found)
    return typer.main.get_group(alone).commands[name]


class _Commands(typer.core.TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _OnDemand(dict.fromkeys(_MODULES))

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Parse the arguments; --help and --version print here."""
        with _quiet_end():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _quiet_end():
            return super().invoke(ctx)


@contextmanager
def _quiet_end() -> Iterator[None]:
    """End quietly when the reader of a pipe, such as head, has what it wanted; Typer would exit with code 1."""
    try:
        yield
    except BrokenPipeError:
        raise typer.Exit(_READER_GONE) from None


app = typer.Typer(
    name="gcnbatch",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"gcnbatch {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    timeline: Annotated[  # `main` takes it from the command line before
        str | None,
        typer.Option(
            "--timeline",
            metavar="FILE.json",
            help="Show where the seconds of a command go, also as a trace for ui.perfetto.dev.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train graph convolutional networks on many small graphs or one large graph."""
    machine.check()


def _open_standard_streams() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr, so that no file of ours gets its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (for progress bars, until the end)
    codecs.register_error(__name__, _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=__name__)


def _escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode a character that the encoding lacks: a path's byte as it is, any other as an escape sequence."""
    assert isinstance(error, UnicodeEncodeError)
    error.end = error.start + 1
    of_path = "\udc80" <= error.object[error.start] <= "\udcff"
    return codecs.lookup_error("surrogateescape" if of_path else "backslashreplace")(error)


def _say(message: str, code: int) -> int:
    """Print a message on stderr; return the exit code."""
    with suppress(OSError):  # stderr is full, or its reader has gone
        print(message, file=sys.stderr, flush=True)
    return code


def _fail(error: GcnbatchError, code: int | None = None) -> int:
    """Print an error as one line; return `code`, or else its exit code."""
    return _say(f"error: {error}", error.exit_code if code is None else code)


def _fail_usage(error: typer.TyperException) -> int:
    """Print one line for wrong options, or the help of a group that was called without a command."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if message.startswith("Usage: "):
        return _say(message, error.exit_code)
    reason = message.replace("Value error, ", "").removesuffix(".")
    end = "" if reason.endswith("?") else "."
    command = context.command_path if context else "gcnbatch"
    return _fail(InputError(f"{reason}{end} See '{command} --help'."), error.exit_code)


def _settle(code: int) -> int:
    """Write what is left of the output, which Python would do at its exit with code 120; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if code == 0 and stream is sys.stdout:
                code = _READER_GONE if error.errno == errno.EPIPE else _fail(_unwritten(error))
    return code


def _unwritten(error: OSError) -> MachineError:
    got = f"could not be written ({error.strerror})"
    return MachineError("standard output", got, hint=machine.disk_hint(error))


def _use_utf8() -> None:
    """Start again in Python's UTF-8 mode if the locale is ASCII: no other text of a file or an argument can be kept.

    Python does so itself for ``LC_ALL=C``, unless PYTHONUTF8 is 0.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        with suppress(OSError):
            command = [sys.executable, *sys.orig_argv[1:]]
            os.execve(sys.executable, command, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 -- this program


def main() -> None:
    """Run the command line, under a launcher such as mpirun with all its ranks."""
    _use_utf8()
    several = launched()
    try:
        with _timeline(several is None or several.rank == 0):
            if several is None:
                _run()
            else:
                from gcnbatch.cli import ranked

                ranked.run(several, _run)
    except GcnbatchError as error:  # of the timeline: commands report their own
        sys.exit(_fail(error))


@contextmanager
def _timeline(is_first: bool) -> Iterator[None]:
    """Record where the seconds go if the command line asks for it."""
    if not any(word.partition("=")[0] == "--timeline" for word in sys.argv):
        yield
        return
    from gcnbatch.cli import timeline

    file = timeline.taken_from(sys.argv)
    with nullcontext() if file is None else timeline.recorded(file, is_first):
        yield


def _run() -> None:
    """Run the command line; report every expected failure as one line on stderr and an exit code.

    SIGTERM and SIGHUP act like Ctrl-C, so that temporary files are removed; training stops at its next step on each. A
    SIGHUP that is ignored (nohup) stays ignored.
    """
    ending = [signal.SIGTERM, *([] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP])]
    previous = {number: signal.signal(number, signal.default_int_handler) for number in ending}
    _open_standard_streams()
    atexit.register(gc.freeze)  # else Python's exit scans all imported objects several times
    gc.set_threshold(_NEW_OBJECTS)
    try:
        sys.exit(_settle(_call()))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _call() -> int:
    """Run the command; report an expected failure; return the exit code."""
    try:
        code = app(standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _fail_usage(error)
    except DeviceLost as error:
        _settle(_fail(error))
        os._exit(error.exit_code)  # a normal exit lets PyCUDA print an error for each object that it cannot free
    except GcnbatchError as error:
        return _fail(error)
    except Exception as error:
        explained = machine.explain(error) or _about_path(error)
        if explained is None:
            raise
        return _fail(explained)


def _about_path(error: Exception) -> InputError | None:
    """Return the user's error for a path that the system refuses, or None for any other exception."""
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_working_folder():
        return InputError("the working folder", "it was removed", hint="Change to another folder.")
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # of pathlib before Python 3.13
        return InputError(str(error), expected=_OF_PATHS[errno.ELOOP])
    if not isinstance(error, OSError) or error.filename is None or error.errno not in _OF_PATHS:
        return None
    path = os.fsdecode(error.filename)
    if error.errno == errno.ENAMETOOLONG:
        longest = max(path.split(os.sep), key=len)
        if len(os.fsencode(longest)) > _LONGEST_NAME:
            return InputError(f"the name '{printable(longest, 40)}'", "too long for a file", "at most 255 bytes")
        return InputError(f"the path '{printable(path, 40)}'", "too long", "at most 4095 bytes")
    return InputError(printable(path, 2 * QUOTED), str(error.strerror), _OF_PATHS[error.errno])


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
