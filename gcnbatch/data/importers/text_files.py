"""Text files of tables, plain or gzipped, in whole lines and within limits.

A hostile file can be one line of gigabytes, or a small gzip file of gigabytes. So a line has at most MAX_ROW
characters, and a gzip file at most MAX_RATIO times its own size: memory and time stay in proportion to the file's size.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath, open_regular

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_ROW = 1 << 22  # characters of a line and of a row, which may have several lines
MAX_RATIO = 100  # decompressed bytes per byte; tables of numbers reach 5 to 50
FREE_BYTES = 1 << 24  # decompressed bytes that any gzip file may have
BLOCK_CHARS = 1 << 20  # characters read at a time, and then the rest of a line


class TextLines(Iterator[str]):
    """The lines of an open text file, with their ends.

    Attributes
    ----------
    path : Path
    chars : int
        Number of characters read.
    """

    def __init__(self, path: Path, stream: IO[str], file: io.FileIO) -> None:
        self.path, self._stream, self._file = path, stream, file
        self.chars = self._breaks = 0
        self._current = io.StringIO()
        self._lines = chain.from_iterable(self.blocks())

    def __next__(self) -> str:
        return next(self._lines)

    def blocks(self) -> Iterator[io.StringIO]:
        """Yield what was not read yet, about BLOCK_CHARS characters at a time.

        Raises
        ------
        InputError
            For a line of more than MAX_ROW characters.
        """
        while text := self._stream.read(BLOCK_CHARS):
            rest = self._stream.readline(MAX_ROW)
            if len(rest) == MAX_ROW and rest[-1] not in "\r\n":
                raise self.too_long("line", self._breaks + text.count("\n") + 1)
            self.chars += len(text) + len(rest)
            self._breaks += text.count("\n") + rest.count("\n")
            self._current = io.StringIO(text + rest, newline="")
            yield self._current

    def block(self) -> str:
        """Return the next lines as one text, "" at the end."""
        return self._current.read() or next(self.blocks(), io.StringIO()).read()

    def too_long(self, what: str, number: int) -> InputError:
        """Return the error for line or row `number`."""
        return InputError(f"{self.path}, {what} {number}", f"more than {MAX_ROW:,} characters", "a table's row")

    def position(self) -> int:
        """Return the number of bytes read from the disk."""
        return self._file.tell()


class _Gunzip(io.RawIOBase):
    """The decompressed bytes of a gzip file, up to the limit."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self._path, self._stream = path, gzip.GzipFile(fileobj=io.BufferedReader(file))
        size = file.seek(0, io.SEEK_END)
        self._most, self._count = max(FREE_BYTES, MAX_RATIO * size), 0
        file.seek(max(size - 4, 0))
        claimed = int.from_bytes(file.read(4), "little")  # a gzip file ends with its size
        file.seek(0)
        if claimed > self._most:  # a bomb is refused before it is parsed; a damaged file gets its own error
            while self.readinto(bytearray(BLOCK_CHARS)):
                pass
            self._stream.rewind()
            self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read1(len(view))
        view[: len(data)] = data
        self._count += len(data)
        self._check(self._count)
        return len(data)

    def _check(self, count: int) -> None:
        if count > self._most:
            raise InputError(
                str(self._path),
                f"decompresses to more than {MAX_RATIO} times its size",
                "a table",
                "If it is one, decompress it first (gunzip) and give the plain file.",
            )


@contextmanager
def open_bytes(path: StrPath) -> Iterator[tuple[io.BufferedReader, io.FileIO]]:
    """Open a file, gzipped or not; yield its content and the file on the disk.

    Raises
    ------
    InputError
        For a missing or damaged file and a gzip bomb; also while the caller reads inside the block.
    """
    path = Path(path)
    with open_regular(path, "a readable file") as file:
        try:
            yield io.BufferedReader(_Gunzip(path, file) if path.suffix == ".gz" else file), file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(str(path), f"damaged gzip file ({error})", hint="Copy the file again.") from error


@contextmanager
def open_text(path: StrPath) -> Iterator[TextLines]:
    """Open a UTF-8 text file, gzipped or not.

    Raises
    ------
    InputError
        As `open_bytes`, and for another encoding and a line that is too long.
    """
    with open_bytes(path) as (content, file):
        stream = io.TextIOWrapper(content, encoding="utf-8-sig", newline="")
        try:
            yield TextLines(Path(path), stream, file)
        except UnicodeDecodeError as error:
            byte = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
            raise InputError(str(path), byte, "UTF-8 text", "Save the file as UTF-8.") from error
