"""The scikit-learn estimators: scikit-learn's own checks, its tools, pickles, blanks and refusals."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import validate_data

import gcnbatch
from gcnbatch.config_tree import read_toml
from gcnbatch.resources import shipped_config
from gcnbatch.sklearn import GcnClassifier, GcnRegressor, InvalidMolecules
from tests.fuzz import DRAWN
from tests.training.runs import lighten

SMILES = ["CCO", "CCN", "CCC", "c1ccccc1", "Cc1ccccc1", "c1ccncc1"] * 5
AROMATIC = np.array([0, 0, 0, 1, 1, 1] * 5)
SMALL: dict[str, Any] = {"widths": (4,), "readout": "mean", "epochs": 20, "learning_rate": 0.05, "processes": 1}

# Checks that scikit-learn skips, and why.
SKIPPED = {
    "check_array_api_input": "needs the environment variable SCIPY_ARRAY_API; molecules are in no array namespace",
    "check_classifier_data_not_an_array": "needs pandas",
    "check_regressor_data_not_an_array": "needs pandas",
    "check_sample_weights_pandas_series": "needs pandas",
    "check_classifiers_multilabel_output_format_decision_function": "there is no decision_function",
}

# Checks that fail, and why. BLAS may add float32 in another order where a batch has other rows.
EXPECTED = {
    "check_methods_subset_invariance": "test_predictions_of_parts_are_those_of_the_whole allows for rounding",
    **dict.fromkeys(
        ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
        "batches and the validation rows are drawn from the rows, so that a row of weight 2 is not two rows",
    ),
}


class _Numbers:
    """Takes rows of numbers, each a graph of one node: scikit-learn's checks have no molecules."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, False, True
        return tags

    def _graphs(self, X: Any, y: Any = None, molecules: Any = None, **about: Any) -> gcnbatch.GraphSet:
        x = validate_data(self, X, reset=y is not None, dtype=np.float32)
        loops, pointer = np.zeros(len(x), np.int32), np.arange(len(x) + 1)
        return gcnbatch.graph_set(x, loops, loops, y, node_ptr=pointer, edge_ptr=pointer, **about)

    def _rows(self, X: Any) -> gcnbatch.GraphSet:
        return self._graphs(X)


class NumbersClassifier(_Numbers, GcnClassifier):
    pass


