"""Opening an HDF5 file that may be damaged or hostile.

HDF5 can name other files, load plugins, declare terabytes in a few bytes and build Python objects. So the structure of
the file is checked before any value is read. Only known names are allowed, reached by hard links, and only plain arrays
of the exact type. Their chunks have a bounded size, are all stored, and all carry a checksum. The numbers in brackets
are the rules of ``datasets/FORMAT.md``.

libhdf5 itself cannot be trusted with such a file: crafted metadata crash it or keep it busy for ever. It only runs in a
process of its own, with limits (`gcnbatch.confined`), which answers where the chunks of each array are. The values are
read without it (`gcnbatch.data.chunks`).
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from gcnbatch import confined
from gcnbatch.config_tree import parse_json
from gcnbatch.data import chunks, schema
from gcnbatch.data.checks import check_header
from gcnbatch.data.chunks import ChunkCache, ChunkFile, StoredArray, reading
from gcnbatch.errors import InputError, MachineError, misfit
from gcnbatch.machine import blame
from gcnbatch.resources import format_specification
from gcnbatch.text import QUOTED, counted, printable

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK = 3  # the first version whose metadata, down to the chunk index, is checksummed throughout
_MAX_NAMES = 1000  # links in one group
_MIN_CHUNK_STORED = 12  # least bytes of a stored chunk and its index entry
_FILTERS = {chunks.DEFLATE, chunks.SHUFFLE, chunks.FLETCHER32}
_PADDED = {h5py.h5t.STR_NULLPAD, h5py.h5t.STR_NULLTERM}
_CONVERT_HINT = "Make one with 'gcnbatch data import' or 'gcnbatch data synth'."
_SUPERBLOCK_HINT = (
    f'{_CONVERT_HINT} A program of yours that writes the format opens the file with libver=("v110", "v110").'
)
_WRITE_HINT = f"{format_specification()} says how to write one."
_LIBRARY = "libhdf5"
_AUDIT_SECONDS, _SECONDS_PER_GIB = 10, 10  # processor time; a file of 1 GiB in chunks of 128 KiB takes 0.1 s
_AUDIT_MEMORY = 512 << 20  # beside twice the size of the file, which bounds the list of its chunks
_ANSWER_BYTES = 16 << 20  # of descriptions, beside the list of chunks
Model = TypeVar("Model", bound=BaseModel)
_ERRORS = {error.__name__: error for error in (InputError, MachineError)}


@dataclass(frozen=True)
class _Found:
    """What the confined process finds of one array; (address, size) of its chunks follow in `places`."""

    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    filters: tuple[int, ...]
    places: array[int]


def open_file(path: Path, cache: ChunkCache, follow: bool = True) -> tuple[ChunkFile, dict[str, StoredArray]]:
    """Open a file and return its arrays by path; only plain, known, fully stored arrays are allowed [1-9].

    `cache` keeps unpacked chunks for later reads. Without `follow`, a symbolic link is refused.
    """
    while True:
        _check_start(path, follow)
        with reading(path):
            file = ChunkFile(path, cache, follow)
        try:
            arrays = _stored_arrays(file)
        except BaseException as error:
            replaced = isinstance(error, InputError) and file.is_replaced()
            file.close(with_cache=not replaced)
            if not replaced:
                raise
        else:
            if not file.is_replaced():  # else these may be the places of chunks in another file
                return file, arrays
            file.close(with_cache=False)


class Root(NamedTuple):
    """The attribute ``format`` and the names in the root group of any HDF5 file."""

    format: str
    names: tuple[str, ...]


def root_of(path: Path) -> Root:
    """Return what the root of a file is; nothing for a file that is not HDF5, damaged or hostile."""

    def answer() -> bytes:
        with reading(path), h5py.File(path, "r", locking=False) as file:
            plain = _plain_attribute(file, "format", h5py.h5t.STRING, len(schema.FORMAT_NAME))
            text = bytes(file.attrs["format"]).decode("ascii", "replace") if plain else ""
            return json.dumps([text, list(islice(file, _MAX_NAMES))]).encode()

    try:
        found = confined.call(answer, _LIBRARY, _AUDIT_SECONDS, _AUDIT_MEMORY, _ANSWER_BYTES)
    except (confined.Failed, InputError):
        return Root("", ())
    text, names = json.loads(found)
    return Root(text, tuple(names))


def _check_start(path: Path, follow: bool) -> None:
    """Check that the path is a regular file with the signature and the version of the format [1, 2]."""
    if not follow and path.is_symlink():
        raise InputError(str(path), "a symbolic link", "an HDF5 data set")
    if not path.exists():
        raise InputError(str(path), "no such file", "an HDF5 data set", _CONVERT_HINT)
    if not path.is_file():
        raise InputError(str(path), "not a regular file", "an HDF5 data set", _CONVERT_HINT)
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_SIGNATURE) + 1)
    except OSError as error:
        blame(error)
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


def _stored_arrays(file: ChunkFile) -> dict[str, StoredArray]:
    """Return the arrays of the file, as the confined process finds them."""
    path, size = file.path, file.path.stat().st_size
    seconds = _AUDIT_SECONDS + size * _SECONDS_PER_GIB // (1 << 30)
    try:
        answer = confined.call(
            lambda: _answer(path), _LIBRARY, seconds, _AUDIT_MEMORY + 2 * size, _ANSWER_BYTES + 2 * size
        )
    except confined.Failed as error:
        raise InputError(
            str(path), f"damaged or hostile file ({error})", hint="Copy or convert the data again."
        ) from error
    description, _, tail = answer.partition(b"\n")
    found = json.loads(description)
    if "error" in found:
        kind, *parts = found["error"]
        raise _ERRORS[kind](*parts)
    places = np.frombuffer(tail, np.int64).reshape(-1, 2)
    _check_places(path, places, size)
    arrays, start = {}, 0
    for name, dtype, shape, chunk, filters, count in found["arrays"]:
        addresses, sizes = places[start : start + count].T
        arrays[name] = StoredArray(
            file, name, np.dtype(dtype), tuple(shape), tuple(chunk), tuple(filters), addresses, sizes
        )
        start += count
    return arrays


def _check_places(path: Path, places: NDArray[np.int64], file_bytes: int) -> None:
    """Check that the chunks lie in the file, each byte in one chunk at most [9]."""
    ordered = places[np.argsort(places[:, 0])]
    starts, sizes = ordered.T
    outside = (starts < 0) | (starts > file_bytes) | (sizes < 0) | (sizes > file_bytes - starts)
    if outside.any() or (starts[:-1] + sizes[:-1] > starts[1:]).any():
        raise InputError(str(path), "chunks that overlap or lie outside the file", "each stored byte once")


def _answer(path: Path) -> bytes:
    """Return the descriptions of the arrays as a line of JSON and the places of their chunks, or an error."""
    try:
        with reading(path), h5py.File(path, "r", locking=False) as file:
            found = audit(file, path)
    except (InputError, MachineError) as error:
        parts = (error.subject, error.got, error.expected, error.hint)
        return json.dumps({"error": [type(error).__name__, *parts]}).encode() + b"\n"
    described = [
        (name, one.dtype, one.shape, one.chunk, one.filters, len(one.places) // 2) for name, one in found.items()
    ]
    return b"\n".join(
        [json.dumps({"arrays": described}).encode(), b"".join(one.places.tobytes() for one in found.values())]
    )


def audit(file: h5py.File, path: Path) -> dict[str, _Found]:
    """Describe the file's arrays by path, in the confined process [3-9]."""
    _check_format(file, path)
    found: dict[str, _Found] = {}
    total = path.stat().st_size
    folders = [""]
    while folders:
        folder = folders.pop()
        for name, item in _children(file, folder, path):
            if isinstance(item, h5py.Group):
                folders.append(name)
            else:
                found[name] = _audit_array(item, name, f"{path}:/{name}", total)
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
        if not isinstance(link, str):
            got = f"a name that is not UTF-8 ({printable(repr(link), QUOTED)})"
            raise InputError(f"{path}:/{folder}", got, "UTF-8 text")
        name = f"{folder}/{link}" if folder else link
        place = f"{path}:/{printable(name, 2 * QUOTED)}"
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


