"""Compilation of a CUDA source for one architecture: with nvcc, or with NVRTC if there is no nvcc.

Sources hold device code only and include only their own headers, so both compilers take the same text. Compilation
needs neither a GPU nor PyCUDA.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gcnbatch.errors import BackendUnavailable, MachineError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.sources import KernelSource

# Without fast-math, NaN, infinities and rounding follow IEEE 754 on every backend.
FAST_MATH = ("--use_fast_math",)
FLAGS = ("-std=c++17", "-lineinfo")
# The sources hold no host code, so any host compiler that can preprocess is good enough.
NVCC_FLAGS = ("-O3", *FLAGS, "-allow-unsupported-compiler")
# NVRTC would take a generic lambda inside a device function for host code.
NVRTC_FLAGS = (*FLAGS, "--device-as-default-execution-space")
OLDEST_CAPABILITY = (7, 0)
OLDEST_OF_CUDA_13 = (7, 5)
OLDEST_NVRTC = (12, 3)  # NVRTC 12.0 to 12.2 crash on fused/narrow/step.cu, and this process with them
HOST_COMPILERS = ("g++", "c++", "clang++")
HOST_FAILS = re.compile(
    r"^.*(?:cc1plus|host compiler|Cannot find compiler|unsupported \w+ version|/c\+\+/.*\berror\b).*$", re.MULTILINE
)
INSTALL = (
    "Install a CUDA toolkit and g++, or pip install 'gcnbatch[cuda,nvrtc13]' (nvrtc12 for drivers below 580, or Volta)."
)


class KernelCompileError(MachineError):
    """A source that does not compile.

    Parameters
    ----------
    file : str
    compiler : str
        Name and version.
    flags : tuple of str
    output : str
        The compiler's output; it follows the first line of the message.
    """

    def __init__(self, file: str, compiler: str, flags: tuple[str, ...], output: str) -> None:
        self.flags, self.output = flags, output.strip()
        super().__init__(file, f"{compiler} {' '.join(flags)} failed")

    def _message(self) -> str:
        return "\n  ".join([super()._message(), *self.output.splitlines()])


class Compiled(NamedTuple):
    """Machine code (a cubin) and the assembler's report on registers and spills."""

    cubin: bytes
    log: str


class Usage(NamedTuple):
    """Registers per thread of a kernel, and bytes of register spills."""

    registers: int
    spilled: int


class Compiler(Protocol):
    """A compiler of CUDA sources."""

    @property
    def name(self) -> str:
        """``"nvcc"`` or ``"NVRTC"``."""

    @property
    def version(self) -> str:
        """Version, such as ``"13.0.88"``."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Supported architectures, ascending and without suffix: ``"sm_75"``, …; empty if unknown."""

    def compile(self, source: KernelSource, arch: str, more: tuple[str, ...] = ()) -> Compiled:
        """Compile for `arch`, such as ``"sm_90"``, with `more` flags.

        Raises
        ------
        KernelCompileError
            With the compiler's output.
        MachineError
            When the compiler does not support `arch`, or cannot run.
        """


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="gcnbatch-")
    except OSError as error:
        raise MachineError(
            "temporary files of the compiler", "no folder can be written", hint="Set TMPDIR to a folder of yours."
        ) from error


@dataclass(frozen=True)
class Nvcc:
    """The toolkit's compiler, run in a temporary folder on a copy of the source and its headers."""

    path: Path
    version: str
    architectures: tuple[str, ...] = ()
    name: str = "nvcc"

    def compile(self, source: KernelSource, arch: str, more: tuple[str, ...] = ()) -> Compiled:
        flags = (f"-arch={arch}", *NVCC_FLAGS, *more)
        with _scratch_folder() as folder:
            for name, text in _texts(source).items():
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(text, encoding="utf-8")
            command = [str(self.path), "-cubin", *flags, "-I.", "-Xptxas=-v", "-o", "out.cubin", source.name]
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            except OSError as error:
                raise MachineError(str(self.path), f"cannot be run ({error.strerror})", hint=INSTALL) from error
            output = done.stdout + done.stderr
            if done.returncode:
                raise _failure(self, arch, source, flags, output)
            return Compiled(Path(folder, "out.cubin").read_bytes(), output)


@dataclass(frozen=True)
class Nvrtc:
    """The compiler library of CUDA, through cuda-bindings."""

    nvrtc: Any
    version: str
    architectures: tuple[str, ...] = ()
    name: str = "NVRTC"

    def compile(self, source: KernelSource, arch: str, more: tuple[str, ...] = ()) -> Compiled:
        flags = (f"--gpu-architecture={arch}", *NVRTC_FLAGS, *more)
        texts = _texts(source)
        text, headers = texts.pop(source.name), [(name.encode(), content.encode()) for name, content in texts.items()]
        names, contents = [name for name, _ in headers], [content for _, content in headers]
        program = self._call(
            "CreateProgram", text.encode(), str(source.root / source.name).encode(), len(headers), contents, names
        )
        options = [flag.encode() for flag in (*flags, "--ptxas-options=-v")]
        (status,) = self.nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = self._text(program, "ProgramLog").decode(errors="replace").rstrip("\0\n ")
        try:
            if status != self.nvrtc.nvrtcResult.NVRTC_SUCCESS:
                raise _failure(self, arch, source, flags, log)
            return Compiled(self._text(program, "CUBIN"), log)
        finally:
            self.nvrtc.nvrtcDestroyProgram(program)

    def _text(self, program: Any, what: str) -> bytes:
        filled = bytes(self._call(f"Get{what}Size", program))  # a buffer that NVRTC writes to
        self._call(f"Get{what}", program, filled)
        return filled

    def _call(self, function: str, *arguments: Any) -> Any:
        status, *results = getattr(self.nvrtc, f"nvrtc{function}")(*arguments)
        if status != self.nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise MachineError(f"NVRTC {self.version}", f"{function} failed with {status.name}", hint=INSTALL)
        return results[0] if results else None


