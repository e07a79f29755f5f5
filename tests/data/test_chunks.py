"""Reading chunks without libhdf5: the same values as libhdf5 reads, for every layout that the format allows."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import zlib

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.data import audit, chunks
from gcnbatch.data.audit import open_file
from gcnbatch.data.chunks import ChunkCache, ChunkFile, StoredArray, unpack
from gcnbatch.errors import InputError

TYPES = {"edges/src": "<i4", "edges/channel": "u1", "graphs/node_ptr": "<i8", "nodes/x": "<f4", "graphs/y": "<f4"}
FILTERS = st.sets(st.sampled_from(["compression", "shuffle"]))


def write(path, arrays, options):
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs["format"], file.attrs["version"] = np.bytes_("gcnbatch"), np.int64(1)
        for name, values in arrays.items():
            file.create_dataset(name, data=values, fletcher32=True, **options[name])


@st.composite
def layouts(draw):
    """Draw an array's name, values and storage: one chunk, a fixed array, an extensible array or a B-tree of chunks."""
    name = draw(st.sampled_from(sorted(TYPES)))
    rank = 2 if name in ("nodes/x", "graphs/y") else 1
    shape = tuple(draw(st.integers(1, 60 if rank == 2 else 3000)) for _ in range(rank))
    chunk = tuple(draw(st.integers(1, length)) for length in shape)
    chunk = tuple(max(step, -(-length // 60)) for step, length in zip(chunk, shape, strict=True))
    growing = draw(st.sampled_from([shape, (None, *shape[1:]), (None,) * rank]))
    used = {"compression": "gzip", "shuffle": True}
    storage = {key: used[key] for key in draw(FILTERS)} | {"chunks": chunk, "maxshape": growing}
    seed = draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).integers(
        0, draw(st.sampled_from([2, 256])), (*shape, np.dtype(TYPES[name]).itemsize)
    )
    values = np.nan_to_num(raw.astype("u1").view(TYPES[name])[..., 0])
    return name, values, storage


@settings(max_examples=150, derandomize=True)
@given(layouts(), st.data())
def test_every_layout_gives_the_values_that_libhdf5_reads(tmp_path_factory, layout, data):
    name, values, storage = layout
    path = tmp_path_factory.mktemp("layout") / "x.h5"
    write(path, {name: values}, {name: storage})
    file, arrays = open_file(path, ChunkCache(data.draw(st.sampled_from([0, 500, 1 << 20]))))
    start, stop = sorted(data.draw(st.integers(0, len(values))) for _ in range(2))
    stored = arrays[name]
    assert (stored.shape, stored.dtype, stored.nbytes) == (values.shape, values.dtype, values.nbytes)
    np.testing.assert_array_equal(stored[:], values)
    np.testing.assert_array_equal(stored[start:stop], values[start:stop])
    np.testing.assert_array_equal(stored[start:], values[start:])
    file.close()


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 7, b"\xff" * 6, b"\xff\xff\0\0", bytes(range(256)) * 5, b"\xff" * 100_001]
)
def test_the_checksum_is_that_of_libhdf5(tmp_path, data):
    """Also where the sums are multiples of 65535, which libhdf5 does not reduce to 0."""
    if data:
        with h5py.File(tmp_path / "x.h5", "w") as file:
            item = file.create_dataset("x", data=np.frombuffer(data, "u1"), chunks=(len(data),), fletcher32=True)
            stored = item.id.read_direct_chunk((0,))[1]
        assert stored == data + chunks.fletcher32(data)
    else:
        assert chunks.fletcher32(data) == bytes(4)


def test_parts_of_chunks_are_unpacked_once_and_whole_ones_are_not_kept(tmp_path, monkeypatch):
    write(tmp_path / "x.h5", {"edges/src": np.arange(100, dtype="<i4")}, {"edges/src": {"chunks": (10,)}})
    file, arrays = open_file(tmp_path / "x.h5", ChunkCache(80))  # two chunks
    unpacked = []
    monkeypatch.setattr(chunks, "unpack", lambda *arguments: unpacked.append(1) or unpack(*arguments))

    def cost(start, stop):
        unpacked.clear()
        np.testing.assert_array_equal(arrays["edges/src"][start:stop], np.arange(start, stop))
        return len(unpacked)

    assert [cost(0, 3), cost(3, 6), cost(12, 13), cost(5, 12)] == [1, 0, 1, 0]
    assert [cost(25, 26), cost(12, 13), cost(0, 1)] == [1, 0, 1]  # the chunk unused for longest has gone
    assert [cost(40, 60), cost(40, 60)] == [2, 2]
    assert cost(7, 7) == 0
    file.close()


