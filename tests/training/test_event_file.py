"""TensorBoard's event file: what it holds, that a stop and an extension leave no duplicate, that it changes no bit."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from gcnbatch.errors import MachineError
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import run
from gcnbatch.training.fit_files import EVENTS
from tests.training.kills import THOROUGH, killed
from tests.training.runs import assert_same_run, fit

pytestmark = pytest.mark.usefixtures("light")
ON = "train.tensorboard=true"


def events(path: Path) -> list[Any]:
    """Return the events of a file, whose checksums must be right."""
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    raw, at, found = path.read_bytes(), 0, []
    while at < len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        data = raw[at + 12 : at + 12 + size]
        for place, part in ((at + 8, raw[at : at + 8]), (at + 12 + size, data)):
            assert struct.unpack_from("<I", raw, place) == (masked_crc32c(part),)
        found.append(Event.FromString(data))
        at += 16 + size
    return found


def scalars(event: Any) -> dict[str, float]:
    return {value.tag: value.simple_value for value in event.summary.value}


def assert_history(folder: Path) -> None:
    """Assert that the file has the version, each epoch of the history once with its figures, and the metrics."""
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    first, *epochs, last = events(folder / EVENTS)
    assert first.file_version == "brain.Event:2"
    assert [event.step for event in epochs] == [row["epoch"] for row in rows]
    for event, row in zip(epochs, rows, strict=True):
        figures = {name: value for name, value in row.items() if name != "epoch" and value is not None}
        assert scalars(event) == pytest.approx(figures)
    assert [event.wall_time for event in epochs] == sorted(event.wall_time for event in epochs)
    assert last.step == metrics["best_epoch"]
    assert scalars(last)["test/roc_auc"] == pytest.approx(metrics["test"]["roc_auc"])


@pytest.mark.numerical(bound="the same numbers, stored as float32")
def test_it_has_every_epoch_once_after_kills_and_an_extension(tmp_path: Path, data: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    assert killed(data, folder, (*THOROUGH, ON), OpsRunner, "step", 6)
    with (folder / EVENTS).open("ab") as stream:
        stream.write(b"\x07")  # a kill may leave a part of a record
    run.resume(folder, quiet=True)
    assert_history(folder)
    assert_same_run(whole, folder)
    run.resume(folder, quiet=True, epochs=5)
    assert_history(folder)


def test_each_fold_has_one(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "run", "split.folds=2", "train.epochs=2", ON)
    for fold in ("fold1", "fold2"):
        assert len(events(tmp_path / "run" / fold / EVENTS)) == 4
    assert not (tmp_path / "run" / EVENTS).exists()


def test_without_the_library_only_runs_that_ask_for_the_file_are_refused(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.record_writer", None)
    with pytest.raises(MachineError) as caught:
        fit(data, tmp_path / "run", ON)
    assert str(caught.value) == (
        "train.tensorboard: tensorboardX is not installed. Install it: pip install 'gcnbatch[tensorboard]'."
    )
    assert not (tmp_path / "run").exists()
    fit(data, tmp_path / "run")
    assert not (tmp_path / "run" / EVENTS).exists()
