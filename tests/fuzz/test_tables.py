"""Hostile tables and SMILES cost bounded time and memory, one line, or one row."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.tables import hostile_smiles, hostile_tables, read_smiles, read_table


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(hostile_tables())
def test_a_hostile_table_is_read_or_refused_within_limits(case):
    read_table(case)


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(hostile_smiles(), min_size=1, max_size=12))
def test_a_hostile_smiles_costs_its_row(texts):
    read_smiles(texts)
