"""Comparison of run folders: what can be compared, the files, and the sentences."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.store import write_graphset
from gcnbatch.errors import InputError
from gcnbatch.metrics import label
from gcnbatch.run_comparison.comparison import compare
from tests.cli.conftest import call
from tests.inference.runs import train_on
from tests.parquet import assert_same_table
from tests.training.runs import lighten, write_set

__all__ = ["call"]


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    lighten(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with three folds (a, b) and with one split (c, d; e with another seed) on one data set."""
    place = tmp_path_factory.mktemp("runs")
    write_set(place / "x.h5", 60, missing=0.0)
    for name, epochs in (("a", 1), ("b", 3)):
        train_on(place / "x.h5", place / name, split={"folds": 3}, train={"epochs": epochs})
    for name, epochs, seed in (("c", 1, 0), ("d", 3, 0), ("e", 1, 1)):
        train_on(place / "x.h5", place / name, train={"epochs": epochs}, seed=seed)
    return place


def test_folds_give_scores_differences_a_plot_and_a_verdict(folder: Path, tmp_path: Path) -> None:
    out, found = compare([folder / "a", folder / "b"], tmp_path / "out", parquet=True)
    assert_same_table(out / "scores.csv")
    report = json.loads((out / "comparison.json").read_text())
    assert report == found.model_dump(mode="json")
    assert report["blocks"] == ["fold1", "fold2", "fold3"]
    for run in report["runs"]:
        metrics = json.loads((folder / run["name"] / "metrics.json").read_text())
        assert run["scores"] == [fold["test"]["roc_auc"] for fold in metrics["folds"]]
        assert (run["mean"], run["std"]) == pytest.approx(
            (metrics["mean"]["test"]["roc_auc"], metrics["std"]["test"]["roc_auc"])
        )
    (pair,) = report["pairs"]
    assert pair["difference"] == pytest.approx(report["runs"][0]["mean"] - report["runs"][1]["mean"])
    assert pair["joint_interval"][0] <= pair["difference"] <= pair["joint_interval"][1]
    assert (out / "comparison.png").stat().st_size > 5000
    with (out / "scores.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["run", "repeat", "fold", "roc_auc"]
    assert [row[:3] for row in rows[1:3]] == [["a", "", "1"], ["a", "", "2"]]
    assert len(rows) == 7


def test_the_page_of_a_comparison_is_written_again_from_its_files(folder: Path, tmp_path: Path, call) -> None:
    out, _ = compare([folder / "a", folder / "b"], tmp_path / "out")
    before = (out / "report.html").read_text(encoding="utf-8")
    for title in ("Runs", "Differences", "Scores", "Folders", "Environment", "Repeat it"):
        assert f"<h2>{title}</h2>" in before
    (out / "report.html").unlink()
    content = json.loads((out / "comparison.json").read_text())
    assert call("report", out) == (0, f"{out / 'report.html'}\n", "")
    assert (out / "report.html").read_text(encoding="utf-8") == before
    for damage, message in (
        ({"level": "high"}, "'level': 'high', not a number"),
        ({"blocks": ["fold1"]}, "a run has not one score per block"),
    ):
        (out / "comparison.json").write_text(json.dumps(content | damage))
        code, _, error = call("report", out)
        assert code == 2
        assert message in error


def test_runs_that_differ_by_nothing_show_no_difference(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "a", tmp_path / "copy")
    _, found = compare([folder / "a", tmp_path / "copy"], tmp_path / "out")
    assert found.pairs[0].verdict.startswith("no difference shown between a and copy (ROC-AUC +0.0000")


def test_the_better_run_is_named_whether_errors_or_scores_are_compared(folder: Path, tmp_path: Path) -> None:
    for metric, gain in (("roc_auc", 0.2), ("rmse", -0.2)):
        names = []
        for name, shift in (("plain", 0.0), ("good", gain)):
            place = tmp_path / metric / name
            shutil.copytree(folder / "a", place)
            for number in (1, 2, 3):
                path = place / f"fold{number}" / "metrics.json"
                metrics = json.loads(path.read_text())
                value = 0.5 + shift + (number * 1e-3 if shift else 0)
                path.write_text(json.dumps({**metrics, "test": {metric: value}}))
            names.append(place)
        if metric == "roc_auc":
            with pytest.raises(InputError, match="no figure of the test rows that all runs have"):
                compare(names, tmp_path / "none")
        _, found = compare(names, tmp_path / metric / "out", metric=metric)
        assert found.pairs[0].verdict.startswith(f"good is better than plain ({label(metric)} ")


def test_one_split_is_compared_by_resampling_its_rows(folder: Path, tmp_path: Path) -> None:
    _, found = compare([folder / "c", folder / "d"], tmp_path / "out")
    assert found.method.startswith("One split")
    assert found.blocks == [""]
    assert found.runs[0].std is None


def test_data_may_differ_in_features_but_not_in_targets(folder: Path, tmp_path: Path) -> None:
    graphs = write_set(tmp_path / "x.h5", 60, missing=0.0)
    write_graphset(tmp_path / "features.h5", type(graphs)(**{**vars(graphs), "x": graphs.x * 2}))
    write_graphset(tmp_path / "targets.h5", type(graphs)(**{**vars(graphs), "y": 1 - graphs.y}))
    for name in ("features", "targets"):
        train_on(tmp_path / f"{name}.h5", tmp_path / name, split={"folds": 3}, train={"epochs": 1})
    compare([folder / "a", tmp_path / "features"], tmp_path / "out")
    with pytest.raises(InputError, match=r"targets: other ids or targets \(.*targets\.h5\); expected those of .*x\.h5"):
        compare([folder / "a", tmp_path / "targets"], tmp_path / "none")
    (tmp_path / "features.h5").write_bytes(b"")
    with pytest.raises(InputError, match=r"features\.h5: changed since the run"):
        compare([folder / "a", tmp_path / "features"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a"], "RUN_DIR: 1 run; expected two or more"),
        (["a", "a"], "a: given twice; expected different runs"),
        (["a", "c"], "c: one split; expected fold1, fold2, fold3, as in .*a. Train both with the same"),
        (["c", "e"], "e: other train rows; expected those of .*c"),
        (["a", "nothing"], "nothing: no such folder; expected the folder of a run"),
        (["a", "x.h5"], "x.h5: not a folder; expected the folder of a run"),
        (["a", "."], "no splits.json in it; expected the folder of a run. Make one with 'gcnbatch train' or"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(folder: Path, tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare([folder / name for name in names], tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.json", None, "fold2: not finished: no metrics.json"),
        ("splits.json", '{"train": [0]}', "parts train; expected train, valid and test"),
        ("splits.json", '{"train": [-1]}', "'train.0': -1, not at least 0"),
        ("metrics.json", "[]", "metrics.json: 'value'"),
    ],
)
def test_damaged_folds_are_refused(folder: Path, tmp_path: Path, name: str, text: str | None, message: str) -> None:
    shutil.copytree(folder / "a", tmp_path / "bad")
    path = tmp_path / "bad" / "fold2" / name
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=message):
        compare([folder / "a", tmp_path / "bad"], tmp_path / "none")


def test_an_unknown_metric_is_refused_with_the_known_ones(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--metric roc-auc: no such figure of the test rows\. Did you mean 'roc_auc'"):
        compare([folder / "a", folder / "b"], tmp_path / "none", metric="roc-auc")


def test_the_command_prints_scores_differences_and_the_folder(folder: Path, tmp_path: Path, call) -> None:
    code, printed, errors = call(
        "compare-runs", folder / "a", folder / "b", "-o", tmp_path / "out", "--metric", "pr_auc"
    )
    assert code == 0, errors
    lines = printed.splitlines()
    assert lines[0].split() == ["run", "model", "test", "average", "precision", "deviation"]
    assert any(line.startswith("a - b") for line in lines)
    assert lines[-2].startswith(("no difference shown", "a is better", "b is better"))
    assert lines[-1] == str(tmp_path / "out")
    code, printed, _ = call("compare-runs", folder / "a", folder / "b", "-o", tmp_path / "again", "--json")
    assert np.isfinite(json.loads(printed)["pairs"][0]["difference"])
