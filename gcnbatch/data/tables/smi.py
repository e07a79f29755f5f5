"""Files of SMILES: a SMILES a line, then its name; and the extensions of CXSMILES, which are left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from gcnbatch.data.tables.files import TextFile
from gcnbatch.data.tables.layout import names_smiles
from gcnbatch.data.tables.table import Block, Table
from gcnbatch.text import counted

_NAMES = ("smiles", "id")
_ROWS = 4096  # of a block
_EXTENDED = re.compile(r"(\S+)\s+\|[^|]*\|")
_LINE = re.compile(r"\s*(?P<smiles>\S+)(?:\s+(?P<extension>\|[^|]*\|))?(?:\s+(?P<rest>.*))?")


def without_extension(text: str) -> str:
    """Return a SMILES without the extension of CXSMILES after it: ``CC[C@H](C)O |&1:2|`` gives ``CC[C@H](C)O``."""
    if not text.endswith("|"):
        return text
    found = _EXTENDED.fullmatch(text)
    return found[1] if found else text


def about_extensions(count: int) -> list[str]:
    """Return the note for so many SMILES with an extension."""
    what = counted(count, "SMILES has an extension", "SMILES have extensions")
    is_left = "is left out: the SMILES alone is" if count == 1 else "are left out: the SMILES alone are"
    return [f"{what} of CXSMILES (|…|), which {is_left} read"] if count else []


def has_header(line: str) -> bool:
    """Whether the first line of a file of SMILES is a header line."""
    return names_smiles(line.split(maxsplit=1)[0].lstrip("#")) if line.strip() else False


class SmilesLines(Table):
    """Lines of a SMILES, its extension, and after a blank the name of the molecule; a header line is left out.

    Of fields between tabs the first after the SMILES is the name. The id of a molecule without one is blank.
    """

    def __init__(self, file: TextFile) -> None:
        super().__init__(file.path, _NAMES)
        self._lines = (line for line in file.lines() if line.strip())

    def blocks(self) -> Iterator[Block]:
        """Yield the rows, block by block."""
        first = next(self._lines, "")
        records = self._records(self._lines if not first or has_header(first) else chain([first], self._lines))
        before = 0
        while some := list(islice(records, _ROWS)):
            yield Block.of(before, _NAMES, some)
            before += len(some)

    def _records(self, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
        extended = longer = 0
        for line in lines:
            found = _LINE.match(line)
            assert found is not None  # the line is not blank
            name, _, more = (found["rest"] or "").strip().partition("\t")
            extended += found["extension"] is not None
            longer += bool(more.strip())
            yield found["smiles"], name.strip()
        self.notes += about_extensions(extended)
        if longer:
            what = counted(longer, "line has", "lines have")
            self.notes.append(f"{what} more fields after the name, which are left out; a header line would name them")
