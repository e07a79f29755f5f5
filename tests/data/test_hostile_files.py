"""Damaged and hostile HDF5 files: each is refused with one line that names the position."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from gcnbatch.data.chunks import fletcher32
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from tests.builders import assert_graphsets_equal, build_graphset

GRAPHS = build_graphset(6, weights=True, groups=True, splits=True, seed=1)
SPARSE = build_graphset(6, level="node", features="csr", target="multiclass", seed=1)
STORAGE: dict[str, Any] = {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}

Change = Callable[[h5py.File], object]


def put(name: str, data: Any, **storage: Any) -> Change:
    """Replace an array, by default in valid storage."""

    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, data=data, **(storage or STORAGE))

    return change


def header(**keys: Any) -> Change:
    """Change keys of the header."""

    def change(file: h5py.File) -> None:
        values = {**json.loads(file["header"][0]), **keys}
        put("header", np.array([json.dumps(values).encode()]))(file)

    return change


def text(raw: bytes) -> Change:
    return put("header", np.array([raw]))


def value(name: str, at: Any, number: Any) -> Change:
    """Change one number of an array."""

    def change(file: h5py.File) -> None:
        file[name][at] = number

    return change


def drop(name: str) -> Change:
    return lambda file: file.__delitem__(name)


def link(name: str, target: Any) -> Change:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = target

    return change


def attribute(name: str, content: Any) -> Change:
    return lambda file: file.attrs.__setitem__(name, content)


def low_level(
    name: str, kind: h5py.h5t.TypeID, prepare: Callable[[Any], object], shape: tuple[int, ...] = (6,)
) -> Change:
    """Create an array through HDF5's own calls."""

    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        prepare(properties)
        h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(shape), properties)

    return change


def plain_chunks(properties: Any) -> None:
    properties.set_chunk((3,))
    properties.set_fletcher32()


def chunk(name: str, raw: bytes, filter_mask: int = 0) -> Change:
    """Replace the stored bytes of an array's first chunk."""

    def change(file: h5py.File) -> None:
        item = file[name]
        item.id.write_direct_chunk((0,) * item.ndim, raw, filter_mask)

    return change


def checked(data: bytes) -> bytes:
    """Append the checksum that HDF5 expects."""
    return data + fletcher32(data)


def blank_padded(file: h5py.File) -> None:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(3)
    kind.set_strpad(h5py.h5t.STR_SPACEPAD)
    low_level("graphs/id", kind, plain_chunks)(file)


def huge(file: h5py.File) -> None:
    del file["nodes/x"]
    file.create_dataset("nodes/x", shape=(10**10, 100), dtype="f4", **STORAGE)


def huge_chunk(file: h5py.File) -> None:
    del file["edges/src"]
    file.create_dataset("edges/src", (30,), "i4", **{**STORAGE, "chunks": (2**29,), "maxshape": (None,)})


def half_stored(file: h5py.File) -> None:
    del file["edges/src"]
    item = file.create_dataset("edges/src", shape=(30,), dtype="i4", **{**STORAGE, "chunks": (10,)})
    item[:10] = 0


def repeated_column(file: h5py.File) -> None:
    pointer = file["nodes/x_csr/indptr"][:]
    first = int(pointer[np.flatnonzero(np.diff(pointer) > 1)[-1]])
    file["nodes/x_csr/indices"][first + 1] = file["nodes/x_csr/indices"][first]


