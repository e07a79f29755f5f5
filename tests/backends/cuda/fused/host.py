"""The fused backend without a GPU, for tests of what the host does: a device and workspaces on it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gcnbatch.backends.cuda.fused.narrow.form import Narrow
from gcnbatch.backends.cuda.fused.shared.form import Form
from gcnbatch.backends.cuda.fused.shared.step import Workspace
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.fused.cohorts import cohort_of
from tests.training.runs import configure


@dataclass
class HostDevice:
    """A device without memory: it returns addresses and records uploads."""

    multiprocessors: int = 132
    compute_capability: tuple[int, int] = (9, 0)
    used: int = 4096
    free: int = 1 << 30
    uploaded: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)

    def memory(self) -> SimpleNamespace:
        return SimpleNamespace(free=self.free)

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> DeviceArray:
        shape = (shape,) if isinstance(shape, int) else shape
        array = DeviceArray(self.used, shape, np.dtype(dtype))
        self.used += -(-prod(shape) * array.dtype.itemsize // 256) * 256
        return array

    zeros = empty

    def shared(self, nbytes: int) -> tuple[DeviceArray, bytes]:
        array = self.empty(nbytes, np.uint8)
        return array, array.ptr.to_bytes(8, "little")

    def open_shared(self, handle: bytes, nbytes: int) -> DeviceArray:
        return DeviceArray(int.from_bytes(handle, "little"), (nbytes,), np.dtype(np.uint8))

    def synchronize(self) -> None:
        pass

    def upload(self, host: Any, out: DeviceArray | None = None) -> DeviceArray:
        values = np.asarray(host)
        array = self.empty(values.shape, values.dtype) if out is None else out
        assert (array.shape, array.dtype) == (values.shape, values.dtype)
        self.uploaded[array.ptr] = values.copy()
        return array

    def send_rows(self, host: Any, out: DeviceArray, pitch: int, ahead: bool = False) -> None:
        for row, values in enumerate(host):
            self.upload(values, replace(out, ptr=out.ptr + row * pitch))

    def launch(self, entry: str, launch: Launch, /, **arguments: Any) -> None:
        assert len(Sources(cuda_sources()).entries[entry].pack(arguments)) > 0

    def for_cohorts(self) -> HostDevice:
        return self

    def prepared(self, entry: str, launch: Launch, **arguments: Any) -> Any:
        return partial(self.launch, entry, launch, **arguments)

    def fetch(self, array: DeviceArray) -> Any:
        return np.zeros(array.shape, array.dtype)

    def fetch_rows(self, array: DeviceArray, pitch: int, rows: int, clears: bool = False) -> Any:
        return np.zeros((rows, *array.shape), array.dtype)


def workspace(
    path: Path, assignments: tuple[str, ...], training: bool, form: type[Form] = Narrow
) -> tuple[HostDevice, Workspace]:
    device: Any = HostDevice()
    with opened(configure(f"data.path={path}", *assignments)) as work:
        task = work.task
        cohort = cohort_of(device, task, (form,))
        recorder: Any = None
        at = form(cohort, recorder, training).workspace(cohort.data.capacity(8), steps=3, graphs=24)
    return device, at
