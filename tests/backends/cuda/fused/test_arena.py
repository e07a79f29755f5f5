"""Memory of the members of a cohort, how their work is dealt to blocks, and a cohort's engine, without a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.fused import engine
from gcnbatch.backends.cuda.fused.narrow import geometry
from gcnbatch.backends.cuda.fused.shared.arena import Arena, ByteCounter, Region, in_arena, of_member
from gcnbatch.backends.cuda.fused.shared.geometry import TILE, blocks
from gcnbatch.backends.cuda.fused.shared.step import REGION_UNIT
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.cuda.runtime.copies import ALIGNMENT
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.resources import cuda_sources
from gcnbatch.runners.fused_graphs import FusedGraphsRunner
from tests.backends.cuda.fused.host import HostDevice
from tests.backends.cuda.fused.test_refusals import fused_backend
from tests.training.runs import configure, write_set


def test_an_array_has_the_same_place_in_every_region() -> None:
    device: Any = HostDevice()
    first, second = in_arena(device, 3, lambda memory: (memory.empty(5), memory.upload(np.arange(4, dtype=np.int32))))
    stride = first.owner.stride
    assert stride == 2 * ALIGNMENT
    assert second.ptr == first.ptr + ALIGNMENT
    assert stride % REGION_UNIT == 0, "kernels move pointers by whole units"
    assert [of_member(first, member).ptr - first.ptr for member in range(3)] == [0, stride, 2 * stride]
    for member in range(3):
        np.testing.assert_array_equal(device.uploaded[second.ptr + member * stride], np.arange(4))
    shared = DeviceArray(64, (1,), np.dtype(np.float32))
    assert of_member(shared, 2) is shared
    assert of_member(7, 2) == 7


def test_regions_agree_and_take_no_more_than_they_were_made_for() -> None:
    device: Any = HostDevice()
    arena = Arena(device, 2, 2 * 256)
    regions = [Region(arena, member) for member in range(2)]
    arrays = [[region.zeros(10), region.zeros(2, np.float64)] for region in regions]
    assert [late.ptr - early.ptr for early, late in zip(*arrays, strict=True)] == [arena.stride] * 2
    assert regions[0].zeros(0).ptr == 0
    with pytest.raises(AssertionError, match="more arrays than the region was made for"):
        regions[0].zeros(1)
    with pytest.raises(AssertionError, match="was not measured"):
        [arena.empty(256) for _ in range(2)]


def test_counted_arrays_take_whole_steps_of_the_alignment() -> None:
    counter = ByteCounter(2)
    counter.zeros((3, 5))
    counter.upload(np.zeros(65, np.float32))
    assert counter.nbytes == 256 + 512


@pytest.mark.parametrize("rows", [1, 40, 2000, 5000])
def test_partial_sums_of_columns_do_not_depend_on_the_members(rows: int) -> None:
    for members in (1, 2, 7, 33, 64):
        dealt = geometry.dealt(rows, members, 132)
        assert dealt.parts == min(-(-rows // TILE), 132)
        assert dealt.dw_sums in (dealt.parts, min(geometry.LANES, dealt.parts))
        assert 1 <= dealt.forward_blocks(members, 132) <= dealt.parts
        for is_first in (True, False):
            dx, dw = dealt.backward_blocks(is_first, members, 132)
            assert dx == 0 if is_first else 1 <= dx <= dealt.parts
            assert 1 <= dw <= dealt.dw_sums


def test_a_model_alone_has_a_block_for_each_tile() -> None:
    dealt = geometry.dealt(950, 1, 132)
    assert dealt.forward_blocks(1, 132) == 60
    assert dealt.backward_blocks(False, 1, 132) == (60, 60)
    assert dealt.backward_blocks(True, 1, 132) == (0, 60)


@pytest.mark.parametrize("parts", [1, 7, 60, 132])
def test_blocks_of_members_fill_one_wave(parts: int) -> None:
    for members in (1, 2, 5, 64, 200):
        found = blocks(parts, members, 132)
        assert 1 <= found <= parts
        assert members * found <= max(132, members)


def flat_job(start: int, count: int, columns: int, packed: int, step: int, **parts: Any) -> dict[str, Any]:
    """Return the fields of a job that chunks depend on; by default there are many partial sums, of tiles."""
    fields = {"start": start, "count": count, "P": columns, "columns": packed, "packed_columns": packed, "step": step}
    return fields | {
        "right_stride": count if step == 1 else step * count,
        "parts": 60,
        "unit": 16,
        "left": None,
        **parts,
    }


def test_chunks_cover_every_element_once() -> None:
    jobs = [flat_job(0, 300, 12, 12, 1), flat_job(300, 64, 64, 64, 2), flat_job(364, 33, 33, 36, 1)]
    for widest, expected in ((1, [1, 1, 1]), (4, [4, 1, 1])):
        table = geometry.chunks(jobs, widest)
        for number, job in enumerate(jobs):
            own = table[table["job"] == number]
            assert set(own["width"].tolist()) == {expected[number]}
            step = 32 * expected[number]
            np.testing.assert_array_equal(own["first"], np.arange(0, job["count"], step))


def test_threads_of_a_cohort_add_few_partial_sums_alone() -> None:
    """Not those of graphs, of odd rows, or of more sums than lanes; and a model alone keeps its lanes."""
    few, many, of_graphs = {"parts": 8}, {"parts": 9}, {"parts": 8, "unit": geometry.OF_GRAPHS}
    jobs = [flat_job(0, 4800, 64, 64, 1, **few), flat_job(4800, 4800, 64, 64, 1, **many)]
    jobs += [flat_job(9600, 768, 12, 12, 1, **of_graphs), flat_job(10368, 64, 64, 64, 2, **few)]
    table = geometry.chunks(jobs, 4, shares_launches=True)
    lanes = [set(table["lanes"][table["job"] == number].tolist()) for number in range(len(jobs))]
    assert lanes == [{1}, {geometry.LANES}, {geometry.LANES}, {geometry.LANES}]
    np.testing.assert_array_equal(table["first"][table["job"] == 0], np.arange(0, 4800, 1024))
    for unshared in (geometry.chunks(jobs, 4), geometry.chunks(jobs, 1, shares_launches=True)):
        assert set(unshared["lanes"].tolist()) == {geometry.LANES}


def test_blocks_of_a_cohort_of_large_models_have_several_passes() -> None:
    """Each element is in one pass; elements whose sums lanes share have one."""
    jobs = [flat_job(0, 9000, 60, 60, 1, parts=8), flat_job(9000, 64, 64, 64, 2, parts=8)]
    for shares, passes in ((False, 1), (True, geometry.PASSES)):
        table = geometry.chunks(jobs, 4, shares_launches=shares, is_large=True)
        own = table[table["job"] == 0]
        assert (set(own["passes"].tolist()), set(own["lanes"].tolist())) == ({passes}, {1})
        np.testing.assert_array_equal(own["first"], np.arange(0, 9000, 1024 * passes))
        assert set(table["passes"][table["job"] == 1].tolist()) == {1}


def test_blocks_that_need_not_wait_for_the_backward_pass_come_first() -> None:
    """These compute gradients of dense layers on graphs, alone: where lanes share sums, the order stays."""
    jobs = [
        flat_job(0, 9000, 60, 60, 1, parts=8),
        flat_job(9000, 6000, 60, 60, 1, unit=geometry.OF_GRAPHS, left=object()),
    ]
    for is_large, expected in ((True, [1, 0]), (False, [0, 1])):
        order = geometry.chunks(jobs, 4, is_large=is_large)["job"]
        assert list(dict.fromkeys(order.tolist())) == expected


@pytest.fixture
def cohort(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FusedGraphsRunner:
    """Four members on a device without memory; graphs and launches are logged in `launched`."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("driver"))
    monkeypatch.setattr(loader, "driver_cuda_version", lambda: (13, 0))
    monkeypatch.setattr(HostDevice, "observer", None, raising=False)
    entries = Sources(cuda_sources()).entries
    launched: list[tuple[str, int]] = []

    def launch(_: HostDevice, entry: str, launch: Any, **arguments: Any) -> None:
        assert entries[entry].pack(arguments)
        launched.append((entry, launch.grid[2]))

    monkeypatch.setattr(HostDevice, "launch", launch, raising=False)
    write_set(tmp_path / "data.h5", n_channels=1)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", "model.widths=[64,64]")) as work:
        made = FusedGraphsRunner(
            fused_backend(), [replace(work.task, seed=seed) for seed in range(getattr(request, "param", 4))]
        )

    class Logged:
        def __init__(self, steps: int, members: int) -> None:
            self.about = f"{steps} steps", members

        def launch(self) -> None:
            launched.append(self.about)

        def close(self) -> None:
            launched.append(("closed", self.about[1]))

    def record(branches: Any, steps: int, carveout: bool) -> Logged:
        members = 0
        for calls in branches:
            for call in calls:
                assert entries[call.entry].pack(call.arguments)
            members += calls[0].launch.grid[2]
            assert {call.launch.grid[2] for call in calls} == {calls[0].launch.grid[2]}
        return Logged(steps, members)

    monkeypatch.setattr(made._engine._recorder, "record", record)
    monkeypatch.setattr(made, "launched", launched, raising=False)
    return made


