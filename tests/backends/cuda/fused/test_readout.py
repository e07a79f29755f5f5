"""The launch of the readout for any model."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.backends.cuda.fused.shared import geometry
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.fused.host import workspace
from tests.training.runs import write_set


@pytest.mark.parametrize(
    ("width", "entry", "holds_all"),
    [(64, "fused_narrow_readout_64x128", True), (63, "fused_readout", True), (250, "fused_readout", False)],
)
@pytest.mark.parametrize("features", [0, 300])
def test_blocks_hold_the_rows_of_a_graph_that_let_two_share_a_multiprocessor(
    width: int, entry: str, holds_all: bool, features: int, tmp_path: Path
) -> None:
    write_set(tmp_path / "data.h5", n_channels=1, max_nodes=170, graph_features=features)
    assignments = (f"model.widths=[16,{width}]", "model.dropout=0.2", "model.head=[128]")
    device, at = workspace(tmp_path / "data.h5", assignments, training=True)
    call, largest = at.forward()[-1], at._data.capacity(1).rows
    held = call.arguments["held_rows"]
    assert call.entry == entry
    assert 0 < held <= largest
    assert (held == largest) == holds_all
    each, limit = call.launch.shared + geometry.RESERVED, geometry.shared_limit(device.compute_capability)
    assert geometry.READOUT_BLOCKS * each <= limit + geometry.RESERVED
    if not holds_all:
        row = geometry.readout(1, width, 0, 1).shared - geometry.readout(1, width, 0).shared
        assert geometry.READOUT_BLOCKS * (each + row) > limit + geometry.RESERVED
    assert Sources(cuda_sources()).entries[call.entry].pack(call.arguments)
