"""Metrics: equal to scikit-learn's on labelled rows, independent of missing labels, None if undefined."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gcnbatch import metrics
from gcnbatch.errors import InputError
from gcnbatch.metrics import (
    METRICS,
    activate,
    averaged,
    check_monitor,
    default_monitor,
    evaluate,
    higher_is_better,
    score,
)

few = settings(max_examples=30, derandomize=True)
nan = np.nan
targets = st.sampled_from(("binary", "multiclass", "regression"))
seeds = st.integers(0, 2**32)


def sample(target: str, seed: int, n: int, missing: float = 0.3) -> tuple[Any, Any, dict[str, Any]]:
    """Return targets, outputs with many ties, and names."""
    rng = np.random.default_rng(seed)
    names = {"task_names": ["a", "b", "c"], "class_names": []}
    blank = rng.random((n, 3)) < missing
    if target == "multiclass":
        y = np.where(blank[:, :1], -1, rng.integers(0, 4, (n, 1))).astype(np.int32)
        outputs = activate("multiclass", rng.integers(-3, 4, (n, 4)).astype(np.float32))
        return y, outputs, {"task_names": ["a"], "class_names": list("wxyz")}
    if target == "binary":
        y = np.where(blank, nan, rng.integers(0, 2, (n, 3))).astype(np.float32)
        return y, rng.integers(0, 8, (n, 3)).astype(np.float32) / 8, names
    y = np.where(blank, nan, rng.normal(size=(n, 3))).astype(np.float32)
    return y, rng.normal(size=(n, 3)).astype(np.float32), names


# ------------------------------------------------------------------------------------------------ against scikit-learn


@few
@given(seeds, st.integers(40, 120))
def test_binary_metrics_equal_sklearns_on_labelled_rows(seed, n) -> None:
    y, p, names = sample("binary", seed, n)
    result = evaluate("binary", y, p, **names)
    for k, name in enumerate(names["task_names"]):
        known = ~np.isnan(y[:, k])
        labels, outputs = y[known, k].astype(int), p[known, k]
        predicted = (outputs >= 0.5).astype(int)
        expected = {
            "roc_auc": sk.roc_auc_score(labels, outputs),
            "pr_auc": sk.average_precision_score(labels, outputs),
            "accuracy": sk.accuracy_score(labels, predicted),
            "balanced_accuracy": sk.balanced_accuracy_score(labels, predicted),
            "f1": sk.f1_score(labels, predicted),
            "mcc": sk.matthews_corrcoef(labels, predicted),
            "labelled": known.sum(),
            "positives": labels.sum(),
        }
        assert result["tasks"][name] == pytest.approx(expected, abs=1e-12)
    assert result["labelled"] == np.count_nonzero(~np.isnan(y))
    for metric in METRICS["binary"]:
        assert result[metric] == pytest.approx(np.mean([task[metric] for task in result["tasks"].values()]))


@few
@given(seeds, st.integers(60, 150))
def test_multiclass_metrics_equal_sklearns_on_labelled_rows(seed, n) -> None:
    y, p, names = sample("multiclass", seed, n)
    result = evaluate("multiclass", y, p, **names)
    known = y[:, 0] >= 0
    labels, predicted = y[known, 0], np.argmax(p[known], axis=1)
    expected = {
        "accuracy": sk.accuracy_score(labels, predicted),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, predicted),
        "f1": sk.f1_score(labels, predicted, average="macro"),
        "mcc": sk.matthews_corrcoef(labels, predicted),
        "roc_auc": np.mean([sk.roc_auc_score(labels == c, p[known, c]) for c in range(4)]),
    }
    assert {metric: result[metric] for metric in expected} == pytest.approx(expected, abs=1e-12)
    for number, name in enumerate("wxyz"):
        counts = {"labelled": labels == number, "predicted": predicted == number}
        counts["correct"] = counts["labelled"] & counts["predicted"]
        assert result["classes"][name] == {what: rows.sum() for what, rows in counts.items()}


def test_multiclass_roc_auc_equals_sklearns_one_vs_rest() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, (200, 1)).astype(np.int32)
    p = activate("multiclass", rng.normal(size=(200, 4)).astype(np.float32))
    exact = p.astype(np.float64) / p.astype(np.float64).sum(axis=1, keepdims=True)
    expected = sk.roc_auc_score(y[:, 0], exact, multi_class="ovr", average="macro")
    assert score("roc_auc", "multiclass", y, exact) == pytest.approx(expected, abs=1e-12)


@few
@given(seeds, st.integers(20, 60))
def test_regression_metrics_equal_sklearns_on_labelled_rows(seed, n) -> None:
    y, values, names = sample("regression", seed, n)
    result = evaluate("regression", y, values, **names)
    for k, name in enumerate(names["task_names"]):
        known = ~np.isnan(y[:, k])
        labels, outputs = y[known, k].astype(np.float64), values[known, k].astype(np.float64)
        expected = {
            "rmse": sk.root_mean_squared_error(labels, outputs),
            "mae": sk.mean_absolute_error(labels, outputs),
            "r2": sk.r2_score(labels, outputs),
            "spearman": stats.spearmanr(labels, outputs).statistic,
            "labelled": known.sum(),
        }
        assert result["tasks"][name] == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------------------------------------ weights, many models


@settings(few, max_examples=10)  # of twelve columns each
@given(seeds, st.integers(60, 120), st.sampled_from((np.float32, np.float64)))
def test_weighted_binary_metrics_equal_sklearns(seed, n, dtype) -> None:
    y, p, _ = sample("binary", seed, n)
    weights = np.random.default_rng(seed).gamma(1.0, size=(n, 4)).astype(dtype)
    weights[: n // 4] = 0
    found = metrics.figures("binary", y, p, weights)
    for k, b in itertools.product(range(3), range(4)):
        known = ~np.isnan(y[:, k])
        labels, outputs, w = y[known, k].astype(int), p[known, k], weights[known, b].astype(np.float64)
        predicted = (outputs >= 0.5).astype(int)
        expected = {
            "roc_auc": sk.roc_auc_score(labels, outputs, sample_weight=w),
            "pr_auc": sk.average_precision_score(labels, outputs, sample_weight=w),
            "accuracy": sk.accuracy_score(labels, predicted, sample_weight=w),
            "balanced_accuracy": sk.balanced_accuracy_score(labels, predicted, sample_weight=w),
            "f1": sk.f1_score(labels, predicted, sample_weight=w),
            "mcc": sk.matthews_corrcoef(labels, predicted, sample_weight=w),
        }
        close = 1e-12 if dtype == np.float64 else 1e-5
        assert {name: of[k, b] for name, of in found.items()} == pytest.approx(expected, abs=close)


@few
@given(seeds, st.integers(80, 150))
def test_weighted_multiclass_metrics_equal_sklearns(seed, n) -> None:
    y, p, _ = sample("multiclass", seed, n)
    weights = np.random.default_rng(seed).gamma(1.0, size=(n, 3))
    found = metrics.figures("multiclass", y, p, weights)
    known = y[:, 0] >= 0
    labels, predicted = y[known, 0], np.argmax(p[known], axis=1)
    for b, w in enumerate(weights[known].T):
        areas = [sk.roc_auc_score(labels == c, p[known, c], sample_weight=w) for c in range(4)]
        expected = {
            "accuracy": sk.accuracy_score(labels, predicted, sample_weight=w),
            "balanced_accuracy": sk.balanced_accuracy_score(labels, predicted, sample_weight=w),
            "f1": sk.f1_score(labels, predicted, average="macro", sample_weight=w),
            "mcc": sk.matthews_corrcoef(labels, predicted, sample_weight=w),
            "roc_auc": np.mean(areas),
        }
        assert {name: of[0, b] for name, of in found.items()} == pytest.approx(expected, abs=1e-12)


@few
@given(seeds, st.integers(20, 60))
def test_weighted_regression_metrics_equal_sklearns(seed, n) -> None:
    y, values, _ = sample("regression", seed, n)
    weights = np.random.default_rng(seed).gamma(1.0, size=(n, 3))
    found = metrics.figures("regression", y, values, weights, names=("rmse", "mae", "r2"))
    for k, b in itertools.product(range(3), range(3)):
        known = ~np.isnan(y[:, k])
        labels, outputs, w = y[known, k].astype(np.float64), values[known, k].astype(np.float64), weights[known, b]
        expected = {
            "rmse": sk.root_mean_squared_error(labels, outputs, sample_weight=w),
            "mae": sk.mean_absolute_error(labels, outputs, sample_weight=w),
            "r2": sk.r2_score(labels, outputs, sample_weight=w),
        }
        assert {name: of[k, b] for name, of in found.items()} == pytest.approx(expected, rel=1e-9)


@few
@given(targets, seeds, st.integers(1, 60))
def test_whole_weights_are_rows_repeated(target, seed, n) -> None:
    y, outputs, _ = sample(target, seed, n)
    outputs = np.round(outputs, 1)
    counts = np.random.default_rng(seed).integers(0, 3, (n, 4))
    found = metrics.figures(target, y, outputs, counts.astype(np.float32))
    for b, repeats in enumerate(counts.T):
        rows = np.repeat(np.arange(n), repeats)
        for name, values in metrics.figures(target, y[rows], outputs[rows]).items():
            np.testing.assert_allclose(found[name][:, b], values, rtol=1e-9, atol=1e-12, err_msg=name)


@few
@given(targets, seeds, st.integers(1, 60), st.integers(1, 5))
def test_models_together_have_the_bits_of_each_alone(target, seed, n, models) -> None:
    samples = [sample(target, seed + i, n) for i in range(models)]
    y, outputs = (np.stack([of[i] for of in samples]) for i in (0, 1))
    for metric in averaged(target, y.shape[2]):
        alone = [score(metric, target, *of[:2]) for of in samples]
        assert metrics.scores(metric, target, y, outputs) == alone


def test_blocks_of_columns_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("binary", "multiclass", "regression"):
        y, outputs, names = sample(target, 0, 50)
        whole = evaluate(target, y, outputs, **names)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(metrics, "_CELLS", 1)
            assert evaluate(target, y, outputs, **names) == whole  # type: ignore[arg-type]


@few
@given(seeds, st.integers(2, 50))
def test_outputs_in_float32_rank_as_in_float64(seed, n) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice(np.array([-1e38, -1.5, -1e-45, -0.0, 0.0, 1e-45, 2.0, 3e38], np.float32), (n, 1))
    y = rng.normal(size=(n, 1)).round(1)
    found = [metrics.figures("regression", y, values.astype(dtype))["spearman"] for dtype in (np.float32, np.float64)]
    expected = (
        stats.spearmanr(y[:, 0], values[:, 0]).statistic if len(np.unique(values)) > 1 < len(np.unique(y)) else nan
    )
    np.testing.assert_allclose(np.ravel(found), expected, atol=1e-12)
    labels = (y > 0).astype(np.float32)
    if len(np.unique(labels)) == 2:
        area = sk.roc_auc_score(labels[:, 0], values[:, 0].astype(np.float64))
        assert metrics.figures("binary", labels, values)["roc_auc"][0] == pytest.approx(area, abs=1e-12)


@few
@given(seeds, st.integers(1, 50), st.sampled_from((1.0, 0.0, -1.0)))
def test_areas_of_float32_have_the_bits_of_float64(seed, n, least) -> None:
    rng = np.random.default_rng(seed)
    values = np.array([least, -0.0, 0.0, 1e-45, 1e-38, 0.5, np.nextafter(np.float32(0.5), 1), 1.0, 3e38], np.float32)
    outputs = rng.choice(values[values >= least], (n, 4))
    if seed % 2:  # few ties
        outputs[:, 1:] = rng.integers(1, 2 * n + 1, (n, 3)) / np.float32(8 * n)
    y = rng.choice(np.array([0, 1, nan], np.float32), (n, 4))
    y[:, 3] = nan
    outputs[np.isnan(y) & (rng.random(y.shape) < 0.3)] = nan
    narrow, wide = (metrics.figures("binary", y, outputs.astype(of)) for of in (np.float32, np.float64))
    for name in ("roc_auc", "pr_auc"):
        np.testing.assert_array_equal(narrow[name], wide[name])
        alone = metrics.figures("binary", y, outputs, names=(name,))[name]
        np.testing.assert_array_equal(alone, wide[name])


@pytest.mark.parametrize("target", ["binary", "multiclass"])
def test_rows_of_one_class_have_no_metric_but_accuracy(target: Any) -> None:
    y, outputs, _ = sample(target, 5, 60)
    weights = (y[:, :1] == 1).astype(np.float32)
    found = metrics.figures(target, y, outputs, weights)
    assert [name for name, values in found.items() if np.isfinite(values[0, 0])] == ["accuracy"]


def test_equal_values_have_no_r2_and_no_rank_correlation() -> None:
    y, outputs, _ = sample("regression", 5, 60)
    weights = np.zeros((len(y), 1))
    weights[np.flatnonzero(~np.isnan(y[:, 0]))[0]] = 7
    found = {name: of[0, 0] for name, of in metrics.figures("regression", y, outputs, weights).items()}
    assert np.isnan(found["r2"])
    assert np.isnan(found["spearman"])
    assert found["rmse"] == pytest.approx(found["mae"])
    assert metrics.spearman(np.ones(3), np.arange(3.0)) is None
    assert metrics.spearman(np.arange(3.0), np.arange(3.0)) == 1.0


# ------------------------------------------------------------------------------------------------ missing labels


@few
@given(targets, seeds, st.integers(1, 60), st.integers(1, 20), st.floats(0.0, 1.0))
def test_rows_without_labels_change_nothing_and_results_are_strict_json(target, seed, n, extra, missing) -> None:
    y, outputs, names = sample(target, seed, n, missing)
    result = evaluate(target, y, outputs, **names)
    blank = np.full((extra, y.shape[1]), -1 if target == "multiclass" else nan, y.dtype)
    junk = np.full((extra, outputs.shape[1]), nan, np.float32)  # not even a NaN there may count
    longer = evaluate(target, np.concatenate([y, blank]), np.concatenate([outputs, junk]), **names)
    assert longer == result
    json.dumps(result, allow_nan=False)


@few
@given(targets, seeds, st.integers(1, 60), st.floats(0.0, 1.0))
def test_score_equals_the_mean_of_evaluate(target, seed, n, missing) -> None:
    y, outputs, names = sample(target, seed, n, missing)
    result = evaluate(target, y, outputs, **names)
    for metric in averaged(target, len(names["task_names"])):
        assert score(metric, target, y, outputs) == result[metric]


def test_errors_of_tasks_with_different_units_have_no_mean() -> None:
    y, outputs, names = sample("regression", 0, 30)
    result = evaluate("regression", y, outputs, **names)
    assert not {"rmse", "mae"} & set(result)
    assert result["r2"] == pytest.approx(np.mean([of_task["r2"] for of_task in result["tasks"].values()]))
    assert all(of_task["rmse"] > 0 for of_task in result["tasks"].values())
    assert check_monitor("auto", "regression", 3) == "r2"


def test_a_task_without_both_classes_is_undefined_and_left_out_of_the_mean() -> None:
    y = np.array([[0, 1, nan], [1, 1, nan], [1, nan, nan]], np.float32)
    p = np.array([[0.1, 0.9, 0.5], [0.8, 0.2, 0.5], [0.9, 0.5, 0.5]], np.float32)
    result = evaluate("binary", y, p, ["both", "one", "none"])
    assert result["undefined"] == ["one", "none"]
    assert result["roc_auc"] == result["mcc"] == 1.0
    assert result["accuracy"] == pytest.approx((1.0 + 0.5) / 2)
    assert result["tasks"]["one"] == {
        **dict.fromkeys(METRICS["binary"]),
        "accuracy": 0.5,
        "labelled": 2,
        "positives": 2,
    }
    assert result["tasks"]["none"] == {**dict.fromkeys(METRICS["binary"]), "labelled": 0, "positives": 0}


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_without_any_label_every_mean_is_none(target: Any) -> None:
    y, outputs, names = sample(target, 0, 5, missing=1.0)
    result = evaluate(target, y, outputs, **names)
    assert {result[metric] for metric in averaged(target, len(names["task_names"]))} == {None}
    assert result["undefined"] == names["task_names"]
    assert result["labelled"] == 0


def test_constant_labels_leave_only_the_defined_metrics() -> None:
    one_class = evaluate("multiclass", np.array([[1], [1]], np.int32), np.eye(2, dtype=np.float32), ["t"], ["x", "y"])
    assert one_class["accuracy"] == 0.5
    assert [one_class[metric] for metric in ("balanced_accuracy", "f1", "mcc", "roc_auc")] == [None] * 4
    assert one_class["undefined"] == ["t"]
    one_value = evaluate("regression", np.array([[2.0]], np.float32), np.array([[5.0]], np.float32), ["t"])
    assert (one_value["rmse"], one_value["mae"], one_value["r2"]) == (3.0, 3.0, None)
    assert one_value["undefined"] == ["t"]


def test_macro_roc_auc_leaves_out_absent_classes() -> None:
    y = np.array([[0], [0], [2], [2]], np.int32)
    p = np.array([[0.8, 0.1, 0.1], [0.4, 0.1, 0.5], [0.1, 0.3, 0.6], [0.5, 0.0, 0.5]], np.float32)
    expected = np.mean([sk.roc_auc_score(y[:, 0] == c, p[:, c]) for c in (0, 2)])
    assert score("roc_auc", "multiclass", y, p) == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------ outputs


@pytest.mark.parametrize("bad", [nan, np.inf, -np.inf])
@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_outputs_that_are_not_finite_give_no_metric_and_are_counted(target: Any, bad: float) -> None:
    y, outputs, names = sample(target, 1, 50, missing=0.0)
    outputs[7, 0] = bad
    result = evaluate(target, y, outputs, **names)
    assert result["non_finite"] == 1
    assert {result[metric] for metric in averaged(target, len(names["task_names"]))} == {None}
    assert score(default_monitor(target), target, y, outputs) is None
    assert result["undefined"] == [names["task_names"][0]]
    if target != "multiclass":
        assert result["tasks"]["b"][default_monitor(target)] is not None
    else:
        assert sum(counts["predicted"] for counts in result["classes"].values()) == 49


def test_activate_is_sigmoid_softmax_or_identity() -> None:
    logits = np.array([[0.0, math.log(3.0)], [-2.0, 5.0]], np.float32)
    np.testing.assert_allclose(activate("binary", logits), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    np.testing.assert_allclose(activate("multiclass", logits)[0], [0.25, 0.75], rtol=1e-6)
    np.testing.assert_array_equal(activate("regression", logits), logits)


def test_activate_is_stable_for_huge_logits_and_keeps_nan() -> None:
    huge = np.array([[-1e30, 1e30], [3e38, 3e38], [nan, 0.0], [np.inf, 0.0]], np.float32)
    softmax = activate("multiclass", huge)
    assert softmax.dtype == np.float32
    np.testing.assert_array_equal(softmax[:2], [[0, 1], [0.5, 0.5]])
    assert np.isnan(softmax[2:]).any(axis=1).all()
    sigmoid = activate("binary", huge)
    np.testing.assert_array_equal(sigmoid[:2], [[0, 1], [1, 1]])
    assert np.isnan(sigmoid[2, 0])


# ------------------------------------------------------------------------------------------------ monitors


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_monitors_of_a_target_are_its_metrics_loss_and_auto(target: Any) -> None:
    assert default_monitor(target) in METRICS[target]
    assert check_monitor("auto", target) == default_monitor(target)
    for metric in ("loss", *METRICS[target]):
        assert check_monitor(metric, target) == metric


def test_lower_is_better_only_for_errors_and_loss() -> None:
    known = {"loss"}.union(*METRICS.values())
    assert {metric for metric in known if not higher_is_better(metric)} == {"loss", "rmse", "mae"}


def test_a_monitor_of_another_target_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(
        InputError,
        match=r"train\.monitor: 'rmse' is not defined for a binary target; expected one of auto, loss, roc_auc",
    ):
        check_monitor("rmse", "binary")


def test_every_configurable_monitor_is_a_metric_of_some_target() -> None:
    from gcnbatch.config_sections import TrainConfig

    allowed = set(TrainConfig.model_fields["monitor"].annotation.__args__)  # type: ignore[union-attr]
    assert allowed == {"auto", "loss"}.union(*metrics.METRICS.values())


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 60))
def test_curves_equal_sklearns(seed: int, n: int, distinct: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.append(rng.random(n - 2) < 0.3, [True, False])
    outputs = rng.integers(0, distinct, n) / 64
    (found,) = metrics.curves(labels[:, None].astype(np.float32), outputs[:, None].astype(np.float32))
    assert found is not None
    false_positives, true_positives, _ = sk.roc_curve(labels, outputs)
    np.testing.assert_array_equal(found.false_positive_rate, false_positives)
    np.testing.assert_array_equal(found.true_positive_rate, true_positives)
    precision, recall, _ = sk.precision_recall_curve(labels, outputs)  # its last point (0, 1) belongs to no threshold
    np.testing.assert_array_equal(found.recall, recall[-2::-1])
    np.testing.assert_array_equal(found.precision, precision[-2::-1])
