from __future__ import annotations

import json
import time
from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from gcnbatch.errors import InputError
from gcnbatch.mixture import Bounds, Mixture, Problem, choose_kinds, fit_members, kernel, mix, trees
from gcnbatch.mixture.kernel import KernelRidge, activate
from gcnbatch.mixture.molecules import Preparation
from tests.mixture.problems import molecules, problem, rmse, values

TARGETS = [
    ("regression", 1, 0.0),
    ("regression", 3, 0.3),
    ("binary", 1, 0.0),
    ("binary", 2, 0.2),
    ("multiclass", 1, 0.1),
]


@pytest.fixture(autouse=True)
def _small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_OF_A_PART", 10)
    monkeypatch.setattr("gcnbatch.mixture.forest.TREES", 30)


@pytest.mark.numerical(bound="sums of few numbers")
@pytest.mark.parametrize(("target", "tasks", "missing"), TARGETS)
def test_a_mixture_learns_and_survives_its_arrays(target: str, tasks: int, missing: float) -> None:
    of = molecules(150)
    given = problem(of, target, tasks, missing)
    members, left_out = fit_members(given, of)
    mixed = mix(given, members, left_out)
    constant = np.broadcast_to(np.nanmean(given.values, axis=0), given.values.shape)
    error = given.error(given.y, mixed.left_out)
    assert error < 0.97 * given.error(given.y, constant)
    new = molecules(30, seed=5)
    outputs = mixed.mixture.predict(new)
    assert outputs.shape == (30, given.values.shape[1])
    if target != "regression":
        assert ((outputs >= 0) & (outputs <= 1)).all()
    if target == "multiclass":
        np.testing.assert_allclose(outputs.sum(axis=1), 1, rtol=1e-5)
    arrays = mixed.mixture.arrays()
    assert all(isinstance(array, np.ndarray) and array.dtype.kind in "iuf" for array in arrays.values())
    again = Mixture.from_arrays(arrays, json.loads(json.dumps(mixed.mixture.metadata)))
    assert np.array_equal(again.predict(new, jobs=2), outputs)
    assert np.array_equal(np.concatenate([again.predict(new[row : row + 1]) for row in range(30)]), outputs)
    assert again.predict(new[:0]).shape == (0, given.values.shape[1])
    assert [share.member for share in mixed.table] == ["kernel", "trees"]


@pytest.mark.parametrize(("target", "missing"), [("regression", 0.2), ("binary", 0.0)])
@pytest.mark.parametrize("skewed", [False, True])
def test_no_target_of_a_part_changes_the_predictions_for_it(target: str, missing: float, skewed: bool) -> None:
    of = molecules(80)
    given = problem(of, target, 1, missing)
    y = np.exp(given.y) if skewed and target == "regression" else given.y
    given = replace(given, y=y)
    kinds, choices = ("quantile" if skewed and target == "regression" else "none",), {0: kernel.Choice(0.1)}
    part = given.folds == 3
    changed = y.copy()
    changed[part] = 1 - y[part]
    found = [_left_out(replace(given, y=of_targets), of, choices, kinds) for of_targets in (y, changed)]
    labelled = part & ~np.isnan(y[:, 0])
    for first, second in zip(*found, strict=True):
        assert np.array_equal(first[labelled], second[labelled])
        assert not np.array_equal(first[~part], second[~part])


def _left_out(
    given: Problem, of: object, choices: dict[int, kernel.Choice], kinds: tuple[str, ...]
) -> list[np.ndarray]:
    preparation = Preparation.fit(of)
    prepared = preparation.apply(of)
    scales = trees.Scales.fit(given, kinds)
    _, of_kernel = kernel.fit(given, prepared, choices, scales, kernel.whole_matrix(given, prepared))
    _, of_trees = trees.fit(given, preparation, prepared, scales)
    return [scales.invert(left_out, given.folds) for left_out in (of_kernel, of_trees)]


def test_skewed_targets_are_transformed_if_that_saves_error() -> None:
    of = molecules(200)
    plain = values(of)
    y = np.stack([np.exp(plain[:, 0]), plain[:, 0]], axis=1)
    given = Problem.of("regression", y, np.arange(200), lambda y, o: float(np.nanmean(np.abs(y - o))))
    members, _ = fit_members(given, of)
    assert members.transforms.kinds[0] in ("log", "quantile")
    assert members.transforms.kinds[1] == "none"
    assert (members.predict(of)["kernel"][:, 0] > 0).all()


