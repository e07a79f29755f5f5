"""Plots of a run as PNG files: learning curves, ROC and precision-recall, confusion matrix, parity.

matplotlib is imported when the first figure is drawn. Figures are `matplotlib.figure.Figure` objects without pyplot: no
global state, no display, safe in threads. The colours are the colour-blind safe palette of Okabe and Ito. Legends are
placed above the axes, never over data. Names of tasks and classes are shortened and never parsed as mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import metrics
from gcnbatch.figures import BLUE, GREEN, GREY, ORANGE, legend_above, panels, plain, save, ticker
from gcnbatch.fileio import StrPath
from gcnbatch.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gcnbatch.data.schema import Target

DRAWN_TASKS = 200  # curves of a ROC figure
DRAWN_CLASSES = 500  # rows and columns of a confusion matrix; more would be smaller than a pixel
NAMED_TASKS = 40  # more tasks than this are drawn without names
PARITY_TASKS = 24  # panels of a parity figure
ANNOTATED_CLASSES = 16  # more classes than this are drawn without counts
NAMED_CLASSES = 50  # more classes than this are drawn without names


def learning_curves(histories: Sequence[Sequence[dict[str, Any]]], path: StrPath) -> None:
    """Draw loss and each validation metric over epochs, of one model or of the members of a run.

    The best epoch of one model is marked in each validation metric, and its learning rate drawn if it changes. Members
    have a thin line each, and a thick one of their mean, at each epoch over those that trained it and have a value.

    Parameters
    ----------
    histories : sequence of lists of dict
        Rows of ``history.jsonl``: "epoch", "train_loss", "valid_loss", "valid_<metric>", "learning_rate". A value that
        is missing or None leaves a gap.
    path : path
        PNG file, written atomically.
    """
    alone, epochs = len(histories) == 1, np.arange(1, max(map(len, histories)) + 1)
    keys = dict.fromkeys(key for history in histories for row in history for key in row)
    curves = {key: np.stack([_values(history, key, len(epochs)) for history in histories]) for key in keys}
    figures = [key for key in keys if key.startswith("valid_") and key != "valid_loss" and _any(curves[key])]
    (rates, *_) = curves.get("learning_rate", np.zeros((1, 0)))
    varies = alone and len(np.unique(rates)) > 1
    figure, axes = panels(1, 1 + len(figures) + varies, width=4.6, height=3.4)
    style: dict[str, Any] = {"marker": "o", "markersize": 3} if len(epochs) <= 30 else {}
    for key, label, colour in (("train_loss", "training", BLUE), ("valid_loss", "validation", ORANGE)):
        if key in curves and _any(curves[key]):
            _lines(axes[0], epochs, curves[key], style, label, colour)
    axes[0].set_ylabel("loss")
    for ax, key in zip(axes[1:], figures, strict=False):
        metric = key.removeprefix("valid_")
        _lines(ax, epochs, curves[key], style, "validation", ORANGE)
        if alone:
            _mark_best(ax, epochs, curves[key][0], metric)
        ax.set_ylabel(metrics.label(metric))
    for ax in axes:
        if ax.lines:
            legend_above(ax)
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(ticker().MaxNLocator(integer=True, min_n_ticks=1))
    if varies:
        axes[-1].plot(epochs, rates, color=GREY, drawstyle="steps-post", **style)
        axes[-1].set(ylabel="learning rate", yscale="log" if rates.min() > 0 else "linear")
    _name_part(figure, "" if alone else f"{len(histories)} models; thick: mean")
    save(figure, path)


TESTED = {"binary": "roc_pr.png", "multiclass": "confusion.png", "regression": "parity.png"}  # by kind of target


def draw_tested(
    folder: Path,
    target: Target,
    class_names: Sequence[str],
    y: NDArray[Any],
    outputs: NDArray[np.floating],
    figures: Mapping[str, Any],
    part: str = "test rows",
) -> None:
    """Draw the plot of a kind of target into a folder: ROC and PR curves, confusion matrix, or parity.

    Parameters
    ----------
    y, outputs, figures
        Arguments and result of `metrics.evaluate`.
    part : str
        Rows that are drawn, for the title.
    """
    path = folder / TESTED[target]
    if target == "binary":
        roc_pr(metrics.curves(y, outputs), figures["tasks"], path, part)
    elif target == "multiclass":
        confusion(y, outputs, class_names, path, part)
    else:
        parity(y, outputs, figures["tasks"], path, part)


def roc_pr(
    curves: Sequence[metrics.Curves | None], tasks: Mapping[str, dict[str, Any]], path: StrPath, part: str = ""
) -> None:
    """Draw ROC and precision-recall curves of a binary target, and both areas per task.

    Several tasks are drawn as thin lines (the first 200) with a thick mean curve, which averages the y values at each
    x. Tasks without defined metrics (one class only, outputs that are not finite) are not drawn; the legend says how
    many.

    Parameters
    ----------
    curves : list of K
        From `metrics.curves`.
    tasks : dict
        Name of each task -> metrics, from `metrics.evaluate`.
    path : path
        PNG file.
    part : str
        Rows that are drawn, for the title.
    """
    areas = {name: tasks[name] for name, of_task in zip(tasks, curves, strict=True) if of_task is not None}
    height = max(3.7, 0.2 * len(areas)) if len(areas) <= NAMED_TASKS else 3.7
    figure, axes = panels(1, 3 if len(areas) > 1 else 2, width=4.0, height=height)
    grid = np.linspace(0.0, 1.0, 501)
    roc: list[NDArray[np.float64]] = []
    pr: list[NDArray[np.float64]] = []
    for of_task in curves:
        if of_task is None:
            continue
        x, ordinate, recall, precision = of_task
        if len(roc) < DRAWN_TASKS:
            axes[0].plot(x, ordinate, **_task_line(len(areas)))
            axes[1].plot(recall, precision, drawstyle="steps-pre", **_task_line(len(areas)))
        roc.append(np.interp(grid, x, ordinate))
        pr.append(precision[np.searchsorted(recall, grid)])
    _finish_roc_pr(axes, grid, roc, pr, areas, len(tasks))
    if len(areas) > 1:
        _areas_per_task(axes[2], areas)
    _name_part(figure, part)
    save(figure, path)


def confusion(
    y: NDArray[Any], outputs: NDArray[Any], class_names: Sequence[str], path: StrPath, part: str = ""
) -> None:
    """Draw the confusion matrix of a multiclass target: counts, coloured by their share of the true class.

    Parameters
    ----------
    y : (R, 1) int with -1 where missing
    outputs : (R, C)
        Probabilities; rows that are not finite are left out.
    class_names : C names
        Of more than 500 classes, the first 500 are drawn.
    path : path
        PNG file.
    part : str
        Rows that are drawn, for the title.
    """
    used = (y[:, 0] >= 0) & np.isfinite(outputs).all(axis=1)
    true, predicted = y[used, 0].astype(np.int64), np.argmax(outputs[used], axis=1)
    classes = min(len(class_names), DRAWN_CLASSES)
    drawn = (true < classes) & (predicted < classes)
    cells = true[drawn] * classes + predicted[drawn]
    counts = np.bincount(cells, minlength=classes * classes).reshape(classes, classes)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(3.2 + 0.42 * min(classes, ANNOTATED_CLASSES), 9.0)
    figure, (ax,) = panels(1, 1, width=side + 0.8, height=side, grid=False)
    image = ax.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0)
    figure.colorbar(image, ax=ax, label="share of the true class", shrink=0.85)
    if classes <= ANNOTATED_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if share[row, column] > 0.55 else "black"
            ax.text(column, row, str(count), ha="center", va="center", fontsize=8, color=colour)
    if classes <= NAMED_CLASSES:
        names = [plain(name) for name in class_names[:classes]]
        size = 8 if classes <= ANNOTATED_CLASSES else 6
        ax.set_xticks(range(classes), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=size)
        ax.set_yticks(range(classes), names, fontsize=size)
    which = "" if classes == len(class_names) else f"; the first {classes} of {len(class_names):,} classes"
    ax.set(xlabel="predicted class", ylabel="true class")
    of_part = f"{part}: " if part else ""
    right = int((true == predicted).sum())
    ax.set_title(f"{of_part}{right:,} of {counted(len(true), 'row')} right{which}", loc="left", fontsize=10)
    save(figure, path)


def parity(
    y: NDArray[Any], outputs: NDArray[Any], tasks: Mapping[str, dict[str, Any]], path: StrPath, part: str = ""
) -> None:
    """Draw predicted against measured values of a regression target, one panel per task (the first 24).

    Parameters
    ----------
    y : (R, K) float with NaN where missing
    outputs : (R, K)
        Predicted values in the unit of `y`; values that are not finite are not drawn.
    tasks : dict
        Name of each task -> metrics, from `metrics.evaluate`.
    path : path
        PNG file.
    part : str
        Rows that are drawn, for the title.
    """
    shown = min(len(tasks), PARITY_TASKS)
    columns = min(shown, 4)
    side = 4.2 if shown == 1 else 3.0
    figure, axes = panels(-(-shown // columns), columns, width=side, height=side + 0.5)
    for k, (ax, (name, figures)) in enumerate(zip(axes, tasks.items(), strict=False)):
        drawn = np.isfinite(y[:, k]) & np.isfinite(outputs[:, k])
        _parity_panel(ax, y[drawn, k], outputs[drawn, k], figures.get("unit", ""))
        ax.locator_params(nbins=5)  # more tick labels than these touch each other
        ax.set_title(f"{plain(name)}\n{_summary(figures)}", loc="left", fontsize=9)
    for ax in axes[shown:]:
        ax.set_axis_off()
    some = f"the first {shown} of {len(tasks)} tasks" if shown < len(tasks) else ""
    _name_part(figure, ", ".join(filter(None, (part, some))))
    save(figure, path)


# ------------------------------------------------------------------------------------------------ panels


def _mark_best(ax: Axes, epochs: NDArray[Any], values: NDArray[Any], metric: str) -> None:
    best = int(np.nanargmax(values) if metrics.higher_is_better(metric) else np.nanargmin(values))
    label = f"best: {values[best]:.4g} at epoch {epochs[best]}"
    ax.plot(epochs[best], values[best], "D", color=GREEN, markersize=6, label=label, linestyle="none", zorder=3)


def _lines(
    ax: Axes, epochs: NDArray[Any], curves: NDArray[np.float64], style: dict[str, Any], label: str, colour: str
) -> None:
    """Draw the row of `curves`, (members, epochs); of several, a line for each, and their mean."""
    known = np.isfinite(curves)
    count = known.sum(axis=0)
    mean = np.divide(np.where(known, curves, 0.0).sum(axis=0), count, out=np.full(len(epochs), np.nan), where=count > 0)
    if len(curves) > 1:
        ax.plot(epochs, curves.T, color=colour, linewidth=0.6, alpha=0.4)
        style = {**style, "linewidth": 2.0}
    ax.plot(epochs, mean, color=colour, label=label, **style)


def _name_part(figure: Figure, part: str) -> None:
    if part:
        figure.suptitle(part, x=0.01, ha="left", fontsize=10)


def _task_line(tasks: int) -> dict[str, Any]:
    return {"color": BLUE, "linewidth": 1.8} if tasks == 1 else {"color": GREY, "linewidth": 0.7, "alpha": 0.6}


def _finish_roc_pr(
    axes: Sequence[Axes],
    grid: NDArray[np.float64],
    roc: list[NDArray[np.float64]],
    pr: list[NDArray[np.float64]],
    areas: dict[str, dict[str, Any]],
    tasks: int,
) -> None:
    """Add mean curves, baselines, labels and legends to the first two panels."""
    chance = 0.0
    if areas:
        chance = float(np.mean([task["positives"] / task["labelled"] for task in areas.values()]))
    for ax, curves, metric in zip(axes, (roc, pr), ("roc_auc", "pr_auc"), strict=False):
        if not areas:
            ax.grid(visible=False)
            ax.text(0.5, 0.5, "no task has both classes\nand finite outputs", ha="center", va="center", color=GREY)
            continue
        if len(areas) > 1:
            ax.plot(grid, np.mean(curves, axis=0), color=BLUE, linewidth=2.2)
        area = np.mean([task[metric] for task in areas.values()])
        ax.lines[-1].set_label(f"{metrics.label(metric)} {area:.3f}{_of_which(areas, tasks)}")
        ends = [0, 1] if metric == "roc_auc" else [chance, chance]
        ax.plot([0, 1], ends, color=ORANGE, linewidth=1.0, linestyle="--", label="chance")
        legend_above(ax)
    axes[0].set(xlabel="false positive rate", ylabel="true positive rate")
    axes[1].set(xlabel="recall", ylabel="precision")
    for ax in axes[:2]:
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")


def _of_which(areas: dict[str, dict[str, Any]], tasks: int) -> str:
    if tasks == 1:
        return ""
    if len(areas) == 1:
        return f", {plain(next(iter(areas)))}"
    return f", mean of {len(areas)} {'' if len(areas) == tasks else f'of {tasks} '}tasks"


def _areas_per_task(ax: Axes, areas: dict[str, dict[str, Any]]) -> None:
    order = sorted(areas, key=lambda name: float(areas[name]["roc_auc"]))
    places = range(len(order))
    for metric, colour, marker in (("roc_auc", BLUE, "o"), ("pr_auc", ORANGE, "s")):
        values = [areas[name][metric] for name in order]
        ax.plot(values, places, marker, color=colour, markersize=5, label=metrics.label(metric))
    if len(order) <= NAMED_TASKS:
        ax.set_yticks(places, [plain(name) for name in order], fontsize=8)
    else:
        ax.set(yticks=[], ylabel=f"{len(order)} tasks, by ROC-AUC")
    ax.set(xlim=(-0.02, 1.02), xlabel="area under the curve")
    legend_above(ax)


def _parity_panel(ax: Axes, measured: NDArray[Any], predicted: NDArray[Any], unit: str) -> None:
    many = len(measured) > 1000
    size = 4 if many else 12
    ax.scatter(measured, predicted, s=size, color=BLUE, alpha=0.3 if many else 0.6, linewidths=0)
    if len(measured):
        both = np.concatenate([measured, predicted]).astype(np.float64)
        low, high = float(both.min()), float(both.max())
        margin = 0.04 * (high - low) or 1.0
        limits = (low - margin, high + margin)
        ax.plot(limits, limits, color=ORANGE, linewidth=1.0, linestyle="--", zorder=0)
        ax.set(xlim=limits, ylim=limits)
    end = f", {plain(unit)}" if unit else ""
    ax.set(xlabel=f"measured{end}", ylabel=f"predicted{end}", aspect="equal")


def _summary(task: dict[str, Any]) -> str:
    shown = {metric: "–" if task[metric] is None else f"{task[metric]:.3g}" for metric in ("rmse", "mae", "r2")}
    return f"RMSE {shown['rmse']}, MAE {shown['mae']}\nR² {shown['r2']}, n = {task['labelled']:,}"


# ------------------------------------------------------------------------------------------------ values


def _values(history: Sequence[dict[str, Any]], key: str, length: int) -> NDArray[np.float64]:
    """Return the values of a key, followed by NaN up to a length."""
    values = np.full(length, np.nan)
    values[: len(history)] = [np.nan if (value := row.get(key)) is None else value for row in history]
    return values


def _any(values: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(values).any())
