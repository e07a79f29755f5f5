"""Charts of a study: history, importance of the keys, parallel coordinates, learning curves of the best trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from gcnbatch.figures import BLUE, GREY, ORANGE, legend_above, panels, plain, png, ticker
from gcnbatch.tuning.record import value_of
from gcnbatch.workers.pool import INLINE, WorkerDied

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HISTORY, _IMPORTANCE, _PARALLEL, _CURVES = "History", "Importance", "Parallel coordinates", "Learning curves"
_DRAWN = 5  # learning curves
_NAMED = 12  # choices of a key that are named on its axis


def draw(
    trials: Sequence[FrozenTrial], names: Sequence[str], maximize: bool, monitor: str, processes: Executor
) -> dict[str, bytes]:
    """Return a PNG for each chart of a study with complete trials, by its title.

    Parameters
    ----------
    trials : sequence of FrozenTrial
        All trials.
    names : sequence of str
        Names of the parameters.
    monitor : str
        Name of the objective.
    processes : Executor
    """
    calls = (_draw_trials, trials, names, maximize, monitor), (_draw_importance, trials, maximize)
    try:
        drawn, chart = (call.result() for call in [processes.submit(*call) for call in calls])
    except WorkerDied:
        return draw(trials, names, maximize, monitor, INLINE)
    found = {title: drawn.get(title, chart) for title in (_HISTORY, _IMPORTANCE, _PARALLEL, _CURVES)}
    return {title: picture for title, picture in found.items() if picture}


def _draw_importance(trials: Sequence[FrozenTrial], maximize: bool) -> bytes:
    """Return the chart; empty if importance is not defined."""
    shares = _importance(trials, maximize)
    return png(importance(shares)) if shares else b""


def _importance(trials: Sequence[FrozenTrial], maximize: bool) -> dict[str, float]:
    """Return the share of each parameter in the objective's variance, largest first; empty if it is not defined."""
    memory = optuna.create_study(direction="maximize" if maximize else "minimize")
    memory.add_trials(trials)
    try:
        return dict(
            optuna.importance.get_param_importances(
                memory, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
            )
        )
    except (ValueError, RuntimeError):  # fewer than two complete trials, or all equal
        return {}


def _draw_trials(trials: Sequence[FrozenTrial], names: Sequence[str], maximize: bool, monitor: str) -> dict[str, bytes]:
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    ranked = sorted(complete, key=value_of, reverse=maximize)
    found = {
        _HISTORY: history(trials, maximize, monitor),
        _PARALLEL: parallel(complete, names, maximize, monitor),
        _CURVES: curves(ranked[:_DRAWN], monitor),
    }
    return {title: png(figure) for title, figure in found.items()}


