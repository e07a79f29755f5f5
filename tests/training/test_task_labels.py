"""Tasks that training rows cannot teach, and what is said of the labels of a split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gcnbatch.data.graphs import Split
from gcnbatch.errors import InputError
from gcnbatch.training.targets import STRATIFIED, check_learnable, label_notes, left_out
from tests.builders import build_graphset

SPLIT = Split(train=np.arange(12), valid=np.arange(12, 16), test=np.arange(16, 20))
OTHER = Split(train=np.arange(8, 20), valid=np.arange(4), test=np.arange(4, 8))


def binary(tasks: int) -> np.ndarray:
    return np.repeat((np.arange(20) % 2).astype(np.float32)[:, None], tasks, axis=1)


def test_one_line_lists_all_tasks_that_are_left_out() -> None:
    header, y = build_graphset(1, n_tasks=30).header, binary(30)
    assert label_notes(header, y, [SPLIT], "random") == []
    y[SPLIT.train, 1:3] = (1, np.nan)
    y[SPLIT.train, 5:28] = 0
    (line,) = label_notes(header, y, [SPLIT], "random")
    assert line.startswith(
        "left out: 25 of 30 tasks without labels of two classes in the training rows: task1 (all 1), task2 (no label), "
        "task5 (all 0), task6 (all 0)"
    )
    assert line.endswith("task22 (all 0) and 5 more")
    assert left_out(header, y[SPLIT.train]).sum() == 25


def test_tasks_of_one_class_in_other_parts_are_named_with_what_helps() -> None:
    header, y = build_graphset(1, n_tasks=7).header, binary(7)
    y[SPLIT.valid, 2] = np.nan
    y[SPLIT.test, 1:4] = 0
    poor = [
        "valid rows: 1 of 7 tasks without labels of two classes, so without ROC-AUC there: task2",
        "test rows: 3 of 7 tasks without labels of two classes, so without ROC-AUC there: task1, task2, task3",
    ]
    assert label_notes(header, y, [SPLIT], "random") == [poor[0], f"{poor[1]}; {STRATIFIED}"]
    assert label_notes(header, y, [SPLIT], "stratified") == poor


def test_folds_are_counted_together() -> None:
    header, y = build_graphset(1, n_tasks=3).header, binary(3)
    y[SPLIT.train, 1] = 0  # OTHER has labels of two classes in the rows 12 to 19
    y[SPLIT.test, 2] = 0
    assert label_notes(header, y, [SPLIT, OTHER], "random") == [
        "left out: 1 of 3 tasks without labels of two classes in the training rows: in some of the 2 splits task1",
        "valid rows of 1 of 2 splits: 1 of 3 tasks without labels of two classes, so without ROC-AUC there: task1; "
        "means leave these splits out",
        "test rows of 2 of 2 splits: 2 of 3 tasks without labels of two classes, so without ROC-AUC there: task1, "
        f"task2; {STRATIFIED}",
    ]


def test_regression_needs_labels_and_equal_ones_are_said() -> None:
    header = build_graphset(1, target="regression", n_tasks=3).header
    y = np.random.default_rng(0).normal(size=(20, 3))
    y[SPLIT.train, 1], y[SPLIT.train, 2] = np.nan, 2.5
    assert label_notes(header, y, [SPLIT], "random") == [
        "left out: 1 of 3 tasks without labels in the training rows: task1 (no label)",
        "training labels are all equal and teach nothing: task2 (all 2.5)",
    ]


def test_a_class_goes_by_its_name() -> None:
    header = replace(build_graphset(1, target="multiclass")).header
    y = np.ones((20, 1), np.int32)
    y[SPLIT.train[0]] = -1
    assert "task0 (all class1)" in label_notes(header, y, [SPLIT], "random")[0]


def test_only_splits_that_can_teach_nothing_are_refused() -> None:
    header, y = build_graphset(1, n_tasks=1).header, binary(1)
    y[SPLIT.train] = 1
    check_learnable("set.h5", header, y, [SPLIT, OTHER])
    with pytest.raises(
        InputError, match=r"^set\.h5: no task has labels of two classes in the training rows; .*\. Use more rows"
    ):
        check_learnable("set.h5", header, y, [SPLIT])
