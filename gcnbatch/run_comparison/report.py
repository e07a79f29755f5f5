"""The page and the figure of a comparison."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from gcnbatch.figures import BLUE, GREY, ORANGE, panels, plain, save
from gcnbatch.metrics import higher_is_better, label
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import MISSING, Html, Pictures, code, facts, paragraph, section, table
from gcnbatch.pages.origin import software, started
from gcnbatch.run_comparison.content import ComparisonContent
from gcnbatch.text import figure

DRAWN_PAIRS = 40


def draw(found: ComparisonContent, path: Path) -> None:
    """Draw the scores of all runs, blocks joined by lines, and the first 40 differences.

    Joint intervals are drawn; those that leave out 0 are coloured.
    """
    scores, names = np.array([run.scores for run in found.runs]).T, [run.name for run in found.runs]
    pairs = found.pairs[:DRAWN_PAIRS]
    height = max(3.2, 0.3 * len(pairs) + 1.4)
    drawing, (left, right) = panels(1, 2, width=5.2, height=height)
    places = range(len(names))
    for block in scores:
        left.plot(places, block, color=GREY, linewidth=0.8, marker="o", markersize=4, alpha=0.7)
    left.plot(places, scores.mean(axis=0), "D", color=BLUE, markersize=7, zorder=3)
    left.set_xticks(places, [plain(name) for name in names], rotation=30, ha="right", fontsize=8)
    left.set(xlim=(-0.5, len(names) - 0.5), ylabel=f"test {label(found.metric)}")
    left.set_title("a line per fold; diamonds: means" if len(scores) > 1 else "one split", loc="left", fontsize=9)
    for row, pair in enumerate(pairs):
        colour = ORANGE if pair.shown else GREY
        right.plot(pair.joint_interval, [row, row], color=colour, linewidth=2)
        right.plot(pair.difference, row, "o", color=colour)
    labels = [f"{plain(pair.first)} − {plain(pair.second)}" for pair in pairs]
    right.set_yticks(range(len(pairs)), labels, fontsize=8)
    right.axvline(0.0, color="black", linewidth=0.8)
    right.set(ylim=(len(pairs) - 0.5, -0.5), xlabel=f"difference of {label(found.metric)}")
    right.set_title(f"{found.level:.0%} intervals of all pairs; grey: no difference shown", loc="left", fontsize=9)
    save(drawing, path)


def render(found: ComparisonContent, picture: Path, about: dict[str, Any]) -> str:
    """Return the page; `picture` is the file of the figure, `about` env.json."""
    metric, level = label(found.metric), f"{found.level:.0%}"
    better = "higher" if higher_is_better(found.metric) else "lower"
    runs = [
        [run.name, run.model, figure(run.mean), MISSING if run.std is None else figure(run.std)] for run in found.runs
    ]
    pairs = [
        [
            f"{pair.first} - {pair.second}",
            figure(pair.difference, signed=True),
            _interval(pair.interval),
            _interval(pair.joint_interval),
            MISSING if pair.p is None else f"{pair.p:.3g}",
        ]
        for pair in found.pairs
    ]
    scores = [
        [block or "one split", *(figure(run.scores[number]) for run in found.runs)]
        for number, block in enumerate(found.blocks)
    ]
    again = ["gcnbatch", "compare-runs", *(run.folder for run in found.runs), "--metric", found.metric]
    again += ["--level", f"{found.level:g}", "-o", "NEW_DIR"]
    body = [
        paragraph(f"Test {metric}, {better} is better · {found.method}.", "lead"),
        *(paragraph(f"{pair.verdict}.", "verdict") for pair in found.pairs[:10]),
        section("Runs", table(["run", "model", metric, "standard deviation"], runs, words=(0, 1))),
        section(
            "Differences",
            Pictures().show(picture, f"Scores and differences of {metric}"),
            table(["pair", "difference", f"{level} of the pair", f"{level} of all pairs", "p of all pairs"], pairs),
        ),
        section("Scores", table(["", *(run.name for run in found.runs)], scores)) if len(scores) > 1 else Html(""),
        section("Folders", facts((run.name, run.folder) for run in found.runs)),
        section("Environment", facts(software(about))),
        section(
            "Repeat it",
            *started(about, "comparison"),
            paragraph("With every option:"),
            code(shlex.join(again)),
        ),
    ]
    return document("Runs compared", body)


def _interval(of: tuple[float, float]) -> str:
    return f"{figure(of[0], signed=True)} to {figure(of[1], signed=True)}"
