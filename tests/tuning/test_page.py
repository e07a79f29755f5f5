"""The files that a study leaves, and its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna")

import gcnbatch
from gcnbatch.data import splits
from gcnbatch.data.splits import SplitRows
from gcnbatch.data.store import Dataset
from gcnbatch.tuning import search as searches
from gcnbatch.tuning.search import Limits
from gcnbatch.workers.pool import Workers
from tests.training.runs import write_set
from tests.tuning.studies import base, search, table

pytestmark = pytest.mark.usefixtures("light")


def test_a_study_leaves_these_files_and_a_summary_of_its_best_trial(place: Path, tmp_path: Path) -> None:
    summary = search(place, tmp_path / "study")
    assert {path.name for path in (tmp_path / "study").iterdir()} == {
        *("config.toml", "space.toml", "study.json", "env.json", "data.sha256", "study.journal"),
        *("best.toml", "trials.csv", "report.html"),
    }
    rows = table(tmp_path / "study")
    assert [row["trial"] for row in rows] == [str(number) for number in range(6)]
    values = [float(row["value"]) for row in rows if row["state"] == "complete"]
    assert summary["best"]["value"] == max(values)
    assert (summary["trials"], summary["failed"], summary["direction"]) == (6, 0, "maximize")
    written = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    charts = ("History", "Parallel coordinates", "Learning curves")
    for title in ("Best trials", *charts, "What was searched", "Environment", "Repeat it"):
        assert f"<h2>{title}</h2>" in written
    assert "<dt>train.learning_rate</dt><dd>0.001 to 0.1 (logarithmic)</dd>" in written
    assert "<dt>model.widths</dt><dd>4, 8; 1 to 2 times</dd>" in written
    assert 'src="http' not in written
    assert written.count("<script") == 1
    for name in ("report.html", "best.toml"):
        (tmp_path / "study" / name).unlink()
    assert gcnbatch.report(tmp_path / "study") == tmp_path / "study" / "report.html"
    assert (tmp_path / "study" / "report.html").read_text(encoding="utf-8") == written
    assert (tmp_path / "study" / "best.toml").is_file()


def test_processes_draw_the_same_page_and_one_that_dies_changes_nothing(place: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "study")
    expected = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Importance</h2>" in expected
    for ends in (False, True):
        (tmp_path / "study" / "report.html").unlink()
        with Workers(2) as processes:
            if ends:
                for worker in processes._workers:
                    worker.process.kill()
            searches.resume(tmp_path / "study", quiet=True, processes=processes)
        assert (tmp_path / "study" / "report.html").read_text(encoding="utf-8") == expected


def test_a_study_in_which_no_trial_learned_says_so(tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5", target="regression", missing=0.0)
    (tmp_path / "space.toml").write_text("[train]\nlearning_rate = { choices = [100.0] }\n", encoding="utf-8")
    said: list[str] = []
    about = base(tmp_path), tmp_path / "study", tmp_path / "space.toml", Limits(1)
    summary = searches.start(*about, quiet=True, say=said.append)[1]
    with Dataset(tmp_path / "set.h5") as dataset:
        y, rows = dataset.y, SplitRows.of(dataset, "random")
    split = splits.make_split(base(tmp_path).split, 0, rows)
    valid, mean = y[split.valid].astype(np.float64), y[split.train].mean(axis=0, dtype=np.float64)
    shares = [1 - ((v - m) ** 2).sum() / ((v - v.mean()) ** 2).sum() for v, m in zip(valid.T, mean, strict=True)]
    assert summary["constant"] == pytest.approx(np.mean(shares), abs=1e-6)
    assert summary["best"]["value"] < summary["constant"]
    assert not summary["learned"]
    (line,) = said
    assert line.startswith(f"No trial learned: the best valid R², {summary['best']['value']:.4g}, is not better than ")
    assert "best.toml has the keys of the best trial all the same" in line
    page_of = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "No trial learned" in page_of


def test_hostile_names_reach_no_page(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x>"
    search(place, folder, trials=1)
    assert "<img src=x>" not in (folder / "report.html").read_text(encoding="utf-8")
