"""Predictions as JSON, CSV and HTML, written in parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gcnbatch import tables
from gcnbatch.predictions import Predictions, json_values
from gcnbatch.serving.schema import CSV, HTML, JSON


class Answer(NamedTuple):
    """A format of answers.

    Parameters
    ----------
    head : callable
        Returns the text before the rows, of the name of the model and the first part.
    rows : callable
        Returns the rows of a part; True for the first one.
    tail : str
    parts : int
        Most parts that are written; 0: all.
    """

    head: Callable[[str, Predictions], str]
    rows: Callable[[Predictions, bool], str]
    tail: str = ""
    parts: int = 0


def molecules(table: Predictions) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as `gcnbatch.serving.schema.Molecule`."""
    outputs = {
        name: {kind: json_values(values) for kind, values in of.items()} for name, of in table.by_output().items()
    }
    beside = {name: json_values(values) for name, values in table.beside.items()}
    errors = [""] * len(table.ids) if table.errors is None else table.errors.tolist()
    smiles = table.smiles or [""] * len(table.ids)
    for row, name in enumerate(table.ids.tolist()):
        found: dict[str, Any] = {"id": name, "smiles": smiles[row], "outputs": None}
        if not errors[row]:
            found["outputs"] = {
                output: {kind: values[row] for kind, values in of.items() if values[row] is not None}
                for output, of in outputs.items()
            }
            found |= {name: values[row] for name, values in beside.items()}
        yield found | {"error": errors[row] or None}


def _json_rows(table: Predictions, first: bool) -> str:
    text = json.dumps(list(molecules(table)), ensure_ascii=False, separators=(",", ":"))[1:-1]
    return text if first else f",{text}"


def _csv_rows(table: Predictions, first: bool) -> str:
    return tables.csv_text(table.columns()).rows


ANSWERS = {
    JSON: Answer(lambda model, table: f'{{"model":{json.dumps(model)},"molecules":[', _json_rows, "]}"),
    CSV: Answer(lambda model, table: tables.csv_text(table.columns()).header, _csv_rows),
    HTML: Answer(lambda model, table: "", lambda table, first: table._repr_html_(), parts=1),
}
