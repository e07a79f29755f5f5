"""Products of sparse matrices, on the host (SciPy) or on a device (our SpGEMM), behind one interface."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda import entry
from gcnbatch.backends.cuda.spgemm.product import SpGemm
from gcnbatch.backends.cuda.spmm.ops import SparseOps
from gcnbatch.data.sparse import Csr, ScipyCsr
from gcnbatch.errors import BackendUnavailable, InputError


class HostProducts:
    """SciPy in float32. It sums in the order of A's entries."""

    name = "cpu"

    def multiply(self, a: ScipyCsr, b: ScipyCsr) -> ScipyCsr:
        """Return A B with sorted columns and without entries of value 0."""
        return _tidy(a @ b)

    def propagate(self, a: ScipyCsr, x: NDArray[np.float32], times: int) -> NDArray[np.float32]:
        """Return A^times X."""
        for _ in range(times):
            x = a @ x
        return x


class DeviceProducts:
    """Our kernels. `multiply` gives the host's bits, except in rows of thousands of products; `propagate` does not."""

    name = "cuda"

    def __init__(self, device: int = 0) -> None:
        opened = entry.open_ready(device)
        self._device, self._spgemm, self._ops = opened, SpGemm(opened), SparseOps(opened)
        self._right: tuple[ScipyCsr, Csr] | None = None  # the last B and its upload: callers multiply A in row blocks

    def multiply(self, a: ScipyCsr, b: ScipyCsr) -> ScipyCsr:
        """Return A B with sorted columns and without entries of value 0."""
        if self._right is None or self._right[0] is not b:
            self._right = (b, self._spgemm.upload(b))
        right = self._right[1]
        left = right if a is b else self._spgemm.upload(a)
        return _tidy(self._spgemm.download(self._spgemm(left, right)))

    def propagate(self, a: ScipyCsr, x: NDArray[np.float32], times: int) -> NDArray[np.float32]:
        """Return A^times X."""
        matrix: Csr = self._spgemm.upload(a)
        features = self._device.upload(x)
        for _ in range(times):
            features = self._ops.sparse_matmul(matrix, features)
        return self._device.download(features)


def open_products(name: str, device: int = 0) -> HostProducts | DeviceProducts:
    """Open ``"cpu"``, ``"cuda"``, or for ``"auto"`` the device if there is one.

    Raises
    ------
    InputError
        Unknown name, or no such device.
    BackendUnavailable
        ``"cuda"`` cannot start here.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise InputError("--backend", f"'{name}'", "auto, cpu or cuda")
    if name == "cpu":
        return HostProducts()
    try:
        return DeviceProducts(device)
    except BackendUnavailable:
        if name == "cuda":
            raise
        return HostProducts()


def _tidy(found: ScipyCsr) -> ScipyCsr:
    found = sp.csr_array(found)
    found.sort_indices()
    found.eliminate_zeros()
    return found
