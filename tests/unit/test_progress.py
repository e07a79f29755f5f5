"""Counters of long work: nothing for short work in a pipe, a line now and then for long work, a bar on a terminal."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from gcnbatch import progress
from gcnbatch.progress import counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that counters see, in seconds, as the only item of a list."""
    now = [0.0]
    # Not the function itself: a server that other tests of this process share would wait for the real time.
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_pipe_gets_a_line_every_ten_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with counter(100, " molecules", "reading") as bar:
        for _ in range(100):
            clock[0] += 0.5
            bar.update()
        bar.set_description("a new description alone writes no line")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"reading: {count} of 100 molecules" for count in (20, 40, 60, 80, 100)
    ]


def test_a_pipe_gets_no_line_for_short_work(capsys: pytest.CaptureFixture[str]) -> None:
    with counter(None, " files") as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_unless_it_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    for quiet in (True, False):
        with counter(2, " graphs", quiet=quiet) as bar:
            bar.update(2)
        assert ("2/2" in capsys.readouterr().err) is not quiet


def test_a_line_has_safe_characters_only(capsys: pytest.CaptureFixture[str]) -> None:
    progress.write_line("a\x1b[31m\n\u202eb")
    assert capsys.readouterr().err == r"a\x1b[31m\n\u202eb" + "\n"


def test_work_goes_on_without_stderr_or_its_reader(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    gone = os.fdopen(writer, "w", buffering=1, encoding="utf-8")
    for stream in (None, gone):
        monkeypatch.setattr(sys, "stderr", stream)
        with counter(2, " graphs") as bar:
            clock[0] += 20
            bar.update(2)
        assert not progress.on_terminal()
    with pytest.raises(BrokenPipeError):
        gone.close()
