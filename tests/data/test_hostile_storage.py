"""HDF5 files with hostile links, types and storage, and files of other programs: each is refused in one line."""

from __future__ import annotations

import errno
import os
import re
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from gcnbatch.data.store import write_graphset
from tests.data.file_changes import (
    GRAPHS,
    STORAGE,
    Change,
    attribute,
    bad_file,
    checked,
    chunk,
    drop,
    link,
    low_level,
    plain_chunks,
    put,
    refusal,
)

pytestmark = pytest.mark.hostile


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


I4 = h5py.h5t.STD_I32LE
OTHER_TYPE = "another type; expected"

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
    "name with escapes": (put("ex\x1b[31m", np.zeros(3)), r"/ex\\x1b\[31m: unknown name"),
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
        chunk("graphs/group", checked(zlib.compress(bytes(20 << 20), 9))),
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
    "long ids": (put("graphs/id", np.zeros(6, "S1025")), "/graphs/id: texts of 1,025 bytes; expected at most 1024"),
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


@pytest.mark.parametrize(("change", "message"), STRUCTURE.values(), ids=STRUCTURE)
def test_bad_storage_is_refused_in_one_line(tmp_path, change, message):
    assert re.search(message, refusal(bad_file(tmp_path, change)))


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
    assert "not a regular file; expected an HDF5 data set" in refusal(tmp_path / "pipe.h5")
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
