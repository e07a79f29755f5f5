"""Targets that networks learn on another scale: scores, predictions and files in the user's units."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from gcnbatch.explanation.command import explain
from gcnbatch.inference.ensemble import predict
from gcnbatch.mixture.transforms import Transforms
from gcnbatch.predictions import read_outputs
from gcnbatch.training import mixed, run
from gcnbatch.training.checkpoint import load, save
from gcnbatch.training.finished import read_split
from gcnbatch.training.fits import Fits
from gcnbatch.training.plan import member_folders
from gcnbatch.training.targets import Scaling, about_powers_of_ten
from tests.builders import small_molecules
from tests.training.kills import Killed, die_at
from tests.training.runs import assert_same_run, configure, fit, write_molecules, write_set

pytestmark = pytest.mark.usefixtures("light_module")

BEST = ("split.cross_fit=3", "split.test=0.2", "model.head=[8]", "train.mixture=true", "train.transform=auto")
BEST += ("train.monitor=spearman",)  # it makes the choice for each target clear in any split


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of two tasks: values over five powers of ten, and values of both signs."""
    path = tmp_path_factory.mktemp("skewed") / "set.h5"
    graphs = write_set(path, target="regression", n_tasks=2, missing=0.0, seed=1)
    y = np.stack([10 ** (5 * np.random.default_rng(0).random(len(graphs.y)) - 2), graphs.y[:, 1]], axis=1)
    write_graphset(path, replace(graphs, y=y))
    return path


