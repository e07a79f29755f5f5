"""Tables by the ending of their file: text, .smi, SDF, Excel and Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gcnbatch import fileio
from gcnbatch.data.endings import COMPRESSIONS, EXCEL, PARQUET, SDF, SMI
from gcnbatch.data.tables.binary import open_parquet, read_excel
from gcnbatch.data.tables.delimited import open_delimited
from gcnbatch.data.tables.files import open_text
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.sdf import read_sdf
from gcnbatch.data.tables.smi import SmilesLines, has_header
from gcnbatch.data.tables.table import Table


@contextmanager
def open_table(
    path: Path,
    asked: TableFormat | None = None,
    advance: Callable[[int], object] = lambda _: None,
    index: bool = False,
) -> Iterator[Table]:
    """Open a table by its ending; a file with an unknown ending is read as CSV.

    Parameters
    ----------
    path : Path
    asked : TableFormat or None
        Delimiter and encoding of text; None: detected.
    advance : callable
        Called with the number of bytes read of text and Parquet, block by block.
    index : bool
        A first column of text may lack a name, as pandas writes row numbers; it is called ROW_INDEX.

    Raises
    ------
    InputError
        For a missing or damaged file and a table without a header line.
    MachineError
        When the library for the format is not installed.
    """
    asked = asked or TableFormat()
    asked.check()
    fileio.open_regular(path, "a readable file").close()
    name = path.name.lower()
    kind = Path(name.removesuffix(next(filter(name.endswith, COMPRESSIONS), ""))).suffix
    if kind in SMI:
        with open_text(path, asked.encoding) as file:
            first = next((line for line in file.lines() if line.strip()), "")
        if not has_header(first) or "\t" not in first:
            with open_text(path, asked.encoding) as file:
                yield SmilesLines(file)
            return
        asked = TableFormat("\t", asked.decimal, asked.encoding)
    elif kind in SDF:
        yield read_sdf(path, asked.encoding)
        return
    elif name.endswith(EXCEL):
        yield read_excel(path)
        return
    elif name.endswith(PARQUET):
        with open_parquet(path, advance) as table:
            yield table
        return
    with open_delimited(path, asked, advance, index) as table:
        yield table
