"""The number of tiles of an fp16 step, with a stand-in for cuda-bindings."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gcnbatch.backends.cuda.fused import engine
from gcnbatch.backends.cuda.fused.fp16.form import Fp16
from gcnbatch.backends.cuda.fused.shared.model import UpdateRule
from gcnbatch.backends.cuda.fused.wide.form import WideTf32
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.lab.backend_comparison.workload import opened
from tests.backends.cuda.fused.cohorts import cohort_of
from tests.backends.cuda.fused.host import HostDevice
from tests.training.runs import configure, write_set


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


@dataclass
class Hopper(HostDevice):
    """A device of compute capability 9.0, the second of the visible ones."""

    info: Any = field(default_factory=lambda: SimpleNamespace(number=1))
    kernels: Any = field(default_factory=lambda: SimpleNamespace(cubin=lambda name: ("fused/fp16/step.cu", b"cubin")))


@dataclass
class Machine:
    """Answers of the driver: clusters that run at once, and whether MPS is on; None: unknown."""

    at_once: int
    mps: int | None = 0

    def driver(self) -> Any:
        made: Any = ModuleType("cuda.bindings.driver")
        ok = CUresult.CUDA_SUCCESS
        made.CUresult, made.CUlaunchConfig = CUresult, SimpleNamespace
        made.CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MPS_ENABLED=133)
        made.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
        made.cuModuleLoadData = lambda cubin: (ok, "module")
        made.cuModuleGetFunction = lambda module, name: (ok, name.decode())
        made.cuFuncSetAttribute = lambda *arguments: (ok,)
        made.cuDeviceGet = lambda number: (ok, f"device {number}")
        known = (ok, self.mps) if self.mps is not None else (CUresult.CUDA_ERROR_INVALID_VALUE, None)
        made.cuDeviceGetAttribute = lambda which, device: {(133, "device 1"): known}[which, device]
        made.cuOccupancyMaxActiveClusters = lambda function, config: (ok, self.at_once)
        return made


def most_tiles(machine: Machine, path: Path, monkeypatch: pytest.MonkeyPatch, width: int = 256) -> int:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", machine.driver())
    monkeypatch.setattr(loader, "driver_cuda_version", lambda: (13, 0))
    write_set(path, n_channels=1)
    device: Any = Hopper()
    with opened(configure(f"data.path={path}", f"model.widths=[{width},{width}]")) as work:
        cohort = cohort_of(device, work.task, (Fp16, WideTf32))
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    fused = engine.FusedEngine(cohort, rule, (Fp16, WideTf32), WideTf32)
    return fused.about().get("tiles", 0)


@pytest.mark.parametrize(("width", "at_once", "tiles"), [(512, 15, 15), (512, 60, 48), (384, 66, 64), (128, 200, 72)])
def test_tiles_are_limited_by_clusters_that_run_at_once_and_by_threads(
    width: int, at_once: int, tiles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert most_tiles(Machine(at_once), tmp_path / "data.h5", monkeypatch, width) == tiles


@pytest.mark.parametrize("mps", [1, None])
def test_no_fp16_training_if_another_process_may_share_the_gpu(
    mps: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert most_tiles(Machine(15, mps), tmp_path / "data.h5", monkeypatch) == 0
