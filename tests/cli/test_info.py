"""``gcnbatch info`` through the program's entry point, with and without an NVIDIA driver."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest

from gcnbatch import __version__, environment
from gcnbatch.backends import registry
from gcnbatch.backends.cuda.runtime import inventory as report
from tests.entries import MadeEntry, register

NO_CUDA = {
    "missing": {"compiler": "none", "nccl": "none"},
    "compiler": None,
    "nccl": None,
    "cache": {"folder": "/", "files": 0, "bytes": 0},
}


@pytest.fixture
def call(command):
    return partial(command, "info")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put an nvidia-smi that runs these shell lines on the path, or remove it."""

    def install(lines: str | None) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        if lines is not None:
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}\n")
            (tmp_path / "nvidia-smi").chmod(0o755)

    return install


def test_info_lists_every_backend_and_version(call) -> None:
    code, out, err = call("--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [state["name"] for state in found["backends"]] == registry.names()
    about = registry.entry("cpu")
    state = {"name": "cpu", "ready": True, "reason": "", "hint": "", "summary": about.summary}
    assert found["backends"][0] == {**state, "measured_us": about.step_time.step_us, "measured_on": "two cores"}
    assert found["gcnbatch"] == __version__
    assert found["packages"]["numpy"] == metadata.version("numpy")
    assert 1 <= found["cpu"]["usable_cores"] <= found["cpu"]["cores"]
    assert found["blas"]
    assert all(entry["threads"] >= 1 for entry in found["blas"])


def test_step_times_are_those_of_the_results(call) -> None:
    measured = {state["name"]: state["measured_us"] for state in json.loads(call("--json")[1])["backends"]}
    results = (Path(__file__).parents[2] / "benchmarks" / "RESULTS.md").read_text()
    row = re.search(r"\| Tox21, a training step, wall clock, us \|(.*)", results)[1].split("|")
    cells = dict(zip(("fused", "batched", "nonbatched"), row, strict=False))
    cells["cpu"] = float(re.search(r"a training step, fast, ms \| ([0-9.]+)", results)[1]) * 1000
    assert {name: round(float(str(cell).replace(",", ""))) for name, cell in cells.items()} == measured
    assert f"fused {measured['fused']} us" in call()[1]


def test_a_backend_that_is_not_ready_says_why_and_what_to_do(call, monkeypatch) -> None:
    step_time = registry.StepTime(1_234, "a phone")
    missing = MadeEntry("fused", made="pycuda is not installed")
    register(monkeypatch, missing, MadeEntry("cpu", summary="NumPy", step_time=step_time))
    lines = call()[1].splitlines()
    assert lines[0] == "cpu    ready: NumPy"
    assert lines[1] == "fused  not ready: pycuda is not installed. Fix it."
    assert "Tox21 step  cpu 1,234 us (a phone): 2 x 64, batch 50" in [re.sub("  +", "  ", line) for line in lines]


def test_a_package_that_is_missing_names_its_extra(call, monkeypatch) -> None:
    def version(name: str) -> str:
        if name in ("rdkit", "h5py"):
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(environment, "_version", environment._version.__wrapped__)  # remembers nothing
    lines = [" ".join(line.split()) for line in call()[1].splitlines()]
    assert "rdkit not installed; pip install 'gcnbatch[chem]'" in lines
    assert "h5py not installed" in lines
    assert "scipy 1.0" in lines


def test_devices_come_from_the_driver(call, driver) -> None:
    asked = "--query-gpu=name,memory.total,driver_version,compute_cap,clocks.sm,clocks.mem"
    driver(
        f'[ "$1" = {asked} ] || exit 9; echo "NVIDIA H100 80GB HBM3, 81559 MiB, 580.10, 9.0, 345 MHz, 2619 MHz"\n'
        "echo 'NVIDIA T4, 15360 MiB, 580.10, 7.5, 1590 MHz, 5000 MHz'"
    )
    devices, note = environment.gpus()
    assert note == ""
    assert devices[1] == {
        "name": "NVIDIA T4",
        "memory": "15360 MiB",
        "driver": "580.10",
        "compute_capability": "7.5",
        "clock": "1590 MHz",
        "memory_clock": "5000 MHz",
    }
    line = next(line for line in call()[1].splitlines() if line.startswith("GPU"))
    assert "NVIDIA H100 80GB HBM3, 81559 MiB, driver 580.10, compute capability 9.0; NVIDIA T4" in line


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        (None, "no nvidia-smi: no NVIDIA driver, or not on the PATH"),
        ("echo 'No devices were found'; exit 6", "nvidia-smi failed (No devices were found)"),
        ("exit 9", "nvidia-smi failed (exit code 9)"),
        ("true", "the NVIDIA driver lists no device"),
    ],
)
def test_without_devices_the_reason_is_shown(call, driver, lines, note) -> None:
    driver(lines)
    line = next(line for line in call()[1].splitlines() if line.startswith("GPU"))
    assert f"none: {note}" in line


def test_devices_of_cuda_are_listed_without_nvidia_smi(call, driver, monkeypatch) -> None:
    driver(None)
    device = {"number": 0, "name": "NVIDIA T4", "capability": "7.5", "memory": 2**34, "multiprocessors": 40}
    monkeypatch.setattr(report, "collect", lambda: {**NO_CUDA, "driver": "CUDA 13.0", "devices": [device]})
    lines = [" ".join(line.split()) for line in call()[1].splitlines()]
    assert "device 0 NVIDIA T4, compute capability 7.5, 40 SMs, 16.0 GiB" in lines
    assert not any(line.startswith("GPU") for line in lines)


def test_a_hanging_nvidia_smi_is_stopped(driver, monkeypatch) -> None:
    monkeypatch.setattr(environment, "GPU_SECONDS", 0.2)
    driver(f"exec {shutil.which('sleep')} 60")
    devices, note = environment.gpus()
    assert devices == []
    assert note.startswith("nvidia-smi failed (Command")
    assert "timed out" in note


def test_help_and_info_import_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['gcnbatch', '--help']\n"
        "from gcnbatch.cli import app\n"
        "try: app.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'scipy', 'h5py', 'matplotlib', 'sklearn', 'rdkit', 'pydantic'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
