"""Opening an HDF5 file that may be damaged or hostile.

HDF5 can name other files, load plugins, declare terabytes in a few bytes and build Python objects. So the structure of
the file is checked before any value is read. Only known names are allowed, reached by hard links, and only plain arrays
of the exact type. Their chunks have a bounded size, are all stored, and all carry a checksum. The numbers in brackets
are the rules of ``datasets/FORMAT.md``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from pydantic import ValidationError

from gcnbatch.data import schema
from gcnbatch.data.checks import check_header
from gcnbatch.errors import InputError, MachineError
from gcnbatch.resources import format_specification

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK = 3  # the first version whose metadata, down to the chunk index, is checksummed throughout
_MAX_NAMES = 1000  # links in one group
_MIN_CHUNK_STORED = 12  # least bytes of a stored chunk and its index entry
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_CONVERT_HINT = "Make one with 'gcnbatch data import' or 'gcnbatch data synth'."
_SUPERBLOCK_HINT = (
    f'{_CONVERT_HINT} A program of yours that writes the format opens the file with libver=("v110", "v110").'
)
_WRITE_HINT = f"{format_specification()} says how to write one."


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of HDF5 about a damaged file into an InputError, and lack of memory into a MachineError."""
    try:
        yield
    except MemoryError as error:
        raise MachineError(str(path), "not enough memory to read it", hint="Lower data.memory_mb.") from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, IndexError) as error:
        text = str(error.args[0] if error.args else "").strip() or type(error).__name__
        raise InputError(
            str(path), f"damaged file ({text.splitlines()[0]})", hint="Copy or convert the data again."
        ) from error


def open_file(path: Path, cache_bytes: int) -> h5py.File:
    """Open a file for reading; `cache_bytes` bounds HDF5's chunk cache of each array [1, 2]."""
    if not path.exists():
        raise InputError(str(path), "no such file", "an HDF5 data set", _CONVERT_HINT)
    if not path.is_file():
        raise InputError(str(path), "not a regular file", "an HDF5 data set", _CONVERT_HINT)
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_SIGNATURE) + 1)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", hint="Check its permissions.") from error
    if not start.startswith(_SIGNATURE):
        raise InputError(str(path), "not an HDF5 file", "an HDF5 data set", _CONVERT_HINT)
    if start[-1] != _SUPERBLOCK:
        raise InputError(
            str(path),
            f"HDF5 metadata without checksums (superblock {start[-1]})",
            f"superblock {_SUPERBLOCK}",
            _SUPERBLOCK_HINT,
        )
    with reading(path):
        return h5py.File(path, "r", rdcc_nbytes=cache_bytes, rdcc_nslots=10_007, locking=False)


def audit(file: h5py.File, path: Path) -> dict[str, h5py.Dataset]:
    """Return the file's arrays by path; only plain, known, fully stored arrays are allowed [3-9]."""
    with reading(path):
        _check_format(file, path)
        found: dict[str, h5py.Dataset] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            for name, item in _children(file, folder, path):
                if isinstance(item, h5py.Group):
                    folders.append(name)
                else:
                    found[name] = item
        total = path.stat().st_size
        stored = sum(_audit_array(item, name, f"{path}:/{name}", total) for name, item in found.items())
        if stored > total:
            raise InputError(
                str(path), f"arrays of {stored} stored bytes in a file of {total}", "each stored byte once"
            )
        return found


def _check_format(file: h5py.File, path: Path) -> None:
    """Check the two attributes; read them only if they have the exact types, which bounds their size [3]."""
    size = len(schema.FORMAT_NAME)
    if (
        not _plain_attribute(file, "format", h5py.h5t.STRING, size)
        or file.attrs["format"] != schema.FORMAT_NAME.encode()
    ):
        raise InputError(
            str(path),
            "an HDF5 file of another program",
            "attribute format = gcnbatch (fixed-length text)",
            _CONVERT_HINT,
        )
    version = int(file.attrs["version"]) if _plain_attribute(file, "version", h5py.h5t.INTEGER, 8) else None
    if version != schema.FORMAT_VERSION:
        raise InputError(
            str(path),
            f"format version {'missing' if version is None else version}",
            f"version {schema.FORMAT_VERSION} (int64)",
            "Use a gcnbatch that knows this version.",
        )


def _plain_attribute(file: h5py.File, name: str, kind: int, size: int) -> bool:
    if name not in file.attrs:
        return False
    attribute = h5py.h5a.open(file.id, name.encode())
    stored = attribute.get_type()
    variable = kind == h5py.h5t.STRING and stored.get_class() == kind and stored.is_variable_str()
    return attribute.shape == () and stored.get_class() == kind and stored.get_size() == size and not variable


