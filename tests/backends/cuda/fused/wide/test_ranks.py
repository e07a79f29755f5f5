"""The wide form on several ranks without a GPU: parts of batches, mailboxes, the launches of a step, refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.batches.epoch_plan import plan_epoch
from gcnbatch.backends.cuda.fused.forms import training_forms
from gcnbatch.backends.cuda.fused.shared.epoch import PROGRESS, BegunEpoch, Rates
from gcnbatch.backends.cuda.fused.shared.form import Setting
from gcnbatch.backends.cuda.fused.shared.model import UpdateRule
from gcnbatch.backends.cuda.fused.shared.ranks import Ranks, plan_part
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.wide import ranks_form
from gcnbatch.backends.cuda.fused.wide.ranks_form import WideOverRanks, WideTf32OverRanks
from gcnbatch.backends.cuda.fused.wide.ranks_step import RanksWorkspace, box_of, mailbox_bytes
from gcnbatch.backends.cuda.ranks.mailboxes import Mailboxes, why_apart
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.errors import MachineError
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.fused.cohorts import cohort_of
from tests.backends.cuda.fused.host import HostDevice
from tests.ranks.threads import on_ranks
from tests.training.runs import configure, write_set

RULE = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
CASES = {
    "three layers": ("model.widths=[256,256,256]",),
    "everything": ("model.widths=[70,64]", "model.dense=[16]", "model.head=[8]", "model.dropout=0.25"),
    "clipped, local": ("model.widths=[64,100]", "train.clip_norm=1.0", "train.sync_batch_norm=false"),
    "no norm": ("model.norm=none", "model.widths=[300,20]", "train.sync_batch_norm=false"),
    "one layer": ("model.widths=[64]",),
}
for_each_case = pytest.mark.parametrize("assignments", CASES.values(), ids=CASES)


def no_mailboxes(size: int) -> Any:
    return SimpleNamespace(of=tuple(HostDevice().empty(1, np.uint8) for _ in range(size)), turns=0)


def workspace_of(path: Path, assignments: tuple[str, ...], size: int = 3) -> RanksWorkspace:
    device: Any = HostDevice()
    write_set(path / "data.h5", n_channels=2)
    with opened(configure(f"data.path={path / 'data.h5'}", *assignments)) as work:

        def ranks(_: Stack) -> Ranks:
            return Ranks(1, size, work.task.train.sync_batch_norm, 8, no_mailboxes(size))

        cohort = cohort_of(device, work.task, (WideOverRanks,), ranks)
        recorder: Any = None
        form = WideOverRanks(cohort, recorder, training=True)
        at = form.workspace(cohort.data.capacity(8), steps=3, graphs=24)
    assert isinstance(at, RanksWorkspace)
    return at


def step_of(at: RanksWorkspace) -> list[Call]:
    return [*at.forward(), *at.backward(), *at.update(RULE)]


@for_each_case
def test_every_launch_names_all_arguments_of_its_kernel(assignments: tuple[str, ...], tmp_path: Path) -> None:
    at = workspace_of(tmp_path, assignments)
    entries = Sources(cuda_sources()).entries
    for entry, launch, arguments in (*at.pack(), at.stage(), *step_of(at)):
        assert len(entries[entry].pack(arguments)) > 0
        assert launch.blocks > 0


def test_a_step_has_the_launches_of_one_rank(tmp_path: Path) -> None:
    at = workspace_of(tmp_path, ("model.widths=[256,256]", "model.dropout=0.5", "model.head=[16]"))
    names = [call.entry.removeprefix("fused_") for call in step_of(at)]
    first, second = (
        ["wide_ranks_product_3xtf32", "wide_ranks_dropout"],
        ["wide_propagate", "wide_ranks_product_3xtf32"],
    )
    back = ["wide_ranks_propagate_backward", "wide_product_dx_3xtf32", "wide_product_dw_3xtf32"]
    assert names == [*first, *second, "ranks_readout", *back, back[0], back[2], "wide_ranks_update"]


def test_clipping_needs_the_others_only_for_the_gradients(tmp_path: Path) -> None:
    at = workspace_of(tmp_path, ("model.widths=[64,64]",))
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=True)
    assert [call.entry for call in at.update(rule)] == ["fused_wide_ranks_update", "fused_wide_update"]


@for_each_case
def test_the_chunks_of_a_box_are_those_of_all_gradients_that_ranks_add(
    assignments: tuple[str, ...], tmp_path: Path
) -> None:
    """All but those of batch norm with statistics of all rows, which are sums over all ranks already."""
    at = workspace_of(tmp_path, assignments)
    device: Any = at._device
    jobs, chunks = (device.uploaded[table.ptr] for table in at._tables[:2])
    box = box_of(at._stack, at._ranks.sync)
    norms = 2 * len([layer for layer in at._stack.nodes if layer.norm])
    assert len({int(number) for number in chunks["job"]}) == len(jobs)
    assert {int(jobs["F"][number]) for number in chunks["job"][box.chunks :]} == (
        {0} if norms and at._ranks.sync else set()
    )
    exchanged = {int(number) for number in chunks["job"][: box.chunks]}
    assert len(exchanged) == len(jobs) - (norms if at._ranks.sync else 0)


@for_each_case
def test_a_backward_kernel_has_a_block_for_each_tile(assignments: tuple[str, ...], tmp_path: Path) -> None:
    at = workspace_of(tmp_path, assignments)
    for call in at.backward():
        if call.entry == "fused_wide_ranks_propagate_backward":
            columns, rows = -(-call.arguments["propagate"]["P"] // 32), -(-at.capacity.rows // 32)
            assert call.launch.grid == (columns * rows, 1, 1)


@for_each_case
def test_lines_of_a_column_belong_to_one_layer_and_direction(assignments: tuple[str, ...], tmp_path: Path) -> None:
    at = workspace_of(tmp_path, assignments)
    taken: list[int] = []
    for call in step_of(at):
        if "_ranks_product" in call.entry:
            taken += range(call.arguments["line"], call.arguments["line"] + call.arguments["product"]["P"])
        if "_ranks_propagate" in call.entry and call.arguments["propagate"]["stats"] is not None:
            taken += range(call.arguments["line"], call.arguments["line"] + call.arguments["propagate"]["P"])
    assert sorted(taken) == list(range(box_of(at._stack, at._ranks.sync).lines))


def test_the_box_of_a_model_has_room_for_its_lines_chunks_and_flags(tmp_path: Path) -> None:
    at = workspace_of(tmp_path, ("model.widths=[64,32]", "model.head=[40]"))
    features, outputs = at._stack.nodes[0].n_in, at._stack.n_outputs
    first = -(-2 * (features + 1) // 32) * 2  # two channels, 64 columns
    second = -(-2 * 65 // 32)
    heads = 2 * 2 + 2 * -(-outputs // 32)  # (32 + 1) x 40 and (40 + 1) x outputs
    box = box_of(at._stack, sync=True)
    assert box == (2 * (64 + 32), first + second + heads)
    assert box.nbytes >= 16 * box.lines + 4100 * box.chunks
    assert box.nbytes % 256 == 0
    assert mailbox_bytes(at._stack, True, 5) == 10 * box.nbytes
    assert box_of(at._stack, sync=False).chunks == box.chunks + 2 * (1 + 1)


def test_parts_of_all_ranks_are_the_global_batch() -> None:
    sizes = {"nodes": np.array([3, 9, 1, 0, 5, 2]), "edges": np.array([4, 30, 1, 0, 12, 3])}
    batches = [np.array([5, 0, 3, 1]), np.array([4]), np.array([2, 3])]
    plans = [plan_part(batches, sizes, Ranks(rank, 3, True, 4, no_mailboxes(3))) for rank in range(3)]
    for number, graphs in enumerate(batches):
        own = [plan.graphs[plan.batch_ptr[number] : plan.batch_ptr[number + 1]] for plan in plans]
        np.testing.assert_array_equal(np.concatenate(own), graphs)
        nodes = [int(sizes["nodes"][part].sum()) for part in own]
        for rank, plan in enumerate(plans):
            first = [sum(nodes[:rank]), sum(map(len, own[:rank]))]
            np.testing.assert_array_equal(plan.parts[number], [*first, *nodes])
            assert plan.pointer("nodes", number)[-1] == nodes[rank]
            assert plan.capacity == 7
    alone = plan_part(batches, sizes, Ranks(0, 1, True, 4, no_mailboxes(1)))
    expected = plan_epoch(batches, sizes)
    np.testing.assert_array_equal(alone.graphs, expected.graphs)
    for name, pointer in expected.pointers.items():
        np.testing.assert_array_equal(alone.pointers[name], pointer)


def test_the_plan_on_the_device_has_parts_and_turns(tmp_path: Path) -> None:
    at = workspace_of(tmp_path, ("model.widths=[64]",))
    sizes = {name: np.diff(np.arange(41) ** 2) for name in ("nodes", "edges", "t_edges")}
    plan = plan_part([np.arange(8), np.arange(5)], sizes, at._ranks)
    packed = np.zeros((1, *at.plan.array.shape), np.int32)
    at.pack_plan(packed[0], plan, np.zeros(2, np.float32))
    at.plan.begin(packed, 1, {0: BegunEpoch(1, 2, 7, Rates(0.1, np.zeros((2, 2), np.float32)), turn=41)})
    start = (at.plan.views["parts"].ptr - at.plan.array.ptr) // 4
    np.testing.assert_array_equal(packed[0, start : start + plan.parts.size], plan.parts.ravel())
    assert packed[0, PROGRESS["TURN"]] == 41


def test_every_rank_reaches_the_mailboxes_of_all() -> None:
    devices: list[Any] = [HostDevice(used=4096 * (number + 1)) for number in range(3)]
    found = on_ranks(
        3, lambda communicator: [one.ptr for one in Mailboxes(devices[communicator.rank], communicator, 100).of]
    )
    assert found == [[4096, 8192, 12288]] * 3


@pytest.mark.parametrize("step", ["shared", "open_shared"])
def test_a_rank_that_fails_stops_all_with_its_reason(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Any] = [HostDevice() for _ in range(3)]

    def refused(*about: Any) -> Any:
        raise MachineError("device 0", "peer access is not supported")

    monkeypatch.setattr(devices[1], step, refused)
    reasons = on_ranks(3, lambda communicator: why_apart(communicator, lambda: devices[communicator.rank]))
    assert reasons == ["rank 1: device 0: peer access is not supported"] * 3


def setting(stack: Any, precision: str = "fp32", capability: tuple[int, int] = (9, 0), ranks: int = 2) -> Setting:
    return Setting(stack, capability, precision, channels=1, largest=20, ranks=ranks)


def test_the_wide_form_trains_any_width_on_ranks(tmp_path: Path) -> None:
    stack = workspace_of(tmp_path, ("model.widths=[8,8]",))._stack
    assert training_forms(setting(stack)) == (WideOverRanks,)
    assert training_forms(setting(stack, "tf32")) == (WideTf32OverRanks,)
    assert WideOverRanks not in training_forms(setting(stack, ranks=0))


def test_what_no_form_trains_on_ranks_has_a_reason(tmp_path: Path) -> None:
    plain = workspace_of(tmp_path, ("model.widths=[64,64]",))._stack
    residual = workspace_of(tmp_path, ("model.widths=[64,64]",))._stack
    nodes = (residual.nodes[0], *(SimpleNamespace(**{**vars(one), "residual": True}) for one in residual.nodes[1:]))
    of_residual: Any = SimpleNamespace(nodes=nodes)
    assert ranks_form.refusal(setting(of_residual)) == "residual connections on several ranks (model.residual)"
    assert ranks_form.refusal(setting(plain, capability=(8, 0))) == (
        "several ranks on compute capability 8.0, only on 9.0"
    )
    assert ranks_form.refusal(setting(plain)) == ""
    assert training_forms(setting(plain, capability=(8, 0))) == ()
