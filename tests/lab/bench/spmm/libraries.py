"""Stand-ins for nvmath's bindings and a device, whose memory is the host's: what a library is told is what it computes.

A wrong address, leading dimension or order gives a wrong product here as it would there.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.resources import cuda_sources


def at(address: int, count: int, kind: Any) -> np.ndarray:
    """Return the array of `count` numbers at an address."""
    size = count * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype=kind)


class HostDevice:
    """A device in host memory."""

    name, multiprocessors = "host", 132
    sources = Sources(cuda_sources())

    def __init__(self) -> None:
        self.stream = SimpleNamespace(handle=7)
        self.launched: list[str] = []

    def launch(self, entry: str, launch: Any, **given: Any) -> None:
        """Note a kernel, and hold its arguments to its declaration."""
        self.sources.entries[entry].pack(given)
        self.launched.append(entry)

    def upload(self, host: Any) -> DeviceArray:
        kept = np.array(host, order="C")
        return DeviceArray(kept.ctypes.data, kept.shape, kept.dtype, kept)

    def empty(self, shape: Any, dtype: Any = np.float32) -> DeviceArray:
        return self.upload(np.full(shape, 0, dtype))

    def download(self, array: DeviceArray) -> np.ndarray:
        return array.owner.copy()

    def synchronize(self) -> None:
        pass


class Operation(IntEnum):
    N = NON_TRANSPOSE = 0


class SpMMAlg(IntEnum):
    CSR_ALG1, CSR_ALG2, CSR_ALG3 = 4, 6, 12


class CuSparseError(Exception):
    pass


class CuSparse:
    """Stand-in for cuSPARSE; it does not support CSR_ALG3."""

    Operation, SpMMAlg, cuSPARSEError = Operation, SpMMAlg, CuSparseError  # noqa: N815  its name there
    IndexBase, Order = SimpleNamespace(ZERO=0), SimpleNamespace(ROW=2)
    SpGEMMAlg = SimpleNamespace(DEFAULT=0)

    def __init__(self) -> None:
        self.held: dict[int, tuple[Any, ...]] = {}
        self.streams: list[int] = []
        self.analysed: dict[int, tuple[Any, ...]] = {}  # arguments of the last analysis of a matrix
        self.products: dict[int, sp.csr_array] = {}  # of SpGEMM, by the descriptor of the result
        self.multiplied: list[tuple[str, bool]] = []  # algorithm of each product, and whether its analysis was used

    def create(self) -> int:
        return 1

    def set_stream(self, handle: int, stream: int) -> None:
        self.streams.append(stream)

    def create_csr(self, *about: Any) -> int:
        return self._hold(about)

    def create_dn_mat(self, *about: Any) -> int:
        return self._hold(about)

    def _hold(self, about: tuple[Any, ...]) -> int:
        self.held[len(self.held) + 100] = about
        return len(self.held) + 99

    def destroy_sp_mat(self, which: int) -> None:
        self.held[which] = ()

    destroy_dn_mat = destroy_sp_mat

    def dn_mat_set_values(self, which: int, address: int) -> None:
        rows, columns, stride, _, *types = self.held[which]
        self.held[which] = (rows, columns, stride, address, *types)

    def sp_mm_buffer_size(self, *about: Any) -> int:
        if about[-1] == SpMMAlg.CSR_ALG3:
            raise CuSparseError("not supported")
        return 0

    def sp_mm_preprocess(self, handle: int, *about: Any) -> None:
        self.analysed[about[3]] = about

    def sp_mm(self, handle: int, *about: Any) -> None:
        op_a, op_b, alpha, matrix, operand, beta, result, kind, algorithm, buffer = about
        assert (op_a, op_b, kind) == (0, 0, 0)
        self.multiplied.append((SpMMAlg(algorithm).name, self.analysed.get(matrix) == about))
        assert buffer
        rows, inner, entries, indptr, indices, data, *types = self.held[matrix]
        assert types == [2, 2, 0, 0]
        pointers, numbers = at(indptr, rows + 1, np.int32), at(indices, max(entries, 1), np.int32)
        assert (pointers[0], pointers[-1]) == (0, entries)
        dense, out = self._dense(operand), self._dense(result)
        assert (dense.shape[0], out.shape[0]) == (inner, rows)
        values = at(data, max(entries, 1), np.float32)
        one, zero = at(alpha, 1, np.float32)[0], at(beta, 1, np.float32)[0]
        for row in range(rows):
            part = slice(pointers[row], pointers[row + 1])
            out[row] = one * (values[part] @ dense[numbers[part]]) + zero * out[row]

    def _dense(self, which: int) -> np.ndarray:
        rows, columns, stride, address, kind, order = self.held[which]
        assert (stride, kind, order) == (columns, 0, 2)
        return at(address, rows * columns, np.float32).reshape(rows, columns)

    def sp_gemm_create_descr(self) -> int:
        return self._hold(("plan",))

    sp_gemm_destroy_descr = destroy_sp_mat

    def sp_gemm_work_estimation(self, *about: Any) -> int:
        return 1

    def sp_gemm_compute(self, *about: Any) -> None:
        *_, size, buffer = about
        at(size, 1, np.uint64)[0] = 1
        if buffer:
            *_, a, b, _, c, kind, algorithm, plan = about[:-2]
            assert (kind, algorithm, self.held[plan]) == (0, 0, ("plan",))
            self.products[c] = self._csr(a) @ self._csr(b)

    def sp_mat_get_size(self, which: int) -> tuple[int, int, int]:
        return (*self.products[which].shape, self.products[which].nnz)

    def csr_set_pointers(self, which: int, *addresses: int) -> None:
        rows, columns, _, _, _, _, *types = self.held[which]
        self.held[which] = (rows, columns, self.products[which].nnz, *addresses, *types)

    def sp_gemm_copy(self, *about: Any) -> None:
        which = about[7]
        rows, _, entries, indptr, indices, data, *_ = self.held[which]
        found = self.products[which]
        at(indptr, rows + 1, np.int32)[:] = found.indptr
        at(indices, entries, np.int32)[:] = found.indices
        at(data, entries, np.float32)[:] = found.data

    def _csr(self, which: int) -> sp.csr_array:
        rows, columns, entries, indptr, indices, data, *types = self.held[which]
        assert types == [2, 2, 0, 0]
        arrays = at(data, entries, np.float32), at(indices, entries, np.int32), at(indptr, rows + 1, np.int32)
        return sp.csr_array(arrays, shape=(rows, columns))


class CuBlas:
    """Stand-in for cuBLAS, column-major like the library."""

    Operation, Math = Operation, SimpleNamespace(PEDANTIC_MATH=2)
    cuBLASError = CuSparseError  # noqa: N815

    def create(self) -> int:
        return 2

    def set_stream(self, handle: int, stream: int) -> None:
        assert stream == 7

    def set_math_mode(self, handle: int, mode: int) -> None:
        assert mode == 2

    def sgemm_batched(self, handle: int, *about: Any) -> None:
        ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch = about
        assert (ta, tb) == (0, 0)
        one, zero = at(alpha, 1, np.float32)[0], at(beta, 1, np.float32)[0]
        for place in range(batch):
            first = at(int(at(a, batch, np.int64)[place]), lda * k, np.float32).reshape(k, lda).T[:m]
            second = at(int(at(b, batch, np.int64)[place]), ldb * n, np.float32).reshape(n, ldb).T[:k]
            result = at(int(at(c, batch, np.int64)[place]), ldc * n, np.float32).reshape(n, ldc).T[:m]
            result[...] = one * (first @ second) + zero * result