def history(trials: Sequence[FrozenTrial], maximize: bool, monitor: str) -> Figure:
    """Draw the value of each trial, and the best so far."""
    figure, (ax,) = panels(1, 1, width=8.0, height=3.4)
    for state, label, marker, colour in (("COMPLETE", "complete", "o", BLUE), ("PRUNED", "pruned", "x", GREY)):
        found = [trial for trial in trials if trial.state.name == state and trial.value is not None]
        if found:
            numbers, values = [trial.user_attrs["number"] for trial in found], [value_of(trial) for trial in found]
            ax.plot(numbers, values, linestyle="", marker=marker, color=colour, markersize=4, label=label)
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    if complete:
        best = (np.maximum if maximize else np.minimum).accumulate([value_of(trial) for trial in complete])
        ax.step([trial.user_attrs["number"] for trial in complete], best, where="post", color=ORANGE, label="best")
        legend_above(ax, columns=3)
    ax.set(xlabel="trial", ylabel=monitor)
    ax.xaxis.set_major_locator(ticker().MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def importance(shares: Mapping[str, float]) -> Figure:
    """Draw the share of each key in the variance of the objective."""
    figure, (ax,) = panels(1, 1, width=8.0, height=0.9 + 0.32 * len(shares))
    bars = list(shares.items())[::-1]
    ax.barh([plain(name, 40) for name, _ in bars], [share for _, share in bars], color=BLUE, height=0.62)
    ax.set(xlabel="share of the variance of the objective (fANOVA)", xlim=(0, 1))
    return figure


def parallel(trials: Sequence[FrozenTrial], names: Sequence[str], maximize: bool, monitor: str) -> Figure:
    """Draw a line per complete trial through an axis per key and the objective; better lines are darker."""
    figure, (ax,) = panels(1, 1, width=max(8.0, 1.3 * (len(names) + 1)), height=4.2, grid=False)
    values = np.array([trial.value for trial in trials])
    order = np.argsort(values if maximize else -values, kind="stable")
    rank = np.empty(len(order))
    rank[order] = np.linspace(0.0, 1.0, len(order)) if len(order) > 1 else 1.0
    columns = [_axis(ax, x, name, [trial.params.get(name) for trial in trials], trials) for x, name in enumerate(names)]
    columns.append(_numbers(ax, len(names), monitor, values, log=False))
    lines = np.stack(columns, axis=1)
    for number in order:
        share = rank[number]
        ax.plot(lines[number], color=ORANGE if share > 0.95 else BLUE, alpha=0.2 + 0.7 * share**3, linewidth=1.4)
    ax.vlines(range(len(columns)), 0.0, 1.0, color="#333333", linewidth=0.8)
    ax.set(xlim=(-0.3, len(names) + 0.5), ylim=(-0.12, 1.12), xticks=[], yticks=[])
    for side in ("top", "right", "left", "bottom"):
        ax.spines[side].set_visible(False)
    return figure


def curves(trials: Sequence[FrozenTrial], monitor: str) -> Figure:
    """Draw the best validation value so far over epochs."""
    figure, (ax,) = panels(1, 1, width=8.0, height=3.4)
    for trial in trials:
        points = sorted(trial.intermediate_values.items())
        ax.plot(*zip(*points, strict=True), marker="o", markersize=2.5, label=f"trial {trial.user_attrs['number']}")
    legend_above(ax, columns=5)
    ax.set(xlabel="epoch", ylabel=f"best {monitor} so far")
    ax.xaxis.set_major_locator(ticker().MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def _axis(ax: Any, x: int, name: str, values: Sequence[Any], trials: Sequence[FrozenTrial]) -> NDArray[np.float64]:
    """Draw the axis of a key; return the heights of its values from 0 to 1, NaN where a trial lacks the key."""
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        logarithmic = any(getattr(trial.distributions.get(name), "log", False) for trial in trials)
        numbers = np.array([math.nan if value is None else float(value) for value in values])
        return _numbers(ax, x, name, numbers, logarithmic)
    choices = list(dict.fromkeys(str(value) for trial in trials for value in _choices(trial, name)))
    heights = np.linspace(0.0, 1.0, len(choices)) if len(choices) > 1 else np.array([0.5])
    for choice, height in zip(choices[:_NAMED], heights, strict=False):
        _value(ax, x, height, plain(choice, 14))
    ax.text(x, 1.06, plain(name.split(".", 1)[-1], 18), fontsize=8, ha="center")
    return np.array([math.nan if value is None else heights[choices.index(str(value))] for value in values])


def _value(ax: Any, x: int, height: float, text: str) -> None:
    """Write a value beside its axis, over the lines."""
    back = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    ax.text(x + 0.05, height, text, fontsize=8, va="center", bbox=back)


def _choices(trial: FrozenTrial, name: str) -> Sequence[Any]:
    return getattr(trial.distributions.get(name), "choices", ())


def _numbers(ax: Any, x: int, name: str, values: NDArray[np.float64], log: bool) -> NDArray[np.float64]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    for height, value in ((0.0, low), (1.0, high)):
        _value(ax, x, height, f"{value:.3g}")
    ax.text(x, 1.06, plain(name.split(".", 1)[-1], 18), fontsize=8, ha="center")
    if low == high:
        return np.where(np.isnan(values), math.nan, 0.5)
    if log:
        values, low, high = np.log(values), math.log(low), math.log(high)
    return (values - low) / (high - low)
