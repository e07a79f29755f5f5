"""Folds and repeats of a cross-fitted run: each is a cross-fitted model that never saw the rows that it tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gcnbatch as package
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.explanation.command import explain
from gcnbatch.inference.ensemble import infer, predict
from gcnbatch.predictions import read_outputs
from gcnbatch.run_comparison.comparison import compare
from gcnbatch.run_report.files import write as write_report
from gcnbatch.training import cross_fit, mixed, reports, run
from gcnbatch.training.finished import read_fits, read_split
from gcnbatch.training.fits import Fits
from gcnbatch.training.plan import all_folders, member_folders
from tests.builders import small_molecules
from tests.training.kills import Killed, die_at
from tests.training.runs import fit, gcnbatch, write_molecules

pytestmark = pytest.mark.usefixtures("light_module")

FOLDS = ("split.cross_fit=2", "split.folds=3", "model.head=[8]", "train.mixture=true")
FILES = (mixed.FILE, "out_of_fold.csv", "predictions.csv", "uncertainty.safetensors", "splits.json")


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of 45 molecules with a target that their structure gives."""
    pytest.importorskip("rdkit")
    texts = small_molecules(9)
    y = [text.count("O") - 0.5 * text.count("C") + 0.1 * len(text) for text in texts]
    return write_molecules(tmp_path_factory.mktemp("molecules") / "set.h5", texts, y, ["y"])


