"""Reads arrays of numbers from a pickle of Planetoid's, which may be hostile.

A pickle is a program that may call any function. Python's own unpickler runs it here, but the only names that it finds
are the inert stand-ins below, which keep what they are given. It runs in the confined process, because a small pickle
can ask for any amount of time and memory. Only plain arrays come back. Pickles of Python 2 (text as Latin-1) and of
later versions are read alike.
"""

from __future__ import annotations

import io
import math
import operator
import pickle
import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch import confined
from gcnbatch.errors import InputError
from gcnbatch.fileio import open_regular
from gcnbatch.text import QUOTED, counted, printable, quoted

_LIBRARY = "Python's unpickler"
_SECONDS = 20  # of processor time; Pubmed, the largest set of Planetoid's, takes 1 s
_FREE_BYTES, _PER_BYTE, _MOST_BYTES = 256 << 20, 40, 4 << 30  # of memory; a node number of 2 bytes takes up to 73
_EXPECTED = "a pickle of the Planetoid data"
_STRANGE = "Do not trust this file."
_NUMBER = re.compile(r"[biuf][1248]")
Arrays = Sequence[NDArray[Any]]


class _Inert:
    """An object of a pickle: what it was called with, and its state."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Inert): ...


class _Type(_Inert): ...


class _Matrix(_Inert): ...


def _dictionary(*factory: Any) -> dict[Any, Any]:
    return {}


def _latin(text: str, encoding: str) -> bytes:
    return text.encode("latin-1")


_NAMES: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": _Inert,
    "numpy.dtype": _Type,
    "scipy.sparse.csr.csr_matrix": _Matrix,
    "scipy.sparse._csr.csr_matrix": _Matrix,
    "scipy.sparse._csr.csr_array": _Matrix,
    "copy_reg._reconstructor": _Matrix,
    "copyreg._reconstructor": _Matrix,
    "collections.defaultdict": _dictionary,
    "_codecs.encode": _latin,
    **{f"{module}.{name}": _Inert for module in ("__builtin__", "builtins") for name in ("list", "int", "object")},
}


class _ForbiddenError(Exception):
    """The pickle names something that no array needs."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (found := _NAMES.get(f"{module}.{name}")) is None:
            raise _ForbiddenError(f"names {printable(f'{module}.{name}', QUOTED)}")
        return found


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of numbers in a pickle.

    Raises
    ------
    InputError
        For a missing or damaged file, one with other names than array types, and one that takes too much time or
        memory.
    """
    return _read(path, lambda value: [_array(value)], "an array of numbers")[0]


def read_csr(path: Path) -> sp.csr_array:
    """Return the CSR matrix in a pickle as float32, its indices checked; raises as `read_array`."""
    shape, data, indices, indptr = _read(path, _matrix, "a sparse matrix")
    return sp.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))


def read_neighbours(path: Path) -> NDArray[np.int64]:
    """Return the pairs (2, E) of each key and each number in its list, of a dictionary; raises as `read_array`."""
    return _read(path, _pairs, "a dictionary of lists of node numbers")[0]


def _read(path: Path, convert: Callable[[Any], Arrays], expected: str) -> Arrays:
    """Return the arrays into which `convert` turns the value of a pickle, both in the confined process."""
    with open_regular(path, _EXPECTED) as stream:
        size = stream.seek(0, io.SEEK_END)
    memory = min(_FREE_BYTES + _PER_BYTE * size, _MOST_BYTES)
    try:
        answer = confined.call(lambda: _answer(path, convert, expected), _LIBRARY, _SECONDS, memory, memory)
    except confined.Failed as error:
        raise InputError(str(path), f"refused: {error}", _EXPECTED, _STRANGE) from error
    with np.load(io.BytesIO(answer), allow_pickle=False) as found:
        arrays = [found[name] for name in found.files]
    if found.files == ["refusal"]:
        raise InputError(str(path), *arrays[0].tolist())
    return arrays


def _answer(path: Path, convert: Callable[[Any], Arrays], expected: str) -> bytes:
    """Return the arrays, or the parts of an error, as NumPy stores several arrays."""
    found: dict[str, Any] = {}
    wrong, hint = "damaged pickle", "Copy the file again."
    try:
        with io.BufferedReader(open_regular(path, _EXPECTED)) as file:
            value = _Unpickler(file, encoding="latin-1").load()
        wrong, hint = f"not {expected}", ""
        found = {str(number): array for number, array in enumerate(convert(value))}
    except MemoryError:
        raise
    except _ForbiddenError as error:
        found["refusal"] = [f"refused: {error}", "a pickle of arrays only", _STRANGE]
    except Exception as error:  # whatever the unpickler raises on damaged bytes, or `convert` on another value
        found["refusal"] = [f"{wrong} ({printable(' '.join(str(error).split()), QUOTED)})", "", hint]
    stream = io.BytesIO()
    np.savez(stream, **found)
    return stream.getvalue()


def _array(value: Any) -> NDArray[Any]:
    """Return a stand-in as an array of numbers; its bytes must fit its shape."""
    if not isinstance(value, _Array):
        raise TypeError("another type")
    _, shape, dtype, fortran, raw = value.state
    code = dtype.args[0] if isinstance(dtype, _Type) else None
    if not (isinstance(code, str) and _NUMBER.fullmatch(code)):
        raise TypeError(f"an array of {quoted(code) if isinstance(code, str) else 'objects'}, not numbers")
    number = np.dtype(code).newbyteorder(">" if dtype.state[1] == ">" else "<")
    data, shape = raw.encode("latin-1") if isinstance(raw, str) else raw, tuple(map(operator.index, shape))
    if not isinstance(data, bytes) or min(shape, default=0) < 0 or math.prod(shape) * number.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for an array of shape {shape}")
    array = np.frombuffer(data, number).astype(number.newbyteorder("=")).reshape(shape, order="F" if fortran else "C")
    with np.errstate(over="ignore"):
        if not np.isfinite(array.astype(np.float32)).all():
            raise ValueError("a number that is not finite in 32 bits")
    return array


def _matrix(value: Any) -> Arrays:
    """Return shape, values, columns and offsets of a stand-in for a CSR matrix."""
    if not isinstance(value, _Matrix):
        raise TypeError("another type")
    rows, columns = map(operator.index, value.state["_shape"])
    data, indices, indptr = (_array(value.state[name]) for name in ("data", "indices", "indptr"))
    if not 0 < columns < 2**31:
        raise ValueError(counted(columns, "column"))
    fits = indptr.shape == (rows + 1,) and data.shape == indices.shape == (indptr[-1],)
    if not fits or indices.dtype.kind != "i" or indptr.dtype.kind != "i" or indptr[0] or (np.diff(indptr) < 0).any():
        raise ValueError("offsets do not fit")
    if ((indices < 0) | (indices >= columns)).any():
        raise ValueError("a column number is out of range")
    return np.array([rows, columns]), data.astype(np.float32), indices, indptr


def _pairs(value: Any) -> Arrays:
    sizes = [len(numbers) for numbers in value.values()]
    keys = np.fromiter(map(operator.index, value), np.int64, len(sizes))
    numbers = map(operator.index, chain.from_iterable(value.values()))
    return [np.stack([np.repeat(keys, sizes), np.fromiter(numbers, np.int64, sum(sizes))])]
