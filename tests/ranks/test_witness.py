"""The witness of the ranks: it names the process that ended first, and nothing after an end in order."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gcnbatch.ranks.witness import Witness, has_reported_leader

NAMES = ("rank 0 on a", "rank 1 on a", "rank 2 on b")
SECONDS = 120.0


@contextmanager
def started() -> Iterator[tuple[Witness, dict[int, socket.socket]]]:
    """Yield a witness and the ends of the other ranks; it has the standard error of this moment."""
    ends: dict[int, socket.socket] = {}
    connections = {}
    for rank in (1, 2):
        connections[rank], ends[rank] = socket.socketpair()
    witness = Witness(NAMES, connections)
    try:
        wait_until_it_waits(witness._process.pid)
        yield witness, ends
    finally:
        witness._process.stdin.close()
        for end in ends.values():
            end.close()
        assert witness._process.wait(SECONDS) in (0, 1)


def wait_until_it_waits(process: int) -> None:
    """Wait until the process watches three files."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            if any(about.read_text().count("tfd:") == 3 for about in Path(f"/proc/{process}/fdinfo").iterdir()):
                return
        time.sleep(0.002)
    raise AssertionError("it watches nothing")


def ended(rank: int) -> str:
    return f"error: {NAMES[rank]} ended unexpectedly; all ranks stop."


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0), (2, 0, 1), (0, 2, 1)])
def test_the_first_of_several_that_end_is_named(capfd, order) -> None:
    with started() as (witness, ends):
        os.kill(witness._process.pid, signal.SIGSTOP)  # it wakes when all have ended
        for rank in order:
            (ends[rank] if rank else witness._process.stdin).close()
        os.kill(witness._process.pid, signal.SIGCONT)
        assert witness.has_reported(SECONDS)
    assert capfd.readouterr().err == f"{ended(order[0])}\n"


def test_the_others_learn_that_the_end_of_rank_0_is_reported() -> None:
    with started() as (witness, ends):
        witness._process.stdin.close()
        assert all(has_reported_leader(end, SECONDS) for end in ends.values())
        assert not any(has_reported_leader(end, SECONDS) for end in ends.values())


def test_without_a_witness_nothing_is_said() -> None:
    here, there = socket.socketpair()
    with here:
        assert not has_reported_leader(here, 0.01)
        there.close()
        assert not has_reported_leader(here, SECONDS)


def test_after_an_end_in_order_nothing_is_reported(capfd) -> None:
    with started() as (witness, ends):
        witness.end()
        assert not witness.has_reported(SECONDS)
        ends[1].close()
        witness.advise("too late", None)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["there", "not there"])
def test_the_advice_is_given_where_its_path_exists(tmp_path: Path, capfd, name) -> None:
    (tmp_path / "there").touch()
    with started() as (witness, ends):
        witness.advise("Start.", None)
        witness.advise("Go on with it.", tmp_path / name)
        ends[2].close()
        assert witness.has_reported(SECONDS)
    advice = " Go on with it." if name == "there" else ""
    assert capfd.readouterr().err == f"{ended(2)}{advice}\n"
