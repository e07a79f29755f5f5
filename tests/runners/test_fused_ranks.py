"""What keeps ranks from sharing a model with backend ``fused``: the task, or that they do not reach each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.ranks.mailboxes import MAX_RANKS, why_apart
from gcnbatch.config_sections import CudaConfig
from gcnbatch.errors import InputError, MachineError
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.runners import fused_ranks
from gcnbatch.runners.task import RunnerTask
from tests.backends.cuda.fused.host import HostDevice
from tests.ranks.threads import ThreadCommunicator
from tests.training.runs import configure, write_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fused_ranks")
    write_set(folder / "graphs.h5", n_channels=1)
    write_set(folder / "nodes.h5", level="node")
    return folder


@pytest.fixture
def task(folder: Path) -> Iterator[RunnerTask]:
    with opened(configure(f"data.path={folder / 'graphs.h5'}", "model.widths=[64,64]")) as work:
        yield work.task


def backend_of(capability: tuple[int, int] = (9, 0)) -> FusedBackend:
    device: Any = HostDevice(compute_capability=capability)
    device.info = SimpleNamespace(number=3)
    return FusedBackend("fused", device, CudaConfig())


class TwoRanks:
    """The ranks as rank 0 sees them; the other opens its device with `other` when rank 0 starts a function on all."""

    def __init__(self, other: Any, size: int = 2, hosts: int = 1) -> None:
        self.size, self.local_size, self._other = size, size // hosts, other
        self.started: list[Any] = []
        slots, barrier = [None, None], Barrier(2, timeout=60)
        self._communicators = [ThreadCommunicator(rank, slots, barrier) for rank in range(2)]

    def communicator(self) -> Any:
        return self._communicators[0]

    def start_all(self, function: Any, *arguments: Any) -> None:
        self.started.append((function.__name__, arguments))
        Thread(target=why_apart, args=(self._communicators[1], self._other), daemon=True).start()


def why(task: RunnerTask, ranks: Any, backend: FusedBackend | None = None) -> str | None:
    return fused_ranks.refuses(backend or backend_of(), task, ranks)


def test_ranks_that_reach_each_other_are_taken(task: RunnerTask) -> None:
    ranks = TwoRanks(HostDevice)
    assert why(task, ranks) is None
    assert ranks.started == [("_meet", (3,))], "the others count their GPUs from that of rank 0"


def test_the_reason_of_the_other_rank_is_that_of_all(task: RunnerTask) -> None:
    def refused() -> Any:
        raise InputError("device", "1", "0 to 0")

    class Apart(HostDevice):
        def open_shared(self, handle: bytes, nbytes: int) -> Any:
            raise MachineError("device 1", "peer access is not supported")

    assert why(task, TwoRanks(refused)) == "ranks that do not reach each other's device memory (rank 1: device: 1)"
    said = "ranks that do not reach each other's device memory (rank 1: device 1: peer access is not supported)"
    assert why(task, TwoRanks(Apart)) == said


def test_ranks_that_cannot_reach_each_other_are_not_asked(task: RunnerTask) -> None:
    far, many = TwoRanks(HostDevice, size=4, hosts=2), TwoRanks(HostDevice, size=MAX_RANKS + 1)
    assert why(task, far) == "ranks on several hosts"
    assert why(task, many) == "more than 16 ranks"
    assert not far.started + many.started


def test_what_the_wide_form_does_not_train_is_refused(task: RunnerTask, folder: Path) -> None:
    ranks = TwoRanks(HostDevice)
    assert why(task, ranks, backend_of((8, 0))) == "several ranks on compute capability 8.0, only on 9.0"
    for assignments, reason in (
        (("model.widths=[64,64]", "model.residual=true"), "residual connections on several ranks (model.residual)"),
        (("model.widths=[64,64]", "model.ffn=true"), "feed-forward networks (model.ffn)"),
    ):
        with opened(configure(f"data.path={folder / 'graphs.h5'}", *assignments)) as work:
            assert why(work.task, ranks) == reason
    with opened(configure(f"data.path={folder / 'nodes.h5'}")) as work:
        assert why(work.task, ranks) == "a node-level data set on several ranks"
    assert not ranks.started
