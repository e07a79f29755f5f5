"""The CUDA sources: includes, declarations and kernels of each file.

A kernel's signature is read from its declaration in ``cuda_src``::

    extern "C" __global__ void relu_forward(float* __restrict__ y, const float* __restrict__ x, long long n)
    extern "C" __global__ void fused_update(const __grid_constant__ Update update)
    KERNEL(fused_stage, StageParams, (256), stage<float>);

The first becomes an `Entry` with the arguments ``y``, ``x`` and ``n``. The others have a struct as their only
parameter; the struct's fields are their arguments. Callers pass every argument by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from gcnbatch.backends.cuda.runtime.declarations import Declarations, declarators, without_comments
from gcnbatch.backends.cuda.runtime.layouts import CType, Layout, python_name
from gcnbatch.resources import cuda_sources

COHORT = "IN_COHORT"  # macro of sources that know cohorts of several models (cuda_src/fused/shared/fused.cuh)
ALONE, FOR_COHORTS = (), (f"-D{COHORT}=1",)  # flags of the variants of such a source
_ONLY = re.compile(r"^static_assert\((!?)(?:fused::)?SHARES_LAUNCHES\b", re.MULTILINE)
_INCLUDES = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"', re.MULTILINE)
_BOUNDS = r"(?:__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*)?"
_MACRO = r"(?:[A-Z_]+\(\d+\)\s+)?"  # an attribute that not every architecture has: CLUSTERS_OF(2)
_ENTRIES = re.compile(
    rf'extern\s+"C"\s+__global__\s+{_BOUNDS}void\s+{_BOUNDS}{_MACRO}(\w+)\s*\(([^()]*)\)'
    rf"|^KERNEL(?:_WITH_SHARED)?\({_MACRO}(\w+),\s*(\w+),",
    re.MULTILINE,
)


@lru_cache(maxsize=512)  # most sources include the same headers
def _matches(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(pattern.findall(text))


@dataclass(frozen=True)
class Entry:
    """A kernel that the host can launch.

    Parameters
    ----------
    name : str
    source : KernelSource
    parameters : str
        As declared; read when they are first needed.
    """

    name: str
    source: KernelSource
    parameters: str

    @property
    def file(self) -> str:
        """The source file, such as ``"dense/relu.cu"``."""
        return self.source.name

    @cached_property
    def layout(self) -> Layout:
        """Its arguments, or the fields of its parameter struct.

        Raises
        ------
        ValueError
            When a parameter cannot be passed.
        """
        arguments: dict[str, CType] = {}
        for part in filter(None, (part.strip() for part in self.parameters.split(","))):
            (declarator,) = declarators(part)
            arguments[python_name(declarator.name)] = self.source.declarations.ctype(declarator)
        structs = [ctype for ctype in arguments.values() if isinstance(ctype, Layout)]
        if not structs:
            return Layout(self.name, arguments, packed_end=True)
        if len(arguments) > 1:
            raise ValueError(f"{self.file}: {self.name}: a struct must be the only parameter")
        return replace(structs[0], name=f"{self.name} ({structs[0].name})")

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offset of each parameter in the packed arguments; a struct is one parameter."""
        return self.layout.offsets if self.layout.packed_end else (0,)

    def pack(self, arguments: Mapping[str, Any]) -> bytes:
        """Return the packed arguments for the driver: addresses of arrays, and numbers, aligned as in C.

        Raises
        ------
        TypeError
            When an argument is missing, unknown or not of its declared type. An array of bytes (a workspace) matches
            any pointer; None is the null pointer.
        """
        return self.layout.pack(arguments)


