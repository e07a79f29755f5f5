"""Predictions as an HTML table, as a notebook shows them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import gcnbatch
from gcnbatch import shown
from gcnbatch.predictions import Predictions
from tests.builders import build_graphset


def test_a_notebook_shows_molecules_with_values_intervals_and_reasons(tmp_path: Path) -> None:
    graphs = gcnbatch.from_smiles(
        ["CCO", "c1ccccc1", "CC#N", "CCN", "CCC", "CCCO"] * 8, [0.2, 1.9, -0.3, 0.1, 1.0, 0.4] * 8
    )
    gcnbatch.train(data=graphs, epochs=2, settings={"model.widths": [4], "split.valid": 0.4}, out=tmp_path / "run")
    found = gcnbatch.load(tmp_path / "run").predict("CCO", backend="cpu", processes=1)
    page = found._repr_html_()
    assert page.count("<svg") == page.count("<tr data-smiles") == 1
    assert re.search(r"<strong>-?[\d.]+</strong><small[^>]*>-?[\d.]+ to -?[\d.]+</small>", page)
    several = gcnbatch.load(tmp_path / "run").predict(["CCO", "<b>"], backend="cpu", processes=1)._repr_html_()
    assert several.count("<svg") == 1
    assert "not valid SMILES" in several
    assert "&lt;b&gt;" in several


def test_deviations_classes_and_sets_are_shown_and_long_tables_are_cut() -> None:
    header = build_graphset(4, target="multiclass", seed=1).header
    count = len(header.class_names)
    outputs = np.tile(np.eye(count, dtype=np.float32)[:1], (300, 1))
    outputs[1] = np.nan
    task = header.task_names[0]
    more = {f"{task}_set": np.array(["0|1", "", *["{}"] * 298])}
    ids = np.arange(300).astype(str)
    page = Predictions(header, ids, outputs, outputs / 8, None, more=more)._repr_html_()
    assert f"<strong>{header.class_names[0]}</strong>" in page
    assert "set 0, 1" in page
    assert "1 ± 0.125" in page
    assert page.count("<tr data-smiles") == shown.MOST_ROWS
    assert "100 further rows are not shown." in page
    assert "<svg" not in page
