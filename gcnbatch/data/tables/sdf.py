"""SDF files: structures as SMILES, titles as ids, and data items as columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO

from gcnbatch.data import guard
from gcnbatch.data.featurizer import load_rdkit
from gcnbatch.data.refusals import UNREADABLE
from gcnbatch.data.tables import files
from gcnbatch.data.tables.binary import check_cells
from gcnbatch.data.tables.files import open_bytes, wrong_encoding
from gcnbatch.data.tables.table import Block, Table, checked_names
from gcnbatch.errors import InputError
from gcnbatch.text import counted, listed, quoted

_RECORDS = 256  # that a forked process reads
_ITEM = re.compile(r">[^<]*<(.*)>[^>]*")  # the header line of a data item, with the name of the property
_PLAIN_ITEM = re.compile(r">\s+<(.+)>\s*(?:\(.*\))?")  # one that no value looks like
_END = re.compile(rb"^M {1,2}END[^\n]*\n?", re.MULTILINE)


@dataclass
class _Record:
    """A record: its mol block, title and properties; how many properties lack a name, and which stand there again."""

    block: bytes
    title: str
    values: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0
    again: set[str] = field(default_factory=set)
    smiles: str = UNREADABLE

    def read_items(self, text: str) -> None:
        """Read the data items after the mol block: ``> <name>``, lines of the value, and a blank line."""
        name, lines, ended = "", list[str](), True
        for line in text.replace("\r\n", "\n").split("\n"):
            item = (_ITEM if ended else _PLAIN_ITEM).fullmatch(line.rstrip())
            if item is not None or (ended and line.startswith(">")):
                self._add(name, "\n".join(lines).strip())
                name, lines, ended = item[1].strip() if item else "", [], False
            else:
                lines.append(line)
                ended = ended or not line.strip()
        self._add(name, "\n".join(lines).strip())

    def _add(self, name: str, value: str) -> None:
        if not name:
            self.unnamed += bool(value)
        elif name not in self.values:
            self.values[name] = value
        elif value != self.values[name]:
            self.again.add(name)
            self.values[name] += f"\n{value}"


def read_sdf(path: Path, encoding: str | None) -> Table:
    """Read structures as SMILES, titles as ids, and properties as further columns; all are in memory.

    A property that a record has again with another value has all of them, a line each.
    """
    load_rdkit()
    found: list[_Record] = []
    with open_bytes(path) as (content, _):
        records = _records(path, content, encoding)
        while some := list(islice(records, _RECORDS)):
            texts = guard.each(_smiles_of, [record.block for record in some], "RDKit", UNREADABLE)
            for record, smiles in zip(some, texts, strict=True):
                record.smiles, record.block = smiles, b""
            found += some
    keys = list(dict.fromkeys(key for record in found for key in record.values))
    check_cells(path, len(found), len(keys))
    titled = any(record.title for record in found)
    first = ("smiles", "id") if titled else ("smiles",)
    names = checked_names(path, (*first, *(f"{key} (property)" if key.lower() in first else key for key in keys)))
    columns = [[record.smiles for record in found], *([[record.title for record in found]] if titled else [])]
    columns += [[record.values.get(key, "") for record in found] for key in keys]
    return Table(path, names, [Block(0, dict(zip(names, columns, strict=True)))], _notes(found))


def _notes(records: list[_Record]) -> list[str]:
    notes = []
    unnamed = [row for row, record in enumerate(records, 1) if record.unnamed]
    if unnamed:
        count = sum(record.unnamed for record in records)
        what = counted(count, "property without a name is", "properties without a name are")
        notes.append(f"{what} left out, the first in record {unnamed[0]}")
    again = Counter(name for record in records for name in record.again)
    if again:
        shown = listed(f"{quoted(name)} in {counted(count, 'record')}" for name, count in again.items())
        row = next(row for row, record in enumerate(records, 1) if record.again)
        notes.append(f"properties with several values, all kept, a line each: {shown}; the first in record {row}")
    return notes


def _records(path: Path, content: IO[bytes], encoding: str | None) -> Iterator[_Record]:
    """Yield the records of an SDF file."""
    number, lines, size = 1, [], 0
    while line := content.readline(files.MAX_ROW):
        size += len(line)
        if size >= files.MAX_ROW:
            raise InputError(f"{path}, record {number}", f"more than {files.MAX_ROW:,} bytes", "a molecule")
        if not line.startswith(b"$$$$"):
            lines.append(line)
            continue
        yield _record(f"{path}, record {number}", b"".join(lines), encoding)
        number, lines, size = number + 1, [], 0
    if b"".join(lines).strip():
        yield _record(f"{path}, record {number}", b"".join(lines), encoding)


def _record(place: str, raw: bytes, encoding: str | None) -> _Record:
    end = _END.search(raw)
    block = raw[: end.end()] if end else raw
    try:
        title, rest = (text.decode(encoding or "utf-8") for text in (block.split(b"\n", 1)[0], raw[len(block) :]))
    except UnicodeError as error:
        raise wrong_encoding(place, encoding or "utf-8", error, encoding is not None) from error
    record = _Record(block + b"$$$$\n", title.strip())
    record.read_items(rest)
    return record


def _smiles_of(block: bytes) -> str:
    """Return the SMILES of a mol block, in a forked process."""
    chem = load_rdkit()
    try:
        molecule = next(iter(chem.ForwardSDMolSupplier(BytesIO(block))), None)
        return UNREADABLE if molecule is None else str(chem.MolToSmiles(molecule))
    except (RuntimeError, ValueError):  # of RDKit's C++ code
        return UNREADABLE
