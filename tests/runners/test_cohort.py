"""Cohorts of one member, and the grouping of tasks by architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.registry import open_backend
from gcnbatch.data.batches import BatchSource
from gcnbatch.errors import InputError
from gcnbatch.lab.backend_comparison.workload import Workload, opened
from gcnbatch.model.gcn import build
from gcnbatch.runners.choice import cohort_size, make_cohort, make_runner
from gcnbatch.runners.cohort import group
from gcnbatch.runners.task import RunnerTask
from tests.entries import MadeEntry, register
from tests.training.runs import configure, write_set

BATCHES = [np.arange(8), np.arange(8, 16), np.arange(16, 21)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    path = tmp_path_factory.mktemp("cohort") / "data.h5"
    write_set(path)
    with opened(configure(f"data.path={path}")) as work:
        yield work


def test_a_cohort_of_one_does_what_its_runner_does(work: Workload) -> None:
    backend = open_backend("cpu")
    assert cohort_size(backend, [work.task, work.task]) == 1
    cohort, runner = make_cohort(backend, [work.task]), make_runner(backend, work.task)
    assert (cohort.backend, cohort.size, cohort.eval_batch_size) == ("cpu", 1, runner.eval_batch_size)
    assert cohort.about() == runner.about()
    cohort.begin_epoch([MemberEpoch(2, BATCHES, 0.01, first=1)])
    runner.begin_epoch(2, BATCHES, 0.01)
    for index in range(5):
        cohort.step(index)
    for index in (1, 2):
        runner.step(index)
    assert cohort.take_losses() == [runner.take_loss()]
    for name, value in runner.state().items():
        np.testing.assert_array_equal(cohort.state(0)[name], value, err_msg=name)
    (found,) = cohort.predict([BATCHES[2]])
    np.testing.assert_array_equal(found, runner.predict(BATCHES[2]))
    for one in cohort, runner:
        one.close()


def test_a_member_without_an_epoch_or_rows_rests(work: Workload) -> None:
    cohort = make_cohort(open_backend("cpu"), [work.task])
    cohort.begin_epoch([MemberEpoch(0, BATCHES, 0.01)])
    before = cohort.state(0)
    cohort.expect([None])
    cohort.begin_epoch([None])
    cohort.step(0)
    assert cohort.take_losses() == [(0.0, 0.0)]
    assert cohort.predict([None]) == [None]
    for name, value in cohort.state(0).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    other = make_cohort(open_backend("cpu"), [replace(work.task, seed=1)])
    other.load_state(0, before)
    np.testing.assert_array_equal(other.predict([BATCHES[0]])[0], cohort.predict([BATCHES[0]])[0])


def test_a_refused_member_is_refused_with_its_reason(work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, MadeEntry("cpu", refused="such graphs"))
    with pytest.raises(InputError, match="backend cpu: it does not take such graphs"):
        make_cohort(open_backend("cpu"), [work.task])


def like(work: Workload, *assignments: str) -> RunnerTask:
    """Return the task with these keys set, on the same data."""
    config = configure(*assignments)
    model = build(config.model, work.experiment.header)
    return replace(work.task, model=model, train=config.train, seed=config.seed)


@pytest.mark.parametrize(
    "same",
    [
        ("seed=1", "seed=2"),
        ("train.learning_rate=0.1", "train.schedule=cosine"),
        ("train.epochs=3", "train.patience=2"),
        ("model.dropout=0.1", "model.dropout=0.3"),
        ("train.weight_decay=0.1", "train.l2=0.2"),
        ("train.clip_norm=1", "train.clip_norm=2"),
    ],
)
def test_members_of_a_cohort_may_differ_in_values(work: Workload, same: tuple[str, str]) -> None:
    assert group([like(work, text) for text in same]) == [[0, 1]]


def test_shapes_kernels_and_data_separate_cohorts(work: Workload) -> None:
    given = ["", "model.widths=[8, 8]", "model.readout=mean", "train.batch_size=9", "train.optimizer=sgd"]
    given += ["model.dropout=0.1", "train.weight_decay=0.1", "train.clip_norm=1", "train.beta1=0.8"]
    tasks = [like(work, *filter(None, [text])) for text in given]
    elsewhere = replace(tasks[0], source=BatchSource(work.experiment.dataset.load()))
    found = group([*tasks, elsewhere, *tasks])
    assert sorted(found) == sorted([*([i, i + 10] for i in range(9)), [9]])
