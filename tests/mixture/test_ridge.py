from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gcnbatch.mixture.ridge import Solution, Targets, solve, solve_by_landmarks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5))
KERNEL = np.exp(-((X[:, None] - X) ** 2).sum(axis=2) / 10)
FOLDS = (np.arange(60) % 4).astype(np.int8)
Z = RNG.normal(size=(60, 2)) + 3
TARGETS = Targets(FOLDS, np.stack([Z + part for part in range(4)]), Z)  # other targets without each part


WEIGHTS = RNG.uniform(0.2, 3, 60)


def refit(kernel: np.ndarray, z: np.ndarray, ridge: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Solve the system with the intercept as one more unknown."""
    count = len(z)
    border = np.ones((count + 1, count + 1))
    border[:count, :count], border[count, count] = kernel + np.diag(np.full(count, ridge)), 0
    found = np.linalg.solve(border, np.vstack([z, np.zeros((1, z.shape[1]))]))
    return found[:count], found[count]


def check(found: Solution, kernel: np.ndarray, columns: np.ndarray, weights: np.ndarray) -> None:
    fitted = predicted(kernel, kernel, Z, weights)
    np.testing.assert_allclose(columns @ found.weights + found.intercept, fitted, atol=1e-6)
    for part in range(4):
        own = part == FOLDS
        z = TARGETS.without[part][~own]
        refitted = predicted(kernel[np.ix_(~own, ~own)], kernel[np.ix_(own, ~own)], z, weights[~own])
        np.testing.assert_allclose(found.left_out[own], refitted, atol=1e-6)


def predicted(kernel: np.ndarray, rows: np.ndarray, z: np.ndarray, of_rows: np.ndarray) -> np.ndarray:
    weights, intercept = refit(kernel, z, 0.1 / of_rows)
    return rows @ weights + intercept


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_closed_form_equals_refits_without_each_part(weights: np.ndarray | None) -> None:
    found = solve(KERNEL.copy(), 0.1, TARGETS._replace(weights=weights))
    check(found, KERNEL, KERNEL, np.ones(60) if weights is None else weights)


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    twice = np.sort(np.concatenate([np.arange(60), [3, 40, 41]]))
    targets = Targets(FOLDS, TARGETS.without, Z, np.bincount(twice).astype(float))
    repeated = Targets(FOLDS[twice], TARGETS.without[:, twice], Z[twice])
    one, other = solve(KERNEL.copy(), 0.1, targets), solve(KERNEL[np.ix_(twice, twice)], 0.1, repeated)
    fitted = KERNEL @ one.weights + one.intercept
    np.testing.assert_allclose(KERNEL[:, twice] @ other.weights + other.intercept, fitted, atol=1e-8)
    np.testing.assert_allclose(other.left_out, one.left_out[twice], atol=1e-8)


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_missing_cells_are_as_if_their_rows_were_absent(share: float) -> None:
    present = np.random.default_rng(2).random(Z.shape) > share
    holes = np.where(present, 0, np.nan)
    found = solve(KERNEL.copy(), 0.1, Targets(FOLDS, TARGETS.without + holes, Z + holes))
    assert np.array_equal(np.isfinite(found.left_out), present)
    for column, rows in enumerate(present.T):
        own, targets = KERNEL[np.ix_(rows, rows)], TARGETS.without[:, rows][:, :, [column]]
        alone = solve(own.copy(), 0.1, Targets(FOLDS[rows], targets, Z[rows][:, [column]]))
        np.testing.assert_allclose(found.left_out[rows, column], alone.left_out[:, 0], atol=1e-8)
        np.testing.assert_allclose(found.weights[rows, column], alone.weights[:, 0], atol=1e-8)
        np.testing.assert_allclose(found.intercept[column], alone.intercept[0], atol=1e-8)
        assert not found.weights[~rows, column].any()


@pytest.mark.parametrize("missing", [0, 50])
def test_large_systems_are_solved_block_by_block(missing: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1100, 3))
    kernel = np.exp(-((x[:, None] - x) ** 2).sum(axis=2))
    z, folds = rng.normal(size=(1100, 1)), np.arange(1100) % 10
    z[:missing] = np.nan
    known, part = ~np.isnan(z[:, 0]), folds == 3
    found = solve(kernel.copy(), 0.3, Targets(folds, np.stack([z] * 10), z))
    weights, intercept = refit(kernel[np.ix_(known, known)], z[known], 0.3)
    np.testing.assert_allclose(found.weights[known], weights, atol=1e-8)
    np.testing.assert_allclose(found.intercept, intercept, atol=1e-8)
    others = known & ~part
    weights, intercept = refit(kernel[np.ix_(others, others)], z[others], 0.3)
    own = known & part
    np.testing.assert_allclose(found.left_out[own], kernel[np.ix_(own, others)] @ weights + intercept, atol=1e-8)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("count", [60, 20])
def test_landmarks_equal_the_kernel_that_they_approximate(count: int, weights: np.ndarray | None) -> None:
    columns = KERNEL[:, :count]
    own = KERNEL[:count, :count] + 1e-6 * np.eye(count)
    approximate = columns @ np.linalg.solve(own, columns.T)
    slices = [slice(0, 25), slice(25, 60)]

    def blocks() -> Iterator[tuple[slice, np.ndarray]]:
        return ((rows, columns[rows].astype(np.float64)) for rows in slices)

    found = solve_by_landmarks(blocks, KERNEL[:count, :count], 0.1, TARGETS._replace(weights=weights))
    check(found, approximate, columns, np.ones(60) if weights is None else weights)


def test_the_targets_of_left_out_rows_change_nothing() -> None:
    changed = TARGETS.without.copy()
    for part in range(4):
        changed[part, part == FOLDS] = np.nan
    first, second = solve(KERNEL.copy(), 0.1, TARGETS), solve(KERNEL.copy(), 0.1, TARGETS._replace(without=changed))
    assert np.array_equal(first.left_out, second.left_out)
