"""cuSPARSE and cuBLAS on raw device pointers, through nvmath-python's bindings: the extra ``gcnbatch[bench]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gcnbatch.errors import BackendUnavailable

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray

CSR_ALGORITHMS = ("CSR_ALG1", "CSR_ALG2", "CSR_ALG3")
FLOAT32, INT32 = 0, 2  # CUDA_R_32F, CUSPARSE_INDEX_32I
EXTRA = "pip install 'gcnbatch[bench]'"


class Vendor:
    """cuBLAS and cuSPARSE handles on a device's stream.

    Parameters
    ----------
    device : Device

    Raises
    ------
    BackendUnavailable
        nvmath-python or a library is not installed, or does not match the driver.
    """

    def __init__(self, device: Device) -> None:
        try:
            from nvmath.bindings import cublas, cusparse
        except ImportError as error:
            raise BackendUnavailable("nvmath-python", f"cannot be imported ({error})", hint=EXTRA) from error
        self._device, self._cublas, self._cusparse = device, cublas, cusparse
        try:
            self._blas, self._sparse = cublas.create(), cusparse.create()
        except (RuntimeError, cublas.cuBLASError, cusparse.cuSPARSEError) as error:
            raise BackendUnavailable("cuBLAS, cuSPARSE", f"do not start ({error})", hint=EXTRA) from error
        cublas.set_stream(self._blas, device.stream.handle)
        cublas.set_math_mode(self._blas, cublas.Math.PEDANTIC_MATH)
        cusparse.set_stream(self._sparse, device.stream.handle)
        self._one, self._zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def gemm_batched(
        self, out: DeviceArray, dense: DeviceArray, matrices: DeviceArray, batch: int, dim: int, columns: int
    ) -> Callable[[], None]:
        """Return a call of cuBLAS gemmBatched in fp32: out_b = matrices_b dense_b, all row-major.

        A row-major operand is the transpose of a column-major one, so cuBLAS computes out_bᵀ = dense_bᵀ matrices_bᵀ.
        """
        places = (
            (matrices, 4 * dim * dim),
            (dense, 4 * dim * columns),
            (out, 4 * dim * columns),
        )
        pointers = [self._device.upload(array.ptr + step * np.arange(batch)) for array, step in places]
        a, b, c = (found.ptr for found in pointers)
        one, zero, normal = self._one.ctypes.data, self._zero.ctypes.data, int(self._cublas.Operation.N)
        sizes = (normal, normal, columns, dim, dim)

        def call(kept: Any = (pointers, matrices)) -> None:
            self._cublas.sgemm_batched(self._blas, *sizes, one, b, columns, a, dim, zero, c, columns, batch)

        return call

    def csr(self, indptr: int, indices: int, data: int, rows: int, columns: int, entries: int) -> int:
        """Return cuSPARSE's descriptor of a CSR matrix at these addresses."""
        types = (INT32, INT32, int(self._cusparse.IndexBase.ZERO), FLOAT32)
        found: int = self._cusparse.create_csr(rows, columns, entries, indptr, indices, data, *types)
        return found

    def dense(self, address: int, rows: int, columns: int) -> int:
        """Return cuSPARSE's descriptor of a row-major matrix."""
        order = int(self._cusparse.Order.ROW)
        found: int = self._cusparse.create_dn_mat(rows, columns, columns, address, FLOAT32, order)
        return found

    def spmm(self, products: list[tuple[int, int, int]]) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield one call per cuSPARSE algorithm that supports these products (matrix, operand, result)."""
        for name in CSR_ALGORITHMS:
            about = [self._spmm_arguments(product, int(self._cusparse.SpMMAlg[name])) for product in products]
            try:
                needed = max(self._cusparse.sp_mm_buffer_size(*arguments) for arguments in about)
                buffer = self._device.empty(max(needed, 1), np.uint8)
                call = self._spmm_call(about, buffer)
                call()
                self._device.synchronize()
            except (self._cusparse.cuSPARSEError, RuntimeError):
                continue
            yield name, call

    def _spmm_arguments(self, product: tuple[int, int, int], algorithm: int) -> tuple[Any, ...]:
        matrix, operand, result = product
        plain, one, zero = int(self._cusparse.Operation.NON_TRANSPOSE), self._one.ctypes.data, self._zero.ctypes.data
        return self._sparse, plain, plain, one, matrix, operand, zero, result, FLOAT32, algorithm

    def _spmm_call(self, about: list[tuple[Any, ...]], buffer: DeviceArray) -> Callable[[], None]:
        multiply = self._cusparse.sp_mm

        def call() -> None:
            for arguments in about:
                multiply(*arguments, buffer.ptr)

        return call

    def release(self, products: list[tuple[int, int, int]]) -> None:
        """Destroy the descriptors."""
        for matrix in {matrix for matrix, *_ in products}:
            self._cusparse.destroy_sp_mat(matrix)
        for description in {found for _, *dense in products for found in dense}:
            self._cusparse.destroy_dn_mat(description)
