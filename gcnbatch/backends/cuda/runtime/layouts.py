"""Memory layouts of structs and kernel arguments, filled by the names that the source declares.

A `Layout` is read from the source (`declarations`), never written in Python. It packs a dict into bytes::

    layout = declarations.layout("Job")
    device.upload(layout.pack_many([dict(left=None, right=partials, start=0, ...), ...]))
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from struct import error as struct_error
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.memory import DeviceArray

# Format characters of `struct` for the C++ types that the host passes.
NUMBERS = {
    "bool": "?",
    "char": "b",
    "signed char": "b",
    "unsigned char": "B",
    "short": "h",
    "unsigned short": "H",
    "__half": "e",
    "int": "i",
    "unsigned": "I",
    "unsigned int": "I",
    "long long": "q",
    "unsigned long long": "Q",
    "float": "f",
    "double": "d",
}
_BYTES = "bB?"  # a workspace of bytes matches a pointer to any type
# NumPy type characters of the arrays that match a pointer to each type; signs are not checked.
_ARRAYS = {
    **dict.fromkeys("bB?", _BYTES),
    **dict.fromkeys("hHe", _BYTES + "hHe"),
    **dict.fromkeys("iI", _BYTES + "iI"),
    **dict.fromkeys("qQ", _BYTES + "lLqQ"),
    "f": _BYTES + "f",
    "d": _BYTES + "d",
}
_DTYPES = {"q": np.dtype(np.int64), "Q": np.dtype(np.uint64)}  # np.dtype("q") may be another 64-bit type object


_ERRORS = (AttributeError, KeyError, TypeError, struct_error)
_FUNCTION = """
def function(given):
    try:
        if {counts}:
            return pack({reads})
    except errors:
        refuse(given)
        raise
    refuse(given)
"""


class CType(Protocol):
    """A C++ type whose values the host passes."""

    @property
    def format(self) -> str:
        """Format of `struct`, with padding."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type with the same memory layout."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.dtype.itemsize

    @property
    def alignment(self) -> int:
        """Alignment in bytes."""
        return self.size

    def values(self, value: Any, where: str) -> Sequence[Any]:
        """Return the items that `struct` packs for `value`, one per character of the format.

        Raises
        ------
        TypeError
            When the value does not match the type; the message begins with `where`.
        """


@dataclass(frozen=True)
class Number(CType):
    """A C++ number of type `name`."""

    name: str

    @property
    def format(self) -> str:
        return NUMBERS[self.name]

    @property
    def dtype(self) -> np.dtype[Any]:
        return _DTYPES.get(self.format, np.dtype(self.format))

    def values(self, value: Any, where: str) -> Sequence[Any]:
        try:
            if value is not None and not isinstance(value, DeviceArray):
                Struct(self.format).pack(value)
                return (value,)
        except struct_error:
            pass
        raise TypeError(f"{where} is {_shown(value)}; expected a number of type {self.name}")


@dataclass(frozen=True)
class Pointer(CType):
    """A pointer to type `name`, described by `target` if it is a number or a struct. The value None is null."""

    name: str
    target: CType | None = None
    format = "P"
    dtype = np.dtype(np.uint64)

    @cached_property
    def target_dtype(self) -> np.dtype[Any] | None:
        """NumPy type of the target, compared by identity: NumPy has one object per type."""
        return self.target.dtype if self.target else None

    def values(self, value: Any, where: str) -> Sequence[Any]:
        if value is None:
            return (0,)
        if not isinstance(value, DeviceArray) or not self._takes(value.dtype):
            raise TypeError(f"{where} is {_shown(value)}; expected an array of {self.name}, or None")
        return (value.ptr,)

    def _takes(self, dtype: np.dtype[Any]) -> bool:
        if isinstance(self.target, Number):
            return dtype.char in _ARRAYS[self.target.format]
        return self.target is None or dtype == self.target.dtype or dtype.char in _BYTES


@dataclass(frozen=True)
class FixedArray(CType):
    """An array of `count` elements in a struct; its dimensions are flattened."""

    of: CType
    count: int

    @property
    def format(self) -> str:
        return self.of.format * self.count

    @property
    def alignment(self) -> int:
        return self.of.alignment

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype((self.of.dtype, (self.count,)))

    def values(self, value: Any, where: str) -> Sequence[Any]:
        if not isinstance(value, list | tuple | np.ndarray) or len(value) != self.count:
            raise TypeError(f"{where} is {_shown(value)}; expected {self.count} elements")
        if isinstance(value, np.ndarray) and value.dtype == self.of.dtype:  # packed at every launch
            return list(value.tolist())
        return [leaf for i, element in enumerate(value) for leaf in self.of.values(element, f"{where}[{i}]")]


