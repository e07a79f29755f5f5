"""The model card of a run: what it is, how good it is, and fields that only its author can fill."""

from __future__ import annotations

import hashlib
import re
import shlex

from gcnbatch.pages.origin import software
from gcnbatch.run_report.figures import Figures, number, training_facts
from gcnbatch.run_report.record import Record
from gcnbatch.text import counted, markdown, markdown_table, printable
from gcnbatch.training.run_files import CONFIG

FILL = "*to fill*"
MOST_CHARACTERS = 2000  # of a command
_SEAL = re.compile(r"\n<!-- sha256 of the text above, as generated: ([0-9a-f]{64}) -->\n\Z")


def render(figures: Figures) -> str:
    """Return the card as Markdown."""
    record = figures.record
    facts = dict(training_facts(record))
    about = [f"- **{name}:** {markdown(facts[name])}" for name in ("Model", "Trained")]
    lines = [
        f"# Model card: {markdown(record.name)}",
        "",
        "## Model",
        "",
        *about,
        f"- **Author and contact:** {FILL}",
        f"- **Licence of the model:** {FILL}",
        "",
        "## Intended use",
        "",
        f"- **Purpose and users:** {FILL}",
        f"- **Uses that it must not have:** {FILL}",
        "",
        "## Data",
        "",
        f"- **Data:** {markdown(facts['Data'])}",
        f"- **File:** {markdown(facts['File'])}",
        f"- **Split:** {markdown(facts['Split'])}",
        f"- **Source and how it was measured:** {FILL}",
        f"- **Licence of the data:** {FILL}",
        "",
        "## Metrics",
        "",
        *_metrics(figures),
        "",
        "## Applicability",
        "",
        *_applicability(record),
        "",
        "## Limits",
        "",
        *_limits(figures),
        f"- {FILL}: where it fails, and what a wrong prediction costs",
        "",
        "## Make it again",
        "",
        *_again(record),
    ]
    return seal("\n".join(lines) + "\n")


def seal(text: str) -> str:
    """Return a text with its digest, which shows whether somebody edited it."""
    return f"{text}\n<!-- sha256 of the text above, as generated: {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def is_unedited(text: str) -> bool:
    """Return whether a card is as it was generated."""
    found = _SEAL.search(text)
    return found is not None and seal(text[: found.start()]) == text


def _metrics(figures: Figures) -> list[str]:
    if not figures.metrics:
        return ["The run has no test rows."]
    rows = (
        [part, *(f"{cell[0]} ({cell[1]})" if cell[1] else cell[0] for cell in cells)] for part, cells in figures.parts()
    )
    return [*markdown_table(["rows", *map(markdown, figures.labels)], rows), "", figures.spread]


def _applicability(record: Record) -> list[str]:
    """Return how errors of test rows grow with their distance from the training rows, if the run has measured it."""
    lines = []
    for name, measure in record.metrics.get("applicability", {}).items():
        if len(bins := measure["bins"]) > 1:
            low, high = (f"{number(bins[end]['error'])} around {number(bins[end]['mean'])}" for end in (0, -1))
            rank = number(measure["spearman"])
            lines.append(f"- **{markdown(name)}:** mean error of test rows {low}, {high}; rank correlation {rank}")
    if not lines:
        lines.append(
            "- Errors by distance from the training rows were not measured (`gcnbatch train … --applicability`)."
        )
    return [
        *lines,
        "- `gcnbatch infer RUN new.csv --applicability` says how near a molecule is to the training rows.",
    ]


def _again(record: Record) -> list[str]:
    """Return the command of the run as a block of code, and the versions."""
    arguments = record.environment["command"] or ["train", CONFIG, "-o", "NEW_RUN_DIR"]
    facts = (f"- **{name}:** {markdown(value)}" for name, value in software(record.environment))
    return [f"    gcnbatch {printable(shlex.join(arguments), MOST_CHARACTERS)}", "", *facts]


def _limits(figures: Figures) -> list[str]:
    record = figures.record
    lines = ["- The figures hold for rows like the test rows. Inputs unlike the training data may be predicted badly."]
    if record.metrics["split"]["kind"] == "random":
        lines.append("- The split is random: test rows may be close to training rows, which flatters the figures.")
    if undefined := record.test.get("undefined"):
        tasks = counted(len(undefined), "task lacks", "tasks lack")
        lines.append(f"- {tasks} a figure: the test rows have labels of one class or none.")
    if record.baseline:
        lines.append(f"- {markdown(record.baseline['verdict'])}")
    return lines
