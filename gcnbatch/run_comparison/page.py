"""The page of a comparison."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from gcnbatch.metrics import higher_is_better, label
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import MISSING, Cell, Html, Pictures, code, facts, paragraph, section, table
from gcnbatch.pages.origin import software, started
from gcnbatch.text import figure


def render(found: dict[str, Any], picture: Path, about: dict[str, Any]) -> str:
    """Return the page.

    Parameters
    ----------
    found : dict
        comparison.json.
    picture : Path
        comparison.png.
    about : dict
        env.json.
    """
    metric, level = label(found["metric"]), f"{found['level']:.0%}"
    better = "higher" if higher_is_better(found["metric"]) else "lower"
    runs: list[list[Cell]] = [
        [run["name"], run["model"], figure(run["mean"]), MISSING if run["std"] is None else figure(run["std"])]
        for run in found["runs"]
    ]
    pairs: list[list[Cell]] = [
        [
            f"{pair['first']} - {pair['second']}",
            figure(pair["difference"], signed=True),
            _interval(pair["interval"]),
            _interval(pair["joint_interval"]),
            MISSING if pair["p"] is None else f"{pair['p']:.3g}",
        ]
        for pair in found["pairs"]
    ]
    names = [run["name"] for run in found["runs"]]
    scores: list[list[Cell]] = [
        [block or "one split", *(figure(run["scores"][at]) for run in found["runs"])]
        for at, block in enumerate(found["blocks"])
    ]
    body = [
        paragraph(f"Test {metric}, {better} is better · {found['method']}.", "lead"),
        *(paragraph(f"{pair['verdict']}.", "verdict") for pair in found["pairs"][:10]),
        section("Runs", table(["run", "model", metric, "standard deviation"], runs, words=(0, 1))),
        section(
            "Differences",
            Pictures().show(picture, f"Scores and differences of {metric}"),
            table(["pair", "difference", f"{level} of the pair", f"{level} of all pairs", "p of all pairs"], pairs),
        ),
        section("Scores", table(["", *names], scores)) if len(scores) > 1 else Html(""),
        section("Folders", facts((run["name"], run["folder"]) for run in found["runs"])),
        section("Environment", facts(software(about))),
        section(
            "Repeat it",
            *started(about, "comparison"),
            paragraph("With every option:"),
            code(shlex.join(["gcnbatch", "compare-runs", *(run["folder"] for run in found["runs"]), *_options(found)])),
        ),
    ]
    return document("Runs compared", body)


def _options(found: dict[str, Any]) -> list[str]:
    return ["--metric", found["metric"], "--level", f"{found['level']:g}", "-o", "NEW_DIR"]


def _interval(of: list[float]) -> str:
    return f"{figure(of[0], signed=True)} to {figure(of[1], signed=True)}"
