"""Routines of LAPACK in place, and without Python's lock.

The functions of `scipy.linalg` keep the lock: systems that threads solve side by side would wait for each other, and
trees that grow meanwhile for all of them. These call the same library.

Matrices are float64 (n, n) in the order of Fortran. Only what is on and below the diagonal is read and written.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def factor(matrix: Float64) -> Float64:
    """Return the Cholesky factor of a positive definite matrix, in its memory.

    Raises
    ------
    numpy.linalg.LinAlgError
        When the matrix is not positive definite.
    """
    return _call("dpotrf", matrix)


def invert_triangle(lower: Float64) -> Float64:
    """Return the inverse of a lower triangular matrix, in its memory."""
    return _call("dtrtri", lower, b"N")


def invert_factored(factor: Float64) -> Float64:
    """Return the inverse of the matrix that has this Cholesky factor, in its memory."""
    return _call("dpotri", factor)


def _call(name: str, matrix: Float64, *options: bytes) -> Float64:
    if matrix.dtype != np.float64 or not matrix.flags.f_contiguous:
        raise ValueError(f"{name} takes float64 in the order of Fortran, not {matrix.dtype} with {matrix.strides}")
    size, info = ctypes.c_int(len(matrix)), ctypes.c_int()
    before, after = (ctypes.c_char_p(option) for option in (b"L", *options)), map(ctypes.byref, (size, info))
    _routine(name, 5 + len(options))(*before, ctypes.byref(size), matrix.ctypes.data_as(ctypes.c_void_p), *after)
    if info.value:
        raise np.linalg.LinAlgError(f"{name} fails at row {info.value}")
    return matrix


@cache
def _routine(name: str, arguments: int) -> Any:
    """Return a function of SciPy's LAPACK, which takes so many addresses."""
    from scipy.linalg import cython_lapack

    routines: Any = cython_lapack.__pyx_capi__
    capsule, get = routines[name], ctypes.pythonapi
    get.PyCapsule_GetName.restype, get.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get.PyCapsule_GetPointer.restype = ctypes.c_void_p
    get.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = get.PyCapsule_GetPointer(capsule, get.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)
