"""Node features of a text table, kept on disk until their type and order are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.cells import finite_numbers
from gcnbatch.data.importers.common import compact_type
from gcnbatch.data.importers.scratch import Scratch
from gcnbatch.data.tables.table import Block

BLOCK_BYTES = 1 << 22  # of features returned at a time


class FeatureFile:
    """The feature columns `names` (at least one) of the table `path`; each number takes 4 bytes on disk.

    Attributes
    ----------
    dtype : type
        The type that `compact` would choose for all rows so far.
    """

    def __init__(self, scratch: Scratch, path: Path, names: tuple[str, ...]) -> None:
        self._path, self.names = path, names
        self._rows = scratch.rows(np.float32, len(names))
        self._low, self._high, self._whole = np.inf, -np.inf, True

    @property
    def dtype(self) -> type[np.generic]:
        """Type of the features."""
        return compact_type(self._low, self._high) if self._whole else np.float32

    def add(self, block: Block) -> None:
        """Add the features of the next rows of the table.

        Raises
        ------
        InputError
            For text that is not a finite 32-bit number.
        """
        columns = (finite_numbers(self._path, name, block.columns[name], block.before) for name in self.names)
        x = np.stack(list(columns), axis=1)
        if self._whole:
            self._whole = np.array_equal(x, np.round(x))
            self._low, self._high = min(self._low, x.min()), max(self._high, x.max())
        self._rows.append(x.astype(np.float32))

    def blocks(self, order: NDArray[np.integer[Any]], advance: Callable[[int], object]) -> Iterator[NDArray[Any]]:
        """Yield the rows ``order[0], order[1], …`` of the table in blocks; call `advance` with the size of each."""
        step = max(1, BLOCK_BYTES // (4 * len(self.names)))
        for first in range(0, len(order), step):
            rows = order[first : first + step]
            cuts = np.flatnonzero(np.diff(rows) != 1) + 1
            starts, lasts = rows[np.concatenate([[0], cuts])], rows[np.concatenate([cuts, [len(rows)]]) - 1]
            parts = list(zip(starts.tolist(), (lasts + 1).tolist(), strict=True))
            yield self._rows.read(parts).astype(self.dtype)
            advance(len(rows))
