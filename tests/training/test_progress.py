"""Progress of training: a line per epoch in a pipe, a bar on a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from gcnbatch.training import progress
from gcnbatch.training.progress import Bar, Lines, Progress, open_progress


def row(epoch: int) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "train_loss": 0.5,
        "valid_loss": None,
        "valid_roc_auc": 0.75,
        "learning_rate": 0.1,
        "graphs_per_second": 1234.0,
    }


class Course:
    """Runs epochs of a fit on a clock of its own."""

    def __init__(self, epochs: int, steps: int, done: int = 0) -> None:
        self.now = 0.0
        self.shown = Lines(epochs, steps, done, lambda: self.now)

    def run(self, seconds: float) -> None:
        """Run to the end; an epoch takes `seconds`."""
        with self.shown:
            while self.shown.done < self.shown.epochs * self.shown.steps:
                self.now += seconds / self.shown.steps
                self.shown.step()
                if self.shown.done % self.shown.steps == 0:
                    self.shown.end(row(self.shown.done // self.shown.steps), 1)


def numbers(lines: list[str]) -> list[int]:
    """Return the epochs of the lines."""
    return [int(line.split()[1].split("/")[0]) for line in lines]


def test_every_epoch_has_a_line_with_its_figures_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    Course(3, 4).run(20.0)
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1/3: train loss 0.5, ROC-AUC 0.7500, best epoch 1, 1,234 graphs/s, 00:40 left",
        "epoch 2/3: train loss 0.5, ROC-AUC 0.7500, best epoch 1, 1,234 graphs/s, 00:20 left",
        "epoch 3/3: train loss 0.5, ROC-AUC 0.7500, best epoch 1, 1,234 graphs/s",
    ]


def test_short_epochs_have_a_line_a_second_and_the_last_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    Course(1003, 1).run(1 / 64)
    assert numbers(capsys.readouterr().err.splitlines()) == [*range(1, 1003, 64), 1003]


def test_a_long_epoch_has_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    Course(1, 100).run(100.0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines[:-1]] == [
        f"epoch 1/1: step {step} of 100" for step in (29, 59, 89)
    ]
    assert lines[0].endswith(", 01:11 left")


def test_a_resumed_fit_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    Course(3, 10, done=25).run(10.0)
    assert numbers(capsys.readouterr().err.splitlines()) == [3]


@pytest.mark.parametrize("steps", [1, 3, 49, 99])
def test_a_bar_ends_at_its_total(steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A sum of fractions 1 / steps would exceed it, and tqdm would warn, which fails a test."""
    with Bar(7, steps, 2 * steps) as bar:
        for epoch in range(2, 7):
            for _ in range(steps):
                bar.step()
            bar.end(row(epoch + 1), 1)
    shown = capsys.readouterr().err.rpartition("\r")[2]
    assert f"epoch 7/7 step {steps}/{steps} 100%|" in shown
    assert "ROC-AUC 0.7500, best epoch 1" in shown


def test_the_kind_of_stderr_chooses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for terminal, kind in ((True, Bar), (False, Lines)):
        monkeypatch.setattr(progress, "on_terminal", lambda terminal=terminal: terminal)
        assert type(open_progress(1, 1, 0, quiet=True)) is Progress
        with open_progress(1, 1, 0, quiet=False) as shown:
            assert type(shown) is kind
    assert "0%" in capsys.readouterr().err
