"""The entry point: help, version, exit codes, few imports."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gcnbatch import __version__
from gcnbatch.cli import app
from gcnbatch.errors import CheckFailed, InputError, MachineError
from gcnbatch.training.stop import Interrupted
from tests.training.runs import environment, gcnbatch, write_set

Call = Callable[..., tuple[int, str, str]]
HEAVY = ("numpy", "scipy", "h5py", "matplotlib", "sklearn", "rdkit", "safetensors", "pycuda", "cuda")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["train", "--help"], ["data", "--help"], ["infer", "--help"]]
)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    text = f"""
import sys
sys.argv = ["gcnbatch", *{arguments!r}]
from gcnbatch.cli.app import main
try:
    main()
except SystemExit as leave:
    assert leave.code == 0
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.startswith("Usage: ")
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_a_command_imports_no_module_of_other_commands() -> None:
    text = """
import sys
sys.argv = ["gcnbatch", "compare-runs", "--help"]
from gcnbatch.cli.app import main
try:
    main()
except SystemExit:
    print([name for name in ("lab", "results", "training") if f"gcnbatch.cli.{name}" in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == "['results']"


def test_version() -> None:
    assert gcnbatch("--version").stdout == f"gcnbatch {__version__}\n"


def test_help_names_the_commands_and_exit_codes(call: Call) -> None:
    shown = call("--help")[1]
    for word in ("train", "infer", "data", "info", "Exit codes: 0 done; 1 ", "130 interrupted"):
        assert word in shown


def test_an_unknown_command_is_code_2(call: Call) -> None:
    code, out, err = call("trian")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: No such command 'trian'\. Did you mean 'train'\? See '.*gcnbatch --help'\.\n", err)


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_a_command_group_alone_shows_its_help(arguments: list[str], call: Call) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert re.match(r"Usage: .*gcnbatch (data )?\[OPTIONS\] COMMAND", err)
    assert "Commands:\n" in err


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of a command and of all below it."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


@pytest.mark.parametrize("path", list(commands(typer.main.get_command(app.app))), ids=" ".join)
def test_no_line_of_help_is_cut_or_too_long(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app.app, [*path, "--help"], terminal_width=80, prog_name="gcnbatch")
    assert shown.exit_code == 0
    for line in shown.output.splitlines():
        assert len(line) <= 80
        assert line.startswith("Usage: ") or not line.endswith("...")


def test_examples_keep_their_lines(call: Call) -> None:
    for command, line in (
        ("train", "  gcnbatch train                               the built-in quickstart"),
        ("infer", "  gcnbatch infer runs/tox21 new.h5 -o predictions.csv"),
    ):
        assert line in [shown[2:] for shown in call(command, "--help")[1].splitlines()]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CheckFailed("losses", "differ"), 1, "error: losses: differ\n"),
        (InputError("file", "bad", "good", "Fix it."), 2, "error: file: bad; expected good. Fix it.\n"),
        (MachineError("disk", "full"), 3, "error: disk: full\n"),
        (Interrupted("stopped"), 130, "error: stopped\n"),
        (MemoryError(), 3, "error: out of memory. Use a smaller batch, or lower data.memory_mb so that "),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "f"), 3, "error: f: No space left on device. Free some "),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), 3, "error: disk: Disk quota exceeded. Free some disk "),
        (OSError(errno.EROFS, "Read-only file system", "f"), 3, "error: f: Read-only file system. Check the folder "),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), 3, "error: out of memory. Use a smaller batch, "),
        (OSError(errno.EMFILE, "Too many open files"), 3, "error: Too many open files. Raise ulimit -n, or end other "),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 3, "error: Resource temporarily unavail"),
        (RuntimeError("can't start new thread"), 3, "error: can't start new thread. Raise ulimit -u, or end other "),
    ],
)
def test_errors_become_one_line_and_their_code(
    error: Exception, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(SystemExit) as leave:
        app.main()
    assert leave.value.code == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--epochs", "1", "-o", "{}"],
        ["train", "--resume", "{}"],
        ["data", "synth", "quickstart", "-o", "{}.h5"],
        ["data", "check", "{}.h5"],
        ["data", "import", "smiles", "{}.csv", "-o", "x.h5"],
        ["data", "import", "tudataset", ".", "-o", "{}.h5"],
        ["infer", "{}", "x.h5"],
    ],
)
def test_a_name_that_is_too_long_is_one_line_and_code_2(
    arguments: list[str], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*(argument.format("n" * 260) for argument in arguments))
    assert (code, err.count("\n")) == (2, 1)
    assert "too long" in err
    assert "nnn" in err


def test_names_are_utf8_also_where_the_locale_is_ascii(tmp_path: Path) -> None:
    write_set(tmp_path / "ä.h5", 3)
    command = [sys.executable, "-m", "gcnbatch", "data", "info", "ä.h5", "--json"]
    ascii_locale = environment() | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=ascii_locale, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["path"] == "ä.h5"


def test_a_lost_device_ends_the_process_without_messages_of_pycuda() -> None:
    text = """
import atexit, sys
import gcnbatch.cli.app as cli
from gcnbatch.errors import DeviceLost
def fail(**_):
    print("row")
    raise DeviceLost("device 0", "an illegal memory access was encountered")
atexit.register(print, "a clean-up operation failed", file=sys.stderr)
cli.app = fail
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stdout) == (3, "row\n")
    assert done.stderr == "error: device 0: an illegal memory access was encountered\n"


def test_a_programming_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such file")

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(FileNotFoundError):
        app.main()


def test_ctrl_c_anywhere_is_code_130() -> None:
    text = """
import gcnbatch.config, gcnbatch.cli.app
def stop():
    raise KeyboardInterrupt
gcnbatch.config.key_table = stop
gcnbatch.cli.app.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", text, "train", "--keys"], capture_output=True, text=True, env=environment(), check=False
    )
    assert (done.returncode, done.stderr.strip()) == (130, "")


def test_a_closed_pipe_gives_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "gcnbatch", "train", "--keys"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
