"""Changes of valid data set files for the tests of hostile ones."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.data.chunks import fletcher32
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from tests.builders import build_graphset

GRAPHS = build_graphset(6, weights=True, groups=True, splits=True, graph_features=2, n_counts=1, seed=1)
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


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def store_counts_densely(path: Path) -> NDArray[np.float32]:
    """Give a file the form of version 0.1; return all features of its graphs, (G, D)."""
    with Dataset(path) as dataset:
        found = np.asarray(dataset.load().graph_features)
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        del file["graphs/counts"]
        put("graphs/features", found)(file)
    return found


@functools.cache
def _written(sparse: bool) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "base.h5")
        write_graphset(path, SPARSE if sparse else GRAPHS)
        return path.read_bytes()


def bad_file(folder: Path, change: Change, sparse: bool = False) -> Path:
    """Write the dense or the sparse data set to a folder, with a change."""
    path = folder / "bad.h5"
    path.write_bytes(_written(sparse))
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        change(file)
    return path


def refusal(path: os.PathLike[str], **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        Dataset(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert message.isprintable()
    return message