@pytest.fixture(scope="module")
def logged(skewed: Path) -> Path:
    """Return a finished run that learns the logarithm of the first task."""
    fit(skewed, skewed.parent / "run", "train.transform=log,none")
    return skewed.parent / "run"


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of 60 molecules whose target grows exponentially with their size, and one that is linear."""
    pytest.importorskip("rdkit")
    texts = small_molecules()
    plain = np.array([text.count("O") - 0.5 * text.count("C") + 0.1 * len(text) for text in texts])
    steep_and_plain = np.stack([np.exp(4 * plain), plain], axis=1)
    return write_molecules(tmp_path_factory.mktemp("molecules") / "set.h5", texts, steep_and_plain, ["steep", "plain"])


@pytest.fixture(scope="module")
def best(molecules: Path) -> Path:
    fit(molecules, molecules.parent / "best", *BEST)
    return molecules.parent / "best"


@pytest.mark.parametrize("kind", ["log", "quantile"])
def test_outputs_of_transformed_targets_are_near_them_and_have_short_texts(kind: str) -> None:
    y = np.array([[1e-5], [0.003], [0.0], [2.0], [700.0]])
    scaling = Scaling.of(y, Transforms.fit((kind,), y))
    scores = scaling.apply(y)
    assert (scores.mean(), scores.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1, rel=1e-6))
    back = scaling.undo(scores)
    np.testing.assert_allclose(back, y, rtol=2e-6, atol=1e-10)
    assert max(len(f"{value:.17g}".rstrip("0")) for value in back[1:, 0]) <= 25
    assert all(len(repr(float(value))) <= 14 for value in scaling.undo(scores + np.float32(0.1))[:, 0])


def test_targets_far_from_0_keep_the_digits_of_their_range() -> None:
    y = 298150000 + np.arange(60)[:, None] / 100
    for kind in ("log", "quantile"):
        scaling = Scaling.of(y, Transforms.fit((kind,), y))
        np.testing.assert_allclose(scaling.undo(scaling.apply(y)), y, rtol=0, atol=1e-5)


def test_a_network_learns_the_logarithm_and_every_figure_is_in_the_users_unit(skewed: Path, logged: Path) -> None:
    found = json.loads((logged / "metrics.json").read_text())
    assert found["transforms"] == {"task0": "log", "task1": "none"}
    with Dataset(skewed) as dataset:
        split, graphs = read_split(logged / "splits.json"), dataset.load()
        y = graphs.y[split.test]
        written = read_outputs(logged / "predictions.csv", dataset.header, len(split.test))
    assert (written[:, 0] > 0).all()
    assert found["test"]["tasks"]["task0"]["mae"] == pytest.approx(np.abs(written - y).mean(axis=0)[0], rel=1e-6)
    outputs = predict([logged], graphs, backend="cpu", level=None).outputs[split.test]
    np.testing.assert_allclose(outputs, written, rtol=1e-5)
    about = load(logged / "best.safetensors").about["scaling"]
    assert about["mean"][0] == pytest.approx(np.log(graphs.y[split.train, 0]).mean())


def test_a_logarithm_of_negative_or_equal_targets_is_not_taken_and_a_line_says_so(tmp_path: Path) -> None:
    graphs = write_set(tmp_path / "set.h5", target="regression", n_tasks=2, missing=0.0)
    graphs.y[:, 1] = 3.0
    write_graphset(tmp_path / "set.h5", graphs)
    said: list[str] = []
    for kind in ("log", "none"):
        given = configure(f"data.path={tmp_path / 'set.h5'}", f"train.transform={kind}")
        run.start(given, tmp_path / kind, quiet=True, say=said.append)
    expected = "learnt as they are, since negative or equal labels have no such transform: 'task0', 'task1'"
    assert said.count(expected) == 1
    assert "transforms" not in json.loads((tmp_path / "log" / "metrics.json").read_text())
    files = [(tmp_path / kind / "best.safetensors").read_bytes() for kind in ("log", "none")]
    assert files[0] == files[1], "a run without transforms has the files of earlier versions"


def test_without_standardisation_targets_are_transformed_alone(skewed: Path, tmp_path: Path) -> None:
    fit(skewed, tmp_path / "run", "train.transform=log,none", "train.standardize=false")
    with Dataset(skewed) as dataset:
        graphs = dataset.load()
    assert load(tmp_path / "run" / "best.safetensors").about["scaling"]["mean"] == [0.0, 0.0]
    assert (predict([tmp_path / "run"], graphs, backend="cpu", level=None).outputs[:, 0] > 0).all()


def test_a_killed_run_goes_on_to_equal_bits(skewed: Path, logged: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, Fits, "_report", 0)
        with pytest.raises(Killed):
            fit(skewed, tmp_path / "run", "train.transform=log,none")
    run.resume(tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", logged)


def test_a_run_goes_on_from_the_weights_of_one_on_another_scale(skewed: Path, logged: Path, tmp_path: Path) -> None:
    fit(skewed, tmp_path / "fine", f"train.from_run={logged}", "train.transform=none,quantile", "train.epochs=1")
    assert json.loads((tmp_path / "fine" / "metrics.json").read_text())["transforms"]["task1"] == "quantile"
    with Dataset(skewed) as dataset:
        graphs = dataset.load()
    outputs = predict([tmp_path / "fine"], graphs, backend="cpu", level=None).outputs[:, 1]
    assert graphs.y[:, 1].min() <= outputs.min() < outputs.max() <= graphs.y[:, 1].max()


def test_transforms_of_other_outputs_in_a_file_are_refused(logged: Path, tmp_path: Path) -> None:
    for name, message in (("kinds", "transforms of 1 outputs; expected 2"), ("numbers", "damaged transforms")):
        shutil.copytree(logged, tmp_path / name)
        stored = load(logged / "best.safetensors")
        stored.arrays["scaling/kinds"] = stored.arrays["scaling/kinds"][:1]
        if name == "kinds":
            stored.arrays["scaling/numbers"] = stored.arrays["scaling/numbers"][:1]
        save(tmp_path / name / "best.safetensors", stored)
        with pytest.raises(InputError, match=message):
            predict([tmp_path / name], ["CC"], backend="cpu")


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"target": "binary"}, "log", "train.transform: 'log' for binary targets; expected regression targets"),
        (
            {"target": "regression", "n_tasks": 3},
            "log,none",
            "train.transform: 2 values; expected 1, or 3, one per task",
        ),
        ({"target": "regression"}, "auto", "train.transform: 'auto': .* has no fingerprint, descriptors"),
    ],
)
def test_transforms_that_data_do_not_have_are_refused(options, given: str, message: str, tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5", **options)
    with pytest.raises(InputError, match=message):
        fit(tmp_path / "set.h5", tmp_path / "run", f"train.transform={given}")
    assert not (tmp_path / "run").exists()


def test_classes_have_no_transform_to_choose(tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5", target="binary")
    assert "transforms" not in fit(tmp_path / "set.h5", tmp_path / "run", "train.transform=auto")


def test_networks_kernel_and_trees_learn_what_the_kernel_chose(molecules: Path, best: Path, monkeypatch) -> None:
    found = json.loads((best / "metrics.json").read_text())
    assert found["transforms"]["steep"] in ("log", "quantile")
    assert found["transforms"]["plain"] == "none"
    for part in found["parts"]:
        assert part["transforms"] == found["transforms"]
    table = np.genfromtxt(best / "out_of_fold.csv", delimiter=",", names=True)
    assert (table["steep_gcn"] > 0).all()
    with Dataset(molecules) as dataset:
        graphs = dataset.load()
        for number, place in enumerate(member_folders(best), start=1):
            rows = read_split(place / "splits.json").valid
            outputs = predict([place], dataset.read(rows), backend="cpu", level=None).outputs[:, 0]
            np.testing.assert_allclose(table["steep_gcn"][table["part"] == number], outputs, rtol=1e-4)
        test = read_split(best / "splits.json").test
        written = read_outputs(best / "predictions.csv", dataset.header, len(test))
    np.testing.assert_allclose(predict([best], graphs, backend="cpu").outputs[test], written, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("place", "name", "call"), [(Fits, "_report", 1), (mixed.Mixed, "save", 0)])
def test_a_killed_mixture_goes_on_with_the_same_choice(molecules, best: Path, tmp_path, place, name, call) -> None:
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, place, name, call)
        with pytest.raises(Killed):
            fit(molecules, tmp_path / "run", *BEST)
    run.resume(tmp_path / "run", quiet=True)
    assert_same_mixture(tmp_path / "run", best)


@pytest.mark.slow
def test_processes_choose_alike(molecules: Path, best: Path, tmp_path: Path) -> None:
    fit(molecules, tmp_path / "run", *BEST, "jobs=2")
    assert_same_mixture(tmp_path / "run", best)


def assert_same_mixture(one: Path, other: Path) -> None:
    for file in (mixed.FILE, "out_of_fold.csv", "predictions.csv", "part2/best.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


def test_a_fold_chooses_by_its_own_rows(molecules: Path, tmp_path: Path, monkeypatch) -> None:
    seen = []
    problem = mixed.problem

    def noted(dataset, rows, *about):
        seen.append(rows)
        return problem(dataset, rows, *about)

    monkeypatch.setattr(mixed, "problem", noted)
    fit(molecules, tmp_path / "run", *BEST, "split.folds=2", "split.cross_fit=2", "train.epochs=1")
    tests = [read_split(tmp_path / "run" / fold / "splits.json").test for fold in ("fold1", "fold2")]
    assert seen
    for rows in seen:
        assert any(not np.isin(rows, test).any() for test in tests)
    for fold in ("fold1", "fold2"):
        assert "transforms" in json.loads((tmp_path / "run" / fold / "metrics.json").read_text())


def test_networks_alone_choose_by_the_kernel_too(molecules: Path, tmp_path: Path) -> None:
    said: list[str] = []
    given = configure(f"data.path={molecules}", "train.transform=auto", "train.monitor=spearman")
    folder, found = run.start(given, tmp_path / "run", quiet=True, say=said.append)
    kind = found["transforms"]["steep"]
    assert kind in ("log", "quantile")
    assert f"learnt on another scale, scored in the user's units: 'steep' ({kind})" in said
    summary = []
    explain([folder], molecules, tmp_path / "out", tasks=["steep"], backend="cpu", quiet=True, say=summary.append)
    scale = {"log": "the natural logarithm of", "quantile": "the normal score of"}[kind]
    assert f"attributions are in {scale} the unit of the target, on which the networks learn" in summary
    assert scale in (tmp_path / "out" / "index.html").read_text()


def test_labels_over_powers_of_ten_that_are_learnt_as_they_are_get_advice(skewed: Path, tmp_path: Path) -> None:
    told: dict[str, list[str]] = {}
    for kinds in ("none", "log,none"):
        given = configure(f"data.path={skewed}", f"train.transform={kinds}", "train.epochs=1")
        run.start(given, tmp_path / kinds, quiet=True, say=told.setdefault(kinds, []).append)
    (advice,) = [line for line in told["none"] if "powers of ten" in line]
    assert advice.startswith("labels over several powers of ten: 'task0' (most from 0.")
    assert advice.endswith(
        "): a network may predict negative values; --set train.transform=log lets it learn the logarithm"
    )
    assert "powers of ten" not in "".join(told["log,none"])
    with Dataset(skewed) as data:
        header, y = data.header, data.y[:, :1]
        one = header.model_copy(update={"task_names": header.task_names[:1]})
    assert len(about_powers_of_ten(one, y, ("none",))) == 1
    for labels, kind in ((y, "auto"), (y - 1, "none"), (np.sqrt(y), "none"), (np.full_like(y, np.nan), "none")):
        assert about_powers_of_ten(one, labels, (kind,)) == []
