"""cuSPARSE's SpGEMM on arrays of our device, through nvmath-python's bindings; `bench spgemm` compares with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.data.sparse import Csr
from gcnbatch.errors import BackendUnavailable

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
_FLOAT32 = 0  # CUDA_R_32F


class CusparseSpGemm:
    """Multiplies sparse matrices with cuSPARSE's default algorithm: work estimation, computation, copy.

    Raises
    ------
    BackendUnavailable
        When nvmath-python or the library is missing.
    """

    def __init__(self, device: Device) -> None:
        try:
            from nvmath.bindings import cusparse

            self._api: Any = cusparse
            self._handle = cusparse.create()
        except (ImportError, RuntimeError) as error:
            raise BackendUnavailable(
                "cuSPARSE", str(error) or type(error).__name__, hint="pip install 'gcnbatch[bench]'."
            ) from error
        self._device = device
        cusparse.set_stream(self._handle, device.stream.handle)

    @property
    def version(self) -> str:
        """Version of the library, such as ``"12.6.3"``."""
        number = int(self._api.get_version(self._handle))
        return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"

    def __call__(self, a: Csr, b: Csr) -> Csr:
        """Return A B; its columns need not be sorted."""
        api, device = self._api, self._device
        n_rows = a.indptr.size - 1
        indptr = device.empty(n_rows + 1, np.int32)
        plan = api.sp_gemm_create_descr()
        empty = Csr(indptr, device.empty(0, np.int32), device.empty(0), b.n_cols)
        matrices = [self._matrix(matrix) for matrix in (a, b, empty)]
        try:
            result = self._run(plan, matrices, empty)
        finally:
            for matrix in matrices:
                api.destroy_sp_mat(matrix)
            api.sp_gemm_destroy_descr(plan)
        return result

    def _run(self, plan: int, matrices: list[int], empty: Csr) -> Csr:
        api, device = self._api, self._device
        plain = int(api.Operation.NON_TRANSPOSE)
        a, b, c = matrices
        one, zero = _ONE.ctypes.data, _ZERO.ctypes.data
        common = (self._handle, plain, plain, one, a, b, zero, c, _FLOAT32, int(api.SpGEMMAlg.DEFAULT), plan)
        first = device.empty(int(api.sp_gemm_work_estimation(*common, 0)), np.uint8)
        api.sp_gemm_work_estimation(*common, first.ptr)
        size = np.zeros(1, np.uint64)
        api.sp_gemm_compute(*common, size.ctypes.data, 0)
        second = device.empty(int(size[0]), np.uint8)
        api.sp_gemm_compute(*common, size.ctypes.data, second.ptr)
        nnz = int(api.sp_mat_get_size(c)[2])
        result = Csr(empty.indptr, device.empty(nnz, np.int32), device.empty(nnz), empty.n_cols)
        api.csr_set_pointers(c, result.indptr.ptr, result.indices.ptr, result.data.ptr)
        api.sp_gemm_copy(*common)
        return result

    def _matrix(self, matrix: Csr) -> int:
        api = self._api
        pointers: tuple[DeviceArray, ...] = (matrix.indptr, matrix.indices, matrix.data)
        kinds = (int(api.IndexType.INDEX_32I),) * 2 + (int(api.IndexBase.ZERO), _FLOAT32)
        size = (matrix.indptr.size - 1, matrix.n_cols, matrix.indices.size)
        return int(api.create_csr(*size, *(array.ptr for array in pointers), *kinds))
