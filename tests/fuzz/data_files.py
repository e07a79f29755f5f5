"""Data set files to fuzz: base files of every layout, changes of their metadata and chunks, and the verdict."""

from __future__ import annotations

import functools
import os
import tempfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import h5py
import numpy as np
from hypothesis import strategies as st

from gcnbatch.data import audit
from gcnbatch.data.chunks import ChunkCache, fletcher32
from gcnbatch.data.graphs import GraphSet, Split
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from tests.builders import build_graphset
from tests.fuzz.metadata import Block, altered, blocks

SECONDS = 1  # processor time of an audit; a base file takes 0.01 s
_SLOWEST = 20.0  # seconds of processor time of a case, which takes less than 1
_NUMBERS = [0, 1, 2, 3, 4, 5, 8, 16, 48, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]


@dataclass(frozen=True)
class Base:
    """A valid file and what can be changed in it."""

    raw: bytes
    blocks: list[Block]
    chunks: list[tuple[int, int]]  # (address, size)


def _write_again(path: Path, growing: str) -> None:
    """Store the arrays in small chunks, so that their index has more than one block."""
    with h5py.File(path) as file:
        arrays = {}
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs["format"], file.attrs["version"] = np.bytes_("gcnbatch"), np.int64(1)
        for name, values in arrays.items():
            chunk = tuple(max(1, -(-length // 7)) for length in values.shape)
            maxshape = {"fixed": values.shape, "rows": (None, *values.shape[1:]), "all": (None,) * values.ndim}[growing]
            options = {"compression": "gzip", "shuffle": True, "fletcher32": True}
            file.create_dataset(name, data=values, chunks=chunk, maxshape=maxshape, **options)


@functools.cache
def bases() -> tuple[Base, ...]:
    """Return files of every kind of chunk index, with few and with many splits, dense and sparse features."""
    dense = build_graphset(6, weights=True, groups=True, splits=True, graph_features=2, n_counts=1, seed=1)
    sparse = build_graphset(6, level="node", features="csr", target="multiclass", seed=1)
    empty = np.zeros(0, np.int64)
    many = replace(dense, splits={f"split{i}": Split(np.arange(i % 3), empty, empty) for i in range(12)})
    kinds: list[tuple[GraphSet, str]] = [(dense, ""), (sparse, ""), (many, "rows"), (dense, "fixed"), (sparse, "all")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.h5"
        return tuple(_base(path, graphs, growing) for graphs, growing in kinds)


def _base(path: Path, graphs: GraphSet, growing: str) -> Base:
    write_graphset(path, graphs)
    if growing:
        _write_again(path, growing)
    file, arrays = audit.open_file(path, ChunkCache(0))
    file.close()
    places = [
        (int(at), int(size)) for one in arrays.values() for at, size in zip(one.addresses, one.sizes, strict=True)
    ]
    return Base(path.read_bytes(), blocks(path.read_bytes()), places)


@st.composite
def changed_files(draw: st.DrawFn) -> bytes:
    """Draw a base file with one to four changes of metadata (with right checksums), chunks or plain bytes."""
    base = draw(st.sampled_from(bases()))
    raw = base.raw
    for _ in range(draw(st.integers(1, 4))):
        raw = draw(st.sampled_from([_metadata, _metadata, _metadata, _chunk, _plain]))(draw, base, raw)
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 19)) == 19 else raw


def _metadata(draw: st.DrawFn, base: Base, raw: bytes) -> bytes:
    """Alter a block: a number, an address of another block or chunk, bytes of another block, or any bytes."""
    block = draw(st.sampled_from(base.blocks))
    width = draw(st.sampled_from([1, 2, 4, 8]))
    places = [one.start for one in base.blocks] + [at for at, _ in base.chunks] + [len(raw)]
    other = draw(st.sampled_from(base.blocks))
    new = draw(
        st.one_of(
            st.sampled_from(_NUMBERS).map(lambda number: (number % 256**width).to_bytes(width, "little")),
            st.sampled_from(places).map(lambda place: place.to_bytes(8, "little")),
            st.integers(0, other.end - other.start - 1).map(lambda at: raw[other.start + at : other.start + at + 24]),
            st.binary(min_size=1, max_size=12),
        )
    )
    known = [at for place in places if (at := raw.find(place.to_bytes(8, "little"), block.start, block.end)) > 0]
    at = draw(st.one_of(st.integers(0, block.end - block.start - 1), *([st.sampled_from(known)] if known else [])))
    return altered(raw, block, at if at < block.end - block.start else at - block.start, new)


def _chunk(draw: st.DrawFn, base: Base, raw: bytes) -> bytes:
    """Put other bytes in the place of a chunk: compressed data of another length, with the right checksum."""
    at, size = draw(st.sampled_from(base.chunks))
    length = draw(st.sampled_from([0, 1, 3, 8, 64, 1000, 131071, 131072, 131073, 1 << 22]))
    packed = zlib.compress(bytes([draw(st.integers(0, 255))]) * length, 9)[: max(size - 4, 0)]
    data = packed.ljust(max(size - 4, 0), b"\0")
    return raw[:at] + (data + fletcher32(data))[:size] + raw[at + size :]


def _plain(draw: st.DrawFn, base: Base, raw: bytes) -> bytes:
    at = draw(st.integers(0, len(raw) - 1))
    new = draw(st.binary(min_size=1, max_size=8))
    return raw[:at] + new + raw[at + len(new) :]


def verdict(raw: bytes) -> str:
    """Open and read a file; return "read" or the line that refuses it. Anything else is an error of gcnbatch."""
    with tempfile.TemporaryDirectory() as folder, patch.object(audit, "_AUDIT_SECONDS", SECONDS):
        path = Path(folder) / "x.h5"
        path.write_bytes(raw)
        begin = sum(os.times()[:4])  # this process and its children
        try:
            with Dataset(path, memory_mb=64) as dataset:
                graphs = dataset.load()
                assert len(graphs.y) == len(graphs.ids) == graphs.n_rows
            line = "read"
        except InputError as error:
            line = str(error).replace(str(path), os.path.basename(path))
            assert "\n" not in line
            assert line.isprintable()
            assert len(line) < 1000
        took = sum(os.times()[:4]) - begin
        assert took < _SLOWEST, f"{took:.1f} s"
        return line