def epochs(steps: list[int | None], first: int = 0) -> list[MemberEpoch | None]:
    return [None if n is None else MemberEpoch(0, [np.arange(8)] * n, 0.1, first) for n in steps]


def run(cohort: FusedGraphsRunner, given: list[MemberEpoch | None]) -> list[Any]:
    launched: list[Any] = getattr(cohort, "launched")  # noqa: B009
    launched.clear()
    cohort.begin_epoch(given)
    for index in range(12):
        cohort.step(index)
    return [what for what in launched if "steps" in what[0] or what[0] == "closed"]


def test_members_that_stopped_leave_the_launches_when_they_are_many(cohort: FusedGraphsRunner) -> None:
    assert run(cohort, epochs([10, 10, 10, 10])) == [("8 steps", 4), ("2 steps", 4)]
    assert engine.MOST_IDLE == 0.25
    assert run(cohort, epochs([10, 9, None, 10])) == [("closed", 4), ("closed", 4), ("8 steps", 3), ("2 steps", 3)]
    assert run(cohort, epochs([None, 9, None, None])) == [("closed", 3), ("closed", 3), ("8 steps", 1), ("1 steps", 1)]
    assert run(cohort, epochs([None, None, 3, 2])) == [("closed", 1), ("closed", 1), ("3 steps", 2)]
    assert run(cohort, epochs([None, None, None, None])) == []