def virtual(file: h5py.File) -> None:
    del file["edges/src"]
    layout = h5py.VirtualLayout(shape=(30,), dtype="i4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "src", shape=(30,))
    file.create_virtual_dataset("edges/src", layout)


def committed(file: h5py.File) -> None:
    file["kind"] = np.dtype("i4")
    del file["graphs/group"]
    kind = h5py.h5t.open(file.id, b"kind")
    low_level("graphs/group", kind, plain_chunks)(file)
    del file["kind"]


def many_names(file: h5py.File) -> None:
    for i in range(1001):
        file.create_group(f"splits/s{i}")


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


I4 = h5py.h5t.STD_I32LE
OTHER_TYPE = "another type; expected"
HEADER_RULE = "expected the header of format version 1"

STRUCTURE: dict[str, tuple[Change, str]] = {
    "soft link": (
        link("graphs/group", h5py.SoftLink("/edges/src")),
        "/graphs/group: a soft, external or user-defined link",
    ),
    "external link": (
        link("edges/weight", h5py.ExternalLink("/etc/passwd", "/x")),
        "/edges/weight: a soft, external or user-defined link; expected arrays stored in the file itself",
    ),
    "cycle": (lambda f: link("edges/again", f["/"])(f), "/edges/again: unknown name"),
    "cycle through splits": (
        lambda f: link("splits/a", f["/"])(f),
        "/splits/a/(edges|graphs|header|nodes|splits): unknown",
    ),
    "unknown array": (put("extra", np.zeros(3)), "/extra: unknown name; expected only the arrays of format version 1"),
    "name with escapes": (put("ex\x1b[31m", np.zeros(3)), r"/'ex\\x1b\[31m': unknown name"),
    "too many names": (many_names, "/splits: 1002 names; expected at most 1000"),
    "group for an array": (lambda f: (drop("edges/src")(f), f.create_group("edges/src")), "/edges/src: an HDF5 group"),
    "array for a group": (lambda f: (drop("splits")(f), put("splits", np.zeros(3))(f)), "/splits: an HDF5 dataset"),
    "type for an array": (lambda f: (drop("edges/src")(f), link("edges/src", np.dtype("i4"))(f)), "an HDF5 datatype"),
    "contiguous": (
        low_level("graphs/group", I4, lambda p: p.set_layout(h5py.h5d.CONTIGUOUS)),
        "/graphs/group: stored without chunks, or outside the file; expected chunked storage",
    ),
    "compact": (low_level("graphs/group", I4, lambda p: p.set_layout(h5py.h5d.COMPACT)), "stored without chunks"),
    "external storage": (
        low_level("graphs/group", I4, lambda p: p.set_external(b"/etc/passwd", 0, 24)),
        "/graphs/group: stored without chunks, or outside the file",
    ),
    "virtual": (virtual, "/edges/src: stored without chunks, or outside the file"),
    "no checksum": (
        put("graphs/group", np.zeros(6, "i4"), chunks=True),
        "/graphs/group: no checksum; expected the fletcher32",
    ),
    "unknown filter": (
        put("graphs/group", np.zeros(6, "i4"), chunks=True, compression="lzf", fletcher32=True),
        "/graphs/group: an unknown compression filter; expected gzip, shuffle and fletcher32 only",
    ),
    "huge shape": (
        huge,
        r"/nodes/x: shape \(10000000000, 100\) declared in a file of \d+ bytes; expected a size that is",
    ),
    "chunks left out": (half_stored, "/edges/src: 1 of 3 chunks stored; expected each of them once"),
    "huge chunk": (
        huge_chunk,
        "/edges/src: chunks of 2147483648 bytes; expected at most 1048576",
    ),
    "skipped checksum": (
        chunk("graphs/group", bytes(131072), filter_mask=7),
        "/graphs/group: chunks stored without their checksum; expected every filter on every chunk",
    ),
    "overfull chunk": (
        chunk("graphs/group", bytes(200_000)),
        "/graphs/group: 200000 bytes stored for a chunk of 131072; expected chunks that fit their size",
    ),
    "chunk without its checksum": (
        chunk("graphs/group", zlib.compress(bytes(131072))),
        r"/graphs/group: chunk 0: wrong checksum\. Copy or convert the data again",
    ),
    "bomb": (
        chunk("graphs/group", checked(zlib.compress(bytes(100 << 20), 9))),
        "/graphs/group: chunk 0: more than 131076 bytes unpacked",
    ),
    "short chunk": (
        chunk("graphs/group", checked(zlib.compress(bytes(24)))),
        "/graphs/group: chunk 0: 24 bytes unpacked instead of 131072",
    ),
    "cut chunk": (
        chunk("graphs/group", checked(zlib.compress(bytes(131072))[:-5])),
        "/graphs/group: chunk 0: compressed data that end too early",
    ),
    "no zlib data": (chunk("graphs/group", checked(b"abcd")), "/graphs/group: chunk 0: Error -3 while decompressing"),
    "texts padded with blanks": (blank_padded, "/graphs/id: texts padded with blanks; expected fixed-length text"),
    "gzip twice": (
        low_level("graphs/group", I4, lambda p: (plain_chunks(p), p.set_deflate(1), p.set_deflate(1))),
        "/graphs/group: repeated filters, or shuffle of another type; expected each filter once",
    ),
    "columns that can grow": (
        put("nodes/x", np.zeros((15, 4), "f4"), **{**STORAGE, "maxshape": (15, None)}),
        "/nodes/x: only the columns can grow; expected rows that can grow, or a fixed shape",
    ),
    "name that is not UTF-8": (
        lambda f: h5py.h5g.create(f.id, b"splits/\xff\x1b[31m"),
        r"/splits: a name that is not UTF-8 \(b'\\xff\\x1b\[31m'\); expected UTF-8 text",
    ),
    "objects": (
        low_level("graphs/id", h5py.h5t.py_create(h5py.string_dtype()), plain_chunks),
        f"/graphs/id: {OTHER_TYPE} fixed-length UTF-8",
    ),
    "variable length": (
        low_level("graphs/group", h5py.h5t.vlen_create(I4), lambda p: p.set_chunk((3,))),
        f"/graphs/group: {OTHER_TYPE} i4, little-endian",
    ),
    "references": (low_level("graphs/group", h5py.h5t.STD_REF_OBJ, plain_chunks), OTHER_TYPE),
    "compound": (put("graphs/group", np.zeros(6, [("a", "i4")])), OTHER_TYPE),
    "opaque": (put("graphs/group", np.zeros(6, "V4")), OTHER_TYPE),
    "booleans": (put("edges/channel", np.zeros(30, bool)), f"/edges/channel: {OTHER_TYPE} u1, little-endian"),
    "big-endian": (put("graphs/group", np.zeros(6, ">i4")), OTHER_TYPE),
    "wide": (put("graphs/group", np.zeros(6, "i8")), OTHER_TYPE),
    "double": (put("nodes/x", np.zeros((15, 4), "f8")), "/nodes/x: another type; expected u1 or i1 or f2 or f4"),
    "committed type": (committed, OTHER_TYPE),
    "long ids": (put("graphs/id", np.zeros(6, "S1025")), "/graphs/id: texts of 1025 bytes; expected at most 1024"),
    "flat features": (put("nodes/x", np.zeros(15, "f4")), r"/nodes/x: shape \(15,\); expected 2 dimensions"),
    "deep ids": (put("graphs/id", np.zeros((6, 1), "S3")), r"/graphs/id: shape \(6, 1\); expected 1 dimension$"),
    "no format": (
        lambda f: f.attrs.__delitem__("format"),
        "an HDF5 file of another program; expected attribute format",
    ),
    "other format": (attribute("format", np.bytes_("gcnbitch")), "an HDF5 file of another program"),
    "variable format": (attribute("format", "gcnbatch"), "an HDF5 file of another program"),
    "huge format": (attribute("format", np.bytes_(b"g" * 60_000)), "an HDF5 file of another program"),
    "no version": (lambda f: f.attrs.__delitem__("version"), r"format version missing; expected version 1 \(int64\)"),
    "later version": (attribute("version", np.int64(2)), "format version 2; expected version 1"),
    "version of text": (attribute("version", np.bytes_("1")), "format version missing"),
    "versions": (attribute("version", np.ones(9, np.int64)), "format version missing"),
}

MEANING: dict[str, tuple[Change, str]] = {
    "no header": (drop("header"), "/header: missing; expected one JSON text"),
    "two headers": (put("header", np.array([b"{}", b"{}"])), "/header: missing"),
    "no JSON": (text(b"{"), "/header: not a JSON text in UTF-8; " + HEADER_RULE),
    "not UTF-8": (text(b'{"name": "\xff"}'), "/header: not a JSON text in UTF-8"),
    "NaN in JSON": (text(b'{"name": NaN}'), "/header: not a JSON text in UTF-8"),
    "deep JSON": (text(nested(100_000)), "/header: not a JSON text in UTF-8"),
    "half a surrogate pair": (header(source={"a": "\ud800"}), "/header: not a JSON text in UTF-8"),
    "a list": (text(b"[]"), "/header: 'header': Input should be a valid dictionary"),
    "unknown key": (header(**{"extra\n": 1}), r"/header: 'extra\\n': Extra inputs are not permitted; " + HEADER_RULE),
    "text for a number": (header(n_features="4"), "/header: 'n_features': Input should be a valid integer"),
    "257 channels": (header(channel_names=[str(i) for i in range(257)]), "/header: 'channel_names': .* at most 256"),
    "4097 tasks": (
        header(task_names=[str(i) for i in range(4097)]),
        "/header: task_names: 4097; expected at most 4096. A model has weights for each of them",
    ),
    "4097 classes": (
        header(target="multiclass", task_names=["a"], class_names=[str(i) for i in range(4097)]),
        "/header: class_names: 4097; expected at most 4096",
    ),
    "3 M features": (header(n_features=3_000_000), "/header: n_features: 3000000; expected at most 262144"),
    "deep featurizer": (
        header(featurizer={"a": json.loads(nested(9))}),
        "/header: featurizer nested too deep; expected at most 8 levels",
    ),
    "deeper featurizer": (header(featurizer={"a": json.loads(nested(300))}), "/header: featurizer nested too deep"),
    "no task": (header(task_names=[]), "/header: 'task_names': .* at least 1"),
    "empty name": (header(task_names=["a", ""]), "/header: task_names: ''; expected names of printable characters"),
    "escape in a name": (header(task_names=["a", "\x1b[31m"]), r"/header: task_names: '\\x1b\[31m'; expected names of"),
    "repeated name": (
        header(channel_names=["a", "a"]),
        "/header: channel_names: 'a' stands there 2 times; expected each",
    ),
    "line in the name": (
        header(name="a\nb"),
        "/header: name or group_kind with control characters; expected printable",
    ),
    "too few feature names": (header(feature_names=["a"]), "/header: 1 feature_names; expected none or 4"),
    "classes of a binary set": (
        header(class_names=["a", "b"]),
        "/header: class_names with a binary target; expected none",
    ),
    "one class": (
        header(target="multiclass", task_names=["a"], class_names=["a"]),
        "/header: 1 class_names; expected at least",
    ),
    "two multiclass tasks": (
        header(target="multiclass", class_names=["a", "b"]),
        "/header: 2 task_names; expected 1 for a",
    ),
    "no edges/dst": (drop("edges/dst"), "/edges/dst: missing; expected an array of this name. Make one with"),
    "no features": (drop("nodes/x"), "/nodes/x: missing"),
    "half a split": (drop("splits/first/test"), "/splits/first/test: missing"),
    "both features": (
        put("nodes/x_csr/data", np.zeros(3, "f4")),
        "/nodes: both x and x_csr are present; expected one of them",
    ),
    "ids of the other level": (
        put("nodes/id", np.zeros(15, "S1")),
        "/nodes/id: present in a graph-level set; expected only",
    ),
    "integer targets": (
        put("graphs/y", np.zeros((6, 2), "i4")),
        "/graphs/y: type int32; expected float32 for a binary target",
    ),
    "no pointer": (
        put("graphs/node_ptr", np.zeros(0, "i8"), maxshape=(None,), **STORAGE),
        "/graphs/node_ptr: no entry; expect",
    ),
    "short edge pointer": (
        put("graphs/edge_ptr", np.zeros(6, "i8")),
        r"/graphs/edge_ptr: shape \(6,\); expected shape \(7,\)",
    ),
    "too many features": (
        put("nodes/x", np.zeros((15, 5), "f4")),
        r"/nodes/x: shape \(15, 5\); expected shape \(15, 4\)",
    ),
    "pointer not from 0": (value("graphs/node_ptr", 0, 1), r"/graphs/node_ptr\[0\]: 1; expected 0"),
    "pointer running back": (
        value("graphs/node_ptr", 2, 3),
        r"/graphs/node_ptr\[2\]: 3 after 5; expected offsets that never",
    ),
    "pointer past the end": (
        value("graphs/edge_ptr", 6, 31),
        r"/graphs/edge_ptr\[6\]: 31; expected 30, the number of rows",
    ),
    "pointer near overflow": (
        value("graphs/edge_ptr", 3, 2**63 - 1),
        r"/graphs/edge_ptr\[4\]: 28 after 9223372036854775807",
    ),
    "pointer below 0": (value("graphs/edge_ptr", 1, -(2**63)), r"/graphs/edge_ptr\[1\]: -9223372036854775808 after 0"),
    "edge to another graph": (value("edges/dst", 12, 4), r"/edges/dst\[12\]: node 4 in graph 1; expected 0 to 3"),
    "edge from below 0": (value("edges/src", 29, -1), r"/edges/src\[29\]: node -1 in graph 4; expected 0 to 0"),
    "edge of an empty graph": (
        value("graphs/edge_ptr", 5, 29),
        r"/edges/src\[29\]: node 0 in graph 5; expected no edge, the",
    ),
    "channel": (value("edges/channel", 7, 2), r"/edges/channel\[7\]: 2; expected 0 to 1"),
    "weight": (value("edges/weight", 3, np.inf), r"/edges/weight\[3\]: inf; expected finite numbers"),
    "feature": (value("nodes/x", (14, 2), np.nan), r"/nodes/x\[14, 2\]: nan; expected finite numbers"),
    "ids not UTF-8": (
        put("graphs/id", np.array([b"\xff"] * 6)),
        "/graphs/id: ids that are not UTF-8; expected UTF-8 text",
    ),
    "id with NUL": (put("graphs/id", np.array([b"a"] * 5 + [b"a\0b"])), r"/graphs/id\[5\]: an id with a NUL inside"),
    "label": (value("graphs/y", (4, 1), 2), r"/graphs/y\[4, 1\]: 2.0; expected 0, 1 or NaN \(missing\)"),
    "infinite value": (
        lambda f: (header(target="regression")(f), value("graphs/y", (4, 1), -np.inf)(f)),
        r"/graphs/y\[4, 1\]: -inf; expected finite numbers or NaN \(missing\)",
    ),
    "group": (value("graphs/group", 2, -1), r"/graphs/group\[2\]: -1; expected 0 or more"),
    "split out of range": (value("splits/first/valid", 1, 6), r"/splits/first/valid\[1\]: 6; expected 0 to 5"),
    "split below 0": (value("splits/first/test", 0, -1), r"/splits/first/test\[0\]: -1; expected 0 to 5"),
    "split overlap": (
        lambda f: put("splits/first/test", f["splits/first/train"][:])(f),
        "/splits/first: row . stands in the",
    ),
    "split name": (lambda f: f.move("splits/first", "splits/a b"), "/splits: a split named 'a b'; expected letters"),
}

IN_SPARSE: dict[str, tuple[Change, str]] = {
    "class": (value("nodes/y", (2, 0), 3), r"/nodes/y\[2, 0\]: 3; expected -1 \(missing\) or a class 0 to 2"),
    "column": (value("nodes/x_csr/indices", 3, 4), r"/nodes/x_csr/indices\[3\]: column 4; expected 0 to 3"),
    "column below 0": (value("nodes/x_csr/indices", 0, -1), r"/nodes/x_csr/indices\[0\]: column -1"),
    "repeated column": (
        repeated_column,
        r"/nodes/x_csr/indices\[\d+\]: column (.) after \1 in row \d+; expected rising columns, each once",
    ),
    "entry": (value("nodes/x_csr/data", 5, np.nan), r"/nodes/x_csr/data\[5\]: nan; expected finite numbers"),
    "sparse pointer": (value("nodes/x_csr/indptr", 3, 10**12), r"/nodes/x_csr/indptr\[4\]: \d+ after 1000000000000"),
    "end of it": (value("nodes/x_csr/indptr", 15, 1), r"/nodes/x_csr/indptr\[1\d?\]: .*; expected"),
    "no indices": (drop("nodes/x_csr/indices"), "/nodes/x_csr/indices: missing"),
    "lengths": (put("nodes/x_csr/indices", np.zeros(3, "i4")), r"/nodes/x_csr/indices: shape \(3,\); expected shape"),
}


def refusal(path: os.PathLike[str], **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        Dataset(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert message.isprintable()
    return message


@pytest.mark.parametrize(("change", "message"), [*STRUCTURE.values(), *MEANING.values()], ids=[*STRUCTURE, *MEANING])
def test_a_bad_file_is_refused_in_one_line(tmp_path, change, message):
    write_graphset(tmp_path / "bad.h5", GRAPHS)
    with h5py.File(tmp_path / "bad.h5", "r+", libver=("v110", "v110")) as file:
        change(file)
    assert re.search(message, refusal(tmp_path / "bad.h5"))


@pytest.mark.parametrize(("change", "message"), IN_SPARSE.values(), ids=IN_SPARSE)
def test_a_bad_sparse_file_is_refused_in_one_line(tmp_path, change, message):
    write_graphset(tmp_path / "bad.h5", SPARSE)
    with h5py.File(tmp_path / "bad.h5", "r+", libver=("v110", "v110")) as file:
        change(file)
    assert re.search(message, refusal(tmp_path / "bad.h5"))


def test_unchecked_reading_still_keeps_within_the_sparse_arrays(tmp_path):
    write_graphset(tmp_path / "bad.h5", SPARSE)
    with h5py.File(tmp_path / "bad.h5", "r+") as file:
        file["nodes/x_csr/indptr"][5] = 10**12
        file["nodes/x_csr/indptr"][9] = -7
    with Dataset(tmp_path / "bad.h5", check=False) as dataset:
        with pytest.raises(InputError, match=r"indptr\[5\]: 1000000000000; expected at most \d+, the number of rows"):
            dataset.read([0])
        with pytest.raises(InputError, match=r"indptr\[9\]: -7; expected at least 0"):
            dataset.read([2])


# ------------------------------------------------------------ not a data set at all


def test_other_files_are_named_for_what_they_are(tmp_path):
    (tmp_path / "text.h5").write_text("graph,label\n")
    (tmp_path / "empty.h5").touch()
    os.mkfifo(tmp_path / "pipe.h5")
    with h5py.File(tmp_path / "old.h5", "w", libver="earliest"):
        pass
    assert refusal(tmp_path / "absent.h5").endswith(
        "absent.h5: no such file; expected an HDF5 data set. Make one with 'gcnbatch data import' or "
        "'gcnbatch data synth'."
    )
    for name in (".", "pipe.h5"):
        assert "not a regular file; expected an HDF5 data set" in refusal(tmp_path / name)
    for name in ("text.h5", "empty.h5"):
        assert f"{name}: not an HDF5 file; expected an HDF5 data set" in refusal(tmp_path / name)
    assert refusal(tmp_path / "old.h5").endswith(
        "old.h5: HDF5 metadata without checksums (superblock 0); expected superblock 3. Make one with 'gcnbatch data "
        "import' or 'gcnbatch data synth'. A program of yours that writes the format opens the file with "
        'libver=("v110", "v110").'
    )


def test_a_file_without_permission_is_refused(tmp_path, monkeypatch):
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    write_graphset(tmp_path / "x.h5", GRAPHS)
    monkeypatch.setattr(Path, "open", denied)
    assert "cannot be read (Permission denied). Check its permissions." in refusal(tmp_path / "x.h5")


# ------------------------------------------------------------ damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A path for damaged copies of a small file, its bytes and its contents."""
    path = tmp_path_factory.mktemp("damage") / "x.h5"
    graphs = replace(build_graphset(4, splits=True, n_features=2, n_tasks=1), groups=None)
    write_graphset(path, graphs)
    return path, path.read_bytes(), graphs


def refused_or_equal(path, raw, graphs) -> bool:
    path.write_bytes(raw)
    try:
        with Dataset(path) as dataset:
            read = dataset.load()
    except InputError:
        return True
    assert_graphsets_equal(read, graphs)
    return False


def test_a_truncated_file_is_refused_wherever_it_ends(whole):
    path, raw, graphs = whole
    lengths = [*range(0, len(raw), len(raw) // 120), len(raw) - 1]
    assert all(refused_or_equal(path, raw[:length], graphs) for length in lengths)


def test_a_flipped_byte_is_refused_or_without_effect(whole):
    path, raw, graphs = whole
    rng = np.random.default_rng(0)
    for at in rng.choice(len(raw), 500, replace=False):
        damaged = bytearray(raw)
        damaged[at] ^= int(rng.integers(1, 256))
        refused_or_equal(path, bytes(damaged), graphs)
    assert not refused_or_equal(path, raw, graphs)


@pytest.mark.parametrize("fill", [0, 255, None])
def test_a_damaged_stretch_is_refused_or_without_effect(whole, fill):
    """A lost sector, zeroed, set or random."""
    path, raw, graphs = whole
    rng = np.random.default_rng(2)
    for _ in range(60):
        at, length = int(rng.integers(len(raw))), int(rng.integers(2, 600))
        stretch = rng.bytes(length) if fill is None else bytes([fill]) * length
        refused_or_equal(path, raw[:at] + stretch + raw[at + length :], graphs)
