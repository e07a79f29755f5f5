"""Figures of members: training draws those of the first, ``gcnbatch report --figures`` those of all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import gcnbatch
from gcnbatch.data.writer import write_graphset
from gcnbatch.errors import InputError
from gcnbatch.run_report import files
from gcnbatch.training import run
from gcnbatch.training.run_files import STUDY
from gcnbatch.workers.pool import Workers
from tests.builders import build_graphset
from tests.cli.conftest import call
from tests.run_report.runs import with_data
from tests.training.runs import assert_same_run, configure

__all__ = ["call"]

FIGURES = ("learning_curves.png", "roc_pr.png", "uncertainty.png")


def pictures(folder: Path) -> dict[str, bytes]:
    """Return the figures in a run's folder and its members' folders, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


def of_members(first: int, last: int) -> set[str]:
    return {f"model{number}/{name}" for number in range(first, last + 1) for name in FIGURES}


def train(data: Path, folder: Path, *assignments: str) -> None:
    run.start(configure(f"data.path={data}", "train.epochs=2", *assignments), folder, quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data set, and a run of two members."""
    place = tmp_path_factory.mktemp("figures")
    write_graphset(place / "set.h5", build_graphset(200, max_nodes=4, missing=0.0))
    train(place / "set.h5", place / "run", "train.ensemble=2")
    return place


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with Workers(1) as workers:
        yield workers


@pytest.fixture
def one_pool(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw in one process, which several tests use: to start processes takes as long as to draw."""
    monkeypatch.setattr(files, "Workers", lambda count: nullcontext(pool))


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


def test_training_draws_the_figures_of_the_whole_run(trained: Path) -> None:
    assert pictures(trained / "run").keys() == {"learning_curves.png", "roc_pr.png"}


@pytest.mark.slow  # the next two draw late figures, too
def test_report_draws_the_figures_that_training_would_have_drawn(trained: Path, folder: Path, tmp_path: Path) -> None:
    train(trained / "set.h5", tmp_path / "alone")
    assert_same_run(folder / "model1", tmp_path / "alone")
    assert gcnbatch.Run(folder).report() == folder / "report.html"
    note = f"Plots of all 2 models: gcnbatch report {folder} --figures"
    assert note in (folder / "report.html").read_text()
    assert gcnbatch.Run(folder).report(figures=True) == folder / "report.html"
    assert note not in (folder / "report.html").read_text()
    assert pictures(folder).keys() == of_members(1, 2) | {"learning_curves.png", "roc_pr.png"}
    assert pictures(folder / "model1") == pictures(tmp_path / "alone")
    assert "Learning curves of model2" in (folder / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("one_pool")
def test_a_run_that_is_extended_keeps_no_old_figure(folder: Path, call) -> None:
    assert call("report", folder, "--figures")[0] == 0
    before = pictures(folder)
    gcnbatch.resume(folder, epochs=3)
    assert pictures(folder).keys() == before.keys() - of_members(1, 2)
    assert pictures(folder)["learning_curves.png"] != before["learning_curves.png"]


@pytest.mark.usefixtures("one_pool")
def test_a_run_without_test_rows_has_learning_curves(trained: Path, tmp_path: Path, call) -> None:
    train(trained / "set.h5", tmp_path / "run", "train.ensemble=3", "split.test=0")
    names = {f"model{number}/learning_curves.png" for number in range(1, 4)} | {"learning_curves.png"}
    assert pictures(tmp_path / "run").keys() == {"learning_curves.png"}
    assert call("report", tmp_path / "run", "--figures")[0] == 0
    assert pictures(tmp_path / "run").keys() == names


def test_figures_of_a_run_whose_data_are_gone_are_refused(trained: Path, folder: Path, tmp_path: Path) -> None:
    with_data(folder, tmp_path / "gone.h5")
    with pytest.raises(InputError, match=r"^--figures: .*gone\.h5: no such file.*; expected the data of .*run"):
        gcnbatch.report(folder, figures=True)


@pytest.mark.slow
def test_figures_of_a_study_are_refused(tmp_path: Path, call) -> None:
    (tmp_path / STUDY).touch()
    code, _, error = call("report", tmp_path, "--figures")
    assert (code, error) == (2, f"error: --figures: given with {tmp_path}; expected the folder of a run\n")
