"""Elements escape their texts; pictures that do not fit are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.pages import elements
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import Html, Pictures

HOSTILE, SAFE = '<b a="x">&\x1b\u202e', "&lt;b a=&quot;x&quot;&gt;&amp;\\x1b\\u202e"


@pytest.mark.parametrize(
    "made",
    [
        elements.paragraph(HOSTILE),
        elements.section(HOSTILE, elements.paragraph(HOSTILE)),
        elements.details(HOSTILE, elements.code(HOSTILE)),
        elements.facts([(HOSTILE, HOSTILE)]),
        elements.table([HOSTILE], [[HOSTILE], [(HOSTILE, HOSTILE)]]),
        elements.cards([(Html(""), [HOSTILE, HOSTILE])]),
        document(HOSTILE, []),
    ],
)
def test_every_text_is_escaped(made: str) -> None:
    assert SAFE in made
    assert "<b a" not in made
    assert made.isprintable() or made.replace("\n", "").isprintable()


def test_a_section_without_content_is_left_out() -> None:
    assert elements.section("title", Html(""), Html("")) == ""
    assert elements.cards([]) == ""


def test_pictures_that_do_not_fit_are_named_and_missing_ones_left_out(tmp_path: Path) -> None:
    for name, size in (("one.png", 60), ("two.png", 60), ("three.png", 40)):
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "link.png").symlink_to(tmp_path / "one.png")
    pictures = Pictures(100)
    assert "data:image/png;base64,eHh4" in pictures.show(tmp_path / "one.png", "first")
    assert "second: see two.png, which is too large for this page." in pictures.show(tmp_path / "two.png", "second")
    assert 'alt="third"' in pictures.show(tmp_path / "three.png", "third")
    assert pictures.show(tmp_path / "none.png", "none") == ""
    assert pictures.show(tmp_path / "link.png", "link") == ""
