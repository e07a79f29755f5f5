"""Standard streams that are full, closed or of another encoding: the exit code tells, and no traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from gcnbatch.cli import app
from tests.cli.calls import CALLS, parameters
from tests.training.runs import command, environment

HELP = [tuple(f"{name} --help".split()) for name in ("", "data", *parameters())]
CHECK = ("data", "check", "set.h5")
SAID = [*HELP, ("--version",), ("train", "--keys"), CHECK, ("data", "info", "set.h5", "--json"), ("kernels", "list")]
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def ended(*words: str, out: IO[str], err: IO[str] | None = None) -> int:
    """Run a command here with these streams; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gcnbatch", *words])
        patch.setattr(sys, "stdout", out)
        if err is not None:
            patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as left:
            app.main()
    return int(left.value.code or 0)


@contextmanager
def closed_pipe() -> Iterator[IO[str]]:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        yield stream


@needs_full
@pytest.mark.parametrize("words", SAID, ids=" ".join)
def test_output_to_a_full_device_is_code_3(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert ended(*words, out=full) == 3
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert said.endswith(" Free some disk space and run again.\n")
    assert said.count("\n") == 1


@needs_full
def test_a_full_output_of_a_refused_command_leaves_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert ended("data", "check", "none.h5", "--json", out=full) == 2
    assert capfd.readouterr().err.startswith("error: none.h5: no such file")


@needs_full
@pytest.mark.parametrize(("words", "code"), [(("data", "check", "none.h5"), 2), (CHECK, 0), (("train", "--nope"), 2)])
def test_a_full_standard_error_leaves_the_code(words: tuple[str, ...], code: int) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert ended(*words, out=io.StringIO(), err=full) == code


@pytest.mark.parametrize("words", SAID, ids=" ".join)
def test_a_reader_that_has_gone_ends_a_command_quietly(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with closed_pipe() as pipe:
        assert ended(*words, out=pipe) == 141
    assert capfd.readouterr().err == ""


def test_predictions_end_quietly_too() -> None:
    words = [*CALLS["infer"].words(), "--plain"]
    words[words.index("new.csv")] = "-"
    with closed_pipe() as pipe:
        assert ended(*words, out=pipe) == 0


def test_a_path_keeps_its_bytes_on_an_output_of_any_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad\udcff é.h5"
    path.write_bytes(Path("set.h5").read_bytes())
    monkeypatch.chdir(tmp_path)
    for encoding, shown in (("utf-8", b"bad\xff \xc3\xa9.h5: valid."), ("ascii", b"bad\xff \\xe9.h5: valid.")):
        raw = io.BytesIO()
        with io.TextIOWrapper(raw, encoding, "strict") as out:
            assert ended("data", "check", path.name, out=out) == 0
            out.flush()
            assert raw.getvalue().startswith(shown)


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_process_has_these_codes(unbuffered: str) -> None:
    """Python itself would end with 120 where it finds such a stream at its exit."""
    environ = {**environment(), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w", encoding="utf-8") as full, closed_pipe() as pipe:
        for stream, code in ((full, 3), (pipe, 141)):
            done = subprocess.run(
                command(*CHECK), stdout=stream, stderr=subprocess.PIPE, text=True, env=environ, check=False
            )
            assert (done.returncode, done.stderr.count("\n")) == (code, int(code == 3))
