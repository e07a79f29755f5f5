"""Text of hostile files at every exit: no control character, no escape sequence, no mark of direction."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import unicodedata
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcnbatch
from gcnbatch import figures, text
from gcnbatch.cli import data_info, text_tables
from gcnbatch.data.describe import describe
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from gcnbatch.predictions import Predictions, open_sink
from tests.builders import build_graphset

HOSTILE = st.text(
    st.one_of(
        st.sampled_from("\x1b\x07\x00\r\n\t\x7f\x9b\u202e\u2066\u200f\u2028\ufeff=+-@|<>&\"'`$[]()"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)
exits = settings(max_examples=60, derandomize=True)


def safe(shown: str) -> bool:
    return all(text.is_safe(one) for one in shown)


def steers(shown: str) -> bool:
    """Whether a character steers a terminal or turns the direction of writing; line breaks and tabs do not."""
    kinds = ((one, unicodedata.bidirectional(one)) for one in shown if one not in "\t\n\r")
    turns = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return any(unicodedata.category(one) == "Cc" or kind in turns for one, kind in kinds)


def test_what_is_shown_as_it_is():
    assert text.printable("Größe 分子量 молекула 🧪 5\u00a0% a\u3000b") == "Größe 分子量 молекула 🧪 5\u00a0% a\u3000b"
    assert text.printable("a\x1b[31m\u202e\nb\u2028") == r"a\x1b[31m\u202e\nb\u2028"
    assert text.printable("abcdef", 4) == "abc…"
    assert text.printable("\u202e" * 80, 80) == r"\u202e" * 13 + r"\…"
    assert text.shown({"a": "\x1b"}) == r"{'a': '\x1b'}"
    assert text.shown([16**5000]) == "a number of too many digits"
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert text.shown(deep) == "lists that are nested too deep"


@exits
@given(HOSTILE)
def test_every_function_gives_safe_characters(hostile):
    for made in (text.printable, text.html, text.markdown, text.json_line, partial(text.csv_cell, shown=True)):
        assert safe(made(hostile))
    assert not steers(text.csv_cell(hostile))
    assert safe(str(InputError(hostile, hostile, hostile, hostile)))
    assert json.loads(text.json_line({hostile: [hostile]})) == {hostile: [hostile]}
    assert not set("<>\"'") & set(text.html(hostile))


@exits
@given(st.lists(HOSTILE, min_size=2, max_size=4))
def test_tables_on_the_terminal_are_safe(hostile):
    lines = [*text_tables.table(hostile, [hostile]), *text_tables.facts([(one, one) for one in hostile])]
    assert all(map(safe, lines))


@exits
@given(st.dictionaries(HOSTILE, HOSTILE, max_size=3), st.dictionaries(HOSTILE, HOSTILE, max_size=3))
def test_data_info_is_safe(tmp_path_factory, source, featurizer):
    path = tmp_path_factory.mktemp("info") / "x.h5"
    graphs = build_graphset(2)
    header = graphs.header.model_copy(update={"source": source, "featurizer": featurizer})
    write_graphset(path, replace(graphs, header=header))
    with Dataset(path) as dataset:
        assert all(map(safe, data_info.lines(describe(dataset))))


def predicted(tmp_path, hostile, ending, **options):
    ids = np.array([*hostile, "end"])
    table = Predictions(build_graphset(2, n_tasks=1).header, ids, np.zeros((len(ids), 1), np.float32), errors=ids)
    with open_sink(tmp_path / f"p{ending}", **options) as sink:
        sink.append(table)
    return (tmp_path / f"p{ending}").read_bytes().decode()


@exits
@given(st.lists(HOSTILE.map(lambda one: one.rstrip("\0")), max_size=4), st.booleans())
def test_predictions_are_safe_and_ids_come_out_as_they_went_in(tmp_path_factory, hostile, spreadsheet):
    folder = tmp_path_factory.mktemp("p")
    written = predicted(folder, hostile, ".csv", spreadsheet=spreadsheet)
    assert not steers(written)
    table = list(csv.reader(io.StringIO(written, newline="")))
    assert len(table) == len(hostile) + 2
    for one, row in zip(hostile, table[1:-1], strict=True):
        if spreadsheet:
            assert not any(cell.strip().startswith(("=", "+", "-", "@")) for cell in (row[0], row[2]))
        elif not steers(one):
            assert row[0] == row[2] == one
    rows = [json.loads(line) for line in predicted(folder, hostile, ".jsonl").split("\n")[:-1]]
    assert [row["id"] or "" for row in rows] == [*hostile, "end"]


def test_on_a_terminal_a_row_of_predictions_is_a_line_of_safe_characters(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    ids = np.array(["a\nb", "c\u200bd", "e\x1b[31m"])
    table = Predictions(build_graphset(2, n_tasks=1).header, ids, np.zeros((3, 1), np.float32))
    with open_sink(None) as sink:
        sink.append(table)
    shown = [line.split(",")[0] for line in screen.getvalue().split("\n")]
    assert shown == ["id", r"a\nb", r"c\u200bd", r"e\x1b[31m", ""]


def test_only_a_spreadsheet_gets_apostrophes(tmp_path):
    assert predicted(tmp_path, ["=1+1"], ".csv").splitlines()[1] == "=1+1,0.0,=1+1"
    assert predicted(tmp_path, ["=1+1"], ".csv", spreadsheet=True).splitlines()[1] == "'=1+1,0.0,'=1+1"


def test_names_in_markdown_and_html_are_no_markup():
    name = "[a](javascript:x) <img src='x'> `b` *c*\u202e"
    assert text.markdown(name) == r"\[a\](javascript:x) \<img src='x'\> \`b\` \*c\*\\u202e"
    assert text.html(name) == r"[a](javascript:x) &lt;img src=&#x27;x&#x27;&gt; `b` *c*\u202e"


@pytest.mark.parametrize("name", ["分子量", "\U0001f9ea", "a\x1b[31m\u202e", "$x^", "\\frac"])
def test_a_figure_draws_any_name_without_a_warning(tmp_path, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure, (ax,) = figures.panels(1, 1, 2.0, 2.0)
        ax.set_title(figures.plain(name))
        figures.save(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_a_noun_follows_its_number():
    assert [text.counted(count, "row") for count in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]
    assert [text.counted(count, "class has", "classes have") for count in (1, 2)] == ["1 class has", "2 classes have"]
    assert [text.some_of(count, 2, "row", "has", "have") for count in (1, 2)] == ["1 of 2 rows has", "2 of 2 rows have"]


def test_no_message_leaves_the_plural_to_the_reader():
    sources = Path(gcnbatch.__file__).parent.rglob("*.py")
    assert not [str(path) for path in sources if re.search(r"\w\((?:s|es|ies)\)", path.read_text(encoding="utf-8"))]
