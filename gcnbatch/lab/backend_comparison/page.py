"""The report as one self-contained HTML file, with embedded images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcnbatch.lab.backend_comparison import report_tables
from gcnbatch.lab.backend_comparison.report_tables import ReportTable
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import Html, Pictures, facts, paragraph, section, table
from gcnbatch.text import counted

PLACED = {
    "Training time": "training",
    "Inference time": "inference",
    "A training step": "timeline",
    "Operations": "operations",
}


def render(content: dict[str, Any], shown: Sequence[ReportTable], pictures: Sequence[Path]) -> str:
    """Return the page; each image is below its table."""
    paths, images = {path.stem: path for path in pictures}, Pictures()
    data = content["data"]
    about = (
        f"{data['name']}: {counted(data['graphs'], 'graph')}, {counted(data['nodes'], 'node')} · "
        f"{content['config']['model']['kind']}, {counted(data['parameters'], 'parameter')}, "
        f"batch {data['batch_size']} · {content['created']}"
    )
    body = [paragraph(about, "lead"), paragraph(report_tables.verdict(content), "verdict")]
    for one in shown:
        path = paths.get(PLACED.get(one.title, ""))
        body.append(section(one.title, *_table(one), images.show(path, one.title) if path else Html("")))
    body.append(section("Environment", facts(report_tables.environment(content))))
    return document(f"Backends compared: {content['name']}", body, failed=not content["parity"]["passed"])


def _table(of: ReportTable) -> list[Html]:
    shown = table(of.header, of.rows, words=(0, *of.words), sortable=False)
    return [shown, paragraph(of.note, "note")] if of.note else [shown]