class NumbersRegressor(_Numbers, GcnRegressor):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("kind", [pytest.param(NumbersClassifier, marks=pytest.mark.slow), NumbersRegressor])
def test_the_checks_of_scikit_learn_pass(kind: type[Any]) -> None:
    estimator = kind(widths=(8,), epochs=12, learning_rate=0.05)
    results = check_estimator(estimator, on_fail=None, on_skip=None, expected_failed_checks=EXPECTED)
    assert [(found["check_name"], found["exception"]) for found in results if found["status"] == "failed"] == []
    assert {found["check_name"] for found in results if found["status"] == "skipped"} <= SKIPPED.keys()
    assert sum(found["status"] == "passed" for found in results) > 45


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [GcnClassifier, GcnRegressor])
def test_scikit_learn_draws_no_numbers_for_an_estimator_of_texts(kind: type[Any]) -> None:
    """Its tags say that it takes texts, so scikit-learn checks only what needs no data."""
    results = check_estimator(kind(**SMALL), on_fail=None, on_skip=None)
    assert {found["status"] for found in results} == {"passed"}


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("kind", [NumbersClassifier, NumbersRegressor])
def test_predictions_of_parts_are_those_of_the_whole(kind: type[Any]) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    estimator = kind(widths=(8,), epochs=12, learning_rate=0.05).fit(x, (x[:, 0] > 0).astype(int))
    predict = estimator.predict_proba if kind is NumbersClassifier else estimator.predict
    parts = np.concatenate([predict(part) for part in np.split(x, [1, 2, 7, 20])])
    np.testing.assert_allclose(parts, predict(x), rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------ molecules


@pytest.fixture(scope="module", autouse=True)
def _needs_rdkit() -> Iterator[None]:
    pytest.importorskip("rdkit")
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        yield


@pytest.fixture(scope="module")
def classifier() -> GcnClassifier:
    return GcnClassifier(**SMALL).fit(SMILES, AROMATIC)


def test_texts_molecules_and_columns_are_the_same_input(classifier: GcnClassifier) -> None:
    from rdkit import Chem

    expected = classifier.predict_proba(SMILES[:4])
    assert expected.shape == (4, 2)
    np.testing.assert_allclose(expected.sum(axis=1), 1)
    molecules = [Chem.MolFromSmiles(text) for text in SMILES[:4]]
    for data in (tuple(SMILES[:4]), np.array(SMILES[:4]), np.array(SMILES[:4], object)[:, None], molecules):
        np.testing.assert_array_equal(classifier.predict_proba(data), expected)


@pytest.mark.numerical
def test_an_estimator_has_the_weights_of_a_run_with_its_keys(classifier: GcnClassifier, tmp_path: Path) -> None:
    graphs = gcnbatch.from_smiles(SMILES, AROMATIC, bond_channels=True)
    tree = {"split": {"kind": "stratified", "valid": 0.1, "test": 0.0}, "model": {"widths": [4], "readout": "mean"}}
    run = gcnbatch.train(tree, graphs, epochs=20, settings={"train.learning_rate": 0.05}, out=tmp_path / "run")
    assert (run.folder / "best.safetensors").read_bytes() == classifier.model_
    assert [row["train_loss"] for row in run.history] == [row["train_loss"] for row in classifier.history_]


def test_labels_keep_their_names_and_types(classifier: GcnClassifier) -> None:
    names = np.array(["b", "a", "c", "c", "a", "b"] * 5)
    model = GcnClassifier(**SMALL).fit(SMILES, names)
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert model.predict_proba(SMILES[:2]).shape == (2, 3)
    assert set(model.predict(SMILES)) <= set("abc")
    assert classifier.predict(SMILES).dtype == AROMATIC.dtype
    assert classifier.score(SMILES, AROMATIC) > 0.9


def test_several_tasks_may_have_blanks() -> None:
    y = [[1, None], [0, 1], [None, 0]] * 10
    model = GcnClassifier(**SMALL).fit(SMILES, y)
    assert model.multitask_
    assert model.predict_proba(SMILES[:5]).shape == (5, 2)
    assert set(np.unique(model.predict(SMILES))) <= {0, 1}
    assert 0 <= model.score(SMILES, y) <= 1
    values = np.array([[1.5, np.nan], [0.5, 2.0], [np.nan, 1.0]] * 10)
    regressor = GcnRegressor(**SMALL).fit(SMILES, values)
    assert regressor.predict(SMILES[:5]).shape == (5, 2)
    assert np.isfinite(regressor.score(SMILES, values))
    with pytest.warns(DataConversionWarning):
        column = GcnRegressor(**SMALL).fit(SMILES, np.arange(30.0)[:, None])
    assert column.predict(SMILES[:5]).shape == (5,)


def test_a_pickle_holds_numbers_and_texts_alone(classifier: GcnClassifier) -> None:
    raw = pickle.dumps(classifier)
    texts = [argument for code, argument, _ in pickletools.genops(raw) if code.name in ("SHORT_BINUNICODE", "GLOBAL")]
    modules = {text for text in texts if text.startswith(("gcnbatch", "numpy", "sklearn", "rdkit"))}
    assert {module for module in modules if not module.startswith("numpy")} == {"gcnbatch.sklearn"}
    assert b"gcnbatch checkpoint" in raw
    again = pickle.loads(raw)
    np.testing.assert_array_equal(again.predict_proba(SMILES), classifier.predict_proba(SMILES))
    assert not hasattr(clone(classifier), "model_")


def test_pipelines_and_grids_search_with_threads() -> None:
    strip = FunctionTransformer(lambda texts: [text.strip() for text in texts], validate=False)
    steps = make_pipeline(strip, GcnClassifier(**SMALL | {"epochs": 2}))
    search = GridSearchCV(steps, {"gcnclassifier__widths": [(2,), (4,)]}, cv=2, scoring="roc_auc", n_jobs=2)
    with joblib.parallel_config("threading"):
        search.fit([f" {text}" for text in SMILES], AROMATIC)
    assert search.best_params_["gcnclassifier__widths"] in ((2,), (4,))
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.slow  # processes import everything again
def test_processes_of_joblib_give_the_scores_of_this_one() -> None:
    model = GcnRegressor(**SMALL | {"epochs": 2})
    weights = np.array([len(text) for text in SMILES], float)
    scores = [cross_val_score(model, SMILES, weights, cv=2, n_jobs=jobs) for jobs in (1, 2)]
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ("CCO", [0, 1], "X: a single text; expected a list of SMILES"),
        ([], [0, 1], r"X: 0 samples; expected a minimum of 1 is required"),
        (["CCO", 3], [0, 1], "X, row 2: int; expected a SMILES or an RDKit molecule"),
        (np.ones((2, 2)), [0, 1], r"X: shape \(2, 2\); expected \(n,\) or \(n, 1\)"),
        (["CCO", "C("], [0, 1], r"smiles, row 2, 'C\('"),
        (["CCO", "CC"], None, "y: requires y to be passed"),
        (["CCO", "CC"], [1, 1], "y: only one class; expected at least 2 classes"),
        (["CCO", "CC"], [0, 1, 1], r"y: shape \(3, 1\); expected \(2,\)"),
        (["CCO", "CC"], [["a", "b"], ["c", "d"]], "y: could not convert string to float"),
        (["CCO"], [[0, 1]], "X: n_samples = 1; expected at least 2 molecules"),
    ],
)
def test_wrong_input_is_a_value_error(X: Any, y: Any, message: str) -> None:
    with pytest.raises(InvalidMolecules, match=message) as refused:
        GcnClassifier(**SMALL).fit(X, y)
    assert isinstance(refused.value, ValueError | gcnbatch.InputError)