def test_each_member_counts_its_own_updates(cohort: FusedGraphsRunner) -> None:
    run(cohort, epochs([10, 7, None, 1]))
    assert [int(cohort.state(member)["updates"][0]) for member in range(4)] == [10, 7, 0, 1]
    run(cohort, [*epochs([10, 7], first=7), *epochs([2, 1], first=1)])
    assert [int(cohort.state(member)["updates"][0]) for member in range(4)] == [13, 7, 1, 1]


@pytest.mark.parametrize("cohort", [1], indirect=True)
def test_a_model_alone_is_a_cohort_of_one(cohort: FusedGraphsRunner) -> None:
    assert run(cohort, epochs([10])) == [("8 steps", 1), ("2 steps", 1)]
    assert cohort.take_losses() == [(0.0, 0.0)]
    assert int(cohort.state()["updates"][0]) == 10
    run(cohort, epochs([10], first=7))
    state = cohort.state()
    assert int(state["updates"][0]) == 13
    cohort.load_state({**state, "updates": np.array([2])})
    run(cohort, epochs([4]))
    assert int(cohort.state()["updates"][0]) == 6
    assert cohort.predict([np.arange(3)])[0].shape == (3, 2)  # type: ignore[union-attr]


def test_an_epoch_begins_with_the_first_step_of_any_member(cohort: FusedGraphsRunner) -> None:
    assert run(cohort, epochs([5, None, 3, None], first=3)) == [("2 steps", 1)]
    assert cohort._steps == range(3, 5)


def test_members_predict_their_own_rows(cohort: FusedGraphsRunner) -> None:
    found = cohort.predict([np.arange(3), None, np.arange(5), None])
    assert [None if own is None else own.shape for own in found] == [(3, 2), None, (5, 2), None]
    assert cohort.predict([None] * 4) == [None] * 4
