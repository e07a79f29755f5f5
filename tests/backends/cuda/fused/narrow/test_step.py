"""Which layers of a narrow step run the specialised kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.fused.shared.geometry import columns_of_u
from tests.backends.cuda.fused.test_host import workspace
from tests.training.runs import write_set

PLAIN = ["forward_first_64x1", "forward_64x1", "readout_64x1"]
MODELS: dict[str, tuple[tuple[str, ...], dict[str, int], list[str]]] = {
    "64 columns, 1 channel": ((), {}, PLAIN),
    "mean": (("model.readout=mean",), {}, PLAIN),
    "two readouts": (("model.readout=sum,mean",), {}, [*PLAIN[:2], "fused_readout"]),
    "max": (("model.readout=max",), {}, [*PLAIN[:2], "fused_readout"]),
    "two dense layers on graphs": (("model.head=[8]",), {}, [*PLAIN[:2], "fused_readout"]),
    "features of graphs": ((), {"graph_features": 3}, [*PLAIN[:2], "fused_readout"]),
    "as many outputs as warps": ((), {"n_tasks": 16}, PLAIN),
    "an output more": ((), {"n_tasks": 17}, [*PLAIN[:2], "fused_readout"]),
    "no batch norm": (("model.norm=none",), {}, PLAIN),
    "channels": ((), {"n_channels": 2}, ["forward", "forward", "readout_64x1"]),
    "dropout": (("model.dropout=0.5",), {}, ["forward", "forward", "fused_readout"]),
    "a dense layer on nodes": (("model.dense=[64]",), {}, [*PLAIN[:2], "forward", "readout_64x1"]),
    "another width first": (("model.widths=[32,64]",), {}, ["forward", "forward", "readout_64x1"]),
    "another width last": (("model.widths=[64,32]",), {}, ["forward_first_64x1", "forward", "fused_readout"]),
    "as many features as registers hold": ((), {"n_features": 95}, PLAIN),
    "a feature more": ((), {"n_features": 96}, ["forward", *PLAIN[1:]]),
}


@pytest.mark.parametrize(("assignments", "about", "expected"), MODELS.values(), ids=MODELS)
def test_specialised_kernels_run_where_the_layer_has_their_shape(
    assignments: tuple[str, ...], about: dict[str, int], expected: list[str], tmp_path: Path
) -> None:
    write_set(tmp_path / "data.h5", **{"n_channels": 1, **about})
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64]", *assignments), training=True)
    forward, backward = at.forward(), at.backward()
    assert [call.entry.removeprefix("fused_narrow_") for call in forward] == expected
    layers = [call.entry.replace("forward", "backward") for call in forward[:-1]]
    assert [call.entry for call in reversed(backward)] == layers
    for call in (*forward, *backward):
        given = call.arguments
        assert isinstance(given, dict)
        if call.entry.endswith("ward_64x1"):
            assert (given["F"], given["C"], given["P"], given["K"]) == (64, 1, 64, columns_of_u(64, 1))
        if call.entry.endswith("forward_first_64x1"):
            assert (given["C"], given["P"]) == (1, 64)
            assert given["K"] <= geometry.FORWARD_CHUNK
