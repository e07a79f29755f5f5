"""Signals while libhdf5 writes: they arrive after its call, and no file is left."""

from __future__ import annotations

import io
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.data.store import write_graphset
from gcnbatch.errors import MachineError
from gcnbatch.hdf5 import HeldErrors, late_signals
from gcnbatch.predictions import Predictions, open_sink
from tests.builders import build_graphset


def write_predictions(path: Path) -> None:
    ids = np.array(["a", "b"])
    with open_sink(path) as sink:
        sink.append(Predictions(build_graphset(2, n_tasks=1).header, ids, np.zeros((2, 1), np.float32)))


@pytest.mark.parametrize(
    "write", [write_predictions, lambda path: write_graphset(path, build_graphset(3))], ids=["predictions", "set"]
)
@pytest.mark.parametrize("name", ["write", "seek", "truncate"])
def test_a_signal_in_any_call_of_libhdf5_ends_the_output(tmp_path: Path, monkeypatch, write, name: str) -> None:
    real: Any = getattr(HeldErrors, name, None) or getattr(io.FileIO, name)
    for at in range(100):
        calls = count()

        def called(self: HeldErrors, *given: Any, at: int = at, calls: count[int] = calls) -> Any:
            if next(calls) == at:
                signal.raise_signal(signal.SIGINT)
            return real(self, *given)

        monkeypatch.setattr(HeldErrors, name, called, raising=False)
        try:
            write(tmp_path / "out.h5")
        except KeyboardInterrupt:
            assert list(tmp_path.iterdir()) == []
        else:
            assert next(calls) == at > 0, "lost"
            break


def signalled(numbers: list[int], done: list[int]) -> None:
    with late_signals():
        for number in numbers:
            signal.raise_signal(number)
            done.append(number)


def test_an_ignored_signal_stays_ignored_and_handlers_come_back() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        handler, done = signal.getsignal(signal.SIGINT), list[int]()
        with pytest.raises(KeyboardInterrupt):
            signalled([signal.SIGHUP, signal.SIGINT], done)
        assert done == [signal.SIGHUP, signal.SIGINT]
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)) == (handler, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_held_errors_are_raised_by_check(tmp_path: Path) -> None:
    """Writes to /dev/full fail: the writer sees success, `check` raises the error."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    stream = HeldErrors("/dev/full", tmp_path / "a.h5")
    assert stream.write(b"four") == 4
    assert stream.truncate(10) == 10
    with pytest.raises(MachineError, match=r"a\.h5: could not be written \(No space left on device\)\. Free some"):
        stream.check()
    with pytest.raises(MachineError), stream:
        pass
    assert stream.closed
