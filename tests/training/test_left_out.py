"""Tasks that the training rows cannot teach, in runs, their files, ensembles and predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.api.results import report
from gcnbatch.data.graphs import Split
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import write_graphset
from gcnbatch.inference.ensemble import infer
from gcnbatch.metrics import evaluate, left_out
from gcnbatch.run_report.record import read
from gcnbatch.training import run
from gcnbatch.training.summary import average, pooled
from gcnbatch.training.targets import STRATIFIED
from tests.builders import build_graphset
from tests.inference.runs import numbers, read_rows
from tests.training.runs import configure, fit, lighten

ROWS = np.arange(40)
SPLIT = Split(ROWS[:20], ROWS[20:28], ROWS[28:])


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    lighten(monkeypatch)


def sparse(path: Path, target: str = "binary") -> Path:
    """Write a set of 4 tasks: the training rows of its split cannot teach task1 (no label) and task2 (one class)."""
    graphs = build_graphset(40, target=target, n_tasks=4, missing=0.0, splits=False)  # type: ignore[arg-type]
    if target == "binary":
        graphs.y[:] = (ROWS % 2)[:, None]
        graphs.y[SPLIT.train, 2] = 1
    graphs.y[SPLIT.train, 1] = np.nan
    write_graphset(path, replace(graphs, splits={"own": SPLIT}))
    return path


@pytest.mark.parametrize("target", ["binary", "regression"])
def test_such_a_task_is_null_in_metrics_and_blank_in_predictions(tmp_path: Path, target: str) -> None:
    data, said = sparse(tmp_path / "data.h5", target), list[str]()
    config = configure(f"data.path={data}", "split.kind=predefined")
    folder, found = run.start(config, tmp_path / "run", quiet=True, say=said.append)
    absent = ["task1", "task2"] if target == "binary" else ["task1"]
    assert len([line for line in said if line.startswith("left out: ")]) == 1
    for part in ("valid", "test"):
        assert found[part]["left_out"] == absent
        assert found[part]["tasks"]["task1"]["r2" if target == "regression" else "roc_auc"] is None
        assert found[part]["tasks"]["task1"]["labelled"] == 0
        assert found[part]["non_finite"] == 0
        assert found[part]["r2" if target == "regression" else "roc_auc"] is not None
    rows = read_rows(folder / "predictions.csv")
    assert {name for row in rows.values() for name, text in row.items() if text == ""} == {*absent}
    assert read(folder, check_data=True).examined is not None
    out = tmp_path / "all.csv"
    summary = infer([folder], data, str(out), backend="cpu", quiet=True, say=said.append)
    assert said[-1] == f"blank, as no model has learned them: {', '.join(absent)}"
    assert {row["task1"] for row in read_rows(out).values()} == {""}
    assert summary.metrics is not None
    assert summary.metrics["left_out"] == absent
    assert summary.metrics["labelled"] == sum(
        (~np.isnan(column)).sum() for task, column in enumerate(labels(data).T) if f"task{task}" not in absent
    )


def labels(path: Path) -> np.ndarray:
    with Dataset(path) as data:
        return data.y


def test_a_run_with_such_a_task_resumes_to_equal_bits(tmp_path: Path) -> None:
    data = sparse(tmp_path / "data.h5")
    whole = fit(data, tmp_path / "whole", "split.kind=predefined", "train.epochs=4")
    fit(data, tmp_path / "run", "split.kind=predefined", "train.epochs=2")
    again = run.resume(tmp_path / "run", quiet=True, epochs=4)
    for part in ("train", "valid", "test"):
        assert again[part] == whole[part]


def test_an_ensemble_averages_the_members_that_have_a_task(tmp_path: Path) -> None:
    data, runs = sparse(tmp_path / "data.h5"), []
    fit(data, tmp_path / "a", "split.kind=predefined")
    with Dataset(data) as dataset:
        other = replace(dataset.load(), splits={"own": Split(SPLIT.test, SPLIT.valid, SPLIT.train)})
    write_graphset(tmp_path / "other.h5", other)
    fit(tmp_path / "other.h5", tmp_path / "b", "split.kind=predefined", "seed=1")
    said: list[str] = []
    for name, folders in (("a", "a"), ("b", "b"), ("both", "ab")):
        runs = [tmp_path / folder for folder in folders]
        infer(runs, data, str(tmp_path / f"{name}.csv"), backend="cpu", level=None, quiet=True, say=said.append)
    assert said[-1] == "from fewer models, as not all have learned them: task1, task2"
    a, b, both = (read_rows(tmp_path / f"{name}.csv") for name in ("a", "b", "both"))
    np.testing.assert_array_equal(numbers(both, ["task2"]), numbers(b, ["task2"]))
    np.testing.assert_allclose(numbers(both, ["task0"]), (numbers(a, ["task0"]) + numbers(b, ["task0"])) / 2, rtol=1e-6)
    assert {row["task2_std"] for row in both.values()} == {""}
    assert "" not in {row["task0_std"] for row in both.values()}


def test_a_fold_without_a_value_leaves_the_mean_over_the_others(tmp_path: Path) -> None:
    graphs = build_graphset(40, n_tasks=1, missing=0.0)
    graphs.y[:] = 0
    graphs.y[:3] = 1
    write_graphset(tmp_path / "data.h5", graphs)
    said: list[str] = []
    config = configure(f"data.path={tmp_path / 'data.h5'}", "split.folds=5", "split.valid=0", "train.epochs=1")
    _, found = run.start(config, tmp_path / "run", quiet=True, say=said.append)
    values = [fold["test"]["roc_auc"] for fold in found["folds"]]
    known = [value for value in values if value is not None]
    assert 0 < len(known) < 5
    assert found["mean"]["test"]["roc_auc"] == pytest.approx(np.mean(known))
    assert found["defined"]["test"]["roc_auc"] == len(known)
    assert found["out_of_fold"]["roc_auc"] is not None
    (line,) = [line for line in said if line.startswith("test rows of ")]
    assert line.endswith(f"means leave these splits out; {STRATIFIED}")
    found["std"]["test"]["roc_auc"] = None  # as where a single fold has the metric
    (tmp_path / "run" / "metrics.json").write_text(json.dumps(found, allow_nan=False))
    assert run.resume(tmp_path / "run", quiet=True)["std"]["test"]["roc_auc"] is None
    assert report(tmp_path / "run").is_file()


def test_a_fold_with_nothing_to_learn_ends_and_predictions_are_those_of_the_others(tmp_path: Path) -> None:
    graphs = build_graphset(40, n_tasks=1, missing=0.0)
    graphs.y[:] = 0
    graphs.y[7] = 1  # the fold that tests it has no positive training row
    write_graphset(tmp_path / "data.h5", graphs)
    found = fit(tmp_path / "data.h5", tmp_path / "run", "split.folds=3", "split.valid=0", "train.epochs=1")
    assert sorted(fold["test"]["accuracy"] is None for fold in found["folds"]) == [False, False, True]
    out, said = tmp_path / "out.csv", list[str]()
    summary = infer([tmp_path / "run"], tmp_path / "data.h5", str(out), backend="cpu", quiet=True, say=said.append)
    assert "from fewer models, as not all have learned them: task0" in said
    assert summary.unreadable == 0
    assert np.isfinite(numbers(read_rows(out), ["task0"])).all()


def test_means_are_over_the_results_that_define_a_metric() -> None:
    tables = ({"a": 1.0, "b": None, "c": 1e308}, {"a": 3.0, "b": 2.0, "c": 1.5e308}, {"a": 5.0})
    parts = [{"test": table} for table in tables]
    found = average(parts)
    assert found["mean"]["test"] == {"a": 3.0, "b": 2.0, "c": pytest.approx(1.25e308)}
    assert found["std"]["test"] == {"a": 2.0, "b": None, "c": pytest.approx(0.5e308 / np.sqrt(2))}
    assert found["defined"] == {"test": {"b": 1, "c": 2}}
    assert "defined" not in average(parts[:1])


def test_pooled_rows_keep_the_outputs_of_the_models_that_have_a_task() -> None:
    nan = np.nan
    first, second = np.array([[0.1, nan], [0.2, nan]], np.float32), np.array([[0.3, 0.5], [0.6, 0.7]], np.float32)
    found = pooled([np.array([0, 2]), np.array([2, 3])], [first, second])
    np.testing.assert_array_equal(found.rows, [0, 2, 3])
    np.testing.assert_allclose(found.mean, [[0.1, nan], [0.25, 0.5], [0.6, 0.7]], rtol=1e-6)
    np.testing.assert_array_equal(found.absent, [[False, True], [False, False], [False, False]])
    y = np.ones((4, 2), np.float32)
    np.testing.assert_array_equal(found.labels(y), [[1, nan], [1, 1], [1, 1]])


def test_a_column_of_nan_is_left_out_but_not_where_all_outputs_are_nan() -> None:
    y = np.array([[0, 1], [1, 0], [1, 1]], np.float32)
    p = np.array([[0.1, np.nan], [0.8, np.nan], [0.9, np.nan]], np.float32)
    found = evaluate("binary", y, p, ["a", "b"])
    assert (found["left_out"], found["roc_auc"], found["non_finite"]) == (["b"], 1.0, 0)
    assert not left_out(np.full((3, 2), np.nan)).any()
    assert evaluate("binary", y, np.full_like(p, np.nan), ["a", "b"])["non_finite"] == 6
