"""Changed and drawn pickles: each is read or refused in one line, with bounded time and memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.fuzz import DRAWN
from tests.fuzz.pickles import BASES, changed_pickles, verdict

pytestmark = pytest.mark.hostile


@pytest.mark.parametrize(("kind", "protocol"), BASES)
def test_the_pickles_themselves_are_read(kind, protocol):
    assert verdict(kind, BASES[kind, protocol]) == "read"


@pytest.mark.slow
@settings(DRAWN, max_examples=860)
@given(changed_pickles())
def test_changed_pickles_are_read_or_refused_in_one_line(case):
    verdict(*case)