def _audit_array(item: h5py.Dataset, name: str, place: str, file_bytes: int) -> _Found:
    """Check and describe one array; storage comes before type and values."""
    rule = schema.array_rule(name)
    assert rule is not None
    kinds, lengths = rule
    properties = item.id.get_create_plist()
    if properties.get_layout() != h5py.h5d.CHUNKED:
        raise InputError(place, "stored without chunks, or outside the file", "chunked storage", _WRITE_HINT)
    dtype = _check_type(item, name, place, kinds)
    if item.shape is None or len(item.shape) != len(lengths):
        raise InputError(place, f"shape {item.shape}", counted(len(lengths), "dimension"))
    if any(most is None for most in item.maxshape[1:]) and item.maxshape[0] is not None:
        # libhdf5 2.0 reports the chunks of such arrays in another order than it stores them.
        raise InputError(place, "only the columns can grow", "rows that can grow, or a fixed shape", _WRITE_HINT)
    used = [properties.get_filter(index) for index in range(properties.get_nfilters())]
    filters = tuple(one[0] for one in used)
    if not _FILTERS.issuperset(filters):
        raise InputError(place, "an unknown compression filter", "gzip, shuffle and fletcher32 only", _WRITE_HINT)
    if chunks.FLETCHER32 not in filters:
        raise InputError(place, "no checksum", "the fletcher32 filter", _WRITE_HINT)
    shuffled_by = [one[2][0] for one in used if one[0] == chunks.SHUFFLE and one[2]]
    if len(set(filters)) != len(filters) or any(size != np.dtype(dtype).itemsize for size in shuffled_by):
        raise InputError(
            place, "repeated filters, or shuffle of another type", "each filter once, for the array's type", _WRITE_HINT
        )
    return _Found(dtype, item.shape, item.chunks, filters, _check_chunks(item, np.dtype(dtype), place, file_bytes))


