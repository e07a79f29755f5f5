"""Text files with one matrix of numbers: no header line, one row per line, numbers separated by commas."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.tables.files import open_text
from gcnbatch.errors import InputError
from gcnbatch.text import QUOTED, counted, printable, quoted

_QUOTES = "'\" "
_BAD_NUMBER = re.compile(r"could not convert string (?P<text>.*) to \w+ at row (?P<row>\d+), column (?P<column>\d+)")
_BAD_WIDTH = re.compile(r"number of columns changed from (?P<old>\d+) to (?P<new>\d+) at row (?P<row>\d+)")


class NumberReader:
    """Reads a matrix from the top, in blocks of rows."""

    def __init__(self, path: Path, stream: Iterable[str], dtype: type[np.generic]) -> None:
        self._path, self._stream, self._dtype = path, _lines(path, stream), dtype
        self._done = 0
        self._width: int | None = None

    def read(self, rows: int | None = None) -> NDArray[Any]:
        """Return the next `rows` rows (None: all remaining ones), shape (rows, columns).

        Raises
        ------
        InputError
            For text that is not a number, rows of different length, and a file that ends early.
        """
        if rows == 0:
            return np.zeros((0, self._width or 0), dtype=self._dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "contained no data": the caller's message is better
                values: NDArray[Any] = np.loadtxt(
                    islice(self._stream, rows), dtype=self._dtype, delimiter=",", comments=None, ndmin=2
                )
        except ValueError as error:
            if isinstance(error, UnicodeDecodeError):
                raise
            raise self._explain(error) from error
        if rows is not None and len(values) != rows:
            raise InputError(str(self._path), f"ends after row {self._done + len(values)}", f"row {self._done + rows}")
        if len(values):
            if self._width not in (None, values.shape[1]):
                raise InputError(
                    f"{self._path}, row {self._done + 1}", counted(values.shape[1], "number"), f"{self._width}"
                )
            self._width = values.shape[1]
        self._done += len(values)
        return values

    def blocks(self, rows: int, most: int) -> Iterator[NDArray[Any]]:
        """Yield the only `rows` rows, finite numbers, at most `most` at a time; raise as `read`."""
        for before in range(0, rows, most):
            values = self.read(min(most, rows - before))
            _check_finite(self._path, values, before)
            yield values
        self.finish()

    def finish(self) -> None:
        """Check that only blank lines remain."""
        if next(self._stream, None) is not None:
            raise InputError(str(self._path), f"goes on after row {self._done}", counted(self._done, "row"))

    def _explain(self, error: ValueError) -> InputError:
        if found := _BAD_NUMBER.search(str(error)):
            what = "a whole number" if np.issubdtype(self._dtype, np.integer) else "a number"
            row = self._done + int(found["row"]) + 1
            got = quoted(found["text"].strip(_QUOTES))
            return InputError(f"{self._path}, row {row}, column {found['column']}", got, what)
        if found := _BAD_WIDTH.search(str(error)):
            row = self._done + int(found["row"])
            return InputError(f"{self._path}, row {row}", f"{found['new']} numbers", found["old"])
        return InputError(str(self._path), printable(str(error), 2 * QUOTED), "numbers separated by commas")


def _lines(path: Path, stream: Iterable[str]) -> Iterator[str]:
    """Yield the lines that are not blank; refuse other characters than ASCII, on which NumPy 2.4 crashes."""
    for number, line in enumerate(stream, start=1):
        if not line.isascii():
            raise InputError(f"{path}, line {number}", quoted(line.strip()), "numbers in ASCII")
        if not line.isspace():
            yield line


@contextmanager
def open_numbers(path: Path, dtype: type[np.generic]) -> Iterator[NumberReader]:
    """Open a matrix (also .gz) to read it in blocks."""
    with open_text(path) as file:
        yield NumberReader(path, file.lines(), dtype)


def load_numbers(path: Path, dtype: type[np.generic], *, rows: int | None = None) -> NDArray[Any]:
    """Return the whole matrix, shape (rows, columns); `rows` is the required number, None any number but 0."""
    with open_numbers(path, dtype) as reader:
        values = reader.read()
    if rows is None and len(values) == 0:
        raise InputError(str(path), "empty file", "numbers separated by commas")
    if rows is not None and len(values) != rows:
        raise InputError(str(path), counted(len(values), "row"), f"{rows}")
    _check_finite(path, values)
    return values


def _check_finite(path: Path, values: NDArray[Any], before: int = 0) -> None:
    """Refuse the first number that is not finite, of rows after `before` others."""
    if not np.isfinite(values).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        place = f"{path}, row {before + row + 1}, column {column + 1}"
        raise InputError(place, str(values[row, column]), "a finite number")
