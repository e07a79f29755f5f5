"""Suites with given splits on tiny tables: scores, members, means, going on after a stop, refusals."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import gcnbatch
from gcnbatch import metrics
from gcnbatch.errors import InputError
from gcnbatch.lab.benchmark.comparison import rank_of
from gcnbatch.lab.benchmark.results import Result
from gcnbatch.lab.benchmark.suite import GIVEN, find_sets, load
from gcnbatch.training import run
from tests.cli.conftest import call
from tests.inference.runs import SMILES
from tests.training.runs import lighten

__all__ = ["call"]
MOLECULES = ["C" * (i // len(SMILES)) + SMILES[i % len(SMILES)] for i in range(50)]
BOARDS = ("moleculeace", "admet")


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    lighten(monkeypatch)
    monkeypatch.setattr("gcnbatch.lab.benchmark.report.save", lambda figure, path: path.write_bytes(b""))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two sets of each board; every fifth row tests."""
    folder = tmp_path_factory.mktemp("tables")
    for name in ("CHEMBL234_Ki", "CHEMBL1862_Ki"):
        lines = (f"{m},{0.1 * i % 3},{'test' if i % 5 == 0 else 'train'}\n" for i, m in enumerate(MOLECULES))
        (folder / f"{name}.csv").write_text("smiles,y,split\n" + "".join(lines))
    for part, tests in (("train_val", False), ("test", True)):
        rows = [(i, m) for i, m in enumerate(MOLECULES) if (i % 5 == 0) is tests]
        text = "Drug_ID,Drug,Y\n" + "".join(f"m{i},{m},{i % 2}.0\n" for i, m in rows)
        (folder / f"dili.{part}.csv.gz").write_bytes(gzip.compress(text.encode()))
        text = "Drug_ID,Drug,Y\n" + "".join(f"m{i},{m},{i * i % 90}\n" for i, m in rows)
        (folder / f"vdss_lombardo.{part}.csv").write_text(text)
    return folder


def start(
    suite: str, tables: Path, out: Path, recipe: str = "gcn", sets: tuple[str, ...] = (), seeds: int = 1
) -> list[Result]:
    board = {"moleculeace": gcnbatch.moleculeace, "admet": gcnbatch.admet}[suite]
    found = board(tables, recipe=recipe, sets=sets, seeds=seeds, epochs=1, backend="cpu", out=out)
    return list(found.results)


