"""Hostile tables and SMILES: long lines, wide rows, gzip bombs, huge molecules; and the verdict under limits."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pyarrow
from hypothesis import strategies as st
from pyarrow import parquet

from gcnbatch.data import guard
from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit
from gcnbatch.data.importers.molecule_tables import read_molecules
from gcnbatch.data.importers.plain_csv import import_csv
from gcnbatch.data.molecule_graphs import featurize
from gcnbatch.data.tables import binary, files, table
from gcnbatch.errors import InputError

MEMORY_MB, SECONDS = 96, 10  # of one case; it takes less than 1 s
ENDINGS = ("csv", "tsv", "smi", "cxsmiles", "sdf")
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True),
}
HEADS = (b"# x\nsmiles,y,\n", b"smiles\tid\n", b"mol,y\n", b"\xff\xfe", b"\n\n\n\nM  END\n>  <y>\n")
UNITS = (
    b"\0",
    b"C",
    b",",
    b"\n",
    b"\r",
    b'"',
    b"C,1\n",
    b'"\n",',
    b"1,1\n",
    b" \n",
    b"$$$$\n",
    b"\xff",
    b"a,b,",
    b"#\n",
    b"C |a|\n",
    b">  <>\n",
)
SMALL = (
    (files, "MAX_ROW", 1 << 12),
    (files, "FREE_BYTES", 1 << 16),
    (files, "BLOCK_CHARS", 1 << 10),
    (table, "MAX_COLUMNS", 1 << 10),
    (binary, "_FREE_CELLS", 1 << 16),
)


@dataclass(frozen=True)
class Table:
    """A file that repeats `unit` up to `size` bytes."""

    ending: str
    head: bytes
    unit: bytes
    size: int
    tail: bytes

    def content(self) -> bytes:
        raw = self.head + self.unit * (self.size // len(self.unit)) + self.tail
        return PACKERS[self.ending.removeprefix(self.ending.split(".")[0])](raw)


def hostile_tables() -> st.SearchStrategy[Table]:
    """Draw files of molecules or edges with something that is repeated very often."""
    return st.builds(
        Table,
        st.sampled_from([f"{ending}{packer}" for ending in ENDINGS for packer in PACKERS]),
        st.sampled_from([b"smiles,y\n", b"smiles\ty\nC\t1\n", b"src,dst\n", b'smiles,"', b"", *HEADS]),
        st.one_of(st.sampled_from(UNITS), st.binary(min_size=1, max_size=5)),
        st.sampled_from([1 << 10, 1 << 14, 1 << 18]),
        st.sampled_from([b"", b"\n", b'"\n', b"C,1\n"]),
    )


@cache
def parquet_bytes() -> tuple[bytes, ...]:
    """Return Parquet files with dictionaries, lists, several row groups and every compression that is common."""
    sets = (
        {"smiles": ["C", "CC", None] * 50, "y": [0.5, None, 1.5] * 50},
        {"smiles": pyarrow.array(["C", "CC"] * 20).dictionary_encode(), "y": [[1, 2], [3]] * 20},
    )
    found = []
    for columns in sets:
        for compression in ("none", "snappy", "zstd", "gzip"):
            stream = io.BytesIO()
            parquet.write_table(pyarrow.table(columns), stream, compression=compression, row_group_size=30)
            found.append(stream.getvalue())
    return tuple(found)


@st.composite
def changed_parquet(draw: st.DrawFn) -> bytes:
    """Draw a Parquet file with one or two changes, most of them in its footer, and sometimes cut."""
    raw = draw(st.sampled_from(parquet_bytes()))
    for _ in range(draw(st.integers(1, 2))):
        footer = int.from_bytes(raw[-8:-4], "little") + 8
        first = max(len(raw) - footer, 0) if draw(st.integers(0, 3)) else 0
        at = draw(st.integers(first, len(raw) - 1))
        new = draw(st.one_of(st.binary(min_size=1, max_size=1), st.sampled_from([b"\xff" * 5 + b"\x7f", b"\0" * 8])))
        raw = raw[:at] + new + raw[at + len(new) * (draw(st.integers(0, 5)) > 0) :]
    return raw[: draw(st.integers(12, len(raw)))] if draw(st.integers(0, 9)) == 9 else raw


def read_parquet(raw: bytes) -> str:
    """Read a Parquet file; return "read" or the line that refuses it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.parquet"
        path.write_bytes(raw)
        begun = time.process_time()
        line = _outcome(read_molecules, path)
        assert line.isprintable()
        assert len(line) < 400, f"{len(line)} characters"
        assert time.process_time() - begun < 60
        return line


