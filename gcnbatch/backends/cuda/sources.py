"""The CUDA sources: what each file includes, the kernels that it offers, and how their arguments are passed.

A kernel's declaration in ``cuda_src`` is the only home of its signature; it is read from there::

    extern "C" __global__ void relu_forward(float* __restrict__ y, const float* __restrict__ x, long long n)

becomes an `Entry` of format ``"PPq"`` whose pointers must lead to 4-byte floats.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import Any

import numpy as np

from gcnbatch.backends.cuda.memory import DeviceArray

SCALARS = {
    "int": "i",
    "unsigned": "I",
    "long long": "q",
    "unsigned long long": "Q",
    "float": "f",
}
# What a pointer may lead to, as NumPy's type characters. Other types, such as float4, are not checked.
POINTEES = {
    "int": "iI",
    "unsigned": "iI",
    "long long": "lLqQ",
    "unsigned long long": "lLqQ",
    "unsigned char": "",
    "float": "f",
}
_BYTES = "bB?"
USUAL = {_BYTES + POINTEES["int"]: "i", _BYTES + POINTEES["float"]: "f"}  # what most arrays of a declared type are
_COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DIRECTIVES = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", re.MULTILINE)
_INCLUDES = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"', re.MULTILINE)
_BOUNDS = r"(?:__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*)?"
_MACRO = r"(?:[A-Z_0-9]+\s+)?"  # such as of an attribute that not every architecture knows
_ENTRIES = re.compile(
    rf'extern\s+"C"\s+__global__\s+{_BOUNDS}void\s+{_BOUNDS}{_MACRO}(?P<name>\w+)\s*\((?P<arguments>[^()]*)\)'
)


@dataclass(frozen=True)
class Entry:
    """A kernel that the host can launch.

    Parameters
    ----------
    name : str
    file : str
        The source file, such as ``"relu.cu"``.
    names : tuple of str
        The arguments' names.
    format : str
        A letter per argument as in `struct`: P a pointer, i I q Q f numbers.
    accepted : tuple of str
        Per argument the type characters of arrays that it takes; none for numbers.
    """

    name: str
    file: str
    names: tuple[str, ...]
    format: str
    accepted: tuple[str, ...]

    def pack(self, arguments: tuple[Any, ...]) -> bytes:
        """Return the arguments as the driver takes them: addresses of arrays, and numbers, aligned as in C.

        Raises
        ------
        TypeError
            When an argument is missing or surplus, or an array's type is not the declared one. Arrays of bytes
            (a workspace) serve as any type.
        """
        try:
            return self._packer(*arguments)
        except (AttributeError, TypeError, struct_error):
            return self._pack_slowly(arguments)

    @cached_property
    def _packer(self) -> Callable[..., bytes]:
        """One expression over all arguments: it runs at every launch, where a loop takes three times as long.

        Arrays of the very type that is declared need no further look; NumPy has one object per type.
        """
        reads = [
            f"a{i}.ptr if a{i}.dtype is usual[{i}] else read(a{i}, {i})" if accepted else f"a{i}"
            for i, accepted in enumerate(self.accepted)
        ]
        text = f"lambda {', '.join(f'a{i}' for i in range(len(reads)))}: pack({', '.join(reads)})"
        usual = tuple(np.dtype(USUAL[types]) if types in USUAL else None for types in self.accepted)
        names = {"pack": Struct(self.format).pack, "usual": usual, "read": self._read}
        packer: Callable[..., bytes] = eval(text, names)  # noqa: S307
        return packer

    def _pack_slowly(self, arguments: tuple[Any, ...]) -> bytes:
        """Take what is not usual, such as an address for an array, and say what is wrong with the rest."""
        if len(arguments) != len(self.format):
            raise TypeError(f"{self.name}: {len(arguments)} arguments for ({', '.join(self.names)})")
        return Struct(self.format).pack(*(self._read(value, i) for i, value in enumerate(arguments)))

    def _read(self, value: Any, number: int) -> Any:
        if not isinstance(value, DeviceArray):
            return value
        if value.dtype.char not in self.accepted[number]:
            raise TypeError(f"{self.name}: argument {self.names[number]} is an array of {value.dtype}")
        return value.ptr


@dataclass(frozen=True)
class KernelSource:
    """One ``.cu`` file with everything that it includes, as text.

    Parameters
    ----------
    path : Path
    text : str
    headers : mapping
        Name as included -> text, of every file included directly or by another header.
    """

    path: Path
    text: str
    headers: Mapping[str, str]

    @property
    def name(self) -> str:
        """The file's name, such as ``"relu.cu"``."""
        return self.path.name

    @cached_property
    def digest(self) -> str:
        """Return the sha256 of the text and of every header."""
        digest = hashlib.sha256(self.text.encode())
        for name, text in sorted(self.headers.items()):
            digest.update(b"\0" + name.encode() + b"\0" + text.encode())
        return digest.hexdigest()

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The kernels that the host can launch, in the file's order."""
        code = _DIRECTIVES.sub("", _COMMENTS.sub(_keep_strings, self.text))
        return tuple(_entry(self.name, found["name"], found["arguments"]) for found in _ENTRIES.finditer(code))


class Sources(Mapping[str, KernelSource]):
    """The sources of a folder by file name, and where each kernel is.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    ValueError
        When two files offer a kernel of the same name, or an included file is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = {path.name: _read(path) for path in sorted(folder.glob("*.cu"))}
        self.entries: dict[str, Entry] = {}
        for entry in (entry for source in self._files.values() for entry in source.entries):
            if entry.name in self.entries:
                raise ValueError(f"kernel {entry.name} is in {self.entries[entry.name].file} and in {entry.file}")
            self.entries[entry.name] = entry

    def __getitem__(self, name: str) -> KernelSource:
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _read(path: Path) -> KernelSource:
    text = path.read_text(encoding="utf-8")
    headers: dict[str, str] = {}
    waiting = _INCLUDES.findall(text)
    while waiting:
        name = waiting.pop()
        if name in headers:
            continue
        included = path.parent / name
        if not included.is_file():
            raise ValueError(f'{path.name} includes "{name}", which is not in {path.parent}')
        headers[name] = included.read_text(encoding="utf-8")
        waiting += _INCLUDES.findall(headers[name])
    return KernelSource(path, text, headers)


def _keep_strings(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else " "


def _entry(file: str, name: str, arguments: str) -> Entry:
    names, formats, accepted = [], "", []
    for argument in filter(None, (part.strip() for part in arguments.split(","))):
        words = [word for word in re.findall(r"\w+|\*", argument) if word not in ("const", "__restrict__")]
        kind = " ".join(words[:-1])
        pointer = kind.endswith(" *")
        kind = kind.removesuffix(" *")
        if not pointer and kind not in SCALARS:
            raise ValueError(f"{file}: {name}: argument '{argument}' has a type that cannot be passed")
        names.append(words[-1])
        formats += "P" if pointer else SCALARS[kind]
        accepted.append(_BYTES + POINTEES.get(kind, np.typecodes["All"]) if pointer else "")
    return Entry(name, file, tuple(names), formats, tuple(accepted))
