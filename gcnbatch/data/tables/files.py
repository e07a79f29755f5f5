"""Text files of tables, plain or compressed, in whole lines and within limits.

A hostile file can be one line of gigabytes, or a small compressed file of gigabytes. So a line has at most MAX_ROW
characters, and a compressed file at most MAX_RATIO times its own size: memory and time stay in proportion to the file's
size.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gcnbatch.data.endings import COMPRESSIONS
from gcnbatch.errors import InputError, MachineError
from gcnbatch.fileio import StrPath, open_regular

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_ROW = 1 << 22  # characters of a line and of a row, which may have several lines
MAX_RATIO = 100  # decompressed bytes per byte; tables of numbers reach 5 to 50
FREE_BYTES = 1 << 24  # decompressed bytes that any compressed file may have
BLOCK_CHARS = 1 << 20  # characters read at a time, and then the rest of a line
_STARTS = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
_UNREAD = {
    b"PK\x03\x04": "a ZIP archive or a workbook",
    b"\xfd7zXZ": "an XZ archive",
    b"\xd0\xcf\x11\xe0": "a workbook",
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks


class TextFile:
    """An open text file, read in blocks of whole lines.

    Attributes
    ----------
    path : Path
    chars : int
        Number of characters read.
    """

    def __init__(self, path: Path, stream: IO[str], file: io.FileIO) -> None:
        self.path, self._stream, self._file = path, stream, file
        self.chars = self._breaks = 0

    def block(self) -> str:
        """Return the next lines with their ends, about BLOCK_CHARS characters; "" at the end.

        Raises
        ------
        InputError
            For a line of more than MAX_ROW characters, and a NUL character.
        """
        text = self._stream.read(BLOCK_CHARS)
        rest = self._stream.readline(MAX_ROW) if text else ""
        if len(rest) == MAX_ROW and rest[-1] not in "\r\n":
            raise self.too_long("line", self._breaks + text.count("\n") + 1)
        text += rest
        if "\0" in text:
            place = f"{self.path}, line {self._breaks + text.count(chr(10), 0, text.index(chr(0))) + 1}"
            raise InputError(place, "a NUL character", "text", "If the file is UTF-16, save it as UTF-8.")
        self.chars += len(text)
        self._breaks += text.count("\n")
        return text

    def lines(self) -> Iterator[str]:
        """Yield the next lines with their ends."""
        return chain.from_iterable(io.StringIO(text, newline="") for text in iter(self.block, ""))

    def skip(self, lines: int) -> None:
        """Leave out so many lines, before others are read."""
        for _ in range(lines):
            self._stream.readline(MAX_ROW)
        self._breaks += lines

    def too_long(self, what: str, number: int) -> InputError:
        """Return the error for line or row `number`."""
        return InputError(f"{self.path}, {what} {number}", f"more than {MAX_ROW:,} characters", "a table's row")

    def position(self) -> int:
        """Return the number of bytes read from the disk."""
        return self._file.tell()


class _Unpacked(io.RawIOBase):
    """The decompressed bytes of a file, up to the limit."""

    def __init__(self, path: Path, file: io.FileIO, kind: str) -> None:
        self._path, self._stream = path, _unpack(kind, io.BufferedReader(file))
        size = file.seek(0, io.SEEK_END)
        self._most, self._count = max(FREE_BYTES, MAX_RATIO * size), 0
        file.seek(max(size - 4, 0))
        claimed = int.from_bytes(file.read(4), "little") if kind == ".gz" else 0  # a gzip file ends with its size
        file.seek(0)
        if claimed > self._most:  # a bomb is refused before it is parsed; a damaged file gets its own error
            while self.readinto(bytearray(BLOCK_CHARS)):
                pass
            self._stream.seek(0)
            self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read1(len(view))
        view[: len(data)] = data
        self._count += len(data)
        if self._count > self._most:
            raise InputError(
                str(self._path),
                f"decompresses to more than {MAX_RATIO} times its size",
                "a table",
                "If it is one, decompress it first (gunzip) and give the plain file.",
            )
        return len(data)


def _unpack(kind: str, file: io.BufferedReader) -> Any:
    """Return the stream of decompressed bytes; Python before 3.14 has no Zstandard of its own."""
    if kind == ".gz":
        return gzip.GzipFile(fileobj=file)
    if kind == ".bz2":
        return bz2.BZ2File(file)
    try:
        arrow: Any = import_module("pyarrow")
    except ImportError as error:
        hint = "Install it: pip install 'gcnbatch[tables]'; or decompress the file (zstd -d)."
        raise MachineError("pyarrow, which reads .zst", "not installed", hint=hint) from error
    return arrow.CompressedInputStream(file, "zstd")


@contextmanager
def open_bytes(path: StrPath) -> Iterator[tuple[io.BufferedReader, io.FileIO]]:
    """Open a file, compressed or not; yield its content and the file on the disk.

    Raises
    ------
    InputError
        For a missing or damaged file, an archive, and a compressed bomb; also while the caller reads inside the block.
    MachineError
        For a .zst file, where pyarrow is not installed.
    """
    path = Path(path)
    with open_regular(path, "a readable file") as file:
        kind = _compression(path, file)
        try:
            yield io.BufferedReader(_Unpacked(path, file, kind) if kind else file), file
        except (EOFError, zlib.error, OSError) as error:
            if not kind or (isinstance(error, OSError) and error.errno is not None):  # of the disk, or of the caller
                raise
            name = {".gz": "gzip", ".bz2": "bzip2", ".zst": "Zstandard"}[kind]
            raise InputError(str(path), f"damaged {name} file ({error})", hint="Copy the file again.") from error


def _compression(path: Path, file: io.FileIO) -> str:
    """Return the ending of the compression, by the file's own ending or its first bytes; "" for a plain file."""
    start = file.read(8)
    file.seek(0)
    for begin, what in _UNREAD.items():
        if start.startswith(begin):
            raise InputError(str(path), what, "a text file, also .gz, .bz2 or .zst", "Unpack it, or save it as CSV.")
    if path.suffix.lower() in COMPRESSIONS:
        return path.suffix.lower()
    return next((kind for begin, kind in _STARTS.items() if start.startswith(begin)), "")