@dataclass(frozen=True)
class KernelSource:
    """The text of a file and of all its headers.

    Parameters
    ----------
    name : str
        Its path from the root of the sources, such as ``"dense/relu.cu"``.
    root : Path
    text : str
    headers : mapping
        Path from the root -> text, of every file that it includes, directly or indirectly.
    """

    name: str
    root: Path
    text: str
    headers: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """The sha256 of the text and of every header."""
        digest = hashlib.sha256(self.text.encode())
        for name, text in sorted(self.headers.items()):
            digest.update(b"\0" + name.encode() + b"\0" + text.encode())
        return digest.hexdigest()

    @cached_property
    def knows_cohorts(self) -> bool:
        """Whether a kernel for cohorts of several models differs from that for a model alone."""
        return any(COHORT in text for text in (self.text, *self.headers.values()))

    @cached_property
    def variants(self) -> tuple[tuple[str, ...], ...]:
        """The flags of each variant that is launched: `ALONE`, `FOR_COHORTS` or both.

        A source that is for one of them says so: ``static_assert(SHARES_LAUNCHES, …)`` or ``(!SHARES_LAUNCHES, …)``.
        """
        if not self.knows_cohorts:
            return (ALONE,)
        only = {sign for text in (self.text, *self.headers.values()) for sign in _matches(_ONLY, text)}
        return tuple(flags for flags, other in ((ALONE, ""), (FOR_COHORTS, "!")) if other not in only)

    @cached_property
    def declarations(self) -> Declarations:
        """The constants, enums and structs of the file and its headers."""
        return Declarations(self.name, {**self.headers, self.name: self.text})

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The kernels that the host can launch, in the order of the file."""
        found = _ENTRIES.findall(without_comments(self.text))
        return tuple(
            Entry(kernel or name, self, f"{struct} params" if kernel else arguments)
            for name, arguments, kernel, struct in found
        )


class Sources(dict[str, KernelSource]):
    """The sources of a folder and its subfolders by name, and all their kernels.

    Parameters
    ----------
    root : Path
        Includes are relative to this folder, as in ``#include "common/scan.cuh"``.

    Raises
    ------
    ValueError
        When two files have a kernel of the same name, or an included file is missing.
    """

    def __init__(self, root: Path) -> None:
        names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.cu"))
        texts: dict[str, str] = {}
        super().__init__((name, read(root, name, texts)) for name in names)
        self.entries: dict[str, Entry] = {}
        for entry in (entry for source in self.values() for entry in source.entries):
            if entry.name in self.entries:
                raise ValueError(f"kernel {entry.name} is in {self.entries[entry.name].file} and in {entry.file}")
            self.entries[entry.name] = entry


def read(root: Path, name: str, texts: dict[str, str] | None = None) -> KernelSource:
    """Return a source or header with all its headers.

    Parameters
    ----------
    root : Path
    name : str
    texts : dict, optional
        Texts of files by name; files that it lacks are read and added. Most sources include the same headers.

    Raises
    ------
    ValueError
        When an included file is missing.
    """
    texts = {} if texts is None else texts

    def text_of(file: str) -> str:
        if file not in texts:
            texts[file] = (root / file).read_text(encoding="utf-8")
        return texts[file]

    headers: dict[str, str] = {}
    waiting = [(name, included) for included in _matches(_INCLUDES, text_of(name))]
    while waiting:
        by, included = waiting.pop(0)
        if included in headers:
            continue
        if included not in texts and not (root / included).is_file():
            raise ValueError(f'{by} includes "{included}", which is not in {root}')
        headers[included] = text_of(included)
        waiting += [(included, deeper) for deeper in _matches(_INCLUDES, headers[included])]
    return KernelSource(name, root, text_of(name), headers)


_SHIPPED: dict[str, str] = {}  # texts of files that `declared` has read


@cache
def declared(name: str) -> Declarations:
    """Return the declarations of a file in ``cuda_src`` and of its headers, such as the tile sizes that geometry uses.

    >>> declared("common/scan.cuh").constant("SCAN_THREADS")
    256
    """
    return read(cuda_sources(), name, _SHIPPED).declarations


def kernels_of(name: str) -> tuple[Entry, ...]:
    """Return the kernels of a file in ``cuda_src``.

    >>> [entry.name for entry in kernels_of("dense/add.cu")]
    ['add_forward']
    """
    return read(cuda_sources(), name, _SHIPPED).entries
