"""Faults of the machine, drawn: disks, limits, signals, closed streams, clocks, killed workers, other processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.cli.faulty import Case, Machine, Outcome, has_disks
from tests.training.runs import assert_same_run, fit, options, write_set

SETTINGS = ("train.checkpoint_seconds=1000", "train.epochs=2", "model.dropout=0.3", "backend=cpu")
TRAIN = ("train", "--data", "SET", *options(*SETTINGS), "--quiet", "-o", "r")
RESUME = ("train", "--resume", "r", "--quiet")
TUNE = ("tune", "--data", "SET", "--space", "SPACE", *options(*SETTINGS, "jobs=1"), "--trials", "2", "-q", "-o", "s")
COMPARE = ("compare-backends", "--data", "SET", "--set", "model.widths=[8]", "--quick", "--backends", "cpu", "-o", "r")
INFER = ("infer", "RUN", "SET", "--backend", "cpu", "-q", "-o")
IMPORT = ("data", "import", "smiles", "TABLE", "--processes", "1", "-o", "m.h5")
IN_PROCESSES = ("data", "import", "smiles", "TABLE", "--processes", "2", "-o", "m.h5")
SCREEN = (*INFER, "p.csv")
STORE = (*INFER, "p.h5")
SPLIT = ("data", "split", "SET", "--from", "SPLITS", "-o", "s.h5")
EXPLAIN = ("explain", "RUN", "SET", "--backend", "cpu", "--steps", "2", "--top", "2", "-q", "-o", "e")
DRAWN_COMMANDS = {  # the command, and the one that must work after the fault
    "train": (TRAIN, RESUME),
    "infer": (SCREEN, SCREEN),
    "goes on": (SCREEN, (*SCREEN, "--resume")),
    "import": (IN_PROCESSES, IN_PROCESSES),
    "store": (STORE, STORE),
    "split": (SPLIT, SPLIT),
    "explain": (EXPLAIN, (*EXPLAIN[:-1], "again")),
}
REFUSED = re.compile(r"error: \S+: (another process writes (it|there)|already exists); expected ")
ENDING = ("SIGHUP", "SIGTERM", "SIGINT", "SIGKILL")


def write_inputs(place: Path) -> None:
    """Write a set, a table of molecules and a finished run."""
    write_set(place / "set.h5", 60)
    (place / "space.toml").write_text("[train]\nlearning_rate = { choices = [0.01, 0.02] }\n", encoding="utf-8")
    rows = "".join(f"C{'C' * (row % 7)}O,{row % 2}\n" for row in range(300))
    (place / "table.csv").write_text(f"smiles,y\n{rows}", encoding="utf-8")
    (place / "splits.csv").write_text("fold\n" + "0\n1\n2\n" * 20, encoding="utf-8")
    fit(place / "set.h5", place / "run", *SETTINGS)


class Runner:
    """Runs commands on the inputs under faults."""

    def __init__(self, inputs: Path, machine: Machine) -> None:
        self._paths = {"SET": inputs / "set.h5", "TABLE": inputs / "table.csv", "RUN": inputs / "run"}
        self._paths |= {"SPLITS": inputs / "splits.csv", "SPACE": inputs / "space.toml"}
        self._machine = machine

    def words(self, arguments: tuple[str, ...]) -> list[str]:
        return [str(self._paths.get(word, word)) for word in arguments]

    def __call__(self, arguments: tuple[str, ...], then: tuple[str, ...] = (), **fault: Any) -> Outcome:
        return self._machine.run(Case(self.words(arguments), then=self.words(then), **fault))


@contextmanager
def open_runner(inputs: Path, folder: Path) -> Iterator[Runner]:
    """Start the process that forks one for each case; its cases work in `folder`."""
    words = Runner(inputs, None).words  # type: ignore[arg-type]
    machine = Machine([words(command) for command in ((*TRAIN[:-1], "warm"), (*COMPARE[:-1], "too"))], folder)
    try:
        yield Runner(inputs, machine)
    finally:
        machine.close()


def only_line(said: str) -> str:
    assert said.startswith("error: "), said
    assert said.count("\n") == 1, said
    return said


@st.composite
def faults(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a command and a fault of the machine."""
    name = draw(st.sampled_from(sorted(DRAWN_COMMANDS)))
    fault = draw(
        st.one_of(
            st.builds(dict, disk=st.integers(1, 16).map(lambda pages: 4096 * pages)),
            st.builds(dict, read_only=st.just(value=has_disks() or os.geteuid() != 0)),
            st.builds(dict, signal=st.sampled_from(ENDING), file=st.integers(0, 8)),
            st.builds(dict, closed=st.sets(st.integers(0, 2)).map(sorted)),
            st.builds(dict, together=st.integers(2, 3)),
            st.builds(dict, clock=st.floats(0.001, 1e6)),
            st.builds(dict, killed_call=st.integers(0, 3)),
            st.fixed_dictionaries({"limits": st.builds(dict, RLIMIT_NOFILE=st.integers(3, 80))}),
            st.fixed_dictionaries({"limits": st.builds(dict, RLIMIT_FSIZE=st.integers(1000, 40_000))}),
            st.fixed_dictionaries({"limits": st.builds(dict, RLIMIT_AS=st.integers(1 << 26, 1 << 31))}),
        )
    )
    return name, fault


def check_fault(runner: Runner, inputs: Path, place: Path, name: str, fault: dict[str, Any]) -> str:
    """Assert one line, the right code, no temporary file, and that the command then works; return how it ended."""
    command, again = DRAWN_COMMANDS[name]
    found = runner(command, **fault, then=again, keep=str(place / "kept"))
    first, after = found.codes[: fault.get("together", 1)], found.codes[-1]
    ended = {"SIGKILL": -9}.get(fault.get("signal", ""), 130)
    for code, said in zip(first, found.said, strict=False):
        assert code in (0, 2, 3, ended), found
        if code in (2, 3) and 2 not in fault.get("closed", ()):
            only_line(said)
    if "together" in fault:
        assert 0 in first, found
        assert set(first) <= {0, 2}, found
        assert all(REFUSED.match(said) for code, said in zip(first, found.said, strict=False) if code), found
        assert not [file for file in found.files if ".partial" in file], found
    if fault.get("signal") != "SIGKILL":
        assert not [file for file in found.files if file.endswith(".tmp")], found
    if name != "train":
        assert after == 0, found
    elif found.files:
        assert after == 0, found
        assert_same_run(inputs / "run", place / "kept" / "r")
    return "done" if first[0] == 0 else f"ended with {first[0]}"
