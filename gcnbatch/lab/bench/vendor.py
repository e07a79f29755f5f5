"""cuSPARSE and cuBLAS on raw device pointers, through nvmath-python's bindings: the extra ``gcnbatch[bench]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gcnbatch.data.sparse import Csr
from gcnbatch.errors import BackendUnavailable

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray

CSR_ALGORITHMS = ("CSR_ALG1", "CSR_ALG2", "CSR_ALG3")
WITH_PREPROCESSING = ("CSR_ALG1", "CSR_ALG3")  # the algorithms that cusparseSpMM_preprocess speeds up, by its manual
PREPROCESSED = " preprocessed"  # follows the name of an algorithm
FLOAT32, INT32 = 0, 2  # CUDA_R_32F, CUSPARSE_INDEX_32I
EXTRA = "pip install 'gcnbatch[bench]'"
_FACTORS = np.ones(1, np.float32), np.zeros(1, np.float32)  # alpha and beta of a product, read by the libraries
ONE, ZERO = (factor.ctypes.data for factor in _FACTORS)


class SparseProduct(NamedTuple):
    """A product of a CSR matrix (rows, inner) by a row-major one (inner, columns); arrays as device addresses."""

    indptr: int
    indices: int
    data: int
    dense: int
    out: int
    rows: int
    inner: int
    columns: int
    entries: int


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
        self.device, self._cublas, self.cusparse = device, cublas, cusparse
        try:
            self._blas, self.sparse = cublas.create(), cusparse.create()
        except (RuntimeError, cublas.cuBLASError, cusparse.cuSPARSEError) as error:
            raise BackendUnavailable("cuBLAS, cuSPARSE", f"do not start ({error})", hint=EXTRA) from error
        cublas.set_stream(self._blas, device.stream.handle)
        cublas.set_math_mode(self._blas, cublas.Math.PEDANTIC_MATH)
        cusparse.set_stream(self.sparse, device.stream.handle)

    def csr(self, rows: int, columns: int, entries: int, *addresses: int) -> int:
        """Return a descriptor of a CSR matrix with its row pointers, columns and values at these device addresses."""
        api = self.cusparse
        return int(api.create_csr(rows, columns, entries, *addresses, INT32, INT32, int(api.IndexBase.ZERO), FLOAT32))

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
        pointers = [self.device.upload(array.ptr + step * np.arange(batch)) for array, step in places]
        a, b, c = (found.ptr for found in pointers)
        normal = int(self._cublas.Operation.N)
        sizes = (normal, normal, columns, dim, dim)

        def call(kept: Any = (pointers, matrices)) -> None:
            self._cublas.sgemm_batched(self._blas, *sizes, ONE, b, columns, a, dim, ZERO, c, columns, batch)

        return call

    @contextmanager
    def spmm(self, products: list[SparseProduct]) -> Iterator[dict[str, SpmmCall]]:
        """Yield a call of all products for each cuSPARSE algorithm that supports them, by the algorithm's name.

        A call reuses its descriptors and workspace. Where the library offers it, an algorithm has a second call, whose
        matrices were analysed before (``"CSR_ALG1 preprocessed"``). Such a matrix has a descriptor of its own, because
        the analysis stays with the descriptor and its workspace.
        """
        held: list[SpmmCall] = []
        calls: dict[str, SpmmCall] = {}
        try:
            for name in CSR_ALGORITHMS:
                for preprocessed in (False, True) if name in WITH_PREPROCESSING else (False,):
                    held.append(SpmmCall(self, products, name))
                    try:
                        held[-1].prepare(preprocessed)
                        held[-1]()
                        self.device.synchronize()
                    except (self.cusparse.cuSPARSEError, RuntimeError):
                        continue
                    calls[name + PREPROCESSED * preprocessed] = held[-1]
            yield calls
        finally:
            self.device.synchronize()
            for call in held:
                call.release()


class SpmmCall:
    """cuSPARSE's SpMM with one algorithm on some products: their descriptors, workspaces and call.

    Parameters
    ----------
    vendor : Vendor
    products : list of SparseProduct
    algorithm : str
        A member of ``SpMMAlg``.
    """

    def __init__(self, vendor: Vendor, products: list[SparseProduct], algorithm: str) -> None:
        self._vendor, self._api, self._algorithm = vendor, vendor.cusparse, int(vendor.cusparse.SpMMAlg[algorithm])
        self._descriptors = [self._describe(product) for product in products]
        self._workspaces: list[DeviceArray] = []
        self._calls: list[tuple[Any, ...]] = []

    def _describe(self, product: SparseProduct) -> tuple[int, int, int]:
        api, row_major = self._api, int(self._api.Order.ROW)
        (*pointers, dense, out), (rows, inner, columns, entries) = product[:5], product[5:]
        return (
            self._vendor.csr(rows, inner, entries, *pointers),
            api.create_dn_mat(inner, columns, columns, dense, FLOAT32, row_major),
            api.create_dn_mat(rows, columns, columns, out, FLOAT32, row_major),
        )

    def _arguments(self, descriptors: tuple[int, int, int]) -> tuple[Any, ...]:
        (matrix, dense, out), plain = descriptors, int(self._api.Operation.NON_TRANSPOSE)
        return self._vendor.sparse, plain, plain, ONE, matrix, dense, ZERO, out, FLOAT32, self._algorithm

    def prepare(self, preprocessed: bool) -> None:
        """Allocate the workspaces; with `preprocessed`, analyse the matrices, each into a workspace of its own."""
        sizes = [self._api.sp_mm_buffer_size(*self._arguments(found)) for found in self._descriptors]
        if not preprocessed:
            shared = self._vendor.device.empty(max(*sizes, 1), np.uint8)
            self._workspaces = [shared] * len(sizes)
        else:
            self._workspaces = [self._vendor.device.empty(max(size, 1), np.uint8) for size in sizes]
            for descriptors, workspace in zip(self._descriptors, self._workspaces, strict=True):
                self._api.sp_mm_preprocess(*self._arguments(descriptors), workspace.ptr)
        self._calls = [
            (*self._arguments(descriptors), workspace.ptr)
            for descriptors, workspace in zip(self._descriptors, self._workspaces, strict=True)
        ]

    def __call__(self) -> None:
        """Queue the products."""
        multiply = self._api.sp_mm
        for arguments in self._calls:
            multiply(*arguments)

    def move(self, number: int, dense: int, out: int) -> None:
        """Let a product read and write arrays of the same sizes at other addresses."""
        for descriptor, address in zip(self._descriptors[number][1:], (dense, out), strict=True):
            self._api.dn_mat_set_values(descriptor, address)

    def release(self) -> None:
        """Destroy the descriptors."""
        for matrix, *dense in self._descriptors:
            self._api.destroy_sp_mat(matrix)
            for description in dense:
                self._api.destroy_dn_mat(description)


class CusparseSpGemm:
    """Multiplies sparse matrices with cuSPARSE's default algorithm: work estimation, computation, copy."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor

    def __call__(self, a: Csr, b: Csr) -> Csr:
        """Return A B; its columns need not be sorted."""
        api, device = self._vendor.cusparse, self._vendor.device
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
        api, device = self._vendor.cusparse, self._vendor.device
        plain = int(api.Operation.NON_TRANSPOSE)
        a, b, c = matrices
        common = (self._vendor.sparse, plain, plain, ONE, a, b, ZERO, c, FLOAT32, int(api.SpGEMMAlg.DEFAULT), plan)
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
        arrays = (matrix.indptr, matrix.indices, matrix.data)
        size = (matrix.indptr.size - 1, matrix.n_cols, matrix.indices.size)
        return self._vendor.csr(*size, *(array.ptr for array in arrays))
