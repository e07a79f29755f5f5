"""Which test rows are shown, and how molecules are drawn."""

from __future__ import annotations

import re

import numpy as np

from gcnbatch.data.molecule_drawings import draw
from gcnbatch.data.schema import Header, Target
from gcnbatch.run_report.tested import HeldOut, choose_examples

NAN = float("nan")


def rows_of(target: Target, y: list[list[float]], outputs: list[list[float]]) -> HeldOut:
    classes = ("red", "green") if target == "multiclass" else ()
    names = ("colour",) if classes else tuple("ab"[: len(y[0])])
    header = Header(
        name="x",
        level="graph",
        target=target,
        task_names=names,
        class_names=classes,
        n_features=1,
        channel_names=("c",),
    )
    rows = np.arange(len(y))
    labels = np.array(y, dtype=np.int64 if classes else np.float64)
    return HeldOut(header, len(y), rows.astype(np.str_), labels, np.array(outputs, np.float32), None)


def texts(rows: HeldOut) -> tuple[list[str], list[str]]:
    worst, best, *_ = choose_examples(rows)
    return [f"{one.row} {one.text}" for one in worst], [f"{one.row} {one.text}" for one in best]


def test_binary_rows_are_shown_for_their_worst_task_and_hits_are_positives() -> None:
    y = [[1, 0], [0, NAN], [1, 1], [NAN, 0]]
    outputs = [[0.9, 0.95], [0.2, 0.99], [0.8, 0.6], [0.1, NAN]]
    worst, best = texts(rows_of("binary", y, outputs))
    assert worst == [
        "0 b: measured 0, probability of 1: 0.950",
        "2 b: measured 1, probability of 1: 0.600",
        "1 a: measured 0, probability of 1: 0.200",
    ]
    assert best == []  # row 0 and 2 are among the worst


def test_a_hit_is_the_most_probable_positive() -> None:
    y, outputs = [[0.0]] * 7 + [[1.0]] * 2, [[0.9]] * 7 + [[0.97], [0.99]]
    best = texts(rows_of("binary", y, outputs))[1]
    assert best == ["8 measured 1, probability of 1: 0.990", "7 measured 1, probability of 1: 0.970"]


def test_classes_are_wrong_or_right() -> None:
    rows = rows_of("multiclass", [[0], [0], [1], [-1]], [[0.4, 0.6], [0.9, 0.1], [0.3, 0.7], [1, 0]])
    assert texts(rows) == (
        ["0 is red, predicted green (0.60)"],
        ["1 is red, predicted red (0.90)", "2 is green, predicted green (0.70)"],
    )


def test_values_of_tasks_in_other_units_are_compared_by_their_spread() -> None:
    y, outputs = [[float(row), 1000.0 * row] for row in range(9)], [[float(row), 1000.0 * row] for row in range(9)]
    outputs[3][0], outputs[5][1] = 8.0, 6000.0
    worst, best = texts(rows_of("regression", y, outputs))
    assert worst[:2] == ["3 a: measured 3, predicted 8", "5 b: measured 5000, predicted 6000"]
    assert len(worst) == 6
    assert len(best) == 3


def test_rows_without_labels_or_finite_outputs_are_not_shown() -> None:
    assert texts(rows_of("regression", [[NAN], [1.0]], [[1.0], [NAN]])) == ([], [])


def test_drawings_hold_paths_alone_and_a_bad_molecule_costs_itself() -> None:
    found = draw(
        ["CCO", "not a molecule", "C" * 151, "C" * 1001, "", 'CC |$<script>alert("x")</script>;;$|', "c1ccccc1Cl"]
    )
    assert [bool(svg) for svg in found] == [True, False, False, False, False, bool(found[5]), True]
    for svg in filter(None, found):
        assert re.fullmatch(r'<svg viewBox="0 0 240 160" aria-hidden="true">(<path [\w="#.,\- ]+/>)+</svg>', svg)
    assert "#00CC00" in found[6]  # chlorine's colour
