"""``gcnbatch compare-backends`` through the program's own entry point: stdout, stderr, exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.entries import MadeEntry, register
from tests.lab.backend_comparison.backends import Another, OneWrongElement


@pytest.fixture
def call(command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)

    return partial(command, "compare-backends")


def test_the_quickstart_on_the_cpu(call, tmp_path: Path) -> None:
    code, out, err = call("--quick", "--backends", "cpu", "--steps", 2, "--repeats", 3)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for title in ("Parity", "Training time", "Inference time", "A training step", "Operations", "Throughput"):
        assert title in lines
    assert "cpu agrees with the reference." in lines
    folder = tmp_path / lines[-1]
    assert folder.parent.name == "runs"
    assert folder.name.startswith("compare-quickstart-")
    assert (folder / "report.html").is_file()


def test_json_reports_options_and_backends_that_cannot_run(call, tmp_path: Path, monkeypatch) -> None:
    register(monkeypatch, MadeEntry("batched", made="no device"), MadeEntry("cpu"))
    options = ["--quick", "--json", "--seed", 3, "--batch-size", 100, "--set", "model.widths=[8]", "--steps", 2]
    code, out, err = call(*options, "--repeats", 3, "-o", tmp_path / "report", "--timeline", tmp_path / "trace.json")
    report = json.loads(out)
    assert code == 0
    assert "batched is left out: no device" in err
    assert [one["ready"] for one in report["backends"]] == [True, False]
    assert report["config"]["seed"] == 3
    assert report["data"]["batch_size"] == 100
    assert report["config"]["model"]["widths"] == [8]
    training = report["timing"]["cpu"]["training"]
    assert (training["timed_batches"], training["batches"], training["repetitions"]) == (2, 8, 3)
    assert report["speedup"] == {"training": {}, "inference": {}}
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_failing_parity_is_exit_code_1(call, tmp_path: Path, monkeypatch) -> None:
    register(monkeypatch, MadeEntry("batched", made=Another("batched", OneWrongElement())), MadeEntry("cpu"))
    code, out, err = call("--quick", "-o", tmp_path / "report")
    assert code == 1
    assert err.startswith("error: parity: batched does not agree with the reference: ")
    assert f"See {tmp_path / 'report'}" in err
    assert "FAILS in" in out
    assert "Training time" not in out
    assert "speedup" not in out


def test_wrong_options_are_refused(call, tmp_path: Path) -> None:
    code, out, err = call("--backends", "cpu,gpu", "-o", tmp_path / "report")
    assert (code, out) == (2, "")
    assert err.startswith("error: --backends: 'gpu'; expected cpu, ")
    assert call("--set", "model.width=[8]")[0] == 2
    assert call("--data", tmp_path / "none.h5", "-o", tmp_path / "report", "--backends", "cpu")[0] == 2
    assert not (tmp_path / "report").exists()


def test_help_shows_an_example(call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert "gcnbatch compare-backends tox21 --data tox21.h5" in out
