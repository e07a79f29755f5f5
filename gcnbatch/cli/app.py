"""The ``gcnbatch`` command: finds its commands and reports an error as one line and an exit code."""

from __future__ import annotations

import atexit
import codecs
import errno
import gc
import os
import signal
import sys
from collections import UserDict
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from gcnbatch import __version__, machine
from gcnbatch.errors import DeviceLost, GcnbatchError, InputError
from gcnbatch.ranks.launch import launched
from gcnbatch.text import printable, quoted

EXIT_CODES = "Exit codes: 0 done; 1 a comparison or check failed; 2 input or configuration; 3 machine; 130 interrupted."
_READER_GONE = 128 + signal.SIGPIPE  # what a shell reports for a program that SIGPIPE has ended


# Commands and groups of commands in the order of the help, and their modules in this folder. A group's module has its
# `app`; a command's module has EPILOG and a function of the command's name.
_MODULES = {
    "train": "train",
    "infer": "infer",
    "tune": "tune",
    "baseline": "baseline",
    "explain": "explain",
    "compare-runs": "compare_runs",
    "report": "report",
    "compare-backends": "compare",
    "info": "info",
    "data": "data",
    "bench": "bench",
    "benchmark": "benchmark",
    "kernels": "kernels",
}


class _OnDemand(UserDict[str, Any]):
    """The commands by name. Each is built when it is first asked for, because Typer takes long to build them all."""

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            module, alone = import_module(f"gcnbatch.cli.{_MODULES[name]}"), typer.Typer(rich_markup_mode=None)
            if hasattr(module, "app"):
                alone.add_typer(module.app, name=name)
            else:
                alone.command(name, epilog=module.EPILOG)(getattr(module, name.replace("-", "_")))
            self.data[name] = typer.main.get_group(alone).commands[name]
        return self.data[name]


class _Commands(typer.core.TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _OnDemand(dict.fromkeys(_MODULES))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; end quietly when the reader of a pipe, such as head, has what it wanted."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            for stream in (sys.stdout, sys.stderr):  # Python must not find the closed pipe again when it exits
                if stream is not None:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
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


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def _fail_usage(error: typer.TyperException) -> NoReturn:
    """Exit with one line for wrong options, or with the help of a group that was called without a command."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if message.startswith("Usage: "):
        print(message, file=sys.stderr)
        sys.exit(error.exit_code)
    reason = message.replace("Value error, ", "").removesuffix(".")
    end = "" if reason.endswith("?") else "."
    command = context.command_path if context else "gcnbatch"
    _fail(str(InputError(f"{reason}{end} See '{command} --help'.")), error.exit_code)


def _use_utf8() -> None:
    """Start again in Python's UTF-8 mode if the locale is ASCII: no other text of a file or an argument can be kept.

    Python does so itself for ``LC_ALL=C``, unless PYTHONUTF8 is 0.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        with suppress(OSError):
            command = [sys.executable, *sys.orig_argv[1:]]
            os.execve(sys.executable, command, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 -- this program


def _refuse_other_bytes() -> None:
    """Refuse arguments and a working folder that are not UTF-8: no file of ours could name them.

    Raises
    ------
    InputError
    """
    folder = ""
    with suppress(OSError):  # it is gone
        folder = os.getcwd()
    for what, text in (("working folder", folder), *(("argument", text) for text in sys.argv[1:])):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            hint = "Rename the file or folder, or set PYTHONUTF8=1 if its name is UTF-8."
            raise InputError(f"{what} {quoted(text)}", "bytes that are not UTF-8", hint=hint) from error


def main() -> None:
    """Run the command line, under a launcher such as mpirun with all its ranks."""
    _use_utf8()
    if (several := launched()) is None:
        _run()
    else:
        from gcnbatch.cli import ranked

        ranked.run(several, _run)


def _run() -> None:
    """Run the command line; report every expected failure as one line on stderr and an exit code.

    SIGTERM and SIGHUP act like Ctrl-C, so that temporary files are removed; training stops at its next step on each. A
    SIGHUP that is ignored (nohup) stays ignored.
    """
    ending = [signal.SIGTERM, *([] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP])]
    previous = {number: signal.signal(number, signal.default_int_handler) for number in ending}
    _open_standard_streams()
    atexit.register(gc.freeze)  # else Python's exit scans all imported objects several times
    try:
        _refuse_other_bytes()
        sys.exit(app(standalone_mode=False))
    except typer.TyperException as error:
        _fail_usage(error)
    except DeviceLost as error:
        print(f"error: {error}", file=sys.stderr)
        if sys.stdout is not None:
            sys.stdout.flush()
        os._exit(error.exit_code)  # a normal exit lets PyCUDA print an error for each object that it cannot free
    except GcnbatchError as error:
        _fail(str(error), error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = printable(max(str(error.filename).split(os.sep), key=len), 40)
            _fail(str(InputError(f"the name '{name}'", "too long for a file", "at most 255 bytes")), 2)
        explained = machine.explain(error)
        if explained is None:
            raise
        _fail(str(explained), explained.exit_code)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