def test_numpy_scalars_and_arrays_are_numbers_and_lists() -> None:
    given = {
        "widths": np.array([4]),
        "dense": (np.int64(3),),
        "readout": np.str_("mean"),
        "dropout": np.float32(0.0),
        "batch_norm": np.True_,
        "epochs": np.int64(2),
        "batch_size": np.uint8(8),
        "learning_rate": np.float64(0.05),
        "patience": np.int16(0),
        "validation_fraction": np.float64(0.1),
        "bond_channels": np.False_,
        "device": np.int64(0),
        "processes": np.int64(1),
        "random_state": np.int64(3),
        "settings": {"train.clip_norm": np.float64(1.0)},
    }
    plain = {**given, "widths": [4], "dense": [3], "readout": "mean", "settings": {"train.clip_norm": 1.0}}
    plain |= {name: given[name].item() for name in given if isinstance(given[name], np.generic)}
    models = [GcnRegressor(**found).fit(SMILES, AROMATIC) for found in (given, plain)]
    assert models[0].model_ == models[1].model_
    np.testing.assert_array_equal(models[0].predict(SMILES), models[1].predict(SMILES))


def test_a_grid_of_numpy_arrays_is_searched() -> None:
    grid = {"epochs": np.array([1, 2]), "batch_norm": np.array([True, False])}
    search = GridSearchCV(GcnClassifier(**SMALL), grid, cv=2, error_score="raise").fit(SMILES, AROMATIC)
    assert search.best_params_["epochs"] in (1, 2)


def test_a_fit_that_fails_leaves_the_fit_before() -> None:
    model = GcnClassifier(**SMALL).fit(SMILES, np.array(["a", "b"])[AROMATIC])
    before, found = {**vars(model)}, model.predict_proba(SMILES)
    for X, y in (
        ([*SMILES[:-1], "C("], np.array(["x", "y", "z"] * 10)),
        (SMILES, ["x"] * 30),
        (SMILES, [[0, 1], [1, 0]]),
        (SMILES[:3], ["x", "y"]),
        (None, AROMATIC),
    ):
        with pytest.raises(InvalidMolecules):
            model.fit(X, y)
        assert vars(model) == before
    with pytest.raises(InvalidMolecules, match="backend"):
        model.set_params(backend="abacus").fit(SMILES, AROMATIC)
    model.set_params(backend="auto")
    np.testing.assert_array_equal(model.predict_proba(SMILES), found)
    assert set(model.predict(SMILES)) <= {"a", "b"}
    fresh = GcnRegressor(**SMALL)
    with pytest.raises(InvalidMolecules):
        fresh.fit(SMILES, ["no number"] * 30)
    assert not [name for name in vars(fresh) if name.endswith("_")]


ODD = (None, 5, True, b"CCO", "CCO", object(), {}, {"a": 1}, [], [[]], [None, None], [{}, {}], np.zeros((2, 2, 2)))
ODD_X = (
    *ODD,
    [b"CCO"],
    [1, 2],
    np.array("CCO"),
    np.zeros((2, 0)),
    [["CCO"], ["CCN", "CCC"]],
    ["CCO", "CC\0"],
    ["\ud800"],
)
ODD_Y = (
    *ODD,
    *(["a", None], [10**400, 1], [[10**400, 0], [1, 0]], [np.inf, 1.0], [1e300, 1.0], [1j, 1.0], [[1, 2], [3]]),
    *([0, 1, 0], np.array([0, 1], "M8[s]"), [True, False], [0.5, 0.25], [[0, 2], [1, 5]], [2**70, 2**71]),
)


