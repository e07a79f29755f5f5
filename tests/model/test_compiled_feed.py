"""Batches assembled by Numba's loops equal those of the source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.backends.cpu import HostFeed
from gcnbatch.data.batches import BatchSource
from tests.builders import build_graphset

pytestmark = pytest.mark.numba


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 5), max_size=6),
    st.sampled_from(["float32", "uint8", "float16", "csr"]),
    st.sampled_from(["graph", "node"]),
    st.sampled_from([1, 3]),
    st.sampled_from(["symmetric", "stored"]),
)
def test_compiled_batches_equal_those_of_numpy(
    ids: list[int], features: str, level: Any, n_channels: int, adjacency: str
) -> None:
    from gcnbatch.backends.cpu.compiled import CompiledFeed

    graphs = build_graphset(features=features, level=level, n_channels=n_channels)
    source, picked = BatchSource(graphs, adjacency), np.array(ids, dtype=np.int64)
    found, expected = (feed(source, graphs.y).gather(picked) for feed in (CompiledFeed, HostFeed))
    assert (found.adjacency.transpose is found.adjacency.forward) == source.prepared.symmetric  # type: ignore[union-attr]
    pairs = [(found.node_ptr, expected.node_ptr), (found.targets, expected.targets)]
    matrices = [(found.adjacency.forward, expected.adjacency.forward)]
    matrices.append((found.adjacency.transpose, expected.adjacency.transpose))
    if features == "csr":
        matrices.append((found.x, expected.x))
    else:
        pairs.append((found.x, expected.x))
    for one, other in matrices:
        assert one.n_cols == other.n_cols
        pairs += [(getattr(one, name), getattr(other, name)) for name in ("indptr", "indices", "data")]
    for got, want in pairs:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
