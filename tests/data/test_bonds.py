"""The set of bonds of a synthetic network: distinct bonds, memory, and the order of their edges."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.data.synthetic import bonds
from gcnbatch.data.synthetic.bonds import Bonds


@settings(max_examples=60)
@given(
    st.integers(2, 40),
    st.lists(st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=30), max_size=4),
    st.integers(1, 20),
    st.integers(1, 5),
)
def test_edges_are_those_of_a_set_of_pairs_in_order(nodes, additions, block, buckets):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bonds, "EDGE_BLOCK", block)
        patch.setattr(bonds, "BUCKETS", buckets)
        patch.setattr(bonds, "WAITING", 7)
        found, expected = Bonds(nodes), set()
        for addition in additions:
            pairs = [(min(a, b) % nodes, max(a, b) % nodes) for a, b in addition]
            pairs = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
            found.add(np.array([a * nodes + b for a, b in pairs], dtype=np.int64))
            found.settle()
            expected.update(pairs)
            assert found.count == len(expected)
        blocks = list(found.edges())
    both = [*expected, *((b, a) for a, b in expected), *((node, node) for node in range(nodes))]
    src, dst = (np.concatenate(column) for column in zip(*blocks, strict=True))
    assert src.dtype == dst.dtype == np.int32
    assert list(zip(dst.tolist(), src.tolist(), strict=True)) == sorted((d, s) for s, d in both)
    assert all(len(one) <= max(block, 2 * nodes) for one, _ in blocks)
    assert found.count == len(expected)


def test_a_bond_takes_little_more_than_its_four_bytes(monkeypatch):
    monkeypatch.setattr(bonds, "EDGE_BLOCK", 20_000)
    monkeypatch.setattr(bonds, "WAITING", 20_000)
    nodes, rng = 20_000, np.random.default_rng(0)
    tracemalloc.start()
    found = Bonds(nodes)
    for _ in range(100):
        a, b = np.sort(rng.integers(0, nodes, (2, 10_000)), axis=0)
        found.add((a * nodes + b)[a != b])
    found.settle()
    for _ in found.edges():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.count > 900_000
    assert peak < 10 * found.count
