"""The page of explanations in a real browser: no error, no request, no overflow; it colours, sorts and filters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gcnbatch.explanation.command import explain
from tests.browser import OVERFLOWING, Browser, browser
from tests.explanation.test_explain import table


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tab: Browser, chemistry: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page") / "why"
    explain([chemistry[0]], chemistry[2], place, steps=1, backend="cpu", quiet=True)
    return place


def names(tab: Browser) -> list[str]:
    return list(tab.run("[...document.querySelectorAll('.cards strong')].map(one => one.textContent)"))


def choose(tab: Browser, control: str, value: str) -> None:
    place = f"document.getElementById('{control}')"
    tab.run(f"{place}.value = '{value}'; {place}.dispatchEvent(new Event('input'))")


def test_it_has_no_error_no_request_and_fits_the_window(tab: Browser, folder: Path) -> None:
    for width in (380, 1200):
        for dark in (False, True):
            tab.open(folder / "index.html", width, dark)
            assert tab.errors == []
            assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
            assert tab.run(OVERFLOWING) == []
            assert tab.run("document.documentElement.scrollWidth") <= width


def test_cards_sort_and_filter_and_a_task_colours_them(tab: Browser, folder: Path) -> None:
    tab.open(folder / "index.html")
    rows = [row for row in table(folder / "molecules.csv") if row["task"] == "third"]
    before = tab.run("document.querySelector('.marks').outerHTML")
    choose(tab, "task", "1")
    assert names(tab) == [row["id"] for row in rows]
    assert tab.run("document.querySelector('.marks').outerHTML") != before
    assert tab.run("document.querySelectorAll('.marks > :not(.raises):not(.lowers)').length") == 0
    assert tab.run("document.querySelector('.cards span').textContent").startswith("third: 0.")
    choose(tab, "order", "high")
    assert names(tab)[0] == max(rows, key=lambda row: float(row["prediction"]))["id"]
    choose(tab, "search", "c#n")
    found = names(tab)
    assert 0 < len(found) < len(rows)
    assert tab.run("document.getElementById('shown').textContent") == f"{len(found)} of {len(rows)}"
    choose(tab, "least", "1")
    assert names(tab) == []
    choose(tab, "search", "")
    choose(tab, "least", "")
    assert len(names(tab)) == len(rows)
    assert tab.errors == []