def nvcc_paths(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the candidates for nvcc: CUDA_HOME, CUDA_PATH, PATH, the default folder, pip's nvidia-cuda-nvcc."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            yield Path(environment[variable], "bin", "nvcc")
    if found := shutil.which("nvcc", path=environment.get("PATH", "")):
        yield Path(found)
    yield Path("/usr/local/cuda/bin/nvcc")
    yield from sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"), reverse=True)


def find_nvcc() -> Path | None:
    """Return the first nvcc that can run. It needs a C++ host compiler as preprocessor."""
    flags = "".join(os.environ.get(f"NVCC_{place}_FLAGS", "") for place in ("PREPEND", "APPEND"))
    if not any(map(shutil.which, HOST_COMPILERS)) and "NVCC_CCBIN" not in os.environ and "-ccbin" not in flags:
        return None
    return next((path for path in nvcc_paths(os.environ) if os.access(path, os.X_OK) and path.is_file()), None)


def nvcc_version(path: Path) -> str:
    """Return the version of nvcc, such as ``"13.0.88"``; empty if nvcc does not answer."""
    found = re.search(r"\bV(\d+\.\d+\.\d+)", _ask(path, "--version"))
    return found[1] if found else ""


def nvcc_architectures(path: Path) -> tuple[str, ...]:
    """Return the architectures that nvcc supports; empty if nvcc does not answer."""
    return _in_order(int(number) for number in re.findall(r"\bsm_(\d+)\b", _ask(path, "--list-gpu-code")))


def _ask(path: Path, question: str) -> str:
    try:
        answer = subprocess.run([str(path), question], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout


def _in_order(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"sm_{number}" for number in sorted(set(numbers)))


def find_nvrtc() -> Nvrtc | None:
    """Return NVRTC if cuda-bindings and the library are installed, and it is not older than `OLDEST_NVRTC`."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
        numbers = nvrtc.nvrtcGetSupportedArchs()[1]
    except (ImportError, RuntimeError):
        return None
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS or (major, minor) < OLDEST_NVRTC:
        return None
    return Nvrtc(nvrtc, f"{major}.{minor}", _in_order(numbers or []))


def arch_of(capability: tuple[int, int]) -> str:
    """Return the architecture's name: ``"sm_86"`` for (8, 6); ``"sm_90a"``, with Hopper-only features, for (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}" + "a" * (capability == (9, 0))


def knows(compiler: Compiler, arch: str) -> bool:
    """Return whether `compiler` supports `arch`; True if its architectures are unknown."""
    return not compiler.architectures or arch.rstrip("af") in compiler.architectures


def no_code(compiler: Compiler, arch: str) -> MachineError:
    """Return the error of an architecture that `compiler` does not support."""
    return MachineError(
        arch,
        f"{compiler.name} {compiler.version} makes no code for it",
        f"one of {', '.join(compiler.architectures)}" if compiler.architectures else "",
        "Compute capability below 7.5 needs CUDA 12, a GPU newer than the compiler a newer CUDA toolkit.",
    )


def usages(log: str) -> dict[str, Usage]:
    """Return registers and spills of each kernel, from the assembler's report."""
    found: dict[str, Usage] = {}
    for part in log.split("Compiling entry function '")[1:]:
        registers = re.search(r"Used (\d+) registers", part)
        spilled = [int(size) for size in re.findall(r"(\d+) bytes spill", part)]
        found[part.partition("'")[0]] = Usage(int(registers[1]) if registers else 0, sum(spilled))
    return found


def no_compiler() -> BackendUnavailable:
    """Return the error of a machine where kernels cannot be compiled."""
    return BackendUnavailable(
        "CUDA", "no kernel compiler (neither nvcc with g++ nor NVRTC 12.3 or newer)", hint=INSTALL
    )


def _texts(source: KernelSource) -> dict[str, str]:
    """Return the text of the file and of its headers, by name, each with a ``#line`` for messages and profilers."""
    texts = {source.name: source.text, **source.headers}
    return {name: f'#line 1 "{source.root / name}"\n{text}' for name, text in texts.items()}


def _failure(compiler: Compiler, arch: str, source: KernelSource, flags: tuple[str, ...], output: str) -> MachineError:
    """Return the error of a compilation: of the source, or of the machine, which would fail for every source."""
    if re.search(r"gpu.architecture", output, re.IGNORECASE):
        return no_code(compiler, arch)
    if compiler.name == "nvcc" and (failure := HOST_FAILS.search(output)):
        return MachineError(
            f"nvcc {compiler.version}",
            f"its host compiler does not serve ({failure[0].strip().rstrip('.')})",
            hint="Install g++, or name one that this nvcc supports in NVCC_CCBIN; where there is no g++ at all, NVRTC "
            "serves (pip install 'gcnbatch[cuda,nvrtc13]').",
        )
    return KernelCompileError(source.name, f"{compiler.name} {compiler.version}", flags, output)
