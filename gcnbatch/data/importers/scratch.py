"""Temporary files of rows: data that an import has read and cannot write yet."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gcnbatch.fileio import StrPath


class Scratch(ExitStack):
    """Creates unnamed temporary files in the folder of `path`; they disappear at the end of the block."""

    def __init__(self, path: StrPath) -> None:
        super().__init__()
        self._folder = Path(os.path.realpath(path)).parent

    def rows(self, dtype: DTypeLike, width: int = 1) -> RowFile:
        """Return a new file of rows of `width` values; `dtype` may have fields."""
        return RowFile(self.enter_context(tempfile.TemporaryFile(dir=self._folder)), np.dtype(dtype), width)


class RowFile:
    """Rows of one type and width in a file.

    Attributes
    ----------
    count : int
        Number of rows.
    """

    def __init__(self, stream: IO[bytes], dtype: np.dtype[Any], width: int) -> None:
        self._stream, self.dtype, self.width, self.count = stream, dtype, width, 0

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows, (n, width) or (n,)."""
        self._stream.seek(0, os.SEEK_END)
        self._stream.write(np.ascontiguousarray(rows, self.dtype).data)
        self.count += len(rows)

    def read(self, parts: list[tuple[int, int]]) -> NDArray[Any]:
        """Return the rows ``start … stop-1`` of all parts, concatenated, (n, width)."""
        rows = np.empty((sum(stop - start for start, stop in parts), self.width), self.dtype)
        filled = 0
        for start, stop in parts:
            self._stream.seek(start * self.width * self.dtype.itemsize)
            self._stream.readinto(rows[filled : filled + stop - start])  # type: ignore[attr-defined]
            filled += stop - start
        return rows
