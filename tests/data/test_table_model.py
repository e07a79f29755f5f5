"""The model of a table: chunks of any size have the rows of its blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.tables.table import Block, Table


def blocks(*sizes: int) -> list[Block]:
    """Return blocks of so many rows: a column of whole numbers and one of texts."""
    found, before = [], 0
    for size in sizes:
        rows = np.arange(before, before + size)
        found.append(Block(before, {"number": rows, "text": [f" {row} " for row in rows]}))
        before += size
    return found


@pytest.mark.parametrize("size", [1, 3, 4, 100])
@pytest.mark.parametrize("skip", [0, 1, 4, 9, 12, 20])
def test_chunks_have_the_rows_behind_the_skipped_ones(size: int, skip: int) -> None:
    chunks = list(Table(Path("t"), ("number", "text"), blocks(4, 0, 5, 3)).chunks(size, ("text", "number"), skip))
    left = range(skip, 12)
    assert [chunk.before for chunk in chunks] == list(left[::size])
    assert [len(chunk) for chunk in chunks] == [len(left[at : at + size]) for at in range(0, len(left), size)]
    assert [text for chunk in chunks for text in chunk.texts("text")] == [f" {row} " for row in left]
    assert [text for chunk in chunks for text in chunk.texts("number")] == [str(row) for row in left]


def test_columns_join_the_blocks_and_a_block_strips_texts() -> None:
    table = Table(Path("t"), ("number", "text"), blocks(2, 1))
    assert table.columns() == {"number": ["0", "1", "2"], "text": [" 0 ", " 1 ", " 2 "]}
    (block,) = blocks(2)
    assert (block["text"], block["number"], block.column("text")) == (["0", "1"], ["0", "1"], ["0", "1"])
    assert block.column("number").tolist() == [0, 1]
    assert Block.of(0, ("a", "b"), []).columns == {"a": [], "b": []}
