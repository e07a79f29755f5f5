"""Hostile tables and SMILES cost bounded time and memory, one line, or one row."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import DRAWN
from tests.fuzz.tables import (
    changed_parquet,
    hostile_smiles,
    hostile_tables,
    read_parquet,
    read_smiles,
    read_table,
)

pytestmark = pytest.mark.usefixtures("rows_in_forks")


@settings(DRAWN, max_examples=15)
@given(hostile_tables())
def test_a_hostile_table_is_read_or_refused_within_limits(case):
    read_table(case.ending, case.content())


@settings(DRAWN, max_examples=8)
@given(st.lists(hostile_smiles(), min_size=1, max_size=12))
def test_a_hostile_smiles_costs_its_row(texts):
    read_smiles(texts)


@settings(DRAWN, max_examples=4)
@given(changed_parquet())
def test_a_changed_parquet_file_is_read_or_refused_in_one_line(raw):
    read_parquet(raw)


@pytest.mark.slow
@settings(DRAWN, max_examples=40)
@given(changed_parquet())
def test_many_changed_parquet_files_are_read_or_refused_in_one_line(raw):
    read_parquet(raw)