@contextmanager
def open_text(path: StrPath, encoding: str | None = None) -> Iterator[TextFile]:
    """Open a text file, compressed or not.

    `encoding` None or "": UTF-16 where the file begins with its byte order mark, else UTF-8. None says that the user
    cannot name one.

    Raises
    ------
    InputError
        As `open_bytes`, and for another encoding, a NUL character and a line that is too long.
    """
    with open_bytes(path) as (content, file):
        found = encoding or ("utf-16" if content.peek(2)[:2] in _UTF16 else "utf-8")
        found = "utf-8-sig" if codecs.lookup(found).name == "utf-8" else found  # reads files with and without the mark
        stream = io.TextIOWrapper(content, encoding=found, newline="")
        try:
            yield TextFile(Path(path), stream, file)
        except UnicodeError as error:
            raise wrong_encoding(str(path), found, error, encoding is not None) from error


def wrong_encoding(place: str, encoding: str, error: UnicodeError, with_option: bool) -> InputError:
    """Return the error for text in another encoding; `with_option`: the user can name that one."""
    name = "UTF-8" if encoding.startswith("utf-8") else encoding
    hint = "Save the file as UTF-8, or name its encoding (--encoding cp1252)." if with_option else "Save it as UTF-8."
    got = f"is not {name}"  # a file without the mark of UTF-16
    if isinstance(error, UnicodeDecodeError):
        got = f"byte 0x{error.object[error.start]:02x} is not {name}"
    return InputError(place, got, f"{name} text", hint)
