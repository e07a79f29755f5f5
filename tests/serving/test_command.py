"""The command: its address on stdout, signals, processes that die, and a machine without the libraries."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import gcnbatch
from gcnbatch.errors import MachineError
from gcnbatch.runners.choice import FEW
from gcnbatch.serving.server import Models, loaded
from tests.entries import MadeEntry, NamedBackend, register
from tests.training.runs import environment


@contextmanager
def started(run: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = [sys.executable, "-m", "gcnbatch", "serve", str(run), "--port", "0", "--backend", "cpu", *options]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def ask(url: str, *smiles: str) -> Any:
    """Return the response once its first rows are there."""
    body = json.dumps({"smiles": smiles}).encode()
    return urlopen(Request(f"{url}predict", body, {"Content-Type": "application/json"}), timeout=60)


def predict(url: str, *smiles: str) -> list[Any]:
    with ask(url, *smiles) as answer:
        return list(json.load(answer)["molecules"])


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have forked."""
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]  # by thread
    own = [int(one) for of_thread in found for one in of_thread]
    return own + [one for child in own for one in children(child)]


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(other, marks=pytest.mark.slow) for other in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_ends_it_after_the_answers_under_way(runs: list[Path], number: signal.Signals) -> None:
    with started(runs[0], "--processes", "1") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        with ask(url, *["CCO"] * 3000) as answer:  # predicted in parts, of which two are done
            process.send_signal(number)
            assert len(json.load(answer)["molecules"]) == 3000
        assert process.wait(120) == 0


@pytest.mark.gpu
def test_on_a_gpu_a_signal_ends_it_as_well(runs: list[Path]) -> None:
    """CUDA ends the process of a thread that ends with an open device."""
    with started(runs[0], "--processes", "1", "--backend", "batched") as (process, url):
        assert len(predict(url, "CCO")) == 1
        process.terminate()
        assert process.wait(120) == 0


def test_auto_says_which_backend_predicts_few_molecules(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, MadeEntry("gpu", on_gpu=True, made=NamedBackend("gpu")), MadeEntry("cpu"))
    for backend, expected in (
        ("auto", [f"fewer than {FEW} molecules at once are predicted by cpu, more by gpu"]),
        ("gpu", []),
    ):
        said: list[str] = []
        with loaded(Models(runs[:1], backend, processes=1), said.append):
            pass
        assert [line for line in said if "fewer" in line] == expected


@pytest.mark.gpu
def test_on_a_gpu_few_molecules_are_predicted_on_the_host(runs: list[Path]) -> None:
    with started(runs[0], "--processes", "1", "--backend", "auto") as (process, url):
        few, many = predict(url, "CCO"), predict(url, *["CCO"] * FEW)
        for name, output in few[0]["outputs"].items():
            assert output["value"] == pytest.approx(many[0]["outputs"][name]["value"], rel=1e-5)
        process.terminate()
        assert process.stderr is not None
        assert f"fewer than {FEW} molecules at once are predicted by cpu, more by fused" in process.stderr.read()
        assert process.wait(120) == 0


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", "127.0.0.1"), pytest.param("::", "[::1]", marks=pytest.mark.slow)]
)
def test_an_address_for_all_hosts_is_printed_as_one_that_a_browser_opens(
    runs: list[Path], tmp_path: Path, host: str, shown: str
) -> None:
    (tmp_path / "keys.txt").write_text("0123456789abcdef\n")
    options = ["--host", host, "--token-file", str(tmp_path / "keys.txt"), "--processes", "1"]
    with started(runs[0], *options) as (process, url):
        port = url.rstrip("/").rpartition(":")[2]
        assert url == f"http://{shown}:{port}/"
        with urlopen(f"{url}health", timeout=60) as answer:
            assert answer.status == 200
        process.terminate()
        assert process.stderr is not None
        assert f"listening on all addresses of this machine, port {port}" in process.stderr.read()
        assert process.wait(120) == 0


def test_a_process_that_dies_is_replaced_and_costs_no_molecule(runs: list[Path]) -> None:
    with started(runs[0], "--processes", "2") as (process, url):
        one, ten = ["CCO"], ["CCO"] * 10
        before = predict(url, *one), predict(url, *ten)
        own = children(process.pid)
        assert len(own) == 2
        for child in own:
            os.kill(child, signal.SIGKILL)
        assert (predict(url, *one), predict(url, *ten)) == before


@pytest.mark.slow
def test_after_kill_nothing_is_left_and_it_starts_again(runs: list[Path]) -> None:
    with started(runs[0], "--processes", "1") as (process, url):
        before, own = predict(url, "CCO", "CCN"), children(process.pid)
        assert own
        process.kill()
        process.wait()
        deadline = time.monotonic() + 120
        while any(Path(f"/proc/{pid}").exists() and _is_alive(pid) for pid in own):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    port = url.rstrip("/").rpartition(":")[2]
    with started(runs[0], "--processes", "1", "--port", port) as (_, again):
        assert again == url
        assert predict(again, "CCO", "CCN") == before


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("gcnbatch.api.prediction.find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"starlette is not installed. Install it: pip install 'gcnbatch\[serve\]'."):
        gcnbatch.serve("run")


def test_a_model_whose_data_set_is_gone_is_served_without_applicability(runs: list[Path], tmp_path: Path) -> None:
    import shutil

    run = shutil.copytree(runs[0], tmp_path / "moved")
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("molecules.h5", "gone.h5"))
    with started(run, "--processes", "1") as (process, url):
        assert predict(url, "CCO")[0]["error"] is None
        assert "gone.h5" in json.load(urlopen(f"{url}models"))[0]["applicability"]
        process.terminate()
        assert process.stderr is not None
        assert "no applicability and no nearest training molecules" in process.stderr.read()
