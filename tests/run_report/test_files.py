"""The page and the model card of a run, through `gcnbatch train`, `gcnbatch report` and the files."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gcnbatch.data import molecule_drawings, sharding
from gcnbatch.data.shards import fingerprint
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.run_report.files import write
from gcnbatch.run_report.model_card import is_unedited
from tests.cli.conftest import call
from tests.run_report.runs import with_data
from tests.training.runs import lighten, options

__all__ = ["call"]


@pytest.fixture
def molecules(runs: Path, tmp_path: Path) -> Path:
    """Return a copy of the run on molecules."""
    return Path(shutil.copytree(runs / "molecules", tmp_path / "run"))


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def card(folder: Path) -> str:
    return (folder / "model_card.md").read_text(encoding="utf-8")


def headings(folder: Path) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page(folder))


def test_a_run_on_molecules_shows_every_section_and_draws_examples(runs: Path) -> None:
    assert headings(runs / "molecules") == [
        "What was trained",
        "Metrics",
        "Test rows by task",
        "ROC and precision-recall curves",
        "Confusion at probability 0.5",
        "Reliability",
        "Learning curves",
        "Worst errors",
        "Best hits",
        "Environment",
        "Repeat it",
    ]
    text = page(runs / "molecules")
    assert text.count('src="data:image/png;base64,') == 3
    assert text.count("<svg") == text.count("<li>") > 6
    metrics = json.loads((runs / "molecules" / "metrics.json").read_text())
    for name in ("even", "third"):
        assert f'<td class="words">{name}</td><td>{metrics["test"]["tasks"][name]["labelled"]}</td>' in text
        assert f"<td>{metrics['test']['tasks'][name]['accuracy']:.3f}<small>" in text
    assert f"gcnbatch train {runs / 'molecules' / 'config.toml'} -o NEW_RUN_DIR" in text
    assert len(text) < 400_000


def test_a_page_asks_for_nothing_and_allows_its_own_script_alone(runs: Path) -> None:
    for name in ("molecules", "hostile", "folds", "nodes"):
        text = page(runs / name)
        assert not re.search(r"https?:|<link|@import|url\(|src=\"(?!data:)", text)
        assert text.count("<script") == 1
        assert "default-src 'none'" in text


def test_names_of_a_file_are_text(runs: Path) -> None:
    assert "<img src=x" not in page(runs / "hostile")
    assert "&lt;img src=x onerror=alert(1)&gt;" in page(runs / "hostile")
    assert "\\<img src=x" in card(runs / "hostile")


def test_folds_show_their_reliability(runs: Path, tmp_path: Path) -> None:
    folds = Path(shutil.copytree(runs / "folds", tmp_path / "run"))
    shutil.copy(runs / "molecules" / "roc_pr.png", folds / "fold2" / "uncertainty.png")
    write(folds)
    assert 'alt="Reliability of fold2 on its test rows"' in page(folds)
    assert "Reliability of fold1" not in page(folds)


def test_folds_have_their_spread_and_a_learning_curve_each(runs: Path) -> None:
    text, metrics = html.unescape(page(runs / "folds")), json.loads((runs / "folds" / "metrics.json").read_text())
    mean, std = (metrics[key]["test"]["r2"] for key in ("mean", "std"))
    assert f"Test R² {mean:.3f} ± {std:.3f} over 3 folds, mean of 2 tasks." in text
    assert f"{mean:.3f}<small>± {std:.3f}</small>" in text
    assert "±: standard deviation over 3 folds." in text
    rmse = [fold["test"]["tasks"]["task0"]["rmse"] for fold in metrics["folds"]]
    deviation = (sum((value - sum(rmse) / 3) ** 2 for value in rmse) / 2) ** 0.5
    assert f"<small>± {deviation:.2g}</small>" in text
    assert "random split, seed 0, 3 folds" in text


def test_the_page_of_folds_shows_the_learning_curves_of_all_in_one_figure(runs: Path, tmp_path: Path) -> None:
    folds = Path(shutil.copytree(runs / "folds", tmp_path / "run"))
    shutil.copy(runs / "molecules" / "roc_pr.png", folds / "learning_curves.png")
    shutil.copy(runs / "molecules" / "roc_pr.png", folds / "fold2" / "learning_curves.png")
    write(folds)
    assert re.findall('alt="(Learning curves.*?)"', page(folds)) == ["Learning curves", "Learning curves of fold2"]


def test_one_graph_shows_classes_and_no_molecules(runs: Path) -> None:
    assert "Test rows by class" in headings(runs / "nodes")
    text = page(runs / "nodes")
    assert "one graph, a row per node" in text
    assert "SMILES" not in text


def test_a_set_without_smiles_says_so(runs: Path) -> None:
    assert "The data set stores no SMILES, so no molecules are drawn." in page(runs / "hostile")


def test_without_rdkit_the_page_says_so_and_lists_the_molecules(
    molecules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(molecule_drawings, "find_spec", lambda name: None)
    write(molecules)
    assert "<svg" not in page(molecules)
    assert "No molecules are drawn. RDKit is not installed" in page(molecules)


def test_without_the_libraries_of_a_desktop_the_page_says_so(molecules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit.Chem.Draw", None)
    write(molecules)
    assert "No molecules are drawn. RDKit may miss libraries" in page(molecules)
    card = r"<strong>M\d+</strong><span>even: measured 1, .*?</span><span>[\w()=#]+</span></li>"
    assert re.search(card, page(molecules))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "the data set changed since the run"),
    ],
)
def test_without_its_data_a_run_keeps_its_figures_and_says_what_lacks(
    runs: Path, tmp_path: Path, damage, reason
) -> None:
    folder, data = tmp_path / "run", tmp_path / "set.h5"
    shutil.copytree(runs / "hostile", folder)
    shutil.copy(runs / "hostile.h5", data)
    with_data(folder, data)
    damage(data)
    write(folder)
    assert "No intervals: " in page(folder)
    assert reason in page(folder)
    assert "Test rows by task" in headings(folder)
    assert "Worst errors" not in headings(folder)


def test_the_path_beside_the_digest_is_not_opened(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "hostile", folder)
    digest = (folder / "data.sha256").read_text().split()[0]
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "gone.h5", "a\0b", ""):
        (folder / "data.sha256").write_text(f"{digest}  {path}\n")
        write(folder)
        assert "No intervals: " not in page(folder)
        assert f"{runs / 'hostile.h5'}, sha256 {digest}" in page(folder)


def test_the_page_of_a_run_on_shards_has_its_test_rows(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "hostile", folder)
    with Dataset(runs / "hostile.h5") as dataset:
        sharding.shard(dataset, tmp_path / "shards", max_graphs=20)
    with_data(folder, tmp_path / "shards")
    write(folder)
    assert "No intervals: the data set changed since the run" in page(folder)
    (folder / "data.sha256").write_text(f"{fingerprint(tmp_path / 'shards')}  {tmp_path / 'shards'}\n")
    write(folder)
    assert "No intervals: " not in page(folder)


def test_a_baseline_without_its_settings_is_refused(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "hostile", folder)
    (folder / "config.toml").unlink()
    for content, message in (
        ("[]", r"'value': \[], not an object of keys"),
        ('{"data": 1}', "'data': 1, not a text"),
    ):
        (folder / "baseline.json").write_text(content)
        with pytest.raises(InputError, match=rf"baseline\.json: {message}"):
            write(folder)
    (folder / "baseline.json").write_text(json.dumps({"data": "a\0b"}))
    write(folder)
    assert r"a\x00b: cannot be read (embedded null byte)" in page(folder)


def test_a_baseline_verdict_and_calibration_are_shown_where_a_run_has_them(molecules: Path) -> None:
    metrics = json.loads((molecules / "metrics.json").read_text())
    metrics["baseline"] = {"verdict": "The baseline wins <b>."}
    metrics["uncertainty"] = {
        "level": 0.9,
        "ece": 0.125,
        "tasks": {"even": {"ece": 0.25, "kind": "beta"}},
        "notes": ["n<"],
    }
    (molecules / "metrics.json").write_text(json.dumps(metrics))
    write(molecules)
    assert "The baseline wins &lt;b&gt;." in page(molecules)
    assert "Reliability" in headings(molecules)
    assert '<td class="words">even</td><td>0.25</td>' in page(molecules)
    assert '<p class="note">n&lt;</p>' in page(molecules)


@pytest.mark.parametrize("key", ["test", "tasks", "roc_auc", "uncertainty", "baseline", "best_epoch", "epochs"])
@pytest.mark.parametrize("value", [None, [], "x", 7, {"tasks": {"even": 3}}])
def test_strange_values_in_metrics_are_refused_in_a_line_or_left_out(molecules: Path, key: str, value: object) -> None:
    metrics = json.loads((molecules / "metrics.json").read_text())
    (metrics["test"] if key in ("tasks", "roc_auc") else metrics)[key] = value
    (molecules / "metrics.json").write_text(json.dumps(metrics))
    with suppress(InputError):  # whose line the tests of run folders check
        write(molecules)
    assert "Run molecules" in page(molecules)


def test_the_model_card_has_figures_and_fields_to_fill(runs: Path) -> None:
    text = card(runs / "molecules")
    assert re.findall("^## (.*)", text, re.MULTILINE) == [
        *("Model", "Intended use", "Data", "Metrics", "Applicability", "Limits", "Make it again")
    ]
    assert re.search("^    gcnbatch train ", text, re.MULTILINE)
    assert "**Licence of the data:** *to fill*" in text
    assert "The split is random" in text
    assert len(re.findall(r"^\| test \|.* \(0\.\d+ – \d\.\d+\)", text, re.MULTILINE)) == 1


def test_report_writes_the_page_again_and_keeps_an_edited_card(molecules: Path, call) -> None:
    before = page(molecules), card(molecules)
    (molecules / "report.html").unlink()
    assert call("report", molecules) == (0, f"{molecules / 'report.html'}\n", "")
    assert is_unedited(card(molecules))
    assert len(page(molecules)) == pytest.approx(len(before[0]), abs=200)
    edited = before[1].replace("*to fill*", "CC BY 4.0", 1)
    (molecules / "model_card.md").write_text(edited)
    assert call("report", molecules)[2] == f"{molecules / 'model_card.md'} was edited and is kept\n"
    assert card(molecules) == edited


def test_card_prints_the_card_with_errors_by_distance_or_as_edited(molecules: Path, tmp_path: Path, call) -> None:
    assert call("card", molecules) == (0, card(molecules), "")
    assert "were not measured" in card(molecules)
    metrics = json.loads((molecules / "metrics.json").read_text())
    bins = [{"mean": 0.25, "error": 0.5, "rows": 3}, {"mean": 0.75, "error": 0.125, "rows": 3}]
    metrics["applicability"] = {"nearest_similarity": {"spearman": -0.5, "bins": bins}}
    (molecules / "metrics.json").write_text(json.dumps(metrics))
    line = r"**nearest\_similarity:** mean error of test rows 0.5 around 0.25, 0.125 around 0.75; rank correlation -0.5"
    assert line in call("card", molecules)[1]
    (molecules / "model_card.md").write_text("# Model card: mine\n")
    assert call("card", molecules, "-o", tmp_path / "mine.md") == (0, "", "")
    assert (tmp_path / "mine.md").read_text() == "# Model card: mine\n"


def test_card_refuses_what_is_no_finished_run(tmp_path: Path, call) -> None:
    code, _, error = call("card", tmp_path)
    assert code == 2
    assert "expected the folder of a run" in error


def test_report_refuses_what_is_no_finished_run(tmp_path: Path, call) -> None:
    code, _, error = call("report", tmp_path)
    assert code == 2
    assert "no splits.json in it; expected the folder of a run" in error


def test_training_writes_the_report_and_resuming_a_finished_run_leaves_it(
    runs: Path, tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch
) -> None:
    lighten(monkeypatch)
    folder = tmp_path / "run"
    assert call("train", "--data", runs / "hostile.h5", "-q", "-o", folder, *options("train.epochs=1"))[0] == 0
    assert "Test ROC-AUC" in page(folder)
    (folder / "report.html").write_text("mine")
    call("train", "--resume", folder, "-q")
    assert page(folder) == "mine"
    call("train", "--resume", folder, "--epochs", 2, "-q")
    assert "2 epochs" in page(folder)
