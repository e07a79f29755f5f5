"""Structure-aware changes of an HDF5 file: a metadata block is altered and its checksum is made right again.

Without the right checksum libhdf5 refuses every change at once, and the code behind the check is never reached.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIGNATURES = (
    b"\x89HDF\r\n\x1a\n",  # superblock
    *(b"OHDR", b"OCHK"),  # object headers and their continuations
    *(b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB"),  # chunk indices: fixed and extensible arrays
    *(b"BTHD", b"BTIN", b"BTLF"),  # B-trees of chunks and of names
    *(b"FRHP", b"FHIB"),  # heaps of names; their direct blocks have the checksum in the middle and are not found
)
_LENGTHS = (400, 5000)  # most blocks are short; the search costs the square of the length


@dataclass(frozen=True)
class Block:
    """A checksummed piece of metadata: bytes start … end-1, then four bytes of checksum."""

    start: int
    end: int


def blocks(raw: bytes) -> list[Block]:
    """Return the metadata blocks of a file, found by signature and by the position where the checksum is right."""
    found = []
    for signature in SIGNATURES:
        at = raw.find(signature)
        while at >= 0:
            if block := _block(raw, at):
                found.append(block)
            at = raw.find(signature, at + 1)
    return sorted(found, key=lambda block: block.start)


def altered(raw: bytes, block: Block, at: int, new: bytes) -> bytes:
    """Return the file with `new` at offset `at` of the block (cut at its end) and the block's checksum."""
    size = block.end - block.start
    at = block.start + at % size
    new = new[: block.end - at]
    changed = bytearray(raw)
    changed[at : at + len(new)] = new
    changed[block.end : block.end + 4] = struct.pack("<I", lookup3(bytes(changed[block.start : block.end])))
    return bytes(changed)


def lookup3(data: bytes) -> int:
    """Return Bob Jenkins' lookup3 hash, HDF5's checksum of metadata."""
    return int(_hashes(data, np.array([len(data)]))[0])


def _block(raw: bytes, start: int) -> Block | None:
    for longest in _LENGTHS:
        piece = np.frombuffer(raw[start : start + longest], np.uint8)
        lengths = np.arange(8, len(piece) - 3)
        if not len(lengths):
            continue
        stored = np.lib.stride_tricks.sliding_window_view(piece, 4)[8 : len(piece) - 3].copy().view("<u4")[:, 0]
        right = np.flatnonzero(stored == _hashes(piece.tobytes(), lengths))
        if len(right):
            return Block(start, start + int(lengths[right[0]]))
    return None


def _hashes(data: bytes, lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the hashes of the beginnings of `data` of these ascending lengths, at least 1."""
    pieces = np.frombuffer(data.ljust(-(-len(data) // 12) * 12, b"\0"), np.uint8).reshape(-1, 12)
    last = (lengths - 1) // 12  # the piece in which each beginning ends
    states = np.tile((0xDEADBEEF + lengths).astype(np.uint32), (3, 1))
    for at in range(int(last[-1])):
        first = int(np.searchsorted(last, at, side="right"))  # of the beginnings that go on
        states[:, first:] = _mix(states[:, first:] + _words(pieces[at : at + 1]))
    ends = np.where(np.arange(12) < (lengths - 12 * last)[:, None], pieces[last], np.uint8(0))
    return _final(states + _words(ends))[2]


def _words(pieces: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return pieces (n, 12) as words (3, n)."""
    return np.ascontiguousarray(pieces).view("<u4").astype(np.uint32).T


def _turn(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return values << np.uint32(bits) | values >> np.uint32(32 - bits)


def _mix(states: NDArray[np.uint32]) -> NDArray[np.uint32]:
    a, b, c = states
    for bits in (4, 6, 8, 16, 19, 4):
        a, c = (a - c) ^ _turn(c, bits), c + b
        a, b, c = b, c, a
    return np.stack([a, b, c])


def _final(states: NDArray[np.uint32]) -> NDArray[np.uint32]:
    a, b, c = states
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = (c ^ b) - _turn(b, bits)
        a, b, c = b, c, a
    return np.stack([a, c, b])  # the seven turns have moved the names by one
