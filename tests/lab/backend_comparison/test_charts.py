"""Charts of the report."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from gcnbatch.lab.backend_comparison import charts
from gcnbatch.lab.backend_comparison.operations import FAMILIES


def test_every_family_of_operations_has_its_own_colour() -> None:
    assert len(charts.FAMILY_COLOURS) == len(set(charts.FAMILY_COLOURS)) == len(FAMILIES) + 1


@pytest.mark.parametrize("fastest", [0.9, 0.02])
def test_labels_of_bars_stand_right_of_the_whiskers(
    fastest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With axes of both kinds."""
    drawn: list[Figure] = []
    monkeypatch.setattr(charts, "save", lambda figure, path: drawn.append(figure))
    seconds = [{"median": 1.0, "p20": 0.6, "p80": 2.5}, {"median": fastest, "p20": fastest / 2, "p80": fastest * 3}]
    timing = {name: {"training": {"seconds": one}} for name, one in zip(("cpu", "batched"), seconds, strict=True)}
    content = {"timing": timing, "speedup": {"training": {"cpu": {"batched": 1 / fastest}}}}
    charts._passes(content, "training", "an epoch", tmp_path / "training.png")
    (ax,) = drawn[0].axes
    drawn[0].draw_without_rendering()
    ends = [ax.transData.transform((one["p80"], 0))[0] for one in seconds]
    labels = [text.get_window_extent() for text in ax.texts]
    assert len(labels) == 2
    assert all(label.x0 > end for label, end in zip(labels, ends, strict=True))
    assert all(label.x1 < ax.bbox.x1 for label in labels)
