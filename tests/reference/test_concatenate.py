"""Sums and concatenations of the reference, by hand."""

from __future__ import annotations

import numpy as np

from gcnbatch.reference import ReferenceOps


def test_a_concatenation_and_its_gradient_by_hand() -> None:
    left, right = np.array([[1.0], [2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])
    joined = ReferenceOps.concatenate([left, right])
    assert joined.tolist() == [[1, 3, 4], [2, 5, 6]]
    first, second = ReferenceOps.concatenate_backward(joined, [1, 2])
    assert (first.tolist(), second.tolist()) == (left.tolist(), right.tolist())
    first[...] = 0
    assert joined[0, 0] == 1  # the parts are copies


def test_rows_by_number_by_hand() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert ReferenceOps.take(x, np.array([2, 0, 2], np.int32)).tolist() == [[5, 6], [1, 2], [5, 6]]


def test_a_sum_by_hand() -> None:
    assert ReferenceOps.add(np.array([[1.0, -2.0]]), np.array([[0.5, 2.0]])).tolist() == [[1.5, 0]]
