"""Plots: PNG files that show the data, and only the data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from gcnbatch.errors import MachineError
from gcnbatch.metrics import activate, curves, evaluate
from gcnbatch.training import plots

nan = np.nan


def history(epochs: int, **columns: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"epoch": e, "train_loss": 1 / (e + 1), "valid_loss": 1.2 / (e + 1), "learning_rate": 1e-3, "seconds": 0.1}
        for e in range(epochs)
    ]
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def binary(rows: int, tasks: int, seed: int = 0) -> tuple[Any, Any, list[str]]:
    rng = np.random.default_rng(seed)
    y = (rng.random((rows, tasks)) < 0.3).astype(np.float32)
    p = activate("binary", rng.normal(size=y.shape) + 1.5 * y)
    y[rng.random(y.shape) < 0.1] = nan
    return y, p, [f"task {k}" for k in range(tasks)]


def multiclass(rows: int, classes: int) -> tuple[Any, Any, list[str]]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, (rows, 1)).astype(np.int32)
    p = activate("multiclass", rng.normal(size=(rows, classes)) + 2 * np.eye(classes)[y[:, 0]])
    return y, p, [f"class {c}" for c in range(classes)]


def regression(rows: int, tasks: int) -> tuple[Any, Any, list[str]]:
    rng = np.random.default_rng(0)
    y = rng.normal(size=(rows, tasks)).astype(np.float32)
    return y, y + rng.normal(size=y.shape).astype(np.float32) / 2, [f"value {k}" for k in range(tasks)]


def roc_pr(y: Any, outputs: Any, names: list[str], path: Path) -> None:
    plots.roc_pr(curves(y, outputs), evaluate("binary", y, outputs, names)["tasks"], path)


def parity(y: Any, outputs: Any, names: list[str], path: Path) -> None:
    plots.parity(y, outputs, evaluate("regression", y, outputs, names)["tasks"], path)


def shape(path: Path) -> tuple[int, int]:
    """Return (height, width) of a PNG."""
    height, width = imread(path).shape[:2]
    return height, width


def pixels(path: Path, colour: str) -> int:
    """Count the pixels of one exact colour."""
    picture = imread(path)[..., :3]
    return int(np.count_nonzero(np.all(np.abs(picture - np.array(to_rgb(colour))) < 1 / 255, axis=-1)))


# ------------------------------------------------------------------------------------------------ learning curves


def test_learning_curves_have_a_panel_per_validation_metric_and_one_for_a_changing_rate(tmp_path: Path) -> None:
    auc = [0.5, 0.7, 0.6]
    plots.learning_curves([history(3)], tmp_path / "loss.png")
    plots.learning_curves([history(3, valid_roc_auc=auc)], tmp_path / "figure.png")
    plots.learning_curves([history(3, valid_roc_auc=auc, learning_rate=[1e-3, 1e-3, 1e-4])], tmp_path / "rate.png")
    widths = [shape(tmp_path / f"{name}.png")[1] for name in ("loss", "figure", "rate")]
    assert widths[1:] == [2 * widths[0], 3 * widths[0]]


@pytest.mark.numerical(bound="a history made by hand")
def test_learning_curves_mark_the_best_epoch_only_of_defined_metrics(tmp_path: Path) -> None:
    plots.learning_curves([history(3, valid_rmse=[0.5, None, 0.6])], tmp_path / "some.png")
    plots.learning_curves([history(3, valid_rmse=[None, None, None])], tmp_path / "none.png")
    assert pixels(tmp_path / "some.png", plots.GREEN) > 0
    assert pixels(tmp_path / "none.png", plots.GREEN) == 0


@pytest.mark.numerical(bound="a history made by hand")
def test_learning_curves_mark_the_lowest_error_and_the_highest_score(tmp_path: Path) -> None:
    def place_of_mark(metric: str) -> float:
        plots.learning_curves([history(2, **{f"valid_{metric}": [0.2, 0.8]})], tmp_path / "curves.png")
        picture = imread(tmp_path / "curves.png")[30:, :, :3]  # below the legend, whose mark has the same colour
        mark = np.all(np.abs(picture - np.array(to_rgb(plots.GREEN))) < 1 / 255, axis=-1)
        return float(np.mean(np.nonzero(mark)[0]))

    assert place_of_mark("rmse") > place_of_mark("roc_auc")  # picture rows count downwards


@pytest.mark.numerical(bound="a history made by hand")
@pytest.mark.parametrize("epochs", [0, 1, 100])
def test_learning_curves_of_any_length_are_drawn(tmp_path: Path, epochs: int) -> None:
    plots.learning_curves([history(epochs)], tmp_path / "curves.png")
    assert (pixels(tmp_path / "curves.png", plots.BLUE) > 0) == (epochs > 0)


@pytest.mark.numerical(bound="a history made by hand")
def test_learning_curves_without_validation_show_training_alone(tmp_path: Path) -> None:
    rows = [{**row, "valid_loss": None} for row in history(4)]
    plots.learning_curves([rows], tmp_path / "curves.png")
    assert pixels(tmp_path / "curves.png", plots.BLUE) > 0
    assert pixels(tmp_path / "curves.png", plots.ORANGE) == 0


# ------------------------------------------------------------------------------------------------ outputs


@pytest.mark.parametrize(
    ("draw", "made"),
    [(roc_pr, binary(60, 2)), (plots.confusion, multiclass(60, 3)), (parity, regression(60, 2))],
)
def test_rows_without_labels_are_not_drawn(tmp_path: Path, draw: Any, made: tuple[Any, Any, list[str]]) -> None:
    y, outputs, names = made
    draw(y, outputs, names, tmp_path / "one.png")
    blank = np.full((5, y.shape[1]), -1 if y.dtype.kind == "i" else nan, y.dtype)
    draw(np.concatenate([y, blank]), np.concatenate([outputs, outputs[:5]]), names, tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    draw(y[:-10], outputs[:-10], names, tmp_path / "fewer.png")
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "fewer.png").read_bytes()


@pytest.mark.slow
def test_figures_of_many_tasks_and_classes_stay_within_a_readable_size(tmp_path: Path) -> None:
    roc_pr(*binary(40, plots.NAMED_TASKS + 1), tmp_path / "tasks.png")
    plots.confusion(*multiclass(40, plots.NAMED_CLASSES + 1), tmp_path / "classes.png")
    parity(*regression(10, plots.PARITY_TASKS + 1), tmp_path / "values.png")
    for path in tmp_path.iterdir():
        height, width = shape(path)
        assert width <= 1440, path
        assert height <= 2600, path


def test_of_very_many_tasks_and_classes_the_first_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure.axes))
    monkeypatch.setattr(plots, "DRAWN_TASKS", 5)
    monkeypatch.setattr(plots, "DRAWN_CLASSES", 6)
    roc_pr(*binary(40, 8), tmp_path / "tasks.png")
    y, outputs, names = multiclass(100, 9)
    plots.confusion(y, outputs, names, tmp_path / "classes.png")
    (roc, pr, areas), (matrix, _) = drawn
    assert [len(ax.lines) for ax in (roc, pr)] == [7, 7]  # five tasks, the mean, chance
    assert len(areas.lines[0].get_xdata()) == 8
    assert matrix.images[0].get_array().shape == (6, 6)
    right = int((outputs.argmax(axis=1) == y[:, 0]).sum())
    assert matrix.get_title(loc="left") == f"{right} of 100 rows right; the first 6 of 9 classes"


def test_roc_pr_of_several_tasks_adds_a_panel_of_areas(tmp_path: Path) -> None:
    roc_pr(*binary(60, 1), tmp_path / "one.png")
    roc_pr(*binary(60, 3), tmp_path / "three.png")
    assert 2 * shape(tmp_path / "three.png")[1] == 3 * shape(tmp_path / "one.png")[1]


def test_roc_pr_leaves_out_tasks_without_both_classes(tmp_path: Path) -> None:
    y, p, names = binary(60, 2)
    y[:, 1] = 0
    roc_pr(y, p, names, tmp_path / "one_of_two.png")
    assert shape(tmp_path / "one_of_two.png")[1] == 960  # no panel of areas for a single task
    y[:, 0] = nan
    roc_pr(y, p, names, tmp_path / "none.png")
    assert pixels(tmp_path / "none.png", plots.BLUE) == 0


@pytest.mark.parametrize(
    ("draw", "made"),
    [(roc_pr, binary(30, 2)), (plots.confusion, multiclass(30, 3)), (parity, regression(30, 2))],
)
def test_outputs_that_are_not_finite_and_empty_parts_are_drawn_without_a_warning(
    tmp_path: Path, draw: Any, made: tuple[Any, Any, list[str]]
) -> None:
    y, outputs, names = made
    broken = outputs.copy()
    broken[3, 0], broken[4, 0] = nan, np.inf
    draw(y, broken, names, tmp_path / "some.png")
    draw(y[:0], outputs[:0], names, tmp_path / "empty.png")
    assert (tmp_path / "some.png").read_bytes() != (tmp_path / "empty.png").read_bytes()


def test_names_are_shortened_and_not_parsed_as_mathematics(tmp_path: Path) -> None:
    names = ["$x_{", "a$b$c", "x" * 300, "line\nbreak", "100 % & #"]
    roc_pr(*binary(40, 5)[:2], names, tmp_path / "areas.png")
    assert shape(tmp_path / "areas.png") == (444, 1440)
    plots.confusion(*multiclass(20, 5)[:2], names, tmp_path / "confusion.png")
    parity(*regression(20, 2)[:2], names[:2], tmp_path / "parity.png")
    roc_pr(*binary(40, 5)[:2], ["$x_{", "a$b$c", "x" * 200, "line break", "100 % & #"], tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == (tmp_path / "areas.png").read_bytes()


def test_a_missing_folder_is_a_machine_error(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"nowhere/curves\.png: cannot write here"):
        plots.learning_curves([history(2)], tmp_path / "nowhere" / "curves.png")


def test_drawing_does_not_touch_pyplots_global_state(tmp_path: Path) -> None:
    program = (
        "import sys; from gcnbatch.training import plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"plots.learning_curves([[{{'epoch': 0, 'train_loss': 1.0}}]], {str(tmp_path / 'curves.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("draw", "made"),
    [(plots.roc_pr, binary(60, 2)), (plots.confusion, multiclass(60, 3)), (plots.parity, regression(60, 2))],
)
def test_the_drawn_part_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: Any, made: tuple[Any, Any, list[str]]
) -> None:
    titles: list[str] = []

    def keep(figure: Any, path: Any) -> None:
        titles.append(figure.get_suptitle() or figure.axes[0].get_title(loc="left"))

    monkeypatch.setattr(plots, "save", keep)
    y, outputs, names = made
    if draw is plots.roc_pr:
        draw(curves(y, outputs), evaluate("binary", y, outputs, names)["tasks"], tmp_path / "a.png", "test rows")
    elif draw is plots.parity:
        draw(y, outputs, evaluate("regression", y, outputs, names)["tasks"], tmp_path / "a.png", "test rows")
    else:
        draw(y, outputs, names, tmp_path / "a.png", "test rows")
    assert titles[0].startswith("test rows")


# ------------------------------------------------------------------------------------------------ members


@pytest.mark.numerical(bound="a history made by hand")
def test_members_have_a_thin_line_each_and_a_thick_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    scores = [[0.5, 0.7, None], [0.7, 0.9, 0.8]]
    plots.learning_curves([history(3, valid_roc_auc=scores[0])[:2], history(3, valid_roc_auc=scores[1])], tmp_path)
    losses, figures = drawn[0].axes
    assert [len(ax.lines) for ax in (losses, figures)] == [6, 3]
    *thin, mean = figures.lines
    np.testing.assert_array_equal([line.get_ydata() for line in thin], np.array([[0.5, 0.7, nan], scores[1]]))
    np.testing.assert_allclose(mean.get_ydata(), [0.6, 0.8, 0.8])
    assert mean.get_linewidth() > 2 * thin[0].get_linewidth()
    assert figures.get_ylabel() == "ROC-AUC"
    assert drawn[0].get_suptitle() == "2 models; thick: mean"


def test_members_without_validation_rows_have_their_losses(tmp_path: Path) -> None:
    rows = [{"epoch": 1, "train_loss": 0.5, "valid_loss": None, "valid_roc_auc": None, "learning_rate": 1e-3}]
    plots.learning_curves([rows, rows], tmp_path / "curves.png")
    assert imread(tmp_path / "curves.png").ndim == 3
