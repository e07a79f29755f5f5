"""``index.html``: a card per explained molecule, which sorts and filters without network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.molecule_drawings import HEIGHT, WIDTH, Layout
from gcnbatch.explanation.drawing import GRADIENTS, MARGIN, blank
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import Html, cards, choice, field, paragraph, toolbar

INDEX = "index.html"
MOST_CARDS = 1000  # a browser holds so many drawings with ease
_LEAD = (
    "Integrated gradients: what the features of each atom and each bond add to the output, from a molecule without "
    "features and bonds (baseline 0) to this one. Orange raises the output, blue lowers it; the densest mark is the "
    "strongest of the molecule. The completeness error is what the sum of all marks misses."
)


_BOX = f"{-MARGIN} {-MARGIN} {WIDTH + 2 * MARGIN} {HEIGHT + 2 * MARGIN}"


class Card(NamedTuple):
    """An explained molecule.

    Parameters
    ----------
    name, smiles : str
    layout : Layout or None
        None, or without paths: no drawing.
    marks : int64, (T, M)
        See `gcnbatch.explanation.drawing.mark_values`.
    figures : float64, (T, 3)
        Prediction, sum of the attributions, completeness error.
    """

    name: str
    smiles: str
    layout: Layout | None
    marks: NDArray[np.int64]
    figures: NDArray[np.float64]


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
    body = [
        paragraph(_LEAD, "lead"),
        paragraph(f"Attributions are in {unit}.", "note"),
        *(paragraph(line, "note") for line in about),
        toolbar(
            choice("task", "task", ((str(at), task) for at, task in enumerate(tasks))),
            choice("order", "order", orders),
            field("search", "name or SMILES", "search"),
            field("least", "prediction at least", "number"),
        ),
        Html(f'<svg class="defs" width="0" height="0" aria-hidden="true"><defs>{GRADIENTS}</defs></svg>'),
        cards((_drawing(card), (card.name, "", "", card.smiles)) for card in shown),
    ]
    return document(title, body, more="explanations")


def _drawing(card: Card) -> Html:
    data = f'data-values="{_numbers(card.marks)}" data-figures="{_numbers(card.figures)}"'
    if card.layout is None or not card.layout.paths:
        return Html(f"<i hidden {data}></i>")
    return Html(f'<svg viewBox="{_BOX}" aria-hidden="true" {data}>{blank(card.layout)}</svg>')


def _numbers(rows: NDArray[np.generic]) -> str:
    return ";".join(",".join(f"{value:.4g}" for value in row) for row in rows.tolist())
