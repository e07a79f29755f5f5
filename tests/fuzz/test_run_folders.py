"""Damaged folders of runs and studies: each is refused in one line or goes on.

Nothing outside is written, nothing waits for ever.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import DRAWN
from tests.fuzz.run_folders import KINDS, damages, verdict


@pytest.mark.slow
@settings(DRAWN, max_examples=262)
@given(kind=st.sampled_from(KINDS), damage=st.lists(damages(), min_size=1, max_size=2))
def test_damaged_runs_go_on_or_are_refused_in_one_line(bases, tmp_path_factory, kind, damage):
    verdict(bases, tmp_path_factory.mktemp("case"), kind, damage)


@pytest.mark.parametrize("kind", KINDS)
def test_the_runs_themselves_go_on(bases, tmp_path, kind):
    assert verdict(bases, tmp_path, kind, []) == ["done"] * (2 if kind == "study" else 5)


LINK = "a symbolic link; expected files in the run folder itself. Replace it by a file"


@pytest.mark.parametrize(
    ("kind", "name", "make", "message"),
    [
        ("stopped", "history.jsonl", lambda path: path.symlink_to("../outside/file"), LINK),
        ("stopped", "predictions.csv", lambda path: path.symlink_to("../outside/new"), LINK),
        ("in_folds", "fold2/splits.json", lambda path: path.symlink_to("../../outside/file"), LINK),
        ("stopped", "history.jsonl", os.mkfifo, "not a regular file; expected a line of JSON per epoch"),
        ("stopped", "history.jsonl", os.mkdir, "is a folder; expected a line of JSON per epoch"),
        ("stopped", "history.jsonl", lambda path: None, "no such file; expected a line of JSON per epoch"),
        ("stopped", "history.jsonl", lambda path: path.write_bytes(b"\xff"), "not UTF-8; expected a line of JSON"),
        (
            "stopped",
            "history.jsonl",
            lambda path: path.write_text("null"),
            "line 1: 'value': None, not an object of keys",
        ),
        ("stopped", "history.jsonl", lambda path: path.write_text(""), "0 epochs; expected 1, as in the checkpoint"),
        ("stopped", "history.jsonl", lambda path: path.write_text('{"epoch": 2}'), "line 1: epoch '2'; expected 1"),
        ("stopped", "data.sha256", os.mkdir, "is a folder; expected the data set's digest"),
        (
            "finished",
            "metrics.json",
            lambda path: path.write_text("{}"),
            "'backend': missing; expected the metrics",
        ),
        (
            "finished",
            "metrics.json",
            lambda path: path.write_text("[" * 30 + "]" * 30),
            "JSON nested too deep; expected",
        ),
        ("finished", "metrics.json", lambda path: path.write_text('{"a": NaN}'), "not JSON; expected the metrics of a"),
        (
            "in_folds",
            "fold1/metrics.json",
            lambda path: path.write_text("null"),
            "'value': None, not an object of keys",
        ),
        (
            "in_folds",
            "fold1/predictions.csv",
            lambda path: path.write_text("id,a\n"),
            "5 bytes; expected predictions of 20 rows with 2 numbers each",
        ),
        ("in_folds", "fold1/predictions.csv", lambda path: path.write_text("id\nx,y,z\n" * 9), "row 1: could not conv"),
        (
            "in_folds",
            "fold1/predictions.csv",
            lambda path: path.write_text("id\nx,1\n" * 9),
            "row 1: 1 number in place of 2",
        ),
        ("in_folds", "fold1/predictions.csv", lambda path: None, "no such file; expected predictions of 20 rows"),
    ],
)
def test_messages(bases, tmp_path, kind, name, make, message):
    def replace(path: Path) -> None:
        path.unlink(missing_ok=True)
        make(path)

    said = verdict(bases, tmp_path, kind, [(name, replace)])[0]
    assert message in said
    assert f"/run/{name}" in said
