"""Compiled kernels on disk. A start compiles only the files that changed.

A cubin's name holds the source file, the architecture, a hash of source, headers and flags, and a hash of the
compiler: ``dense-relu.sm_90.<hash>.<compiler>.cubin`` for ``dense/relu.cu``. A ``.log`` of the same name holds the
assembler's report. A machine without a compiler uses the newest cubin of the same source, flags and architecture.

Kernels run on the GPU as the user, so only the user may write the folder: it is made with mode 0700, and a folder that
others can write is not used. A cubin whose digest (``.sha256`` beside it) is wrong or missing is compiled again.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gcnbatch import fileio
from gcnbatch.backends.cuda.runtime import compiler as compilers
from gcnbatch.backends.cuda.runtime.compiler import NVCC_FLAGS, Compiler
from gcnbatch.backends.cuda.runtime.sources import ALONE, FOR_COHORTS, KernelSource
from gcnbatch.errors import MachineError
from gcnbatch.timeline import spanned

VERSIONS = "compilers.json"
LOG, DIGEST = ".log", ".sha256"
LONGEST_TURN, _PAUSE = 180.0, 0.05  # seconds: all kernels take a minute of one core
_LOCK = ".lock"
_NAME = re.compile(r"([^.]+)\.(\w+)\.([0-9a-f]+)\.([0-9a-f]+)\.\w+\Z")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
Progress = Callable[[str], object]


class Cubin(NamedTuple):
    """A file of the cache: source file, architecture, hashes of source and compiler, path."""

    file: str
    arch: str
    source: str
    compiler: str
    path: Path

    @property
    def usages(self) -> dict[str, compilers.Usage]:
        """Registers and spills of each kernel."""
        try:
            return compilers.usages(self.path.with_suffix(LOG).read_text(encoding="utf-8"))
        except OSError:
            return {}


def cache_folder() -> Path:
    """Return the folder of compiled kernels: under GCNBATCH_CACHE_DIR, XDG_CACHE_HOME/gcnbatch or ~/.cache/gcnbatch."""
    own, shared = os.environ.get("GCNBATCH_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).absolute() / "kernels"
    return (Path(shared) if shared else Path.home() / ".cache") / "gcnbatch" / "kernels"


class KernelCache:
    """The compiled kernels of one user.

    Parameters
    ----------
    folder : Path, optional
        Default: `cache_folder`.
    fast_math : bool
        Compile with fast-math. Such cubins have names of their own.
    cohort : bool
        Compile the kernels of cohorts for several models.
    replaceable : bool
        If the folder cannot be written, use a temporary one instead, with one warning.
    """

    def __init__(
        self, folder: Path | None = None, fast_math: bool = False, cohort: bool = False, replaceable: bool = True
    ) -> None:
        self.folder, self._replaceable = folder or cache_folder(), replaceable
        self._fast, self._cohort = compilers.FAST_MATH if fast_math else (), cohort
        self._spare: Path | None = None

    @cached_property
    def compiler(self) -> Compiler | None:
        """The compiler of this machine, or None. The answers of an nvcc are cached, so it is not started again."""
        if path := compilers.find_nvcc():
            version, architectures = self._asked(path)
            if version:
                return compilers.Nvcc(path, version, architectures)
        return compilers.find_nvrtc()

    def takes(self, source: KernelSource) -> bool:
        """Return whether this cache compiles `source`, which may be for cohorts alone or for a model alone."""
        return self._variant(source) in source.variants

    @spanned("load kernels, or compile them")
    def load(self, source: KernelSource, arch: str) -> bytes:
        """Return the cubin of `source`; compile it if it is not in the cache.

        Raises
        ------
        KernelCompileError
            When the source does not compile.
        BackendUnavailable
            When there is neither a cubin nor a compiler.
        MachineError
            When the compiler does not know the architecture, or cannot run.
        """
        for _ in range(2):  # once more if the first cubin is damaged
            if failed := self.build([source], arch):
                raise failed[source.name]
            with contextlib.suppress(FileNotFoundError):  # another process may clear the cache meanwhile
                if (found := self.find(source, arch)) and (cubin := _intact(found.path)):
                    return cubin
        raise MachineError(str(self.folder), f"the kernels of {source.name} vanished", hint="Run again.")

    def build(
        self, sources: Iterable[KernelSource], arch: str, progress: Progress = lambda file: None
    ) -> dict[str, MachineError]:
        """Compile the missing files in parallel; return the failures by file name.

        If several processes start together, one compiles and the others wait and find its files. `progress` is called
        with the name of each file that is ready.

        Raises
        ------
        MachineError
            When neither the folder nor a temporary one can be written.
        """
        sources = list(sources)
        ready = [source for source in sources if self.find(source, arch)]
        for source in ready:
            progress(source.name)
        missing = [source for source in sources if source not in ready]
        if not missing:
            return {}
        if self.compiler is None:
            return {source.name: compilers.no_compiler() for source in missing}
        if not compilers.knows(self.compiler, arch):
            return {source.name: compilers.no_code(self.compiler, arch) for source in missing}
        self._make_writable()
        with self._turn(), ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as pool:
            outcomes = pool.map(lambda source: self._compile(source, arch, progress), missing)
            return {source.name: error for source, error in zip(missing, outcomes, strict=True) if error}

    def find(self, source: KernelSource, arch: str) -> Cubin | None:
        """Return the cubin of `source` in the cache: of the present compiler, or without one the newest of any."""
        name = self._name(source, arch)
        folders = [] if _writable_by_others(self.folder) else [self.folder]
        folders += [self._spare] if self._spare else []
        found = [path for folder in folders for path in folder.glob(name)]
        return _parse(max(found, key=lambda path: path.stat().st_mtime)) if found else None

    def cubins(self) -> list[Cubin]:
        """Return every cubin of the cache, sorted by name."""
        return [cubin for path in sorted(self.folder.glob("*.cubin")) if (cubin := _parse(path))]

    def clear(self) -> int:
        """Remove every cubin; return their number.

        Raises
        ------
        MachineError
            When the folder cannot be written.
        """
        cubins = self.cubins()
        try:
            for path in [*(cubin.path for cubin in cubins), *self._beside()]:
                path.unlink(missing_ok=True)
            if cubins or (self.folder / _LOCK).exists():  # else it is no cache
                (self.folder / VERSIONS).unlink(missing_ok=True)
        except OSError as error:
            raise MachineError(
                str(self.folder),
                f"cannot be cleared ({error.strerror})",
                hint="Ask its owner, or set GCNBATCH_CACHE_DIR to a folder of yours.",
            ) from error
        return len(cubins)

    def _beside(self) -> list[Path]:
        """Return the reports and digests of cubins; other programs have files with such endings."""
        return [path for ending in (LOG, DIGEST) for path in self.folder.glob(f"*{ending}") if _parse(path)]

    def _compile(self, source: KernelSource, arch: str, progress: Progress) -> MachineError | None:
        if self.find(source, arch) is None and self.compiler:
            path = (self._spare or self.folder) / self._name(source, arch)
            try:
                compiled = self.compiler.compile(source, arch, self._more(source))
                fileio.write_text(path.with_suffix(LOG), compiled.log)
                fileio.write_text(path.with_suffix(DIGEST), hashlib.sha256(compiled.cubin).hexdigest())
                fileio.write_with(path, lambda temporary: temporary.write_bytes(compiled.cubin))
            except MachineError as error:
                return error
        progress(source.name)
        return None

    def _more(self, source: KernelSource) -> tuple[str, ...]:
        """Return further flags of a source."""
        return (*self._fast, *self._variant(source))

    def _variant(self, source: KernelSource) -> tuple[str, ...]:
        return FOR_COHORTS if self._cohort and source.knows_cohorts else ALONE

    def _name(self, source: KernelSource, arch: str) -> str:
        """Return the cubin's file name; without a compiler, a pattern that matches any compiler."""
        key = _short("\0".join((source.digest, arch, *NVCC_FLAGS, *self._more(source))), 24)
        by = _short(f"{self.compiler.name} {self.compiler.version}", 12) if self.compiler else "*"
        return f"{source.name.removesuffix('.cu').replace('/', '-')}.{arch}.{key}.{by}.cubin"

    def _asked(self, path: Path) -> tuple[str, tuple[str, ...]]:
        """Return nvcc's version and architectures, cached until the file of nvcc changes."""
        state = path.stat()
        key = f"{path} {state.st_mtime_ns} {state.st_size}"
        known = self._known_compilers()
        match known.get(key):
            case [str(version), *known_ones]:
                return version, tuple(map(str, known_ones))
        version, architectures = compilers.nvcc_version(path), compilers.nvcc_architectures(path)
        with contextlib.suppress(OSError, MachineError):  # `build` reports a cache that cannot be written
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if version and not _writable_by_others(self.folder):
                fileio.write_json(self.folder / VERSIONS, {**known, key: [version, *architectures]})
        return version, architectures

    def _known_compilers(self) -> dict[str, Any]:
        if _writable_by_others(self.folder):
            return {}
        try:
            known = json.loads((self.folder / VERSIONS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _make_writable(self) -> None:
        if self._spare:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            self._replace(f"cannot be written ({error.strerror})", "Set GCNBATCH_CACHE_DIR to a folder of yours.")
        else:
            if _writable_by_others(self.folder):
                fix = f"Run chmod 700 {self.folder} if you trust what is in it, or remove it."
                self._replace("other users can write to it", fix)

    def _replace(self, reason: str, fix: str) -> None:
        """Use a temporary folder in place of one that cannot be used, with a warning, or raise MachineError."""
        if not self._replaceable:
            raise MachineError(str(self.folder), reason, hint=fix)
        try:
            self._spare = Path(tempfile.mkdtemp(prefix="gcnbatch-kernels-"))
        except OSError as error:
            raise MachineError(
                str(self.folder),
                f"{reason}, and no folder for temporary files can be written",
                hint="Set GCNBATCH_CACHE_DIR and TMPDIR to folders of yours.",
            ) from error
        atexit.register(shutil.rmtree, self._spare, ignore_errors=True)
        print(f"warning: {self.folder}: {reason}; kernels are compiled for this process only. {fix}", file=sys.stderr)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other process compiles, but not for ever: one that is stopped keeps its lock.

        Without a lock (no support by the file system, or another user's file), two processes may compile the same file.
        All writes are atomic.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                lock = stack.enter_context(((self._spare or self.folder) / _LOCK).open("a"))
                end = time.monotonic() + LONGEST_TURN
                while time.monotonic() < end:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    time.sleep(_PAUSE)
            yield


def _writable_by_others(folder: Path) -> bool:
    """Whether another user, except root, can put files into this folder; False where there is none."""
    try:
        found = folder.stat()
    except OSError:
        return False
    mine = found.st_uid in (os.geteuid(), 0) or os.geteuid() == 0
    return bool(found.st_mode & _OTHERS_WRITE) or not mine


def _intact(path: Path) -> bytes | None:
    """Return the cubin, or remove it and return None if its digest is another one."""
    cubin = path.read_bytes()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.with_suffix(DIGEST).read_text(encoding="utf-8") == hashlib.sha256(cubin).hexdigest():
            return cubin
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return None


def _parse(path: Path) -> Cubin | None:
    """Parse the name of a cubin or of a file beside it; None for any other name."""
    if (match := _NAME.match(path.name)) is None:
        return None
    stem, arch, source, compiler = match.groups()
    return Cubin(f"{stem.replace('-', '/')}.cu", arch, source, compiler, path)


def _short(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