@pytest.fixture(scope="module")
def folds(molecules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "folds"
    fit(molecules, folder, *FOLDS)
    return folder


def names(places: list[Path], run: Path) -> list[str]:
    return [place.relative_to(run).as_posix() for place in places]


def test_no_part_of_a_fold_saw_the_rows_that_it_tests(folds: Path) -> None:
    assert names(all_folders(folds), folds)[:5] == [".", "fold1", "fold2", "fold3", "fold1/part1"]
    tested = []
    for place in member_folders(folds):
        whole = read_split(place / "splits.json")
        tested.append(whole.test)
        parts = [read_split(part / "splits.json") for part in member_folders(place)]
        assert np.array_equal(np.sort(np.concatenate([part.valid for part in parts])), whole.train)
        for part in parts:
            assert np.array_equal(np.union1d(part.train, part.valid), whole.train)
            assert np.array_equal(part.test, whole.test)
        assert not set(whole.train) & set(whole.test)
    assert np.array_equal(np.sort(np.concatenate(tested)), np.arange(45))


def test_a_fold_is_the_model_that_a_run_on_its_split_gives(molecules: Path, folds: Path, tmp_path: Path) -> None:
    package.add_splits(
        molecules, kind="random", settings={"split.folds": 3, "split.valid": 0}, name="cv", out=tmp_path / "set.h5"
    )
    keys = ("split.kind=predefined", "split.name=cv-1", "split.cross_fit=2", *FOLDS[2:])
    fit(tmp_path / "set.h5", tmp_path / "run", *keys)
    for file in FILES:
        assert (tmp_path / "run" / file).read_bytes() == (folds / "fold2" / file).read_bytes(), file


def test_the_score_is_that_of_the_rows_that_each_fold_tests(molecules: Path, folds: Path) -> None:
    found = json.loads((folds / "metrics.json").read_text())
    each = [json.loads((place / "metrics.json").read_text()) for place in member_folders(folds)]
    assert [of["test"] for of in found["folds"]] == [of["test"] for of in each]
    assert [of["members"] for of in found["folds"]] == [of["members"] for of in each]
    assert found["mean"]["test"]["rmse"] == pytest.approx(np.mean([of["test"]["rmse"] for of in each]))
    assert found["std"]["test"]["rmse"] == pytest.approx(np.std([of["test"]["rmse"] for of in each], ddof=1))
    with Dataset(molecules) as dataset:
        outputs, y = read_outputs(folds / "predictions.csv", dataset.header, 45), dataset.y
    assert found["out_of_fold"]["rmse"] == pytest.approx(np.sqrt(np.mean((outputs - y) ** 2)))
    assert [fit.block for fit in read_fits(folds)] == [(0, 1), (0, 2), (0, 3)]


def test_the_folds_predict_together_and_alone(molecules: Path, folds: Path, tmp_path: Path) -> None:
    places = member_folders(folds)
    every = predict([folds], molecules, backend="cpu")
    single = [predict([place], molecules, backend="cpu").outputs for place in places]
    with Dataset(molecules) as dataset:
        half = 0.5e-7 * np.ptp(dataset.y)  # of the largest decimal place that outputs are rounded to
    np.testing.assert_allclose(every.outputs, np.mean(single, axis=0), rtol=0, atol=half)
    assert every.std is not None
    np.testing.assert_allclose(every.std, np.std(single, axis=0, ddof=1), rtol=0, atol=half)
    assert {"y_low", "y_high"} <= every.more.keys()
    for place, outputs in zip(places, single, strict=True):
        test = read_split(place / "splits.json").test
        with Dataset(molecules) as dataset:
            written = read_outputs(place / "predictions.csv", dataset.header, len(test))
        np.testing.assert_allclose(outputs[test], written, rtol=0, atol=1e-5)
    out = tmp_path / "out.csv"
    summary = infer([folds], molecules, str(out), backend="cpu", quiet=True, applicability=True)
    assert summary.members == 6
    assert "nearest_similarity" in out.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("place", "name", "call"),
    [
        (Fits, "_report", 3),
        (reports.Report, "write", 7),
        (cross_fit, "summarise_blocks", 0),
    ],
)
def test_a_killed_run_goes_on_to_equal_bits(molecules: Path, folds: Path, tmp_path: Path, place, name, call) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, place, name, call)
        with pytest.raises(Killed):
            fit(molecules, folder, *FOLDS)
    assert not (folder / "metrics.json").exists()
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("**/metrics.json")}
    assert finished
    run.resume(folder, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert_same_run(folder, folds)


def assert_same_run(one: Path, other: Path) -> None:
    for block in ("fold1", "fold2", "fold3"):
        for file in FILES:
            assert (one / block / file).read_bytes() == (other / block / file).read_bytes(), file
    assert (one / "predictions.csv").read_bytes() == (other / "predictions.csv").read_bytes()
    figures = [json.loads((place / "metrics.json").read_text()) for place in (one, other)]
    for key in ("mean", "std", "out_of_fold"):
        assert figures[0][key] == figures[1][key]


@pytest.mark.slow  # `test_cross_fit` has such a run without folds
def test_processes_give_the_bits_of_one_and_more_epochs_mix_again(molecules: Path, folds: Path, tmp_path: Path) -> None:
    fit(molecules, tmp_path / "run", *FOLDS, "jobs=2", "train.epochs=2")
    run.resume(tmp_path / "run", quiet=True, epochs=3)
    assert_same_run(tmp_path / "run", folds)


def test_repeats_have_other_splits_parts_and_names(molecules: Path, tmp_path: Path) -> None:
    keys = ("split.cross_fit=2", "split.repeats=2", "train.ensemble=2", "split.test=0.2")
    found = fit(molecules, tmp_path / "run", *keys)
    assert [of["name"] for of in found["members"]] == ["repeat1", "repeat2"]
    places = member_folders(tmp_path / "run")
    assert names(member_folders(places[0]), places[0]) == [
        "part1-model1",
        "part1-model2",
        "part2-model1",
        "part2-model2",
    ]
    one, two = (read_split(place / "splits.json") for place in places)
    assert not np.array_equal(one.test, two.test)
    assert [fit.block for fit in read_fits(tmp_path / "run")] == [(1, 0), (2, 0)]
    again = fit(
        molecules, tmp_path / "alone", "split.cross_fit=2", "train.ensemble=2", "split.test=0.2", "split.seed=1"
    )
    assert again["test"] == found["members"][1]["test"]
    history = package.Run.load(tmp_path / "run").history
    assert [row["member"] for row in history][::3][:5] == [
        f"repeat1/{name}" for name in names(member_folders(places[0]), places[0])
    ] + ["repeat2/part1-model1"]


def test_reports_comparisons_and_explanations_know_the_folds(molecules: Path, folds: Path, tmp_path: Path) -> None:
    page = write_report(folds).read_text()
    assert "3 folds" in page
    fit(molecules, tmp_path / "plain", "split.folds=3")
    _, found = compare([folds, tmp_path / "plain"], tmp_path / "out")
    assert [one.model for one in found.runs] == ["mixture", "gcn"]
    assert len(found.runs[0].scores) == 3
    said: list[str] = []
    explain([folds], molecules, tmp_path / "explained", steps=4, backend="cpu", quiet=True, say=said.append)
    assert sum("is a mixture: its networks, of weight" in line for line in said) == 3


def test_the_command_prints_means_of_folds(folds: Path) -> None:
    found = json.loads((folds / "metrics.json").read_text())
    lines = gcnbatch("train", "--resume", folds).stdout.splitlines()
    assert lines[0] == "3 folds, cpu, random split, seed 0: mean ± standard deviation"
    (test,) = (line for line in lines if line.startswith("test  "))
    assert f"{found['mean']['test']['rmse']:.4f} ± {found['std']['test']['rmse']:.4f}" in test


def test_all_rows_cannot_train_where_folds_test_them(molecules: Path) -> None:
    with pytest.raises(InputError, match="--use-all: given with folds, whose test parts are all rows; expected one of"):
        package.train(data=molecules, recipe="gcn", folds=3, use_all=True)
