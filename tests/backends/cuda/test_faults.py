"""Faults of a device in the middle of a run: one line, exit code 3, nothing leaks, the same bits after a resume.

On the stand-in for PyCUDA, kernels compute nothing; on a GPU, whole runs are compared.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gcnbatch.backends import registry
from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.runtime import device as devices
from gcnbatch.config import Config
from gcnbatch.config_sections import CudaConfig
from gcnbatch.errors import MachineError
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import run
from tests.backends.cuda.exhausted import exhausted
from tests.training.runs import assert_same_run, configure, environment, fit, options, write_set

DEVICE_FULL = r"device 0 \(.*\): out of memory: .* free\. Lower train\.batch_size or train\.eval_batch_size, give --res"
HOST_FULL = r"page-locked memory for device 0 \(.*\): out of memory\. Free some memory of the host\."
SMALL = ("train.epochs=1", "train.batch_size=30", "model.widths=[8]", "model.dropout=0.25")


def small(folder: Path, *assignments: str, **options: Any) -> Config:
    """Write a small set; return the configuration of a run of two steps on it."""
    write_set(folder / "set.h5", **options)
    return configure(f"data.path={folder / 'set.h5'}", *SMALL, *assignments)


def attempt(work: Callable[[], object]) -> str:
    """Call `work`; return its error of the machine as text. The error itself would keep arrays alive."""
    try:
        work()
    except MachineError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("resident", ["on", "off"])
@pytest.mark.parametrize("name", ["batched", "nonbatched"])
def test_a_failed_allocation_of_a_runner_is_one_error_and_leaks_nothing(
    machine: Any, tmp_path: Path, name: str, resident: Any
) -> None:
    device = devices._open[0]
    with opened(small(tmp_path)) as work:

        def train() -> None:
            runner = OpsRunner(CudaBackend(name, device, CudaConfig(resident=resident)), work.task)
            try:
                runner.begin_epoch([MemberEpoch(0, work.batches, 1e-3)])
                for step in range(len(work.batches)):
                    runner.step(step)
                runner.take_losses()
                runner.predict([work.batches[0]])
            finally:
                runner.close()

        with exhausted(device, -1):
            train()  # persistent workspaces and pinned buffers
        held = device.active_bytes
        for number in count():
            with exhausted(device, number) as allocations:
                error = attempt(train)
            assert bool(error) is allocations.failed
            if not error:
                break
            assert re.match(f"{DEVICE_FULL}|{HOST_FULL}", error), error
            assert device.active_bytes == held
    assert number > 20


def test_no_page_locked_memory_is_one_line(machine: Any) -> None:
    with exhausted(devices._open[0], 0), pytest.raises(MachineError, match=HOST_FULL):
        devices._open[0].pinned(5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "assignments", "options"),
    [
        ("batched", ("cuda.resident=on",), {}),
        ("batched", ("cuda.resident=off",), {}),
        ("nonbatched", ("cuda.spmm=csr",), {}),
        ("fused", ("model.widths=[64]",), {"n_channels": 1}),
        ("fused", ("model.widths=[130]",), {"n_channels": 2}),
        ("fused", ("model.widths=[128]", "cuda.precision=tf32"), {"n_channels": 1, "n_features": 70}),
    ],
)
def test_a_run_resumes_to_equal_bits_after_running_out_of_memory_anywhere(
    tmp_path: Path, light: None, name: str, assignments: tuple[str, ...], options: dict[str, Any]
) -> None:
    config = small(tmp_path, f"backend={name}", *assignments, **options)
    run.start(config, tmp_path / "whole", quiet=True)
    device = registry.open_backend(name, options=config.cuda).device  # type: ignore[attr-defined]
    for number in count():
        folder = tmp_path / f"at{number}"
        with exhausted(device, number) as allocations:
            error = attempt(partial(run.start, config, folder, quiet=True))
        assert bool(error) is allocations.failed
        if not error:
            break
        assert re.match(f"{DEVICE_FULL}|{HOST_FULL}", error), error
        assert error.endswith(f" Go on with: gcnbatch train --resume {folder}") is folder.exists()
        if folder.exists():
            run.resume(folder, quiet=True)
        else:
            run.start(config, folder, quiet=True)
        assert_same_run(tmp_path / "whole", folder)
    assert number > 5


# The device executes a store to an address that is nowhere, behind a step that the host has queued.
LOSE = """
import numpy as np
from gcnbatch.backends.cuda.runtime import device as devices
from gcnbatch.backends.cuda.runtime.launch import elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.cli.app import main
from gcnbatch.training import plots
from gcnbatch.training.progress import Progress
plots.learning_curves = plots.roc_pr = lambda *about: None
step, steps = Progress.step, iter(range(100))
def lose(progress):
    step(progress)
    if next(steps) == 3:
        nowhere = DeviceArray(1 << 46, (64,), np.dtype(np.float32))
        devices._open[0].launch("relu_forward", elementwise(64, per_thread=4), y=nowhere, x=nowhere, n=64)
Progress.step = lose
main()
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "assignments"),
    [("batched", ()), ("nonbatched", ("cuda.spmm=csr",)), ("fused", ("model.widths=[64]",))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_resumes_to_equal_bits_after_its_device_is_lost(
    tmp_path: Path, light: None, name: str, assignments: tuple[str, ...]
) -> None:
    write_set(tmp_path / "set.h5", n_channels=1)
    about = ("train.checkpoint_seconds=0", "model.dropout=0.25", f"backend={name}", *assignments)
    fit(tmp_path / "set.h5", tmp_path / "whole", *about)
    command = ["train", "--data", tmp_path / "set.h5", "-o", tmp_path / "run", "--quiet", *options(*about)]
    lost = subprocess.run(
        [sys.executable, "-c", LOSE, *map(str, command)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=300,
    )
    assert lost.returncode == 3, lost.stderr
    assert re.fullmatch(
        r"error: device 0 \(.*\): .*illegal.*\. If it happens again, 'nvidia-smi' and the system log say more\. "
        rf"Go on with: gcnbatch train --resume {re.escape(str(tmp_path / 'run'))}\n",
        lost.stderr,
        re.IGNORECASE,
    ), lost.stderr
    run.resume(tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")
