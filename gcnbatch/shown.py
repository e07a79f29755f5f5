"""Predictions as an HTML table with drawn molecules: in a notebook, and on the page of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.molecule_drawings import draw, has_rdkit
from gcnbatch.data.schema import Header
from gcnbatch.pages.elements import MISSING, Html
from gcnbatch.text import html, listed

MOST_ROWS = 200  # more drawings make a browser slow
_BESIDE = {"nearest_similarity": "similarity to training", "embedding_distance": "embedding distance"}
Fields = Mapping[str, Mapping[str, NDArray[Any]]]  # columns (R,) by output and kind: see `Predictions.by_output`


def table(
    header: Header,
    ids: Sequence[str],
    smiles: Sequence[str] | None,
    outputs: Fields,
    beside: Mapping[str, NDArray[np.floating]],
    errors: Sequence[str],
) -> Html:
    """Return a row for each of at most MOST_ROWS molecules: picture, values with intervals, or why there are none.

    Parameters
    ----------
    header : Header
        It has units.
    ids : sequence of R str
    smiles : sequence of R str, or None
    outputs, beside
        Columns (R,).
    errors : sequence of R str
        Why a row has no values, "" for the others.
    """
    names = [*outputs, *(_BESIDE[name] for name in beside)]
    heads = "".join(f"<th>{html(name)}{_small(header.units.get(name, ''))}</th>" for name in names)
    shown = min(len(ids), MOST_ROWS)
    drawings = draw(list(smiles[:shown])) if smiles is not None and has_rdkit() else [""] * shown
    lines = []
    for row, drawing in enumerate(drawings):
        text = "" if smiles is None else smiles[row]
        picture = f'<div class="drawing" style="width: 180px; background: #fff">{drawing}</div>' if drawing else ""
        molecule = f'<td class="words molecule">{picture}<b>{html(str(ids[row]))}</b>{_small(text)}</td>'
        if reason := errors[row]:
            cells = f'<td class="words" colspan="{len(names)}">{html(reason)}</td>'
        else:
            parts = [_cell({kind: values[row] for kind, values in of.items()}) for of in outputs.values()]
            cells = "".join([*parts, *(f"<td>{_number(values[row])}</td>" for values in beside.values())])
        lines.append(f'<tr data-smiles="{html(text)}">{molecule}{cells}</tr>')
    rows = "\n".join(lines)
    more = "" if shown == len(ids) else f'<p class="note">{len(ids) - shown:,} further rows are not shown.</p>'
    return Html(
        '<div class="scroll" tabindex="0"><table class="predictions">\n<thead><tr><th class="words">molecule</th>'
        f"{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>{more}"
    )


def _cell(found: Mapping[str, Any]) -> str:
    """Return value and deviation, and below them the interval, the calibrated probability and the set of labels."""
    if "class" in found:
        value = html(str(found["class"]))
    else:
        value = _number(found["value"])
        value += f" ± {_number(found['deviation'])}" if _is_number(found.get("deviation")) else ""
    below = [f"{_number(found['low'])} to {_number(found['high'])}"] if _is_number(found.get("low")) else []
    below += [f"calibrated {_number(found['calibrated'])}"] if _is_number(found.get("calibrated")) else []
    below += [f"set {listed(str(found['set']).split('|'))}"] if found.get("set") else []
    return f"<td><strong>{value}</strong>{''.join(map(_small, below))}</td>"


def _is_number(value: Any) -> bool:
    return value is not None and bool(np.isfinite(value))


def _number(value: Any) -> str:
    return f"{value:.3g}" if _is_number(value) else MISSING


def _small(text: str) -> str:
    return f'<small style="display: block">{html(text)}</small>' if text else ""
