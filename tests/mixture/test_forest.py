from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from gcnbatch.mixture.forest import CLASSES, TREES, VALUES, Forest, from_sklearn, grow, tree_count, without_warnings

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.poisson(0.5, (2500, 10)), RNG.normal(size=(2500, 10))], axis=1).astype(np.float16)
Z = np.stack([X[:, 0] + X[:, 12], X[:, 1] * X[:, 13], X[:, 14]], axis=1).astype(np.float64)


@pytest.mark.parametrize("outputs", [1, 3])
def test_arrays_predict_as_scikit_learn_does(outputs: int) -> None:
    model = ExtraTreesRegressor(7, random_state=0, max_depth=12).fit(X[:400], Z[:400, :outputs].squeeze())
    its = model.predict(X).reshape(len(X), outputs)
    np.testing.assert_allclose(from_sklearn(model).predict(X), its, rtol=1e-5, atol=1e-6)


def test_a_regression_of_one_column_per_class_gives_the_probabilities_of_a_classifier() -> None:
    """Squared error of 0 and 1 is the Gini impurity."""
    labels = np.digitize(Z[:, 0], [0.0, 1.0])
    one_hot = (labels[:, None] == np.arange(3)).astype(np.float64)
    classifier = ExtraTreesClassifier(20, random_state=0, max_features=0.5, max_depth=4).fit(X, labels)
    regressor = ExtraTreesRegressor(20, random_state=0, max_features=0.5, max_depth=4).fit(X, one_hot)
    found = from_sklearn(regressor).predict(X)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert np.mean(np.abs(found - classifier.predict_proba(X))) < 0.03


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.001), (-1.0, -0.9995), (0.0, 6e-8), (-6e-8, -0.0), (-2.0, 3.0)])
def test_thresholds_between_two_float16_decide_as_float64(low: float, high: float) -> None:
    x = np.array([[low], [high]], np.float16)
    assert x[0] < x[1]
    model = ExtraTreesRegressor(50, random_state=0).fit(x, [0.0, 1.0])
    some = np.concatenate([x, np.array([[-0.0], [0.0]], np.float16), -x])
    assert np.array_equal(from_sklearn(model).predict(some)[:, 0], model.predict(some))


def test_a_tree_of_one_leaf_predicts_its_value() -> None:
    forest = grow(X[:3], np.full((3, 1), 2.5), VALUES, trees=2, seed=0)
    assert np.array_equal(forest.predict(X[:4]), np.full((4, 1), 2.5))


def test_a_forest_repeats_from_its_seed_with_any_number_of_jobs() -> None:
    with without_warnings():
        first, second, third = (
            grow(X[:200], Z[:200, :1], VALUES, 5, seed, jobs).predict(X) for seed, jobs in ((1, 1), (1, 2), (2, 1))
        )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 2, 100])
def test_few_rows_are_predicted_as_many(outputs: int, rows: int) -> None:
    forest = grow(X[:400], Z[:400, :outputs], VALUES, 40, seed=0)
    assert np.array_equal(forest.predict(X[:rows]), forest.predict(X)[:rows])


def test_a_forest_survives_its_arrays() -> None:
    forest = grow(X[:200], Z[:200], VALUES, 5, seed=0)
    assert np.array_equal(Forest.from_arrays(forest.arrays()).predict(X), forest.predict(X))


def test_forests_split_and_join() -> None:
    whole = grow(X[:200], Z[:200], VALUES, 5, seed=0)
    first, second = whole.first(2), grow(X[:200], Z[:200], VALUES, 3, seed=1)
    joined = Forest.join([first, second])
    assert np.array_equal(joined.first(2).predict(X), first.predict(X))
    np.testing.assert_allclose(joined.predict(X), (2 * first.predict(X) + 3 * second.predict(X)) / 5, rtol=1e-12)


@pytest.mark.parametrize(("growth", "tasks"), [(VALUES, 1), (CLASSES, 1), (CLASSES, 12)])
def test_arrays_of_many_rows_and_tasks_keep_their_size(growth: object, tasks: int) -> None:
    rng = np.random.default_rng(0)
    forest = grow(rng.random((2000, 5)).astype(np.float16), rng.random((2000, tasks)), growth, 5, seed=0)
    of_a_row = sum(array.nbytes for array in forest.arrays().values()) / 5 / 2000
    assert of_a_row * 10_000 * tree_count(10_000, [(10_000, tasks)], growth) <= 40e6
    assert tree_count(1500, [(1500, tasks)], growth) == TREES
    assert tree_count(10_000, 12 * [(10_000, 1)], VALUES) < 60


def test_a_leaf_has_the_mean_by_weight() -> None:
    x, z, weights = np.zeros((2, 1), np.float16), np.array([[0.0], [1.0]]), np.array([1.0, 3.0])
    assert grow(x, z, VALUES, trees=2, seed=0, weights=weights).predict(x[:1]) == 0.75


def test_no_warning_is_shown_while_trees_grow_though_filters_are_reset() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with without_warnings():
            warnings.resetwarnings()
            warnings.warn("of scikit-learn", stacklevel=1)
        warnings.warn("of others", stacklevel=1)
    assert [str(one.message) for one in shown] == ["of others"]
