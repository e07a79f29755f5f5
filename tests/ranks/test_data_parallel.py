"""One run on several ranks: each step is that of one process up to rounding; equal bits on equally many ranks."""

from __future__ import annotations

import json
import platform
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cpu import CpuBackend
from gcnbatch.backends.registry import open_backend
from gcnbatch.config import resolve
from gcnbatch.data.partition import partition
from gcnbatch.data.splits import make_split
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.lab.backend_comparison.parity import Parity
from gcnbatch.lab.backend_comparison.workload import Effort, opened
from gcnbatch.runners.choice import distributed_refusal, make_runner
from gcnbatch.runners.distributed import DistributedRunner
from gcnbatch.training import run
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fit import shuffled_batches
from tests.builders import build_graphset
from tests.ranks.launcher import mpirun
from tests.ranks.one_graph import assert_agrees
from tests.ranks.threads import on_ranks
from tests.training.runs import assert_same_run, configure, history, lighten, write_set

TRAIN = {"batch_size": 12, "weight_decay": 0.01}
EFFORT = Effort(parity_batches=3, parity_steps=3)


@pytest.mark.parametrize("costs", [[], [5], [0, 0, 0], [3, 1, 4, 1, 5, 9, 2, 6], [100, 1, 1], [1, 1, 100]])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_are_contiguous_and_off_their_share_by_at_most_two_items(costs: list[int], parts: int) -> None:
    bounds = partition(np.array(costs, np.int64), parts)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(costs), parts + 1)
    assert (np.diff(bounds) >= 0).all()
    each = [sum(costs[first:end]) for first, end in pairwise(bounds)]
    assert max(each) <= sum(costs) / parts + max(costs, default=0)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ({"widths": [8, 8], "dense": [8], "head": [6], "dropout": 0.3, "readout": ["sum", "max"]}, {"n_channels": 2}),
        ({"widths": [8, 8], "norm": "layer", "virtual_node": True, "dropout": 0.2}, {"target": "multiclass"}),
        ({"widths": [8, 8], "ffn": True, "residual": True}, {"target": "regression", "features": "csr"}),
        ({"widths": [8]}, {"target": "multiclass", "sample_weight": True}),
        ({"widths": [8]}, {"target": "regression", "sample_weight": True, "censored": True}),
    ],
    ids=["two readouts and dropout", "layer norm, classes", "sparse features, values", "weighted classes", "bounds"],
)
def test_ranks_train_what_one_process_trains(model: dict[str, Any], data: dict[str, Any], tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5", **data)
    tree = {"data": {"path": str(tmp_path / "set.h5")}, "model": model, "train": TRAIN | {"bounds": "one_sided"}}
    with opened(resolve(tree)) as workload:
        parity = Parity(workload, EFFORT)
        for ranks in (2, 3, 9):  # the last batch has fewer graphs than nine ranks
            for backend in (CpuBackend(), open_backend("cpu")):

                def observed(communicator: Any, backend: Any = backend, workload: Any = workload) -> Any:
                    return parity.observe(DistributedRunner(backend, workload.task, communicator))

                found = on_ranks(ranks, observed)
                assert_agrees(parity, found[0])
                for other in found[1:]:
                    for key, value in found[0].items():
                        np.testing.assert_array_equal(other[key], value, err_msg=str(key))


def test_predictions_of_ranks_are_in_the_order_of_the_rows(tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5")
    with opened(resolve({"data": {"path": str(tmp_path / "set.h5")}})) as workload:
        one = make_runner(open_backend("cpu"), [workload.task])
        rows = np.array([7, 3, 30, 12, 2])
        for logits in on_ranks(
            3,
            lambda communicator: DistributedRunner(open_backend("cpu"), workload.task, communicator).predict([rows])[0],
        ):
            np.testing.assert_allclose(logits, one.predict([rows])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.numerical(bound="they must differ")
def test_local_statistics_differ_from_global_ones_and_are_equal_on_all_ranks(tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5", graph_features=2)
    after = {}
    for sync in (True, False):
        tree = {"data": {"path": str(tmp_path / "set.h5")}, "train": {**TRAIN, "sync_batch_norm": sync}}
        with opened(resolve(tree)) as workload:

            def steps(communicator: Any, workload: Any = workload) -> dict[str, Any]:
                runner = DistributedRunner(open_backend("cpu"), workload.task, communicator)
                runner.begin_epoch([MemberEpoch(0, workload.batches, 0.01)])
                for step in range(len(workload.batches)):
                    runner.step(step)
                return runner.state()

            states = on_ranks(3, steps)
            for name, value in states[0].items():
                for other in states[1:]:
                    if name != "loss":
                        np.testing.assert_array_equal(other[name], value, err_msg=name)
            after[sync] = states[0]
            if "features.mean" in states[0]:
                np.testing.assert_array_equal(states[0]["features.mean"], workload.task.initial["features.mean"])
    changed = np.abs(after[True]["norm1.running_var"] - after[False]["norm1.running_var"])
    assert changed.max() > 1e-4


def test_what_ranks_cannot_train_together_is_refused() -> None:
    error = distributed_refusal(SimpleNamespace(name="nonbatched"), 4)
    assert str(error) == (
        "backend nonbatched: cannot share one run among 4 ranks. Use --backend fused or --backend batched or --backend "
        "cpu, start it without a launcher, or train folds, repeats or an ensemble on the ranks."
    )
    assert distributed_refusal(SimpleNamespace(name="cpu"), 4) is None


# ------------------------------------------------------------------------------------------------ under a launcher

# Commands by one launcher, on two ranks: refused, trained to the end, stopped within an epoch and resumed, one graph
# trained and resumed.
RUNS = """
import sys
from pathlib import Path
from gcnbatch.cli import ranked
from gcnbatch.errors import InputError
from gcnbatch.ranks.launch import launched
from gcnbatch.training import loop, processes, run
from gcnbatch.training.stop import Interrupted
from tests.training.runs import configure, lighten
import pytest

data, folder = sys.argv[2], Path(sys.argv[3])
lighten(pytest.MonkeyPatch())
config = configure(f"data.path={data}", "backend=cpu", "model.dropout=0.2")
here = launched()
check, calls = processes.finished.check_digest, iter(range(99))
if here.rank:
    def once(*about):
        if next(calls) == 0:
            raise InputError(data, "other data than on rank 0")
        check(*about)
    processes.finished.check_digest = once

def command():
    said = []
    try:
        run.start(config, folder / "refused", True)
    except InputError as error:
        print(error)
    run.start(config, folder / "whole", True, said.append)
    plain, count = loop.CohortLoop._steps, iter(range(99))
    def stopping(self, *about):
        if next(count) == 1:
            self._stop._signalled = True
        plain(self, *about)
    loop.CohortLoop._steps = stopping
    try:
        run.start(config, folder / "stopped", True)
    except Interrupted as error:
        print(error)
    loop.CohortLoop._steps = plain
    run.resume(folder / "stopped", quiet=True, say=said.append)
    about = f"data.path={folder / 'graph.h5'}", "backend=cpu", "model.kind=kipf"
    run.start(configure(*about), folder / "graph", True)
    run.resume(folder / "graph", quiet=True, epochs=5)
    print(said)

ranked.run(here, command)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the folder of the runs, and what rank 0 printed."""
    folder = tmp_path_factory.mktemp("data_parallel")
    write_set(folder / "set.h5", missing=0.0)
    graph = build_graphset(1, level="node", max_nodes=90, target="multiclass", missing=0.0)
    write_graphset(folder / "graph.h5", graph)
    out, _ = mpirun(2, "train", folder / "set.h5", folder, code=RUNS)
    return folder, out.splitlines()


@pytest.mark.numerical
@pytest.mark.parametrize(
    ("data", "folder", "assignments"),
    [
        ("set.h5", "whole", ["model.dropout=0.2"]),
        ("graph.h5", "graph", ["model.kind=kipf", "train.epochs=5"]),
    ],
)
def test_a_run_on_two_ranks_has_the_losses_of_two_runners_to_the_bit(
    trained, data: str, folder: str, assignments: list[str]
) -> None:
    """Each step of such runners is held to the reference above, and in `test_large_graph`."""
    place, printed = trained
    config = configure(f"data.path={place / data}", *assignments)
    with Dataset(place / data) as dataset:
        experiment = Experiment(config, dataset, on_ranks=True)
        split = make_split(config.split, config.seed, experiment.split_rows)
        task, _ = experiment.task(split)
        graphs = experiment.source.graphs_of(split.train)

        def losses(communicator: Any) -> list[float]:
            runner, found = DistributedRunner(open_backend("cpu"), task, communicator), []
            for epoch in range(config.train.epochs):
                batches = shuffled_batches(graphs, config.train.batch_size, config.seed, epoch)
                runner.begin_epoch([MemberEpoch(epoch, batches, config.train.learning_rate)])
                for step in range(len(batches)):
                    runner.step(step)
                total, weight = runner.take_losses()[0]
                found.append(total / weight)
            return found

        first, second = on_ranks(2, losses)
    assert [row["train_loss"] for row in history(place / folder)] == first == second
    assert json.loads((place / folder / "metrics.json").read_text(encoding="utf-8"))["ranks"] == 2
    assert printed[-1] == "['2 ranks train one model together', '2 ranks train one model together']"


def test_a_run_that_was_stopped_resumes_to_equal_bits_on_equally_many_ranks(trained) -> None:
    folder, printed = trained
    assert printed[1].startswith("stopped after 1 epoch and 1 step")
    assert_same_run(folder / "stopped", folder / "whole")


def test_a_rank_with_other_data_is_refused_by_name_and_nothing_is_left(trained) -> None:
    folder, printed = trained
    assert printed[0] == f"rank 1 on {platform.node()}: {folder / 'set.h5'}: other data than on rank 0"


def test_resuming_on_another_number_of_ranks_says_so(trained, monkeypatch) -> None:
    folder, _ = trained
    lighten(monkeypatch)
    said: list[str] = []
    run.resume(folder / "whole", quiet=True, say=said.append, epochs=4)
    assert said[-1] == (
        f"{folder / 'whole'} trained on 2 ranks, now on one process: other roundings than on the same number to the end"
    )
