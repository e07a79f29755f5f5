"""``index.html``: a card per explained molecule, which sorts and filters without network."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.molecule_drawings import HEIGHT, WIDTH, too_large
from gcnbatch.explanation.cards import Card
from gcnbatch.explanation.drawing import GRADIENTS, MARGIN, blank
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import Html, cards, choice, field, paragraph, toolbar
from gcnbatch.text import html, printable

INDEX = "index.html"
MOST_CARDS = 1000  # a browser holds so many drawings with ease
_LEAD = (
    "Integrated gradients: what each atom adds to the output, from a molecule without features and bonds (baseline 0) "
    "to this one. Orange raises the output, blue lowers it; the densest mark is the strongest of the molecule. An atom "
    "has half of each of its bonds; choose “atoms and bonds apart” to see what each bond adds. The completeness error "
    "is what the sum of all attributions misses."
)
_JOINED = (
    "The model also reads features of whole molecules. Below each drawing are their share of the sum and the strongest "
    "of them. They are measured against the mean of the training molecules, counts of fragments against 0."
)
_BOX = f"{-MARGIN} {-MARGIN} {WIDTH + 2 * MARGIN} {HEIGHT + 2 * MARGIN}"


def render(title: str, about: Sequence[str], tasks: Sequence[str], unit: str, shown: Sequence[Card]) -> str:
    """Return the page.

    Parameters
    ----------
    about : sequence of str
        Lines below the title.
    tasks : sequence of T str
    unit : str
        Unit of the attributions.
    """
    orders = (
        ("input", "as in the input"),
        ("high", "highest prediction"),
        ("low", "lowest prediction"),
        ("error", "largest completeness error"),
        ("name", "name"),
    )
    joined = any(any(card.strongest) for card in shown)
    body = [
        paragraph(_LEAD, "lead"),
        paragraph(_JOINED, "note") if joined else Html(""),
        paragraph(f"Attributions are in {unit}.", "note"),
        *(paragraph(line, "note") for line in about),
        toolbar(
            choice("task", "task", ((str(number), task) for number, task in enumerate(tasks))),
            choice("marks", "marks", (("atoms", "atoms with their bonds"), ("apart", "atoms and bonds apart"))),
            choice("order", "order", orders),
            field("search", "name or SMILES", "search"),
            field("least", "prediction at least", "number"),
        ),
        Html(f'<svg class="defs" width="0" height="0" aria-hidden="true"><defs>{GRADIENTS}</defs></svg>'),
        cards((_drawing(card), (card.name, "", "", *([""] if joined else []), card.smiles)) for card in shown),
    ]
    return document(title, body, more="explanations")


def _drawing(card: Card) -> Html:
    values = {"atoms": _numbers(card.atoms), "apart": _numbers(card.apart), "figures": _numbers(card.figures)}
    if any(card.strongest):
        shown = [[(printable(name), float(f"{value:.3g}")) for name, value in of] for of in card.strongest]
        values["strongest"] = html(json.dumps(shown, separators=(",", ":")))
    data = " ".join(f'data-{name}="{text}"' for name, text in values.items())
    if card.layout is None or not card.layout.paths:
        why = "" if card.layout is None else too_large(card.layout)
        return Html(f"<i {data}>not drawn: {html(why)}</i>" if why else f"<i hidden {data}></i>")
    return Html(f'<svg viewBox="{_BOX}" aria-hidden="true" {data}>{blank(card.layout)}</svg>')


def _numbers(rows: NDArray[np.generic]) -> str:
    return ";".join(",".join(f"{value:.4g}" for value in row) for row in rows.tolist())
