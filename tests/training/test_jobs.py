"""Processes that train side by side: how many, on how many threads, and that no result depends on their number."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends import blas
from gcnbatch.backends.cpu import CpuBackend
from gcnbatch.machine import free_bytes
from gcnbatch.training import processes as at
from tests.training.runs import assert_same_run, fit, write_set


def planned(members: int, rows: int, n_bytes: int = 0) -> list[Any]:
    train = SimpleNamespace(epochs=50, batch_size=50)
    dataset = SimpleNamespace(nbytes=n_bytes, memory_mb=1 << 20)
    experiment = SimpleNamespace(config=SimpleNamespace(train=train), dataset=dataset)
    return [SimpleNamespace(experiment=experiment, split=SimpleNamespace(train=np.arange(rows)))] * members


@pytest.mark.parametrize(
    ("jobs", "members", "rows", "n_bytes", "expected"),
    [
        (0, 10, 6000, 0, 4),
        (0, 3, 6000, 0, 3),
        (0, 10, 100, 0, 1),  # 1,000 steps
        (0, 10, 6000, 3 << 30, 2),  # two processes with three times the data fill half of 20 GiB
        (0, 10, 6000, 100 << 30, 1),
        (2, 10, 100, 0, 2),
        (1, 10, 6000, 0, 1),
    ],
)
def test_processes_on_four_cores(
    monkeypatch: pytest.MonkeyPatch, jobs: int, members: int, rows: int, n_bytes: int, expected: int
) -> None:
    monkeypatch.setattr(at, "cores", lambda: 4)
    monkeypatch.setattr(at, "free_bytes", lambda: 40 << 30)
    assert at.processes(CpuBackend(), jobs, planned(members, rows, n_bytes)) == expected


def test_free_memory_is_that_of_the_machine_or_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = free_bytes()
    assert whole > 1 << 20
    monkeypatch.setattr("gcnbatch.machine._CGROUP", str(tmp_path))
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_bytes() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes() > 1 << 20


def test_threads_of_a_model_depend_on_the_number_of_models_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "cores", lambda: 16)
    for models, threads in ((1, 16), (3, 5), (10, 1), (100, 1)):
        asked: list[int] = []
        products = blas.BlasThreads()
        products._libraries = [(SimpleNamespace(set_num_threads=asked.append), 16)]
        with blas.one_of(models):
            products.fit(blas.SMALL + 1)
        assert asked == [threads]


@pytest.mark.slow
def test_bits_do_not_depend_on_jobs(tmp_path: Path) -> None:
    """Train with products that are large enough for several threads."""
    data = tmp_path / "set.h5"
    write_set(data, 60, max_nodes=30, n_channels=1, missing=0.0)
    about = "train.ensemble=2", "train.epochs=2", "train.batch_size=30", "model.widths=[320,320]"
    for jobs in (1, 2):
        fit(data, tmp_path / f"jobs{jobs}", *about, f"jobs={jobs}")
    for member in ("model1", "model2"):
        assert_same_run(tmp_path / "jobs1" / member, tmp_path / "jobs2" / member)
