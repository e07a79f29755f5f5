"""A page with a two-dimensional map of vectors, in which a point shows its molecule; it needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.molecule_drawings import draw, has_rdkit
from gcnbatch.outputs import Kind, begins_with
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import Html, choice, paragraph, toolbar
from gcnbatch.text import counted, html, printable

MOST_POINTS = 2000  # more drawings make a browser slow; t-SNE takes seconds
TITLE = "Map of "
MAP = Kind("a map", begins_with(b"<!doctype html>(?s:.*)<title>" + TITLE.encode(), 1024), (".html",))
SIZE, RADIUS = 1000, 6
_COMPONENTS, _PERPLEXITY = 50, 30.0
_LEAD = (
    "Each point is a molecule. Near points have similar vectors in the model (t-SNE: distances between far groups mean "
    "nothing). Point at one, or move between points with the arrow keys, to see its molecule."
)


class Points(NamedTuple):
    """Molecules on the map.

    Parameters
    ----------
    places : float64, (n, 2)
        From 0 to 1.
    ids, smiles : list of n str
    """

    places: NDArray[np.float64]
    ids: list[str]
    smiles: list[str]

    @classmethod
    def of(cls, vectors: NDArray[np.float32], ids: list[str], smiles: list[str]) -> Points:
        """Return the points of vectors (n, E): t-SNE of their first principal components, the same in every call."""
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE

        spread = vectors.std(axis=0)
        scaled = ((vectors - vectors.mean(axis=0)) / np.where(spread > 0, spread, 1)).astype(np.float64)
        count = min(_COMPONENTS, *scaled.shape)
        reduced = PCA(count, svd_solver="full").fit_transform(scaled)
        perplexity = min(_PERPLEXITY, (len(reduced) - 1) / 3)
        start = "pca" if count > 1 else "random"
        found = TSNE(perplexity=perplexity, init=start, random_state=0, n_jobs=1).fit_transform(reduced)
        low, high = found.min(axis=0), found.max(axis=0)
        return cls((found - low).astype(np.float64) / np.where(high > low, high - low, 1), ids, smiles)


class Colouring(NamedTuple):
    """Values that colour the points: a name, and values (n,), NaN where unknown."""

    name: str
    values: NDArray[np.float64]


def render(title: str, points: Points, colours: Sequence[Colouring]) -> str:
    """Return the page."""
    drawings = draw(points.smiles) if has_rdkit() else [""] * len(points.ids)
    listed = ((str(place), colour.name) for place, colour in enumerate(colours))
    each = zip(points.places, points.ids, points.smiles, strict=True)
    dots = [
        f'<circle cx="{SIZE * x:.0f}" cy="{SIZE * (1 - y):.0f}" r="{RADIUS}" data-values="{_values(colours, row)}">'
        f"<title>{html(_label(name, smiles))}</title></circle>"
        for row, ((x, y), name, smiles) in enumerate(each)
    ]
    edge = 2 * RADIUS
    box = f"{-edge} {-edge} {SIZE + 2 * edge} {SIZE + 2 * edge}"
    names = ", ".join(colour.name for colour in colours)
    about = html(f"Map of {counted(len(dots), 'molecule')}; colours: {names}")
    body = [
        paragraph(_LEAD, "lead"),
        paragraph(f"{counted(len(dots), 'molecule')}.", "note"),
        toolbar(choice("colour", "colour", listed)),
        Html(
            '<div class="map"><div><svg id="points" tabindex="0" role="application" '
            f'aria-label="{about}" viewBox="{box}">'
            f"{''.join(dots)}</svg>"
            '<p class="scale"><span id="low"></span><i></i><span id="high"></span></p></div>'
            '<div id="molecule" class="cards" aria-live="polite"><ul class="cards"><li></li></ul></div></div>'
        ),
        Html(f'<div id="drawings" hidden>{"".join(f"<div>{drawing}</div>" for drawing in drawings)}</div>'),
        Html(f'<p id="names" hidden data-names="{html(json.dumps([colour.name for colour in colours]))}"></p>'),
    ]
    return document(TITLE + title, body, more="map")


def _label(name: str, smiles: str) -> str:
    return printable(f"{name}: {smiles}" if smiles else name)


def _values(colours: Sequence[Colouring], row: int) -> str:
    values = (colour.values[row] for colour in colours)
    return ",".join(f"{value:.4g}" if np.isfinite(value) else "" for value in values)