@pytest.fixture
def small_parts(tmp_path, monkeypatch):
    """An array whose chunks fit in no cache, the reading of three of its rows, and the chunks unpacked so far."""
    values = np.arange(1000, dtype="<f4").reshape(100, 10)
    storage = {"chunks": (20, 10), "compression": "gzip"}
    write(tmp_path / "x.h5", {"nodes/x": values}, {"nodes/x": storage})
    unpacked = []
    monkeypatch.setattr(chunks, "unpack", lambda *arguments: unpacked.append(1) or unpack(*arguments))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    file, arrays = open_file(tmp_path / "x.h5", ChunkCache(0))

    def read(row):
        np.testing.assert_array_equal(arrays["nodes/x"][row : row + 3], values[row : row + 3])

    yield file, read, unpacked
    file.close()


def test_a_chunk_is_unpacked_twice_and_then_read_from_a_file_without_a_name(small_parts, tmp_path):
    file, read, unpacked = small_parts
    for row in [3, 7, 3, 16, 0, 17]:
        read(row)
    assert len(unpacked) == 2
    for row in [18, 19, 38, 39, 38]:  # over the border of two chunks
        read(row)
    assert len(unpacked) == 3 * 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]
    file.close()


def test_without_room_on_disk_chunks_are_unpacked_again(small_parts, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    _, read, unpacked = small_parts
    monkeypatch.setattr("os.pwrite", full)
    for row in [3, 7, 3, 16]:
        read(row)
    assert len(unpacked) == 4


def test_a_forked_process_writes_no_chunk_into_the_file_of_its_parent(small_parts):
    _, read, unpacked = small_parts
    read(0)
    read(0)
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(AssertionError):
            for row in [21, 22, 23, 0, 2]:
                read(row)
            code = 0 if len(unpacked) == 2 + 3 else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for row in [41, 42, 43, 0]:
        read(row)
    assert len(unpacked) == 2 + 2


def test_threads_share_a_file(tmp_path):
    values = np.arange(20_000, dtype="<i4")
    write(tmp_path / "x.h5", {"edges/src": values}, {"edges/src": {"chunks": (64,), "compression": "gzip"}})
    file, arrays = open_file(tmp_path / "x.h5", ChunkCache(1000))
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(100):
            start, stop = sorted(rng.integers(0, len(values), 2))
            if not np.array_equal(arrays["edges/src"][start:stop], values[start:stop]):
                wrong.append((start, stop))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    file.close()


@settings(max_examples=300, derandomize=True)
@given(st.binary(max_size=200), st.lists(st.sampled_from([1, 2, 3]), unique=True, max_size=3), st.booleans())
def test_any_bytes_unpack_to_their_size_or_are_refused(raw, filters, checked):
    """Memory beyond the chunk is never read, whatever the file holds."""
    raw = raw + chunks.fletcher32(raw) if checked else raw
    with contextlib.suppress(ValueError, zlib.error):
        assert len(unpack(raw, tuple(filters), 4, 64)) == 64


@pytest.mark.parametrize(
    "places",
    [[(0, 50), (40, 10)], [(90, 20)], [(-8, 10)], [(0, 10), (0, 10)], [(2**62, 2**62)], [(5, 2**63 - 3)]],
    ids=["overlap", "past the end", "negative", "twice", "far", "overflow"],
)
def test_chunks_that_overlap_or_lie_outside_are_refused(tmp_path, places):
    with pytest.raises(
        InputError, match=r"x\.h5: chunks that overlap or lie outside the file; expected each stored byte"
    ):
        audit._check_places(tmp_path / "x.h5", np.array(places, np.int64), 100)


def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path):
    (tmp_path / "x.h5").write_bytes(b"abcd" + chunks.fletcher32(b"abcd"))
    file = ChunkFile(tmp_path / "x.h5", ChunkCache(0))
    place = np.zeros(1, np.int64), np.full(1, 8)
    array = StoredArray(file, "edges/channel", np.dtype("u1"), (4,), (4,), (chunks.FLETCHER32,), *place)
    assert bytes(array[:]) == b"abcd"
    (tmp_path / "x.h5").write_bytes(b"abc")
    message = f"{tmp_path}/x.h5:/edges/channel: chunk 0: wrong checksum. Copy or convert the data again."
    with pytest.raises(InputError, match=re.escape(message)):
        array[:]
    file.close()
    file.close()
