"""Headers of data sets with hostile texts, numbers and nesting in every place."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

from gcnbatch.data.schema import Header
from tests.fuzz.data_files import bases

TEXTS = st.one_of(
    st.sampled_from(["", "a", "\x1b[31m", "\u202etxt", "\x85", "\ue000", "a\nb", "=1+1", "<b>"]),
    st.sampled_from(["x" * 5000, "\U0001f9ea" * 300]),
    st.text(max_size=8),
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.sampled_from([None, True, -1, 0, 1, 4, 2**31, 2**70, 10**4000, 1e308])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@functools.cache
def _headers() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(_stored(base.raw)) for base in bases()[:2])


def _stored(raw: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.h5"
        path.write_bytes(raw)
        with h5py.File(path) as file:
            return bytes(file["header"][0])


@st.composite
def hostile_headers(draw: st.DrawFn) -> bytes:
    """Draw a data set file of which one to three entries of the header, or one of their texts, are others."""
    at = draw(st.integers(0, 1))
    header = dict(_headers()[at])
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.one_of(st.sampled_from(sorted(Header.model_fields)), TEXTS))
        old = header.get(key)
        if isinstance(old, list) and old and draw(st.booleans()):
            header[key] = [draw(TEXTS), *old[1:]]
        elif isinstance(old, dict) and draw(st.booleans()):
            header[key] = {**old, draw(TEXTS): draw(VALUES)}
        else:
            header[key] = draw(st.one_of(TEXTS, VALUES))
    return with_header(bases()[at].raw, header)


def with_header(raw: bytes, header: dict[str, Any]) -> bytes:
    """Return a data set file with another header."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.h5"
        path.write_bytes(raw)
        text = json.dumps(header).encode()
        with h5py.File(path, "r+", libver=("v110", "v110")) as file:
            del file["header"]
            file["header"] = np.array([text or b"{}"])
        return path.read_bytes()
