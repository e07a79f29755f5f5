"""Adapters of the operation tests: a backend's operations, and copies of arrays to and from it.

The registry lists the backends. A backend with NumPy arrays joins every operation test by its entry; for any other,
`open_adapter` defines the copies. The reference is a backend as well: in float32, it must satisfy the same bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends import registry
from gcnbatch.backends.cpu import CpuOps
from gcnbatch.backends.ops import Array, Ops
from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.sparse import Csr
from gcnbatch.reference import ReferenceOps
from tests.ops.cases import Sparse


@dataclass(frozen=True)
class Adapter:
    """A backend's operations; `upload` copies a NumPy array to it, `download` an array or a scalar result back.

    `form` returns, in host memory, the backend's own form of a sparse matrix.
    """

    ops: Ops
    upload: Callable[[NDArray[Any]], Array]
    download: Callable[[Array], NDArray[Any]]
    form: Callable[[Sparse], Any] = attrgetter("matrix")


def _numpy(name: str) -> Adapter:
    return Adapter(open_backend(name).ops, np.array, np.array)


def _cpu() -> Adapter:
    return Adapter(CpuOps(), np.array, np.array)


def cuda_form(name: str, spmm: str) -> Callable[[Sparse], Any]:
    """Return a sparse matrix in the form of a CUDA backend's batches, as `StreamingSet` assembles it."""
    from gcnbatch.backends.cuda.batches import batch
    from gcnbatch.backends.cuda.spmm.kernels import spmm_kernel

    kernel = spmm_kernel(spmm)

    def form(given: Sparse) -> Any:
        matrix, layout = given
        if isinstance(matrix, Csr):
            return batch.features(matrix, layout)
        if name == "nonbatched":
            return batch.channel_adjacency(matrix, layout, kernel.coo)
        return batch.adjacency(matrix, layout, kernel.coo, kernel.pieces)

    return form


def open_cuda(name: str, spmm: str) -> Adapter:
    """Open a CUDA backend whose new arrays are full of NaN, so elements that a kernel does not write are detected."""
    from gcnbatch.backends.cuda.backend import CudaBackend
    from gcnbatch.backends.cuda.runtime.device import open_device
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray

    open_backend(name)
    device = open_device()

    class Poisoned:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(device, attribute)

        def empty(self, shape: Any, dtype: Any = np.float32) -> DeviceArray:
            array = device.empty(shape, dtype)
            if array.nbytes:
                device.driver.memset_d8_async(array.ptr, 0xFF, array.nbytes, device.stream)
            return array

    backend = CudaBackend(name, Poisoned(), CudaConfig(spmm=spmm))  # type: ignore[arg-type]

    def upload(host: NDArray[Any]) -> DeviceArray:
        return device.upload(host.astype(np.int32) if host.dtype == np.int64 else host)

    def download(array: Any) -> NDArray[Any]:
        return device.download(array) if isinstance(array, DeviceArray) else np.array(array)

    return Adapter(backend.ops, upload, download, cuda_form(name, spmm))


def open_naive_matmul() -> Adapter:
    """Open the first rung of MatMul, which has only `matmul` and its gradients."""
    from gcnbatch.backends.cuda.ops.matmul_naive import NaiveMatmul

    batched: Any = open_cuda("batched", "csr")
    return replace(batched, ops=NaiveMatmul(batched.ops.device))


REFERENCE = Adapter(ReferenceOps(), np.array, np.array)


def host_adapters() -> dict[str, Callable[[], Adapter]]:
    """Return functions that open the backends with NumPy arrays; ``cpu`` with and without Numba."""
    entries = [entry for entry in registry.BACKENDS if entry.steps_are_operations and not entry.on_gpu]
    numpy = {entry.name: partial(_numpy, entry.name) for entry in entries}
    return {"reference": lambda: REFERENCE, **numpy, "cpu": _cpu, "cpu-fast": partial(_numpy, "cpu")}


HOST = host_adapters()
# CUDA backends: their other operations do not depend on the SpMM kernel and are tested with one.
FORMS = tuple(entry.name for entry in registry.BACKENDS if entry.steps_are_operations and entry.on_gpu)
CUDA = {name: (name, "csr") for name in FORMS} | {
    "batched-auto": ("batched", "auto"),
    **{f"{name}-{spmm}": (name, spmm) for name in FORMS for spmm in ("naive", "swa_csr", "swa_coo", "tf")},
}
ON_HOST = [pytest.param(name, marks=pytest.mark.numba) if name == "cpu-fast" else name for name in HOST]
BACKENDS = [*ON_HOST, *(pytest.param(name, marks=pytest.mark.gpu) for name in FORMS)]
SPMM_BACKENDS = [*ON_HOST, *(pytest.param(name, marks=pytest.mark.gpu) for name in CUDA)]


NAIVE_MATMUL = "matmul-naive"


@cache
def open_adapter(name: str) -> Adapter:
    """Open a backend once for all tests."""
    if name == NAIVE_MATMUL:
        return open_naive_matmul()
    return HOST[name]() if name in HOST else open_cuda(*CUDA[name])
