"""Pickles of Planetoid's files with changed bytes, and of drawn instructions: each is read or refused in one line."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from gcnbatch.data.importers import inert_pickle
from gcnbatch.data.importers.inert_pickle import read_array, read_csr, read_neighbours
from gcnbatch.errors import InputError

SECONDS = 5  # of this process; the confined one has 1
READERS: dict[str, Callable[[Path], Any]] = {"array": read_array, "csr": read_csr, "graph": read_neighbours}
VALUES: dict[str, Any] = {
    "array": np.eye(3, 2, dtype=np.int32),
    "csr": sp.csr_matrix(np.array([[0, 1.5], [2, 0]], dtype=np.float32)),
    "graph": {0: [1, 2], 1: [0], 2: [0, 70_000]},
}
BASES = {(kind, protocol): pickle.dumps(value, protocol) for kind, value in VALUES.items() for protocol in (0, 2, 4)}
NAMES = (
    b"numpy\nndarray",
    b"numpy\ndtype",
    b"numpy.core.multiarray\n_reconstruct",
    b"scipy.sparse.csr\ncsr_matrix",
    b"collections\ndefaultdict",
    b"copy_reg\n_reconstructor",
    b"_codecs\nencode",
    b"os\nsystem",
)
SINGLE = b"N(t)\x85\x86]ea}suld\x8f\x90\x91R\x81\x92b012\x94\x97"  # containers, calls, states, the memo
LONG = (
    b"K\x01",
    b"J\xff\xff\xff\x7f",
    b"\x8a\x08" + b"\xff" * 8,
    b"G\x7f\xf0" + bytes(6),
    b"X\x01\x00\x00\x00a",
    b"q\x00",
    b"h\x00",
    b"h\x01",
    b"r\xff\xff\xff\x0f",
    b"\x95" + b"\xff" * 7 + b"\x7f",
    b"\x8e" + b"\xff" * 7 + b"\x7f",
    b"P1\n",
    b"\x82\x01",
)
INSTRUCTIONS = (*(bytes([one]) for one in SINGLE), *LONG, *(b"c" + name + b"\n" for name in NAMES))


@st.composite
def changed_pickles(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a kind of value, and a pickle of one with changed bytes or more instructions, or of instructions alone."""
    kind = draw(st.sampled_from(sorted(READERS)))
    more = b"".join(draw(st.lists(st.sampled_from(INSTRUCTIONS), max_size=12)))
    if draw(st.integers(0, 2)) == 0:
        return kind, more * draw(st.sampled_from([1, 2, 30, 10_000])) + b"."
    raw = draw(st.sampled_from([raw for (of, _), raw in BASES.items() if of == kind]))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(raw) - 1))
        new = draw(st.one_of(st.binary(min_size=1, max_size=2), st.just(more)))
        raw = raw[:at] + new + raw[at + len(new) * draw(st.booleans()) :]
    return kind, raw


def verdict(kind: str, raw: bytes) -> str:
    """Read a pickle; return "read" or the line that refuses it."""
    begun = time.process_time()
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(inert_pickle, "_SECONDS", 1),
        patch.object(inert_pickle, "_MOST_BYTES", 128 << 20),
    ):
        path = Path(name) / "x.pkl"
        path.write_bytes(raw)
        try:
            READERS[kind](path)
            line = "read"
        except InputError as error:
            line = str(error)
    assert line.isprintable()
    assert len(line) < 400, f"{len(line)} characters"
    assert time.process_time() - begun < SECONDS
    return line