def _check_type(item: h5py.Dataset, name: str, place: str, kinds: tuple[str, ...]) -> str:
    """Return NumPy's name of the stored type, which must be an allowed one.

    It is compared in HDF5's terms, because NumPy would build objects for some types [6].
    """
    stored = item.id.get_type()
    if kinds == ("S",):
        limit = schema.MAX_HEADER_BYTES if name == "header" else schema.MAX_ID_BYTES
        if stored.get_class() != h5py.h5t.STRING or stored.is_variable_str():
            raise InputError(place, "another type", "fixed-length UTF-8 text", _WRITE_HINT)
        if stored.get_size() > limit:
            raise InputError(place, f"texts of {counted(stored.get_size(), 'byte')}", f"at most {limit}")
        if stored.get_strpad() not in _PADDED:
            raise InputError(place, "texts padded with blanks", "fixed-length text padded with NUL", _WRITE_HINT)
        return f"S{stored.get_size()}"
    if not stored.committed():
        for kind in kinds:
            if stored.equal(h5py.h5t.py_create(np.dtype(f"<{kind}"))):
                return f"<{kind}"
    raise InputError(place, "another type", f"{' or '.join(kinds)}, little-endian", _WRITE_HINT)


def _check_chunks(item: h5py.Dataset, dtype: np.dtype[Any], place: str, file_bytes: int) -> array[int]:
    """Return address and size of each chunk in row-major order; all are stored, bounded, with all filters [8, 9]."""
    chunk_bytes = math.prod(item.chunks) * dtype.itemsize
    if chunk_bytes > schema.MAX_CHUNK_BYTES:
        raise InputError(place, f"chunks of {chunk_bytes} bytes", f"at most {schema.MAX_CHUNK_BYTES}", _WRITE_HINT)
    grid = [-(-length // step) for length, step in zip(item.shape, item.chunks, strict=True)]
    expected = math.prod(grid)
    if expected * _MIN_CHUNK_STORED > file_bytes:
        raise InputError(place, f"shape {item.shape} declared in a file of {file_bytes} bytes", "a size that is stored")
    places = array("q", bytes(16 * expected))
    count = largest = skipped = 0

    def visit(chunk: h5py.h5d.StoreInfo) -> None:
        nonlocal count, largest, skipped
        number = 0
        for offset, step, length in zip(chunk.chunk_offset, item.chunks, grid, strict=True):
            number = number * length + offset // step
        places[2 * number], places[2 * number + 1] = chunk.byte_offset, chunk.size
        count, largest, skipped = count + 1, max(largest, chunk.size), skipped | chunk.filter_mask

    if expected:
        item.id.chunk_iter(visit)
    if count != expected or not all(places[1::2]):
        raise InputError(place, f"{count} of {counted(expected, 'chunk')} stored", "each of them once")
    if skipped:
        raise InputError(place, "chunks stored without their checksum", "every filter on every chunk", _WRITE_HINT)
    if largest > chunk_bytes + chunk_bytes // 64 + 1024:
        raise InputError(place, f"{largest} bytes stored for a chunk of {chunk_bytes}", "chunks that fit their size")
    return places


def read_header(stored: StoredArray | None, path: Path) -> schema.Header:
    """Read and check ``/header`` [10, 11]."""
    place = f"{path}:/header"
    if stored is None or stored.shape != (1,):
        raise InputError(place, "missing", "one JSON text", _CONVERT_HINT)
    with reading(path):
        raw = bytes(stored[:][0])
    header = from_json(raw, place, schema.Header, "the header of format version 1")
    check_header(path, header)
    return header


def from_json(raw: bytes, place: str, model: type[Model], expected: str) -> Model:
    """Return a JSON text of a stranger as `model`, which bounds its keys and types.

    Raises
    ------
    InputError
        For a text that is not JSON in UTF-8, and for the first key that does not fit.
    """
    try:
        values = parse_json(raw.decode("utf-8"))
        json.dumps(values, ensure_ascii=False).encode("utf-8")  # a lone surrogate cannot be printed or saved
    except (ValueError, RecursionError) as error:
        raise InputError(place, "not a JSON text in UTF-8", expected) from error
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(place, misfit(error, place.rpartition("/")[2]), expected) from error