@dataclass(frozen=True)
class Layout:
    """Memory layout of a struct by the rules of C++, or of a kernel's arguments, which follow the same rules.

    Parameters
    ----------
    name : str
        Name of the struct or kernel, for messages.
    fields : dict of CType
        Fields by name, in order. A name that is a Python keyword takes an underscore.
    packed_end : bool
        No padding after the last field, as for arguments.
    least_alignment : int
        Bytes, for a struct that is declared with ``__align__``.
    """

    name: str
    fields: Mapping[str, CType]
    packed_end: bool = False
    least_alignment: int = 1

    @cached_property
    def alignment(self) -> int:
        """Alignment in bytes."""
        return max([self.least_alignment, *(ctype.alignment for ctype in self.fields.values())])

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Offset of each field in bytes."""
        offsets, end = [], 0
        for ctype in self.fields.values():
            offsets.append(-(-end // ctype.alignment) * ctype.alignment)
            end = offsets[-1] + ctype.size
        return tuple(offsets)

    @cached_property
    def size(self) -> int:
        """Size in bytes, with the padding after the last field."""
        end = max(
            (offset + ctype.size for offset, ctype in zip(self.offsets, self.fields.values(), strict=True)), default=0
        )
        return end if self.packed_end else max(-(-end // self.alignment) * self.alignment, 1)

    @cached_property
    def format(self) -> str:
        """Format of `struct`, with padding."""
        text, end = "", 0
        for offset, ctype in zip(self.offsets, self.fields.values(), strict=True):
            text += "x" * (offset - end) + ctype.format
            end = offset + ctype.size
        return text + "x" * (self.size - end)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy structured type with the same memory layout."""
        formats = [ctype.dtype for ctype in self.fields.values()]
        return np.dtype(
            {"names": [*self.fields], "formats": formats, "offsets": [*self.offsets], "itemsize": self.size}
        )

    @cached_property
    def pack(self) -> Callable[[Mapping[str, Any]], bytes]:
        """A function that packs a dict of the fields into the bytes of the struct.

        Arrays are on the device and have the declared type; None is the null pointer. A nested struct takes a dict, a
        fixed array a sequence. The function raises TypeError when a field is missing, unknown or not of its type.

        Its code is generated field by field, because it runs at every launch; a loop takes three times as long.
        """
        names: dict[str, Any] = {"pack": Struct(self.format).pack, "bytes": np.dtype(np.uint8), "errors": _ERRORS}
        names["refuse"] = self._refuse
        counts, reads = self._reads("given", names)
        exec(_FUNCTION.format(reads=", ".join(reads), counts=" and ".join(counts)), names)  # noqa: S102
        function: Callable[[Mapping[str, Any]], bytes] = names["function"]
        return function

    def _reads(self, given: str, names: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return conditions on the numbers of fields, and expressions of their values; add used names to `names`."""
        counts, reads = [f"len({given}) == {len(self.fields)}"], []
        for name, ctype in self.fields.items():
            value, number = f"{given}['{name}']", len(names)
            read = f"values{number}({value}, '{self.name}: {name}')"
            names[f"values{number}"] = ctype.values
            if isinstance(ctype, Pointer):
                names[f"dtype{number}"] = ctype.target_dtype
                fits = f"(type := array.dtype) is dtype{number} or type is bytes"
                reads.append(f"0 if (array := {value}) is None else array.ptr if {fits} else {read}[0]")
            elif isinstance(ctype, Layout):
                inner_counts, inner_reads = ctype._reads(value, names)
                counts += inner_counts
                reads += inner_reads
            else:
                plain = isinstance(ctype, Number) and ctype.format != "?"  # `struct` accepts any object as a bool
                reads.append(value if plain else f"*{read}")
        return counts, reads

    def pack_many(self, structs: Iterable[Mapping[str, Any]]) -> NDArray[Any]:
        """Return an array of structs, (n,), for a table in device memory.

        Raises
        ------
        TypeError
            As `pack`.
        """
        return np.frombuffer(bytearray().join(map(self.pack, structs)), self.dtype)

    def values(self, value: Any, where: str) -> Sequence[Any]:
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} is {_shown(value)}; expected a dict of the fields of {self.name}")
        if wrong := [name for name in self.fields if name not in value]:
            raise TypeError(f"{where} lacks {', '.join(wrong)}")
        if wrong := [name for name in value if name not in self.fields]:
            raise TypeError(f"{where} has no {', '.join(wrong)}; its fields are {', '.join(self.fields)}")
        return [leaf for name, ctype in self.fields.items() for leaf in ctype.values(value[name], f"{where}: {name}")]

    def _refuse(self, given: Mapping[str, Any]) -> None:
        """Raise the TypeError that names the wrong field."""
        self.values(given, self.name)


def python_name(name: str) -> str:
    """Return the Python keyword argument for a field or argument: its name, with an underscore if it is a keyword."""
    return f"{name}_" if keyword.iskeyword(name) else name


def _shown(value: Any) -> str:
    if isinstance(value, DeviceArray):
        return f"an array of {value.dtype}"
    return "None" if value is None else f"{type(value).__name__} {value!r}"