def test_a_mixture_and_its_members_are_scored_on_the_given_test_rows(tables: Path, tmp_path: Path) -> None:
    found = start("moleculeace", tables, tmp_path / "out", "best", ("CHEMBL234_Ki",))
    whole, *members = found
    folder = tmp_path / "out/CHEMBL234_Ki/given/best/seed0"
    written = json.loads((folder / "metrics.json").read_text())
    assert [one.member for one in members] == ["kernel", "trees", "gcn"]
    assert (whole.test, whole.valid) == ([written["test"]["rmse"]], written["valid"]["rmse"])
    assert [one.test for one in members] == [[of["test"]] for of in written["members"]]
    assert [one.valid for one in members] == [of["out_of_fold"] for of in written["members"]]
    assert sum(one.weight for one in members) == pytest.approx(1)
    split = json.loads((folder / "splits.json").read_text())
    assert [len(split[part]) for part in ("train", "valid", "test")] == [40, 0, 10]
    low, high = whole.interval
    assert low < whole.mean < high
    assert all(one.interval is None for one in members)
    with (tmp_path / "out/results.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [row["model"] for row in table] == ["best", "best: kernel", "best: trees", "best: gcn", "D-MPNN"]
    assert table[0]["rank"] == f"{2 if whole.mean > 0.763 else 1} of 2"
    assert "https://github.com/JacksonBurns/chemeleon" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def test_two_tables_make_one_set_with_the_metric_of_its_leaderboard(tables: Path, tmp_path: Path) -> None:
    found = start("admet", tables, tmp_path / "out")
    assert [(one.set, one.metric) for one in found[:2]] == [("vdss_lombardo", "spearman"), ("dili", "roc_auc")]
    assert found[0].interval is not None
    config = (tmp_path / "out/vdss_lombardo/given/gcn/seed0/config.toml").read_text()
    assert 'monitor = "spearman"' in config
    with (tmp_path / "out/data/dili.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["Drug"] for row in rows if row["split"] == "test"] == MOLECULES[::5]
    assert len(rows) == len(MOLECULES)
    mean = found[2]
    assert (mean.set, mean.sets, mean.metric) == ("", 2, "rank")
    ranks = [entry["rank"] for entry in json.loads((tmp_path / "out/results.json").read_text())[:2]]
    assert mean.test == [np.mean(ranks)]


def test_means_over_sets_stand_beside_published_models_pair_by_pair(tables: Path, tmp_path: Path) -> None:
    *own, mean = start("moleculeace", tables, tmp_path / "out")
    assert mean.mean == pytest.approx(np.mean([one.mean for one in own]))
    np.testing.assert_allclose(mean.resampled, np.mean([one.resampled for one in own], axis=0))
    entry = json.loads((tmp_path / "out/results.json").read_text())[-1]
    (beside,) = entry["against"]
    ours, theirs = np.array([one.mean for one in own]), np.array([0.954, 0.763])
    assert (beside["beside"], beside["sets"], beside["better"]) == ("D-MPNN", 2, int((ours < theirs).sum()))
    assert beside["difference"] == pytest.approx((ours - theirs).mean())
    assert beside["low"] == pytest.approx((ours - theirs).min())
    assert beside["high"] == pytest.approx((ours - theirs).max())


@pytest.mark.slow
def test_each_seed_is_a_run_and_other_recipes_of_the_folder_stay_in_the_table(tables: Path, tmp_path: Path) -> None:
    sets = ("CHEMBL234_Ki",)
    (first,) = start("moleculeace", tables, tmp_path / "out", "gcn", sets, seeds=2)
    folders = [tmp_path / f"out/CHEMBL234_Ki/given/gcn/seed{seed}" for seed in (0, 1)]
    assert first.test == [json.loads((one / "metrics.json").read_text())["test"]["rmse"] for one in folders]
    assert first.test[0] != first.test[1]
    both = start("moleculeace", tables, tmp_path / "out", "best", sets, seeds=2)
    assert [(one.model, one.member) for one in both if not one.member] == [("best", ""), ("gcn", "")]
    assert both[-1].test == first.test
    gcn = next(one for one in both if one.member == "gcn")
    assert gcn.test == pytest.approx(first.test)


def test_a_stopped_board_goes_on_and_has_the_results_of_finished_sets(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []
    right = run.start

    def dying(config, folder, *rest, **more):
        begun.append(folder)
        if len(begun) == 2:
            folder.mkdir(parents=True)
            (folder / "data.h5").write_bytes(b"half")  # as a kill leaves it
            raise KeyboardInterrupt
        return right(config, folder, *rest, **more)

    monkeypatch.setattr(run, "start", dying)
    with pytest.raises(KeyboardInterrupt):
        start("moleculeace", tables, tmp_path / "out")
    kept = json.loads((tmp_path / "out/results.json").read_text())
    assert [one["set"] for one in kept] == ["CHEMBL1862_Ki"]
    found = start("moleculeace", tables, tmp_path / "out")
    assert [folder.parts[-4] for folder in begun] == ["CHEMBL1862_Ki", "CHEMBL234_Ki", "CHEMBL234_Ki"]
    assert [one.test for one in found[:1]] == [kept[0]["test"]]
    (tmp_path / "out/CHEMBL234_Ki/given/gcn/seed0/metrics.json").unlink()  # as a run that was killed before its end
    assert [one.test for one in start("moleculeace", tables, tmp_path / "out")] == [one.test for one in found]


def test_a_folder_of_another_suite_is_refused(tables: Path, tmp_path: Path) -> None:
    start("moleculeace", tables, tmp_path / "out", sets=("CHEMBL234_Ki",))
    expected = f"-o {tmp_path / 'out'}: results of moleculeace; expected those of admet. Choose another -o."
    with pytest.raises(InputError, match=re.escape(expected)):
        start("admet", tables, tmp_path / "out")


@pytest.mark.parametrize(
    ("suite", "recipe", "sets", "message"),
    [
        (
            "admet",
            "gcn",
            ("hergg",),
            f"--sets: 'hergg'; expected {', '.join(load('admet').sets)}. Did you mean 'herg'?",
        ),
        ("moleculeace", "gcn", ("x",), f"--sets: 'x'; expected {', '.join(load('moleculeace').sets)}"),
        ("admet", "bets", (), "configuration 'bets': not shipped"),
        ("admet", "gcn", ("herg",), "TABLES: no herg.train_val.csv.gz or herg.train_val.csv in it"),
        ("moleculeace", "gcn", ("CHEMBL204_Ki",), "TABLES: no CHEMBL204_Ki.csv.gz or CHEMBL204_Ki.csv in it"),
    ],
)
def test_unknown_names_and_missing_tables_are_refused(
    tables: Path, tmp_path: Path, suite: str, recipe: str, sets: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError) as error:
        start(suite, tables, tmp_path / "out", recipe, sets)
    assert str(error.value).startswith(message.replace("TABLES", str(tables)))
    assert "Known: " not in str(error.value) or "expected" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_table_of_training_rows_alone_and_one_without_a_column_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dili.train_val.csv").write_text("Drug,Y\nCCO,1\n")
    with pytest.raises(InputError, match=r"no dili\.test\.csv\.gz or dili\.test\.csv in it; expected the table"):
        start("admet", tmp_path, tmp_path / "out")
    (tmp_path / "dili.test.csv").write_text("smiles,Y\nCCO,1\n")
    with pytest.raises(InputError, match=r"dili\.test\.csv: no column 'Drug'; expected a table of the suite"):
        start("admet", tmp_path, tmp_path / "out")


def test_a_network_without_cross_fitting_is_scored_too(tables: Path, tmp_path: Path) -> None:
    (found,) = start("moleculeace", tables, tmp_path / "out", "molecules", ("CHEMBL234_Ki",))
    assert (len(found.test), found.member) == (1, "")


@pytest.mark.parametrize("name", BOARDS)
def test_the_command_prints_both_tables_and_the_folder(call, name: str, tables: Path, tmp_path: Path) -> None:
    given = ("--data", tables, "-o", tmp_path / "out", "--recipe", "gcn", "--epochs", 1, "--backend", "cpu", "-q")
    code, out, said = call("benchmark", name, *given)
    lines = out.splitlines()
    assert (code, lines[-1], said) == (0, str(tmp_path / "out"), "")
    assert lines[0].split()[:3] == ["set", "split", "model"]
    assert any(line.startswith("mean of 2 sets") for line in lines)
    assert any(line.split()[:4] == ["model", "beside", "source", "sets"] for line in lines)


@pytest.mark.parametrize("name", BOARDS)
def test_the_suite_is_whole(name: str) -> None:
    """Every published figure is of a set that the suite has, in the range of its metric, and has a source."""
    suite = load(name)
    assert suite.splits == (GIVEN,)
    assert suite.published.keys() == suite.sources.keys()
    assert suite.means.keys() <= suite.sources.keys()
    known = {metric for of in metrics.METRICS.values() for metric in of}
    assert {one.metric for one in suite.sets.values()} <= known
    for splits in suite.published.values():
        assert splits.keys() == {GIVEN}
        assert splits[GIVEN].keys() <= suite.sets.keys()
    for set_name, one in suite.sets.items():
        scores = [of.score for of in suite.scores(set_name, GIVEN)]
        assert scores
        assert all(score > 0 for score in scores)
        assert one.metric in ("rmse", "mae") or max(scores) < 1


def test_ranks_and_pairs_follow_the_metric() -> None:
    suite = load("admet").with_recipes(["best"])

    def rank(name: str, metric: str, score: float) -> tuple[int, int] | None:
        return rank_of(suite, Result(name, GIVEN, "best", metric, [score], None, None))

    assert rank("herg", "roc_auc", 0.9) == (1, 6)
    assert rank("herg", "roc_auc", 0.85) == (3, 6)
    assert rank("ppbr_az", "mae", 7.0) == (1, 6)
    assert rank("ppbr_az", "mae", 8.0) == (5, 6)


@pytest.mark.parametrize(("name", "folder"), [("moleculeace", "moleculeace"), ("admet", "admet")])
def test_the_suite_names_the_columns_of_the_real_tables(name: str, folder: str) -> None:
    if not (data := os.environ.get("GCNBATCH_TEST_DATA")):
        pytest.skip("GCNBATCH_TEST_DATA is not set")
    suite = load(name)
    found = find_sets(suite, Path(data) / folder, [])
    assert found
    for key, paths in found.items():
        one = suite.sets[key]
        for path in paths:
            columns = next(csv.reader(gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()))
            assert {one.smiles, *one.targets, *([one.split] if one.split else [])} <= set(columns)
