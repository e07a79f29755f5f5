"""Changed folders of TUDataset and OGB: each is refused in one short line or read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.fuzz import DRAWN
from tests.fuzz.number_folders import FORMATS, changed_folders, verdict


@settings(DRAWN, max_examples=50)
@given(changed_folders())
def test_a_changed_folder_is_read_or_refused_in_one_line(case):
    verdict(*case)


@pytest.mark.slow
@settings(DRAWN, max_examples=600)
@given(changed_folders())
def test_many_changed_folders_are_read_or_refused_in_one_line(case):
    verdict(*case)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("tudataset", {}, "read"),
        ("ogb", {}, "read"),
        (
            "tudataset",
            {"DS_graph_indicator.txt": f"{-(2**63)}\n1\n"},
            "/source/DS_graph_indicator.txt, row 1: graph -9223372036854775808; expected graphs from 1 on, in rising "
            "order",
        ),
        (
            "tudataset",
            {"DS_graph_indicator.txt": f"1\n{2**63 - 1}\n"},
            "/source/DS_graph_indicator.txt, row 2: graph 9223372036854775807; expected consecutive graph numbers",
        ),
        (
            "tudataset",
            {"DS_A.txt": "1, 99999999999999999999\n"},
            "/source/DS_A.txt, row 1, column 2: '99999999999999999999'; expected a whole number",
        ),
        (
            "tudataset",
            {"DS_A.txt": f"1, {'9' * 5000}\n"},
            f"/source/DS_A.txt, row 1, column 2: '{'9' * 79}…'; expected a whole number",
        ),
        (
            "tudataset",
            {"DS_graph_labels.txt": "1\n\U0001f9ea\n"},
            "/source/DS_graph_labels.txt, line 2: '\U0001f9ea'; expected numbers in ASCII",
        ),
        ("tudataset", {"DS_A.txt": None}, "/source/DS_A.txt: is a folder; expected a readable file"),
        (
            "tudataset",
            {"DS_node_labels.txt": None},
            "/source/DS_node_labels.txt: is a folder; expected a readable file",
        ),
        ("ogb", {"raw/node-feat.csv.gz": None}, "/source/raw/node-feat.csv.gz: is a folder; expected a readable file"),
        ("ogb", {"mapping/mol.csv.gz": None}, "/source/mapping/mol.csv.gz: is a folder; expected a readable file"),
    ],
)
def test_messages(kind, changes, message):
    assert verdict(kind, FORMATS[kind] | changes) == message