def test_trees_that_grow_beside_a_kernel_that_fails_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    of, failing, grown = molecules(100), Event(), []
    grow = trees.grow

    def grow_later(*about):
        assert failing.wait(60)
        time.sleep(0.05)
        grown.append(grow(*about))
        return grown[-1]

    def fail(*about):
        failing.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(trees, "grow", grow_later)
    monkeypatch.setattr(kernel, "choose", fail)
    with pytest.raises(KeyboardInterrupt):
        fit_members(replace(problem(of, "binary"), jobs=1), of)
    assert len(grown) < 10


def test_features_are_read_if_a_transform_can_be_chosen() -> None:
    of = molecules(200)
    read: list[bool] = []

    def features() -> object:
        read.append(True)
        return of

    normal = np.random.default_rng(0).normal(7, 1, (200, 1))
    for y, expected in ((normal, ("none",)), (np.exp(values(of)), ("log",))):
        given = Problem.of("regression", y, np.arange(200), lambda y, o: float(np.nanmean(np.abs(y - o))))
        assert choose_kinds(given, features) == expected
        assert read == [True] * (y is not normal)
    assert choose_kinds(problem(of, "binary"), features) == ("none",)
    assert read == [True]


def test_further_members_have_weights_and_must_be_given() -> None:
    of = molecules(100)
    given = problem(of)
    members, left_out = fit_members(given, of)
    exact = given.y + 0.01
    mixed = mix(given, members, left_out, {"gcn": exact})
    assert mixed.mixture.names == ("kernel", "trees", "gcn")
    assert mixed.mixture.weights[2, 0] > mixed.mixture.weights[:2].max()
    outputs = mixed.mixture.predict(of, {"gcn": exact})
    assert rmse(given.y, outputs) < rmse(given.y, mix(given, members, left_out).left_out)
    with pytest.raises(InputError, match="no outputs of gcn"):
        mixed.mixture.predict(of)
    with pytest.raises(InputError, match=r"out-of-fold outputs of gcn: shape \(100,\)"):
        mix(given, members, left_out, {"gcn": exact[:, 0]})


@pytest.mark.numerical(bound="a product with 1")
def test_members_without_weight_are_not_kept() -> None:
    of = molecules(100)
    given = problem(of)
    members, left_out = fit_members(given, of)
    useless = {name: outputs * 0 + 50 for name, outputs in left_out.items()}
    mixture = mix(given, members, useless, {"gcn": given.y}).mixture
    assert mixture.members.kernel is None
    assert mixture.members.trees is None
    assert not [key for key in mixture.arrays() if ".kernel." in key or ".trees." in key]
    np.testing.assert_allclose(mixture.predict(of, {"gcn": given.y}), given.y)


def test_a_task_without_different_values_has_no_outputs() -> None:
    of = molecules(80)
    y = np.concatenate([values(of), np.ones((80, 1)), np.full((80, 1), np.nan)], axis=1)
    given = Problem.of("regression", y, np.arange(80), rmse)
    members, left_out = fit_members(given, of)
    mixed = mix(given, members, left_out)
    assert all(share.error is not None and share.error < np.std(y[:, 0]) for share in mixed.table)
    outputs = mixed.mixture.predict(of)
    assert np.isnan(outputs).all(axis=0).tolist() == [False, True, True]
    assert not np.isnan(outputs[:, 0]).any()


