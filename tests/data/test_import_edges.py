"""Conversion of listed edges into stored ones, in memory and through a file, against a dictionary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.data.importers import edges
from gcnbatch.data.importers.edges import EdgeFile, Edges, build_edges
from gcnbatch.data.importers.scratch import Scratch

SHAPES = {
    "one graph": [40],
    "several graphs, some empty": [0, 3, 0, 0, 17, 1, 9, 0],
    "many small graphs": [2, 3] * 12,
    "one node": [1],
}


def listing(sizes: list[int], channels: int, seed: int) -> dict[str, Any]:
    """Return random edges, some listed twice, some both ways, some self-loops."""
    rng, ptr = np.random.default_rng(seed), np.concatenate([[0], np.cumsum(sizes)])
    graph = rng.choice(np.flatnonzero(sizes), 150)
    src, dst = (ptr[graph] + rng.integers(0, np.array(sizes)[graph]) for _ in range(2))
    weight = rng.random(150).astype(np.float32)
    return {"src": src, "dst": dst, "channel": rng.integers(0, channels, 150).astype(np.uint8), "weight": weight}


def expected(listed: dict[str, Any], nodes: int, undirected: bool, loop_channel: int | None) -> dict[Any, float]:
    """Return weights by (dst, channel, src): listed edges count before reverse ones, the first before later ones."""
    found: dict[Any, float] = {}
    rows = list(zip(*(values.tolist() for values in listed.values()), strict=True))
    for src, dst, channel, weight in rows:
        found.setdefault((dst, channel, src), weight)
    for src, dst, channel, weight in rows if undirected else ():
        found.setdefault((src, channel, dst), weight)
    for node in range(nodes) if loop_channel is not None else ():
        found.setdefault((node, loop_channel, node), 1.0)
    return dict(sorted(found.items()))


def stored(made: Edges, node_ptr: np.ndarray) -> dict[Any, float]:
    """Return the same from the arrays of a file, in their order."""
    first = np.repeat(node_ptr[:-1], np.diff(made.edge_ptr))
    weight = np.ones(len(made.src)) if made.weight is None else made.weight
    keys = zip((made.dst + first).tolist(), made.channel.tolist(), (made.src + first).tolist(), strict=True)
    found = list(zip(keys, weight.tolist(), strict=True))
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize(("channels", "loop_channel"), [(1, 0), (3, 3), (3, None)])
@pytest.mark.parametrize("weighted", [True, False])
def test_edges_are_doubled_sorted_and_kept_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    undirected: bool,
    channels: int,
    loop_channel: int | None,
    weighted: bool,
) -> None:
    sizes = SHAPES[shape]
    node_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    listed = listing(sizes, channels, seed=len(sizes) + channels)
    right = expected(listed, sum(sizes), undirected, loop_channel)
    if not weighted:
        listed["weight"], right = None, dict.fromkeys(right, 1.0)
    made = build_edges(node_ptr, **listed, undirected=undirected, loop_channel=loop_channel)
    assert list(stored(made, node_ptr).items()) == list(right.items())
    assert (made.src.dtype, made.dst.dtype, made.channel.dtype) == (np.int32, np.int32, np.uint8)
    for name, value in (("RUN", 20), ("BLOCK", 15), ("BUCKETS", 7)):
        monkeypatch.setattr(edges, name, value)
    turned = np.arange(channels, dtype=np.uint8)[::-1]  # channels get their final numbers at the end
    with Scratch(tmp_path / "out.h5") as scratch:
        file = EdgeFile(scratch, node_ptr, weighted=weighted, undirected=undirected)
        for part in np.array_split(np.arange(150), 11):
            picked = {name: values if values is None else values[part] for name, values in listed.items()}
            file.add(**picked | {"channel": turned[picked["channel"]]})
        blocks, told = [], []
        for first, block in file.blocks(turned, loop_channel, told.append):
            blocks.append(stored(block, node_ptr[first : first + len(block.edge_ptr)]))
        assert list(tmp_path.iterdir()) == []  # the file has no name
    assert [row for block in blocks for row in block.items()] == list(right.items())
    assert sum(told) == file.count == 150 * (1 + undirected)
    assert len(blocks) > 1 or shape == "one node"


def test_without_edges_only_self_loops_are_left(tmp_path: Path) -> None:
    with Scratch(tmp_path / "out.h5") as scratch:
        file = EdgeFile(scratch, np.array([0, 2, 3]), weighted=False, undirected=True)
        ((first, block),) = file.blocks(np.zeros(1, np.uint8), 0, lambda _: None)
        ((_, bare),) = file.blocks(np.zeros(1, np.uint8), None, lambda _: None)
    assert (first, block.edge_ptr.tolist()) == (0, [0, 2, 3])
    assert (block.src.tolist(), block.dst.tolist()) == ([0, 1, 0], [0, 1, 0])
    assert bare.edge_ptr.tolist() == [0, 0, 0]
