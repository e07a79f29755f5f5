"""The CUDA sources: what each file includes and declares, and the kernels that it offers.

A kernel's declaration in ``cuda_src`` is the only home of its signature; it is read from there::

    extern "C" __global__ void relu_forward(float* __restrict__ y, const float* __restrict__ x, long long n)
    extern "C" __global__ void fused_update(const __grid_constant__ Update update)

The first becomes an `Entry` with the arguments ``y``, ``x`` and ``n``. The second has one struct as its only parameter:
the struct's fields are its arguments. Callers name every argument; the order is the source's alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gcnbatch.backends.cuda.runtime.declarations import Declarations, declarators, without_comments
from gcnbatch.backends.cuda.runtime.layouts import Kind, Layout, python_name
from gcnbatch.resources import cuda_sources

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
        The source file, such as ``"dense/relu.cu"``.
    layout : Layout
        Its arguments; those of a kernel with one struct are the struct's fields.
    is_struct : bool
    """

    name: str
    file: str
    layout: Layout
    is_struct: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments' names."""
        return tuple(self.layout.fields)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each parameter begins in the packed arguments."""
        return (0,) if self.is_struct else self.layout.offsets

    def pack(self, arguments: Mapping[str, Any]) -> bytes:
        """Return the arguments as the driver takes them: addresses of arrays, and numbers, aligned as in C.

        Raises
        ------
        TypeError
            When an argument is missing or unknown, or not of its declared type. Arrays of bytes (a workspace) serve as
            any type; None is the null pointer.
        """
        return self.layout.pack(arguments)


@dataclass(frozen=True)
class KernelSource:
    """One file with everything that it includes, as text.

    Parameters
    ----------
    name : str
        Its path from the root of the sources, such as ``"dense/relu.cu"``.
    root : Path
    text : str
    headers : mapping
        Path from the root -> text, of every file included directly or by another header.
    """

    name: str
    root: Path
    text: str
    headers: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """Return the sha256 of the text and of every header."""
        digest = hashlib.sha256(self.text.encode())
        for name, text in sorted(self.headers.items()):
            digest.update(b"\0" + name.encode() + b"\0" + text.encode())
        return digest.hexdigest()

    @cached_property
    def declarations(self) -> Declarations:
        """The constants, enums and structs of the file and its headers."""
        return Declarations(self.name, {**self.headers, self.name: self.text})

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The kernels that the host can launch, in the file's order."""
        return tuple(
            self._entry(found["name"], found["arguments"]) for found in _ENTRIES.finditer(without_comments(self.text))
        )

    def _entry(self, name: str, text: str) -> Entry:
        arguments: dict[str, Kind] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            (declarator,) = declarators(part)
            arguments[python_name(declarator.name)] = self.declarations.kind(declarator)
        structs = [kind for kind in arguments.values() if isinstance(kind, Layout)]
        if not structs:
            return Entry(name, self.name, Layout(name, arguments, packed_end=True))
        if len(arguments) > 1:
            raise ValueError(f"{self.name}: {name}: a struct must be the only parameter")
        return Entry(name, self.name, replace(structs[0], name=f"{name} ({structs[0].name})"), is_struct=True)


class Sources(Mapping[str, KernelSource]):
    """The sources of a folder and its subfolders by name, and where each kernel is.

    Parameters
    ----------
    root : Path
        Includes are written from here, as in ``#include "common/scan.cuh"``.

    Raises
    ------
    ValueError
        When two files offer a kernel of the same name, an included file is missing, or a parameter cannot be passed.
    """

    def __init__(self, root: Path) -> None:
        names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.cu"))
        self._files = {name: read(root, name) for name in names}
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


def read(root: Path, name: str) -> KernelSource:
    """Return a source or header with everything that it includes.

    Raises
    ------
    ValueError
        When an included file is missing.
    """
    text = (root / name).read_text(encoding="utf-8")
    headers: dict[str, str] = {}
    waiting = [(name, included) for included in _INCLUDES.findall(text)]
    while waiting:
        by, included = waiting.pop(0)
        if included in headers:
            continue
        if not (root / included).is_file():
            raise ValueError(f'{by} includes "{included}", which is not in {root}')
        headers[included] = (root / included).read_text(encoding="utf-8")
        waiting += [(included, deeper) for deeper in _INCLUDES.findall(headers[included])]
    return KernelSource(name, root, text, headers)


@cache
def declared(name: str) -> Declarations:
    """Return what a file of the package's own sources and its headers declare: how geometry reads tile sizes.

    >>> declared("common/scan.cuh").constant("SCAN_THREADS")
    256
    """
    return read(cuda_sources(), name).declarations