@pytest.mark.parametrize(("target", "tasks"), [("regression", 1), ("regression", 2), ("binary", 1)])
def test_the_kernel_weighs_descriptors_as_the_targets_ask(
    target: str, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = molecules(200)
    described = np.nan_to_num(of.descriptors) @ np.random.default_rng(1).normal(size=(of.descriptors.shape[1], tasks))
    fragments = problem(of, target, tasks)
    y = described if target == "regression" else (described > 0).astype(float)
    descriptors = replace(fragments, y=y)
    found = {}
    for name, given in (("fragments", fragments), ("descriptors", descriptors)):
        members, left_out = fit_members(given, of)
        found[name] = members.kernel.weight
        again = type(members).from_arrays(members.arrays(), target)
        assert np.array_equal(again.predict(of)["kernel"], members.predict(of)["kernel"])
    assert found == {"fragments": 1, "descriptors": 2}
    monkeypatch.setattr(kernel, "_weights", lambda molecules: (1.0,))
    equal, of_equal = fit_members(descriptors, of)
    assert equal.kernel.weight == 1
    assert rmse(descriptors.y, left_out["kernel"]) < rmse(descriptors.y, of_equal["kernel"])
    arrays = equal.arrays()
    del arrays["kernel.weight"]  # as older runs are
    older = type(equal).from_arrays(arrays, target)
    assert np.array_equal(older.predict(of)["kernel"], equal.predict(of)["kernel"])


@pytest.mark.numerical(bound="the same system solved in two ways, in float64")
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_landmarks_that_are_all_rows_give_the_exact_kernel(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    of = molecules(150)
    monkeypatch.setattr(kernel, "_weights", lambda molecules: (weight,))
    given = problem(of, tasks=2, missing=0.2)
    exact, left_out = fit_members(given, of)
    monkeypatch.setattr(kernel, "_EXACT", 149)
    members, by_landmarks = fit_members(given, of)
    np.testing.assert_allclose(by_landmarks["kernel"], left_out["kernel"], atol=1e-3)
    np.testing.assert_allclose(members.predict(of)["kernel"], exact.predict(of)["kernel"], atol=1e-3)


def test_fewer_landmarks_are_kept_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    of = molecules(150)
    monkeypatch.setattr(kernel, "_EXACT", 149)
    monkeypatch.setattr(kernel, "_LANDMARKS", 100)
    members, left_out = fit_members(problem(of), of)
    assert members.kernel is not None
    assert len(members.kernel.landmarks) == 100
    assert np.isfinite(left_out["kernel"]).all()
    again = KernelRidge.from_arrays(members.kernel.arrays())
    prepared = members.preparation.apply(of)
    assert np.array_equal(again.predict(prepared), members.kernel.predict(prepared))


def test_probabilities_keep_order_and_are_the_regression_between_0_and_1() -> None:
    x = np.linspace(-0.5, 1.5, 101)[:, None]
    found = activate("binary", x)
    assert (np.diff(found[:, 0]) > 0).all()
    assert (found > 0).all()
    assert (found < 1).all()
    middle = (x > 0.2) & (x < 0.8)
    np.testing.assert_allclose(found[middle], x[middle], atol=0.001)


@pytest.mark.parametrize(
    ("target", "y", "message"),
    [
        ("regression", np.zeros(4), "shape"),
        ("regression", np.array([[1.0], [np.inf], [2], [3]]), "infinite values"),
        ("regression", np.ones((4, 1)), "no task has two different values"),
        ("binary", np.array([[0.0], [1], [2], [np.nan]]), "values other than 0 and 1"),
        ("multiclass", np.array([[0], [1], [3], [-1]]), "labels -1 to 3; expected one column of 0 to 2"),
    ],
)
def test_targets_that_do_not_fit_are_refused(target: str, y: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Problem.of(target, y, np.arange(4), rmse, classes=3)


def test_violated_bounds_are_learnt_and_the_others_are_not() -> None:
    of = molecules(200)
    true = values(of)
    above = true > np.quantile(true, 0.7)
    given = replace(problem(of), y=np.where(above, np.nan, true))
    prepared = Preparation.fit(of).apply(of)
    allowed = replace(given, bounds=Bounds(np.where(above, -1e3, true), above.astype(np.int8)))  # ">-1000"
    assert np.array_equal(kernel.with_violated_bounds(allowed, prepared).y, given.y, equal_nan=True)
    bounds = Bounds(np.where(above, np.quantile(true, 0.7), true), above.astype(np.int8))
    bounded = replace(given, bounds=bounds)
    learnt = kernel.with_violated_bounds(bounded, prepared).y
    assert set(learnt[above & ~np.isnan(learnt)]) == {np.quantile(true, 0.7)}
    errors = [np.abs(fit_members(one, of)[0].predict(of)["kernel"] - true)[above].mean() for one in (given, bounded)]
    assert errors[1] < errors[0]


def test_rows_of_no_weight_teach_nothing_and_have_predictions() -> None:
    of = molecules(120)
    given = problem(of)
    weights = (np.arange(120) % 2).astype(float)
    wrong = np.where(weights[:, None] > 0, given.y, given.y + 100)
    members, left_out = fit_members(replace(given, y=wrong, weights=weights), of)
    error = np.abs(members.predict(of)["kernel"] - given.y)
    assert error.mean() < 5
    assert np.isfinite(left_out["kernel"]).all()
    assert np.isfinite(left_out["trees"]).all()
    same, _ = fit_members(replace(given, weights=np.full(120, 7.0)), of)
    plain, _ = fit_members(given, of)
    for name, outputs in plain.predict(of).items():
        assert np.array_equal(same.predict(of)[name], outputs), name
