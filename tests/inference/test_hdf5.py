"""Predictions of HDF5 data sets: values, order, independence of the batch, ensembles, metrics."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.normalize import symmetric_weights
from gcnbatch.data.store import Dataset
from gcnbatch.inference.ensemble import InferenceSummary, infer
from tests.builders import build_graphset
from tests.inference.runs import numbers, read_rows, stored, train_on
from tests.training.runs import read_metrics

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def predict(folder: Path, runs: list[Path], data: Path, **options: object) -> tuple[dict, InferenceSummary]:
    out = folder / f"{len(list(folder.iterdir()))}.csv"
    summary = infer(runs, data, str(out), quiet=True, **options)  # type: ignore[arg-type]
    return read_rows(out), summary


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("level", ["graph", "node"])
def test_all_rows_are_in_order_and_test_rows_equal_those_of_training(tmp_path, target, level) -> None:
    graphs = build_graphset(20, target=target, level=level, seed=5)
    if target == "regression":
        graphs = replace(graphs, y=graphs.y * np.float32(40) + np.float32(1000))
    data = stored(tmp_path / "data.h5", graphs)
    run = train_on(data, tmp_path / "run")
    rows, summary = predict(tmp_path, [run], data)
    assert list(rows) == graphs.ids.tolist()
    assert summary.rows == graphs.n_rows
    own = read_rows(run / "predictions.csv")
    assert 0 < len(own) < len(rows)
    mine = {name: rows[name] for name in own}
    mine = {name: {column: row[column] for column in own[name]} for name, row in mine.items()}
    np.testing.assert_allclose(numbers(mine), numbers(own), **CLOSE)
    if target == "multiclass":
        assert [row["task0"] for row in mine.values()] == [row["task0"] for row in own.values()]
    elif target == "regression":
        assert (numbers(rows) > 500).all()


def test_kipf_on_sparse_features_predicts_nodes(tmp_path) -> None:
    graphs = build_graphset(1, level="node", target="multiclass", features="csr", max_nodes=30, n_channels=1)
    data = stored(tmp_path / "data.h5", graphs)
    run = train_on(data, tmp_path / "run", model={"kind": "kipf", "widths": [4]})
    rows, _ = predict(tmp_path, [run], data)
    own = read_rows(run / "predictions.csv")
    assert list(rows) == graphs.ids.tolist()
    np.testing.assert_allclose(numbers({name: rows[name] for name in own}), numbers(own), **CLOSE)


def test_predictions_do_not_depend_on_the_batch(tmp_path, trained) -> None:
    run, data = trained
    whole, _ = predict(tmp_path, [run], data)
    single, _ = predict(tmp_path, [run], data, batch_size=1)
    with Dataset(data) as dataset:
        graphs = dataset.load()
    order = np.random.default_rng(0).permutation(graphs.n_graphs)
    shuffled, _ = predict(tmp_path, [run], stored(tmp_path / "shuffled.h5", graphs.take(order)), batch_size=7)
    assert list(shuffled) == graphs.ids[order].tolist()
    np.testing.assert_allclose(numbers(single), numbers(whole), **CLOSE)
    np.testing.assert_allclose(numbers({name: shuffled[name] for name in whole}), numbers(whole), **CLOSE)


def test_several_runs_give_mean_and_sample_deviation(tmp_path, trained, second) -> None:
    run, data = trained
    each = np.stack([numbers(predict(tmp_path, [one], data)[0]) for one in (run, second)])
    rows, summary = predict(tmp_path, [run, second], data)
    assert summary.members == 2
    assert list(rows["row-0"]) == ["id", "task0", "task0_std", "task1", "task1_std"]
    np.testing.assert_allclose(numbers(rows, ["task0", "task1"]), each.mean(axis=0), **CLOSE)
    np.testing.assert_allclose(numbers(rows, ["task0_std", "task1_std"]), each.std(axis=0, ddof=1), **CLOSE)


def test_the_class_of_an_ensemble_is_that_of_the_mean(tmp_path) -> None:
    data = stored(tmp_path / "data.h5", build_graphset(24, target="multiclass", seed=9))
    runs = [train_on(data, tmp_path / f"run{seed}", seed=seed) for seed in range(2)]
    rows, _ = predict(tmp_path, runs, data)
    names = [f"p(class{k})" for k in range(3)]
    best = numbers(rows, names).argmax(axis=1)
    assert [row["task0"] for row in rows.values()] == [f"class{k}" for k in best]
    np.testing.assert_allclose(numbers(rows, names).sum(axis=1), 1.0, rtol=1e-5)


def test_a_run_with_folds_is_the_ensemble_of_its_folds(tmp_path, trained) -> None:
    data = trained[1]
    run = train_on(data, tmp_path / "run", split={"folds": 3})
    rows, summary = predict(tmp_path, [run], data)
    by_hand, _ = predict(tmp_path, [run / f"fold{k}" for k in (1, 2, 3)], data)
    assert summary.members == 3
    assert rows == by_hand


def test_an_unfinished_run_is_used_and_named(tmp_path, trained) -> None:
    run, data = trained
    copy = tmp_path / "unfinished"
    copy.mkdir()
    shutil.copy(run / "best.safetensors", copy)
    said: list[str] = []
    rows, _ = predict(tmp_path, [copy], data, say=said.append)
    assert rows == predict(tmp_path, [run], data)[0]
    so_far = f"{copy} is not finished: taking the best weights so far of 1 model"
    assert said == [so_far]
    (copy / "config.toml").touch()
    predict(tmp_path, [copy], data, say=said.append)
    assert said[1] == f"{so_far}; gcnbatch train --resume {copy} goes on"


def test_metrics_equal_those_of_training(tmp_path, trained) -> None:
    run, data = trained
    tested = list(read_rows(run / "predictions.csv"))
    with Dataset(data) as dataset:
        graphs = dataset.load()
    subset = graphs.take([graphs.ids.tolist().index(name) for name in tested])
    _, summary = predict(tmp_path, [run], stored(tmp_path / "test.h5", subset))
    assert summary.metrics is not None
    expected = read_metrics(run)["test"]
    assert summary.metrics["labelled"] == expected["labelled"]
    assert summary.metrics["roc_auc"] == pytest.approx(expected["roc_auc"])
    blank = replace(subset, y=np.full_like(subset.y, np.nan))
    assert predict(tmp_path, [run], stored(tmp_path / "blank.h5", blank))[1].metrics is None


def test_edge_weights_that_the_file_has_normalised_are_not_normalised_again(tmp_path, trained) -> None:
    run, data = trained
    with Dataset(data) as dataset:
        graphs = dataset.load()
    header = graphs.header.model_copy(update={"normalized": True})
    ready = replace(graphs, header=header, weight=symmetric_weights(graphs))
    rows, _ = predict(tmp_path, [run], stored(tmp_path / "ready.h5", ready))
    np.testing.assert_allclose(numbers(rows), numbers(predict(tmp_path, [run], data)[0]), **CLOSE)


def test_a_set_without_graphs_gives_a_table_without_rows(tmp_path, trained, second) -> None:
    data = stored(tmp_path / "empty.h5", build_graphset(0))
    out = tmp_path / "out.csv"
    assert infer([trained[0], second], data, str(out), quiet=True).rows == 0
    assert out.read_text() == "id,task0,task0_std,task1,task1_std\n"


def test_a_set_larger_than_memory_gives_the_same_predictions(tmp_path, trained, monkeypatch) -> None:
    run, data = trained
    whole, _ = predict(tmp_path, [run], data, batch_size=5)
    monkeypatch.setattr(Dataset, "fits_in_memory", property(lambda self: False))
    assert predict(tmp_path, [run], data, batch_size=5)[0] == whole


def test_data_without_the_tasks_of_the_run_are_predicted_without_metrics(tmp_path, trained) -> None:
    run, data = trained
    with Dataset(data) as dataset:
        graphs = dataset.load()
    library = replace(
        graphs,
        header=graphs.header.model_copy(update={"task_names": ("unlabelled",)}),
        y=np.full((graphs.n_graphs, 1), np.nan, dtype=np.float32),
        splits={},
    )
    summary = infer([run], stored(tmp_path / "library.h5", library), str(tmp_path / "library.csv"), quiet=True)
    infer([run], data, str(tmp_path / "data.csv"), quiet=True)
    assert summary.metrics is None
    assert (tmp_path / "library.csv").read_bytes() == (tmp_path / "data.csv").read_bytes()
