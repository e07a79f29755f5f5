"""Data set files that a disk or a transfer has damaged: each is refused, or read as it was written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from tests.builders import assert_graphsets_equal, build_graphset

pytestmark = pytest.mark.hostile


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


@pytest.mark.parametrize("count", [15, pytest.param(120, marks=pytest.mark.slow)])
def test_a_truncated_file_is_refused_wherever_it_ends(whole, count):
    path, raw, graphs = whole
    lengths = [*range(0, len(raw), len(raw) // count), len(raw) - 1]
    assert all(refused_or_equal(path, raw[:length], graphs) for length in lengths)


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_refused_or_without_effect(whole, count):
    path, raw, graphs = whole
    rng = np.random.default_rng(0)
    for at in rng.choice(len(raw), count, replace=False):
        damaged = bytearray(raw)
        damaged[at] ^= int(rng.integers(1, 256))
        refused_or_equal(path, bytes(damaged), graphs)
    assert not refused_or_equal(path, raw, graphs)


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fill", [0, 255, None])
def test_a_damaged_stretch_is_refused_or_without_effect(whole, fill, count):
    """A lost sector, zeroed, set or random."""
    path, raw, graphs = whole
    rng = np.random.default_rng(2)
    for _ in range(count):
        at, length = int(rng.integers(len(raw))), int(rng.integers(2, 600))
        stretch = rng.bytes(length) if fill is None else bytes([fill]) * length
        refused_or_equal(path, raw[:at] + stretch + raw[at + length :], graphs)
