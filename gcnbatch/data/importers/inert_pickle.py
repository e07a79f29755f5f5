"""Reads arrays from a pickle without executing it.

A pickle is a program that may call any function. This module only interprets its instructions as data: it records a
call as `_PickledCall` and never imports or calls anything. A short list of names is allowed (arrays, types of arrays,
CSR matrices, plain containers); a file with any other name is refused. Pickles of Python 2 (text as Latin-1) and of
later versions are read alike.
"""

from __future__ import annotations

import math
import pickletools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.errors import InputError
from gcnbatch.text import counted

_NAMES = {
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy ndarray": "class",
    "numpy dtype": "dtype",
    "scipy.sparse.csr csr_matrix": "csr",
    "scipy.sparse._csr csr_matrix": "csr",
    "scipy.sparse._csr csr_array": "csr",
    "collections defaultdict": "dict",
    "__builtin__ list": "class",
    "builtins list": "class",
    "__builtin__ object": "class",
    "builtins object": "class",
    "copy_reg _reconstructor": "object",
    "copyreg _reconstructor": "object",
    "_codecs encode": "bytes",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_LITERAL = re.compile("INT|BININT[12]?|LONG[14]?|(BIN)?FLOAT|(SHORT_)?(BIN)?(STRING|UNICODE|BYTES)8?")
_NUMBER = re.compile(r"[biuf][1248]")
_MARK = object()
_MALFORMED = (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class _Name:
    kind: str


@dataclass
class _PickledCall:
    kind: str
    args: Any
    state: Any = None


class _ForbiddenError(Exception):
    """The pickle contains something that no array needs; the argument says what."""


def read_pickle(path: Path) -> Any:
    """Return the value of a pickle: numbers, texts, containers, and records for `as_array` and `as_csr`.

    Raises
    ------
    InputError
        For a missing or damaged file, and one with other names than array types.
    """
    if not path.is_file():
        raise InputError(str(path), "no such file", "a pickle of the Planetoid data")
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(path.read_bytes()):
            machine.step(opcode.name, argument)
        return machine.stack.pop()
    except _ForbiddenError as error:
        raise InputError(
            str(path), f"refused: {error}", "a pickle of arrays only", "It was not run. Do not trust this file."
        ) from error
    except _MALFORMED as error:
        raise InputError(str(path), f"damaged pickle ({error})", hint="Copy the file again.") from error


class _Machine:
    """The pickle machine: stack, marks and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Execute one instruction, given by its name in `pickletools`."""
        stack = self.stack
        if name in ("PROTO", "FRAME", "STOP"):
            return
        if _LITERAL.fullmatch(name):
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            text = argument if name == "GLOBAL" else " ".join(str(part) for part in self._pop(2))
            if text not in _NAMES:
                raise _ForbiddenError(f"names {text.replace(' ', '.')}")
            stack.append(_Name(_NAMES[text]))
        elif name in ("REDUCE", "NEWOBJ"):
            stack.append(_call(*self._pop(2)))
        elif name == "BUILD":
            target, state = self._pop(2)
            if not isinstance(target, _PickledCall):
                raise _ForbiddenError("sets the state of something that is no array")
            target.state = state
            stack.append(target)
        else:
            self._container(name)

    def _container(self, name: str) -> None:
        stack = self.stack
        if name in ("EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT"):
            stack.append({"EMPTY_TUPLE": (), "EMPTY_LIST": [], "EMPTY_DICT": {}}[name])
        elif name in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES[name])))
        elif name in ("TUPLE", "LIST"):
            stack.append(tuple(self._since_mark()) if name == "TUPLE" else self._since_mark())
        elif name in ("APPEND", "APPENDS"):
            values = self._since_mark() if name == "APPENDS" else self._pop(1)
            _expect(stack[-1], list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self._since_mark() if name == "SETITEMS" else self._pop(2)
            _expect(stack[-1], dict).update(zip(values[::2], values[1::2], strict=True))
        elif name == "DICT":
            values = self._since_mark()
            stack.append(dict(zip(values[::2], values[1::2], strict=True)))
        else:
            raise _ForbiddenError(f"uses the instruction {name}")

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("an instruction finds too few values")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("a mark is missing")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values


def _call(function: Any, args: Any) -> Any:
    """Record a call; only calls for plain containers and bytes return a value at once."""
    if not isinstance(function, _Name) or not isinstance(args, tuple):
        raise _ForbiddenError("calls something that is no array type")
    if function.kind == "dict":
        return {}
    if function.kind == "bytes":
        return str(args[0]).encode("latin-1")
    if function.kind == "object" and isinstance(args[0], _Name):
        return _PickledCall(args[0].kind, ())
    return _PickledCall(function.kind, args)


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} is missing")
    return value


def as_array(value: Any, path: Path) -> NDArray[Any]:
    """Return a record of `read_pickle` as an array of numbers; its bytes must fit its shape."""
    try:
        if value.kind != "array":
            raise TypeError("another type")
        _, shape, dtype, fortran, raw = value.state
        code = dtype.args[0] if dtype.kind == "dtype" else ""
        if not _NUMBER.fullmatch(code):
            raise ValueError(f"an array of type {code!r}, not numbers")
        number = np.dtype(code).newbyteorder(">" if dtype.state[1] == ">" else "<")
        data = raw.encode("latin-1") if isinstance(raw, str) else _expect(raw, bytes)
        if any(length < 0 for length in shape) or math.prod(shape) * number.itemsize != len(data):
            raise ValueError(f"{counted(len(data), 'byte')} for an array of shape {shape}")
        flat = np.frombuffer(data, dtype=number).astype(number.newbyteorder("="))
        return flat.reshape(shape, order="F" if fortran else "C")
    except _MALFORMED as error:
        raise InputError(str(path), f"not an array of numbers ({error})") from error


def as_csr(value: Any, path: Path) -> sp.csr_array:
    """Return a record of `read_pickle` as a float32 CSR array with checked indices."""
    try:
        if value.kind != "csr":
            raise TypeError("another type")
        state = value.state
        rows, columns = state["_shape"]
        data, indices, indptr = (as_array(state[name], path) for name in ("data", "indices", "indptr"))
        shapes = len(indptr) == rows + 1 and data.shape == indices.shape == (indptr[-1],)
        if not 0 < columns < 2**31:
            raise ValueError(counted(columns, "column"))
        if not shapes or indptr[0] != 0 or (np.diff(indptr) < 0).any():
            raise ValueError("offsets do not fit")
        if ((indices < 0) | (indices >= columns)).any():
            raise ValueError("a column number is out of range")
        return sp.csr_array((data.astype(np.float32), indices, indptr), shape=(rows, columns))
    except _MALFORMED as error:
        raise InputError(str(path), f"not a sparse matrix ({error})") from error
