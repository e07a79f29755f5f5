"""Copies of device arrays that belong to other libraries, given by ``__cuda_array_interface__`` or DLPack.

The copy needs only the driver: the arrays of PyTorch, CuPy or Numba are in the device's primary context, which PyCUDA
need not have opened.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.errors import MachineError

_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}  # DLDataTypeCode -> kind of NumPy


class _Tensor(ctypes.Structure):
    """DLTensor, the first member of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def download(interface: Mapping[str, Any]) -> NDArray[Any]:
    """Return a copy of a device array in host memory.

    Parameters
    ----------
    interface : mapping
        The array's ``__cuda_array_interface__``: ``shape``, ``typestr``, ``data``, ``strides``.

    Raises
    ------
    MachineError
        Without a driver, or when it cannot copy.
    TypeError, ValueError
        When the interface is that of no array of numbers.
    """
    shape, kind = tuple(int(size) for size in interface["shape"]), np.dtype(interface["typestr"])
    if kind.hasobject or interface.get("mask") is not None:
        raise TypeError("objects or a mask")
    if not np.prod(shape, dtype=np.int64):
        return np.empty(shape, kind)
    given = interface.get("strides")
    strides = np.empty(shape, np.bool_).strides if given is None else tuple(map(int, given))
    steps = tuple(stride * kind.itemsize for stride in strides) if given is None else strides
    reach = [(size - 1) * step for size, step in zip(shape, steps, strict=True)]
    low, high = sum(min(way, 0) for way in reach), sum(max(way, 0) for way in reach) + kind.itemsize
    raw = np.empty(high - low, np.uint8)
    _copy(raw, int(interface["data"][0]) + low)
    first = raw[-low : kind.itemsize - low].view(kind)
    return as_strided(first, shape, steps).copy()


def download_dlpack(value: Any) -> NDArray[Any]:
    """Return a copy in host memory of a device array that exports DLPack; see `download`."""
    capsule = value.__dlpack__()  # its owner frees it: a capsule that is not renamed deletes what it holds
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.code not in _KINDS or tensor.lanes != 1:
        raise TypeError(f"numbers of DLPack type {tensor.code}, {tensor.bits} bits")
    kind = np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    strides = None
    if tensor.strides:
        strides = tuple(kind.itemsize * stride for stride in tensor.strides[: tensor.ndim])
    return download(
        {
            "shape": tuple(tensor.shape[: tensor.ndim]),
            "typestr": kind.str,
            "data": (tensor.data + tensor.byte_offset, True),
            "strides": strides,
        }
    )


def _copy(host: NDArray[np.uint8], pointer: int) -> None:
    """Copy bytes from the device when all work queued on it is done."""
    driver, source = loader.open_driver(), ctypes.c_uint64(pointer)
    _check("cuInit", driver.cuInit(0))
    ordinal = ctypes.c_int()
    found = driver.cuPointerGetAttribute(ctypes.byref(ordinal), _DEVICE_ORDINAL, source)
    _check("cuPointerGetAttribute", found)
    with _context(driver, ordinal.value):
        _check("cuCtxSynchronize", driver.cuCtxSynchronize())
        copied = driver.cuMemcpyDtoH_v2(host.ctypes.data_as(ctypes.c_void_p), source, ctypes.c_size_t(host.nbytes))
        _check("cuMemcpyDtoH", copied)


@contextmanager
def _context(driver: Any, device: int) -> Iterator[None]:
    """Make the primary context of the device current."""
    context = ctypes.c_void_p()
    _check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    try:
        _check("cuCtxPushCurrent", driver.cuCtxPushCurrent_v2(context))
        try:
            yield
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _check(call: str, code: int) -> None:
    if code:
        raise MachineError("device array", f"{call} failed with error {code}", "an array of a device that is in use")
