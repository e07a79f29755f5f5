"""Compressed sparse rows by the C++ functions of SciPy: its classes take 0.2 ms for a molecule, mostly for checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import _sparsetools

from gcnbatch.data.sparse import Csr


def compressed(rows: NDArray[Any], columns: NDArray[Any], values: NDArray[np.float32], shape: tuple[int, int]) -> Csr:
    """Return the matrix of entries in any order, with sorted rows; repeated entries add up.

    `rows` and `columns` have one type, int32 or int64, which the matrix has, too.
    """
    indptr, indices, data = np.empty(shape[0] + 1, rows.dtype), np.empty_like(columns), np.empty_like(values)
    _sparsetools.coo_tocsr(*shape, len(values), rows, columns, values, indptr, indices, data)
    if not _sparsetools.csr_has_canonical_format(shape[0], indptr, indices):
        if not _sparsetools.csr_has_sorted_indices(shape[0], indptr, indices):
            _sparsetools.csr_sort_indices(shape[0], indptr, indices, data)
        _sparsetools.csr_sum_duplicates(*shape, indptr, indices, data)
        indices, data = indices[: indptr[-1]].copy(), data[: indptr[-1]].copy()
    return Csr(indptr, indices, data, shape[1])


def transposed(matrix: Csr) -> Csr:
    """Return the transpose, with the entries of each row in the order of their columns."""
    n, kind = len(matrix.indptr) - 1, matrix.indptr.dtype
    indptr, indices = np.empty(matrix.n_cols + 1, kind), np.empty(len(matrix.indices), kind)
    data = np.empty(len(matrix.data), np.float32)
    _sparsetools.csr_tocsc(n, matrix.n_cols, matrix.indptr, matrix.indices, matrix.data, indptr, indices, data)
    return Csr(indptr, indices, data, n)
