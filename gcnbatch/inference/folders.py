"""A file of molecules, or a folder of them that is read as one table."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gcnbatch.data.tables.formats import ENDINGS, KNOWN, open_table
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.table import Block, Table
from gcnbatch.errors import InputError
from gcnbatch.text import quoted


@contextmanager
def open_tables(path: Path, wished: TableFormat) -> Iterator[Table]:
    """Open a file, or all files of molecules in a folder in the order of their names.

    The files of a folder have the columns of the first one, in any order.

    Raises
    ------
    InputError
        As `open_table`; for a folder without such files, and a file that lacks a column.
    """
    if not path.is_dir():
        with open_table(path, wished, index=True) as table:
            yield table
        return
    files = sorted(file for file in path.iterdir() if file.name.lower().endswith(ENDINGS))
    if not files:
        raise InputError(str(path), "no file of molecules in it", f"files that end with {KNOWN}")
    with open_table(files[0], wished, index=True) as table:
        names = table.names
    with ExitStack() as stack:
        yield _Folder(path, names, files, wished, stack)


class _Folder(Table):
    """The files of a folder; `stack` closes the one that is open."""

    def __init__(
        self, path: Path, names: tuple[str, ...], files: list[Path], wished: TableFormat, stack: ExitStack
    ) -> None:
        super().__init__(path, names)
        self._files, self._wished, self._stack = files, wished, stack

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of all files; add what was detected to the notes."""
        blocks = self._read()
        self._stack.callback(blocks.close)
        return blocks

    def _read(self) -> Generator[Block]:
        before = 0
        for file in self._files:
            with open_table(file, self._wished, index=True) as table:
                if missing := [name for name in self.names if name not in table.names]:
                    raise InputError(str(file), f"no column {quoted(missing[0])}", f"the columns of {self._files[0]}")
                for block in table.blocks():
                    yield Block(before, {name: block.columns[name] for name in self.names})
                    before += len(block)
                self.notes += [note for note in table.notes if note not in self.notes]
