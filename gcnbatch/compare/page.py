"""The report as one self-contained HTML file, with embedded styles and images."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcnbatch.compare import report_tables
from gcnbatch.compare.report_tables import ReportTable
from gcnbatch.text import html
from gcnbatch.webpage import document

PLACED = {
    "Training time": "training",
    "Inference time": "inference",
    "A training step": "timeline",
    "Operations": "operations",
}


def render(content: dict[str, Any], shown: Sequence[ReportTable], pictures: Sequence[Path]) -> str:
    """Return the page; each image is below its table."""
    images = {path.stem: base64.b64encode(path.read_bytes()).decode("ascii") for path in pictures}
    data = content["data"]
    about = (
        f"{data['name']}: {data['graphs']:,} graphs, {data['nodes']:,} nodes · {content['config']['model']['kind']}, "
        f"{data['parameters']:,} parameters, batch {data['batch_size']} · {content['created']}"
    )
    body = [
        f"<h1>Backends compared: {html(content['name'])}</h1>",
        f'<p class="soft">{html(about)}</p>',
        f'<p class="verdict">{html(report_tables.verdict(content))}</p>',
    ]
    for table in shown:
        body += _section(table, images.get(PLACED.get(table.title, ""), ""))
    facts = "".join(
        f"<dt>{html(name)}</dt><dd>{html(value)}</dd>" for name, value in report_tables.environment(content)
    )
    body += ["<section><h2>Environment</h2>", f"<dl>{facts}</dl></section>"]
    state = "passed" if content["parity"]["passed"] else "failed"
    return document(f"Backends compared: {content['name']}", body, state)


def _section(table: ReportTable, image: str) -> list[str]:
    head, *rows = (
        _row(table, cells, tag) for tag, cells in [("th", table.header), *(("td", row) for row in table.rows)]
    )
    lines = [
        f"<section><h2>{html(table.title)}</h2>",
        '<div class="scroll"><table>',
        f"<thead><tr>{head}</tr></thead>",
        "<tbody>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</tbody></table></div>",
    ]
    if table.note:
        lines.append(f'<p class="note">{html(table.note)}</p>')
    if image:
        lines.append(f'<figure><img alt="{html(table.title)}" src="data:image/png;base64,{image}"></figure>')
    return [*lines, "</section>"]


def _row(table: ReportTable, cells: Sequence[str], tag: str) -> str:
    styles = (' class="words"' if column in table.words else "" for column in range(len(cells)))
    return "".join(f"<{tag}{style}>{html(cell)}</{tag}>" for style, cell in zip(styles, cells, strict=True))
