"""Which models train in narrow steps, and which kernels they launch."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcnbatch.backends.cuda.fused.forms import prediction_form, training_forms
from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.fused.narrow.form import Narrow
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.shared.geometry import TILE, columns_of_u, shared_limit
from gcnbatch.backends.cuda.fused.shared.model import UpdateRule
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.wide.form import Wide, WideTf32
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.resources import cuda_sources
from gcnbatch.runners.fused_stack import describe
from tests.backends.cuda.fused.host import workspace
from tests.training.runs import configure, write_set

HIDDEN = "readout_64x128"
PLAIN = ["forward_first_64x1", "forward_64x1", "readout_64x1"]
MODELS: dict[str, tuple[tuple[str, ...], dict[str, int], list[str]]] = {
    "64 columns, 1 channel": ((), {}, PLAIN),
    "mean": (("model.readout=mean",), {}, PLAIN),
    "two readouts": (("model.readout=sum,mean",), {}, [*PLAIN[:2], "fused_readout"]),
    "max": (("model.readout=max",), {}, [*PLAIN[:2], "fused_readout"]),
    "two dense layers on graphs": (("model.head=[8]",), {}, [*PLAIN[:2], "fused_readout"]),
    "features of graphs": ((), {"graph_features": 3}, [*PLAIN[:2], "fused_readout"]),
    "a hidden layer": (("model.head=[128]",), {}, [*PLAIN[:2], HIDDEN]),
    "a hidden layer, dropout": (("model.head=[128]", "model.dropout=0.5"), {}, ["forward", "forward", HIDDEN]),
    "a hidden layer, few features": (("model.head=[128]",), {"graph_features": 3}, [*PLAIN[:2], "fused_readout"]),
    "a hidden layer, an output more": (("model.head=[128]",), {"n_tasks": 17}, [*PLAIN[:2], "fused_readout"]),
    "a hidden layer, two readouts": (
        ("model.head=[128]", "model.readout=sum,mean"),
        {},
        [*PLAIN[:2], "fused_readout"],
    ),
    "as many outputs as warps": ((), {"n_tasks": 16}, PLAIN),
    "an output more": ((), {"n_tasks": 17}, [*PLAIN[:2], "fused_readout"]),
    "no batch norm": (("model.norm=none",), {}, PLAIN),
    "channels": (("model.widths=[64]",), {"n_channels": 2}, ["forward", "readout_64x1"]),
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


def test_a_residual_connection_is_a_launch_forward_and_one_for_each_output_that_branches_backward(
    tmp_path: Path,
) -> None:
    write_set(tmp_path / "data.h5", n_channels=1)
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64,32]", "model.residual=true"), training=True)
    forward, backward = (
        [call.entry.removeprefix("fused_") for call in calls] for calls in (at.forward(), at.backward())
    )
    layers = ["narrow_forward_first_64x1", "narrow_forward_64x1", "narrow_residual_forward", "narrow_forward"]
    assert forward == [*layers, "readout"]
    branch = "narrow_residual_backward"
    assert backward == ["narrow_backward", branch, "narrow_backward_64x1", branch, "narrow_backward_first_64x1"]
    entries = Sources(cuda_sources()).entries
    assert all(entries[call.entry].pack(call.arguments) for call in (*at.forward(), *at.backward()))


def stack_of(path: Path, *assignments: str) -> Stack:
    with opened(configure(f"data.path={path}", *assignments)) as work:
        return describe(work.task)


def test_layers_with_residual_connections_run_in_narrow_kernels(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5")
    assignments = ("model.widths=[256,256]", "model.residual=true")
    stack = stack_of(tmp_path / "data.h5", *assignments)
    assert training_forms(Setting(stack, (9, 0), "fp32", channels=3, largest=50)) == (Narrow,)
    assert prediction_form(stack, (9, 0), "fp32") is Narrow


@pytest.mark.parametrize(
    ("precision", "n_features", "form"), [("fp32", 86, Narrow), ("fp32", 350, Wide), ("tf32", 86, WideTf32)]
)
def test_layers_of_64_columns_and_bond_channels_run_in_narrow_kernels(
    precision: str, n_features: int, form: type[Form], tmp_path: Path
) -> None:
    """There they train in cohorts; other forms take them in TF32, and with more weights."""
    write_set(tmp_path / "data.h5", n_channels=5, n_features=n_features)
    stack = stack_of(tmp_path / "data.h5", "model.widths=[64,64]")
    assert training_forms(Setting(stack, (9, 0), precision, channels=5, largest=50)) == (form,)


@pytest.mark.parametrize(("head", "clip", "entry"), [(8, 0, ""), (600, 0, "_of_many"), (600, 1, "")])
def test_a_thread_updates_four_elements_of_many_parameters(head: int, clip: int, entry: str, tmp_path: Path) -> None:
    """Not where gradients are clipped, whose norm is a sum over threads."""
    write_set(tmp_path / "data.h5", n_channels=1)
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64]", f"model.head=[{head}]"), training=True)
    cohort = replace(at._cohort, clips=bool(clip))
    recorder: Any = None
    at = Narrow(cohort, recorder, True).workspace(cohort.data.capacity(8), steps=3, graphs=24)
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=bool(clip))
    assert {call.entry for call in at.update(rule)} == {f"fused_narrow_update{entry}"}


@pytest.mark.parametrize("members", [1, 3, 4, 7, 8, 16, 33, 64])
def test_large_cohorts_launch_kernels_in_which_few_warps_have_whole_tiles(members: int, tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", n_channels=1, n_graphs=40, max_nodes=400)
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64]",), training=True)
    at.launched, at.most_rows = tuple(range(members)), 132 * TILE
    entries = Sources(cuda_sources()).entries
    for call in (*at.forward(), *at.backward()):
        many = geometry.MANY_GRAPHS if "readout" in call.entry else geometry.MANY_TILES
        assert call.entry.endswith("_64x1") == (members < many)
        assert call.launch.grid[2] == members
        assert entries[call.entry].pack(call.arguments)
        if members >= many:
            assert call.launch.grid[0] <= 2 * max(1, 132 // members)


@pytest.mark.parametrize("members", [3, 4, 7, 64])
def test_large_cohorts_launch_for_groups_of_members(members: int, tmp_path: Path) -> None:
    """Each member is in one group. A launch has the members of its group, with as many blocks as without groups."""
    write_set(tmp_path / "data.h5", n_channels=1)
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64]",), training=True)
    at.launched = tuple(range(0, 2 * members, 2))
    blocks = [call.launch.grid[0] for call in (*at.forward(), *at.backward())]
    groups = at.branches()
    assert len(groups) == (geometry.BRANCHES if members >= geometry.BRANCHES else 1)
    assert sorted(member for group in groups for member in group) == list(at.launched)
    for group in groups:
        at.work_for(group)
        calls = (*at.forward(), *at.backward())
        assert [call.launch.grid[0] for call in calls] == blocks
        for call in calls:
            assert call.launch.grid[2] == len(group)
            assert tuple(call.arguments["members"]["places"][: len(group)]) == group


def test_batches_with_more_tiles_than_partial_sums_run_in_block_kernels(tmp_path: Path) -> None:
    """The largest batch of the epoch decides; launches for such batches also work for smaller ones."""
    write_set(tmp_path / "data.h5", n_channels=1, n_graphs=40, max_nodes=400)
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64]",), training=True)
    at.launched = tuple(range(33))
    found = {}
    for rows in (132 * TILE, 132 * TILE + 1):
        at.most_rows = rows
        found[rows] = [call.entry.endswith("_64x1") for call in (*at.forward(), *at.backward())]
    few, many = found
    assert (any(found[few]), all(found[many])) == (False, True)
    assert at.takes(few)
    at.most_rows = few
    assert [at.takes(rows) for rows in (few - 100, few, many)] == [True, True, False]


@pytest.mark.parametrize("about", [{"n_features": 88}, {"n_channels": 2}])
def test_layers_without_such_kernels_keep_theirs_in_large_cohorts(about: dict[str, int], tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", **{"n_channels": 1, **about})
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64]",), training=True)
    at.launched = tuple(range(33))
    assert not re.search("_warps|_sums", at.forward()[0].entry + at.backward()[-1].entry)


def test_a_gpu_with_little_shared_memory_keeps_the_block_kernels(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", n_channels=1, n_features=75)
    device, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64]",), training=True)
    device.compute_capability, at.launched = (7, 5), tuple(range(33))
    found = [bool(re.search("_warps|_sums", call.entry)) for call in (*at.forward(), *at.backward())]
    assert found == [True, True, True, False, False]  # teams of four warps and the readout take little


CHANNEL_LAUNCHES = geometry.CHANNEL_LAUNCHES.values()


@pytest.mark.parametrize("assignments", [(), ("model.dropout=0.5",), ("model.head=[8]", "model.norm=none")])
@pytest.mark.parametrize("members", [1, 4, 64])
def test_layers_of_64_columns_and_channels_have_kernels_that_skip_zeros(
    assignments: tuple[str, ...], members: int, tmp_path: Path
) -> None:
    write_set(tmp_path / "data.h5", n_channels=3)
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64,64]", *assignments), training=True)
    at.launched = tuple(range(members))
    calls = [*at.forward(), *at.backward()]
    found = [call.entry.removeprefix("fused_narrow_") for call in calls]
    assert "readout" in found.pop(3)
    splits, share = (1, "_whole") if members >= geometry.MANY_TILES else (4, "")
    layers = [*2 * [f"channels_forward{share}"], *2 * [f"channels_backward{share}"]]
    assert found == ["channels_first", *layers, "channels_weights"]
    entries = Sources(cuda_sources()).entries
    for call in calls:
        assert entries[call.entry].pack(call.arguments)
        assert call.launch.grid[2] == members
    blocks = [call.launch.grid[0] for call in calls if call.entry.endswith((f"forward{share}", f"backward{share}"))]
    assert set(blocks) == {geometry.channel_blocks(at.capacity.rows, splits, members, 132)}
    assert splits <= blocks[0] <= max(splits, (2 if splits > 1 else 1) * 132 // members)
    slabs = 2 * 3 + -(-at._columns_of_u(0) // 64)
    assert calls[-1].launch.grid[0] == geometry.LANES * slabs
    for call in (calls[0], calls[-1]):  # a block has a multiprocessor where there are as many
        assert (call.launch.shared > (shared_limit((9, 0)) - 1024) // 2) == (call.launch.blocks <= 132)


@pytest.mark.parametrize(
    ("assignments", "about"),
    [
        (("model.widths=[64]",), {}),
        (("model.widths=[64,32]",), {}),
        (("model.widths=[64,64]", "model.dense=[64]"), {}),
        (("model.widths=[64,64]", "model.residual=true"), {}),
        (("model.widths=[64,64]",), {"n_channels": 1}),
        (("model.widths=[64,64]",), {"n_channels": 33}),
    ],
)
def test_other_layers_with_channels_have_the_kernels_of_any_layer(
    assignments: tuple[str, ...], about: dict[str, int], tmp_path: Path
) -> None:
    write_set(tmp_path / "data.h5", **{"n_channels": 3, **about})
    _, at = workspace(tmp_path / "data.h5", assignments, training=True)
    assert not any("channels" in call.entry for call in (*at.forward(), *at.backward()))


def test_two_blocks_of_nine_channels_share_a_multiprocessor() -> None:
    launches = [launch(144, 9, 4) for launch in CHANNEL_LAUNCHES]
    assert all(2 * (launch.shared + 1024) <= 228 * 1024 for launch in launches)
    assert all(launch(1, 7, 4).shared <= shared_limit((8, 6)) for launch in CHANNEL_LAUNCHES)
    assert all(launch(1, geometry.MOST_CHANNELS, 4).shared <= shared_limit((9, 0)) for launch in CHANNEL_LAUNCHES)


def test_blocks_share_a_tile_where_the_weights_of_all_columns_do_not_fit() -> None:
    limits = [shared_limit(capability) for capability in ((9, 0), (8, 6))]
    found = {channels: [geometry.channel_splits(channels, 16, limit) for limit in limits] for channels in (2, 9, 11)}
    assert found == {2: [1, 1], 9: [1, 4], 11: [4, 4]}


def test_every_share_of_the_columns_has_kernels() -> None:
    entries = Sources(cuda_sources()).entries
    names = [f"{phase}{share}" for phase in geometry.CHANNEL_LAUNCHES for share in geometry.SHARES.values()]
    assert {f"fused_narrow_channels_{name}" for name in names} <= set(entries)