@pytest.fixture(scope="module")
def fitted() -> list[Any]:
    found = [
        kind(widths=(2,), epochs=1, validation_fraction=0.0, processes=1) for kind in (GcnClassifier, GcnRegressor)
    ]
    return [model.fit(["CCO", "CCN"], [0, 1]) for model in found]


@settings(DRAWN, max_examples=25)
@given(
    st.integers(0, 1),
    st.one_of(st.just(["CCO", "CCN"]), st.sampled_from(ODD_X)),
    st.one_of(st.just([0, 1]), st.sampled_from(ODD_Y)),
)
@pytest.mark.filterwarnings("ignore")
def test_any_molecules_and_targets_are_taken_or_a_value_error(fitted: list[Any], kind: int, X: Any, y: Any) -> None:
    for call, arguments in (
        (clone(fitted[kind]).fit, (X, y)),
        (fitted[kind].score, (X, y)),
        (fitted[kind].predict, (X,)),
    ):
        with suppress(ValueError):
            call(*arguments)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("widths", 0, r"model\.widths"),
        ("widths", "64", r"model\.widths"),
        ("widths", None, r"model\.widths"),
        ("widths", (8.5,), r"model\.widths\.0"),
        ("epochs", 2.5, r"train\.epochs: 2\.5"),
        ("epochs", np.array([1, 2]), r"train\.epochs"),
        ("batch_norm", "yes", r"model\.batch_norm"),
        ("bond_channels", "yes", r"molecules\.bond_channels: 'yes'; expected true or false"),
        ("processes", -1, "processes: -1; expected a whole number, 0 or more"),
        ("processes", 1.5, "processes: 1.5; expected a whole number"),
        ("backend", None, "backend"),
        ("device", -1, "device"),
        ("settings", 5, "settings: int; expected a mapping of keys"),
        ("settings", {"train.epoch": 1}, r"train\.epoch: unknown key"),
        ("random_state", "now", "cannot be used to seed"),
    ],
)
def test_a_wrong_parameter_is_a_value_error(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GcnRegressor(**SMALL | {name: value}).fit(SMILES, AROMATIC)


def test_one_width_is_a_list_of_one() -> None:
    assert GcnRegressor(**SMALL | {"widths": 4}).fit(SMILES, AROMATIC).model_ == (
        GcnRegressor(**SMALL).fit(SMILES, AROMATIC).model_
    )


def test_scores_need_the_tasks_of_the_fit_and_take_weights() -> None:
    y = np.array([[1, np.nan], [0, 1], [np.nan, 0]] * 10)
    for model in (GcnClassifier(**SMALL), GcnRegressor(**SMALL)):
        model.fit(SMILES, y)
        with pytest.raises(InvalidMolecules, match=r"y: shape \(30,\); expected several tasks, \(n, K\), as in fit"):
            model.score(SMILES, y[:, 0] > 0)
        with pytest.raises(InvalidMolecules, match=r"y: shape \(30, 3\); expected \(30, 2\), as in fit"):
            model.score(SMILES, np.ones((30, 3)))
        with pytest.raises(InvalidMolecules, match="sample_weight: 2 rows; expected 30, one per molecule"):
            model.score(SMILES, y, [1, 2])
        weights = np.arange(30) < 15
        assert model.score(SMILES, y, weights) == pytest.approx(model.score(SMILES[:15], y[:15]))
    single = GcnClassifier(**SMALL).fit(SMILES, AROMATIC)
    with pytest.raises(InvalidMolecules, match=r"expected one task, \(n,\), as in fit"):
        single.score(SMILES, y)
    with pytest.raises(InvalidMolecules, match="y: 2 rows; expected 30, one per molecule"):
        single.score(SMILES, [0, 1])


def test_wrong_parameters_and_molecules_are_refused_where_they_are_used(classifier: GcnClassifier) -> None:
    with pytest.raises(InvalidMolecules, match=r"train\.epochs: 0; expected a whole number, at least 1"):
        GcnClassifier(epochs=0).fit(SMILES, AROMATIC)
    with pytest.raises(InvalidMolecules, match=r"row 2, id 2: .*"):
        classifier.predict(["CCO", "C("])
    with pytest.raises(NotFittedError):
        GcnClassifier().predict(["CCO"])


def test_a_task_that_cannot_be_learned_is_warned_of_and_predicted_as_nan() -> None:
    y = np.stack([np.arange(30) % 2, np.ones(30)], axis=1)
    with pytest.warns(UserWarning, match="no labels of two classes in the training rows, so that .* are NaN: task1"):
        model = GcnClassifier(**SMALL).fit(SMILES, y)
    assert np.isnan(model.predict(SMILES)).all(axis=0).tolist() == [False, True]
    assert 0 <= model.score(SMILES, y) <= 1


# ------------------------------------------------------------------------------------------------ recipes

MIXED: dict[str, Any] = {
    "recipe": "best",
    "widths": (4,),
    "head": (4,),
    "epochs": 2,
    "backend": "cpu",
    "processes": 1,
    "settings": {"split.cross_fit": 2, "molecules.fingerprint_size": 64},
}


@pytest.fixture(scope="module")
def mixed() -> GcnRegressor:
    return GcnRegressor(**MIXED).fit(SMILES, np.arange(30) / 7)


def test_a_recipe_is_the_run_that_its_keys_give(mixed: GcnRegressor, tmp_path: Path) -> None:
    molecules = read_toml(shipped_config("best"))["molecules"] | {"fingerprint_size": 64}
    graphs = gcnbatch.from_smiles(SMILES, np.arange(30) / 7, **molecules)
    keys = {"model.widths": [4], "model.head": [4], "split.cross_fit": 2, "split.test": 0.0, "backend": "cpu"}
    run = gcnbatch.train("best", graphs, epochs=2, settings=keys, out=tmp_path / "run")
    assert isinstance(mixed.model_, dict)
    for name in ("mixture.safetensors", "part1/best.safetensors", "part2/best.safetensors"):
        assert mixed.model_[name] == (run.folder / name).read_bytes(), name
    np.testing.assert_array_equal(mixed.predict(SMILES), run.predict(SMILES).outputs[:, 0])
    assert [(row["member"], row["epoch"]) for row in mixed.history_] == [
        ("part1", 1),
        ("part1", 2),
        ("part2", 1),
        ("part2", 2),
    ]
    assert mixed.n_iter_ == 2


def test_arguments_at_their_defaults_leave_the_keys_of_a_recipe() -> None:
    config = GcnRegressor(recipe="best", learning_rate=0.5)._config("random")
    shipped = read_toml(shipped_config("best"))
    assert (list(config.model.widths), config.train.epochs) == (shipped["model"]["widths"], shipped["train"]["epochs"])
    assert (config.train.learning_rate, config.train.mixture, config.split.test) == (0.5, True, 0.0)


def test_a_pickled_mixture_predicts_the_same(mixed: GcnRegressor) -> None:
    raw = pickle.dumps(mixed)
    texts = [argument for code, argument, _ in pickletools.genops(raw) if code.name in ("SHORT_BINUNICODE", "GLOBAL")]
    modules = {text for text in texts if text.startswith(("gcnbatch", "sklearn", "rdkit", "scipy"))}
    assert modules == {"gcnbatch.sklearn"}
    np.testing.assert_array_equal(pickle.loads(raw).predict(SMILES[:4]), mixed.predict(SMILES[:4]))
    assert clone(mixed).get_params() == mixed.get_params()


def test_classes_and_tasks_are_mixed_too() -> None:
    names = np.array(["b", "a", "c", "c", "a", "b"] * 5)
    model = GcnClassifier(**MIXED).fit(SMILES, names)
    assert model.predict_proba(SMILES[:3]).shape == (3, 3)
    assert set(model.predict(SMILES)) <= set("abc")
    y = np.stack([AROMATIC, np.ones(30)], axis=1)
    with pytest.warns(UserWarning, match="no labels of two classes in the training rows, so that .* are NaN: task1"):
        several = GcnClassifier(**MIXED).fit(SMILES, y)
    assert np.isnan(several.predict(SMILES)).all(axis=0).tolist() == [False, True]


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"recipe": "bst"}, "configuration 'bst': not shipped. Did you mean 'best'"),
        (
            {"recipe": "best", "settings": {"molecules.fingerprint": ""}},
            "has no fingerprint; expected molecules with both",
        ),
        ({"recipe": "best", "settings": {"split.cross_fit": 0}}, r"train\.mixture needs split\.cross_fit"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_a_value_error(about: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidMolecules, match=message):
        GcnRegressor(**MIXED | about).fit(SMILES, AROMATIC)
