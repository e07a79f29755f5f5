"""Explanation of one molecule: attributions of its atoms and features, and the nearest training molecules."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.molecule_drawings import draw
from gcnbatch.explanation import drawing
from gcnbatch.explanation.cards import cards_of
from gcnbatch.explanation.integrated import Explainer
from gcnbatch.inference.columns import labels_of
from gcnbatch.inference.domain import Neighbour
from gcnbatch.inference.loaded import LoadedRun
from gcnbatch.inference.models import network_shares
from gcnbatch.pages.elements import Html, cards, paragraph, section
from gcnbatch.predictions import json_values
from gcnbatch.text import printable

NEIGHBOURS = 6


class Explanation(NamedTuple):
    """An explained molecule.

    Parameters
    ----------
    smiles : str
        The molecule with its atoms in the order of the attributions.
    outputs, nearest : list of dict
        As `gcnbatch.serving.schema.Explained` and `Nearest`.
    drawing : str
        SVG; "" for a molecule that is not drawn.
    notes : list of str
    """

    smiles: str
    outputs: list[dict[str, Any]]
    nearest: list[dict[str, Any]]
    drawing: str
    notes: list[str]


class RunExplainer:
    """Explains predictions of a run; call it in the thread of the models.

    Parameters
    ----------
    run : LoadedRun
    private : bool
        Show no training molecules.
    """

    def __init__(self, run: LoadedRun, private: bool) -> None:
        self._run, self._private = run, private

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer(self._run.predictor.members, self._run.predictor.choice)

    @cached_property
    def _notes(self) -> list[str]:
        return [line.replace(f"{self._run.folder}", "the model") for line in network_shares(self._run.predictor.wholes)]

    def __call__(self, smiles: str) -> Explanation:
        """Return the explanation of a molecule.

        Raises
        ------
        InputError
            When it cannot be read.
        """
        run, explainer = self._run, self._explainer
        graphs = run.graphs(smiles)
        predictions = run.predict([smiles]).outputs[:, explainer.places]
        found = explainer.explain(graphs)
        options = FeaturizerOptions.from_header(run.header.featurizer)
        (card,) = cards_of(found, predictions, [smiles], options, explainer.joins)
        layout = card.layout
        symbols = ("?",) * graphs.n_nodes if layout is None else layout.symbols
        outputs = []
        for index, name in enumerate(found.names):
            atoms = zip(symbols, found.atoms[:, index].tolist(), strict=True)
            outputs.append(
                {
                    "output": name,
                    "prediction": json_values(predictions[:, index])[0],
                    "atoms": [{"name": symbol, "attribution": value} for symbol, value in atoms],
                    "features": [
                        {"name": printable(one), "attribution": value} for one, value in card.strongest[index]
                    ],
                    "completeness_error": float(found.errors[0, index]),
                }
            )
        svg = drawing.file(layout, card.panels(found.names)) if layout is not None and layout.paths else ""
        domain = None if self._private else run.predictor.domain
        known = domain.neighbours(smiles, NEIGHBOURS) if domain is not None else []
        nearest = [
            {"id": one.id, "smiles": one.smiles, "similarity": one.similarity, "measured": self._measured(one)}
            for one in known
        ]
        return Explanation(smiles if layout is None else layout.smiles, outputs, nearest, svg, self._notes)

    def _measured(self, one: Neighbour) -> dict[str, float | str | None]:
        """Return the targets of a training molecule by task: a number, a label, or None."""
        header = self._run.header
        found: dict[str, float | str | None] = {}
        for name, value in zip(header.task_names, one.targets.tolist(), strict=True):
            if math.isnan(value) or (header.target != "regression" and value < 0):
                found[name] = None
            else:
                found[name] = value if header.target == "regression" else labels_of(header, name)[int(value)]
        return found


def page(found: Explanation) -> Html:
    """Return an explanation as part of a page."""
    shown = [Html(f'<figure class="scroll drawing" tabindex="0">{found.drawing}</figure>')] if found.drawing else []
    shown += [paragraph(note, "note") for note in found.notes]
    for of in found.outputs:
        strongest = ", ".join(f"{part['name']} {part['attribution']:+.3g}" for part in of["features"])
        if strongest:
            shown.append(paragraph(f"{of['output']}: strongest features of the whole molecule: {strongest}.", "note"))
    entries = []
    for one, picture in zip(found.nearest, draw([one["smiles"] for one in found.nearest]), strict=True):
        values = [
            f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}"
            for name, value in one["measured"].items()
            if value is not None
        ]
        entries.append((Html(picture), [one["id"], f"similarity {one['similarity']:.2f}", *values, one["smiles"]]))
    return Html("".join([section("Atoms that matter", *shown), section("Nearest training molecules", cards(entries))]))
