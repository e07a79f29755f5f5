"""Changed data set files: each is refused in one line or read, within its limits of time and memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.fuzz import DRAWN
from tests.fuzz.data_files import bases, changed_files, verdict
from tests.fuzz.headers import hostile_headers
from tests.fuzz.metadata import SIGNATURES, altered, lookup3

pytestmark = pytest.mark.hostile


@pytest.mark.slow
@settings(DRAWN, max_examples=725)
@given(changed_files())
def test_changed_files_are_read_or_refused_in_one_line(raw):
    verdict(raw)


@settings(DRAWN, max_examples=10)
@given(hostile_headers())
def test_a_hostile_header_is_read_or_refused_in_one_short_line(raw):
    assert len(verdict(raw)) < 400


@pytest.mark.slow
@settings(DRAWN, max_examples=300)
@given(hostile_headers())
def test_many_hostile_headers_are_read_or_refused_in_one_short_line(raw):
    assert len(verdict(raw)) < 400


def test_base_files_are_read_and_have_every_kind_of_index():
    assert [verdict(base.raw) for base in bases()] == ["read"] * len(bases())
    found = {base.raw[block.start : block.start + 4] for base in bases() for block in base.blocks}
    assert found >= {b"OHDR", b"OCHK", b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EADB", b"BTHD", b"BTLF", b"FRHP"}
    assert {signature[:4] for signature in SIGNATURES} >= found


def test_a_changed_block_has_the_right_checksum():
    """The lookup3 of Bob Jenkins' own example, and a change that libhdf5 accepts."""
    assert lookup3(b"Four score and seven years ago") == 0x17770551
    base = bases()[0]
    superblock = base.blocks[0]
    assert verdict(altered(base.raw, superblock, 11, b"\0")) == "read"  # flags: none are set
    assert verdict(base.raw[:11] + b"\1" + base.raw[12:]).startswith("x.h5: damaged file")