@st.composite
def hostile_smiles(draw: st.DrawFn) -> str:
    """Draw a SMILES that repeats something: chains, rings, branches, brackets, salts, and texts that are none."""
    unit = draw(
        st.one_of(
            st.sampled_from(
                ["C", "c", "C(C)", "C(", "C1CC1", "[H]", "[", "[13C@@H]", "C.", "c1ccccc1", "%", "=", "(", "*"]
            ),
            st.text("CNOcno()[]=#1234%.@/\\+-H*", min_size=1, max_size=8),
            st.text(min_size=1, max_size=4),
        )
    )
    body = unit * draw(st.sampled_from([1, 30, 600, 3_000, 50_000]))
    before, after = draw(st.sampled_from([("", ""), ("C1", "1"), ("c1", "1"), ("[", "]"), ("C(", ")")]))
    return f"{before}{body}{after}"


def read_table(ending: str, raw: bytes) -> str:
    """Read a table as molecules and as edges, under limits; return for each "read" or the line that refuses it."""
    _warm_up()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"x.{ending}"
        path.write_bytes(raw)

        def read() -> str:
            for module, limit, value in SMALL:
                setattr(module, limit, value)
            return "\n".join(_outcome(reader, path) for reader in (read_molecules, _read_edges))

        lines = limited(read).split("\n")
    assert len(lines) == 2
    for line in lines:
        assert line.isprintable()
        assert len(line) < 600, f"{len(line)} characters"
    return " | ".join(lines)


def _outcome(reader: Callable[[Path], object], path: Path) -> str:
    try:
        reader(path)
    except InputError as error:
        return str(error).replace(str(path), path.name)
    return "read"


def _read_edges(path: Path) -> None:
    nodes = path.with_name("nodes.csv")
    nodes.write_text("node,y\n1,0\n2,1\n")
    import_csv(path.with_name("out.h5"), edges=path, nodes=nodes, node_targets=["y"])


@cache
def _warm_up() -> None:
    """Import what a case needs, so that its memory does not count."""
    load_rdkit()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.csv"
        path.write_text("src,dst\n1,2\n")
        _read_edges(path)


def read_smiles(texts: list[str], seconds: float = SECONDS) -> list[str]:
    """Featurise SMILES among good ones; return the reason for each, "" where it gives a graph."""
    rows = [one for text in texts for one in ("C", text)] + ["C"]
    reasons = [""] * len(rows)
    with patch.object(guard, "SECONDS", seconds):
        parts = list(featurize(rows, FeaturizerOptions(), processes=1, scaffolds=True))
    for part in parts:
        for bad in part.bad:
            reasons[bad.index] = bad.reason
            assert bad.reason.isprintable()
            assert len(bad.reason) < 120
    assert sum(len(part.rows) for part in parts) == reasons.count("")
    places = [one for part in parts for one in sorted([*part.rows, *(bad.index for bad in part.bad)])]
    assert places == list(range(len(rows)))
    assert not any(reasons[::2]), "a good row is lost"
    return reasons[1::2]


def limited(function: Callable[[], str]) -> str:
    """Return what `function` returns in a forked process with little memory and processor time."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            gc.disable()
            with open("/proc/self/statm") as stream:
                size = int(stream.read().split()[0]) * resource.getpagesize() + (MEMORY_MB << 20)
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            with open(writer, "w", encoding="utf-8") as answer:
                answer.write(function())
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}"[:500], file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, encoding="utf-8") as answer:
        line = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"exit status {status}"
    return line