def _children(file: h5py.File, folder: str, path: Path) -> Iterator[tuple[str, h5py.Dataset | h5py.Group]]:
    """Yield the arrays and groups in `folder` by path; check links and names before an object is opened [4, 5]."""
    group = file[f"/{folder}"]
    if len(group) > _MAX_NAMES:
        raise InputError(f"{path}:/{folder}", f"{len(group)} names", f"at most {_MAX_NAMES}")
    for link in group:
        name = f"{folder}/{link}" if folder else link
        place = f"{path}:/{name if name.isprintable() else ascii(name)}"
        is_group = name in schema.GROUPS or folder == "splits"
        if not is_group and schema.array_rule(name) is None:
            raise InputError(
                place, "unknown name", "only the arrays of format version 1", f"See {format_specification()}."
            )
        if group.id.links.get_info(link.encode("utf-8", "surrogateescape")).type != h5py.h5l.TYPE_HARD:
            raise InputError(place, "a soft, external or user-defined link", "arrays stored in the file itself")
        item = group[link]
        if not isinstance(item, h5py.Group if is_group else h5py.Dataset):
            raise InputError(place, f"an HDF5 {type(item).__name__.lower()}", "a group" if is_group else "an array")
        yield name, item


def _audit_array(item: h5py.Dataset, name: str, place: str, file_bytes: int) -> int:
    """Check one array and return its bytes in the file; storage comes before type and values."""
    rule = schema.array_rule(name)
    assert rule is not None
    kinds, rank = rule
    properties = item.id.get_create_plist()
    if properties.get_layout() != h5py.h5d.CHUNKED:
        raise InputError(place, "stored without chunks, or outside the file", "chunked storage", _WRITE_HINT)
    _check_type(item, name, place, kinds)
    if item.shape is None or len(item.shape) != rank:
        raise InputError(place, f"shape {item.shape}", f"{rank} dimension{'s' if rank > 1 else ''}")
    filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    if not _FILTERS.issuperset(filters):
        raise InputError(place, "an unknown compression filter", "gzip, shuffle and fletcher32 only", _WRITE_HINT)
    if h5py.h5z.FILTER_FLETCHER32 not in filters:
        raise InputError(place, "no checksum", "the fletcher32 filter", _WRITE_HINT)
    return _check_chunks(item, place, file_bytes)


def _check_type(item: h5py.Dataset, name: str, place: str, kinds: tuple[str, ...]) -> None:
    """Compare the stored type with the allowed ones in HDF5's terms: NumPy would build objects for some types [6]."""
    stored = item.id.get_type()
    if kinds == ("S",):
        limit = schema.MAX_HEADER_BYTES if name == "header" else schema.MAX_ID_BYTES
        if stored.get_class() != h5py.h5t.STRING or stored.is_variable_str():
            raise InputError(place, "another type", "fixed-length UTF-8 text", _WRITE_HINT)
        if stored.get_size() > limit:
            raise InputError(place, f"texts of {stored.get_size()} bytes", f"at most {limit}")
    elif stored.committed() or not any(stored.equal(h5py.h5t.py_create(np.dtype(f"<{kind}"))) for kind in kinds):
        raise InputError(place, "another type", f"{' or '.join(kinds)}, little-endian", _WRITE_HINT)


def _check_chunks(item: h5py.Dataset, place: str, file_bytes: int) -> int:
    """Check that every declared chunk is stored, with a bounded size and all its filters [8, 9]."""
    chunk_bytes = math.prod(item.chunks) * item.dtype.itemsize
    if chunk_bytes > schema.MAX_CHUNK_BYTES:
        raise InputError(place, f"chunks of {chunk_bytes} bytes", f"at most {schema.MAX_CHUNK_BYTES}", _WRITE_HINT)
    expected = math.prod(-(-length // step) for length, step in zip(item.shape, item.chunks, strict=True))
    if expected * _MIN_CHUNK_STORED > file_bytes:
        raise InputError(place, f"shape {item.shape} declared in a file of {file_bytes} bytes", "a size that is stored")
    count = stored = largest = skipped = 0

    def visit(chunk: h5py.h5d.StoreInfo) -> None:
        nonlocal count, stored, largest, skipped
        count, stored, largest, skipped = (
            count + 1,
            stored + chunk.size,
            max(largest, chunk.size),
            skipped | chunk.filter_mask,
        )

    if expected:
        item.id.chunk_iter(visit)
    if count != expected:
        raise InputError(place, f"{count} of {expected} chunks stored", "all of them")
    if skipped:
        raise InputError(place, "chunks stored without their checksum", "every filter on every chunk", _WRITE_HINT)
    if largest > chunk_bytes + chunk_bytes // 64 + 1024:
        raise InputError(place, f"{largest} bytes stored for a chunk of {chunk_bytes}", "chunks that fit their size")
    return stored


def read_header(array: h5py.Dataset | None, path: Path) -> schema.Header:
    """Read and check ``/header`` [10, 11]."""
    place = f"{path}:/header"
    if array is None or array.shape != (1,):
        raise InputError(place, "missing", "one JSON text", _CONVERT_HINT)
    with reading(path):
        raw = bytes(array[0])
    try:
        values = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
        json.dumps(values, ensure_ascii=False).encode("utf-8")  # a lone surrogate cannot be printed or saved
    except (ValueError, RecursionError) as error:
        raise InputError(place, "not a JSON text in UTF-8", "the header of format version 1") from error
    try:
        header = schema.Header.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "header"
        raise InputError(place, f"{key!a}: {first['msg']}", "the header of format version 1") from error
    check_header(path, header)
    return header


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
