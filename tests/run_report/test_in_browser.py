"""Pages in a real browser: no error, no request, nothing beyond a narrow window; tables sort, details open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gcnbatch
from gcnbatch.run_comparison.comparison import compare
from tests.browser import OVERFLOWING, Browser, browser
from tests.inference.runs import train_on

WIDTHS = (380, 1200)


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def places(tab: Browser, runs: Path) -> Path:
    """Return the folder of the runs, of a comparison and of a study."""
    pytest.importorskip("optuna", reason="needs Optuna")
    train_on(runs / "hostile.h5", runs / "other", train={"epochs": 1})
    compare([runs / "hostile", runs / "other"], runs / "comparison")
    space = {"train": {"learning_rate": {"choices": [0.001, 0.01]}}}
    about = {"settings": {"model.widths": [4], "split.valid": 0.3}, "epochs": 1, "jobs": 1}
    gcnbatch.tune({}, runs / "hostile.h5", space=space, trials=2, out=runs / "study", **about)
    return runs


PAGES = ("molecules", "hostile", "folds", "nodes", "comparison", "study")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_error_no_request_and_fits_the_window(tab: Browser, places: Path, name: str) -> None:
    for width in WIDTHS:
        for dark in (False, True):
            tab.open(places / name / "report.html", width, dark)
            assert tab.errors == []
            assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
            assert tab.run(OVERFLOWING) == []
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert tab.run("[...document.images].every(one => one.complete && one.naturalWidth > 0)")


def test_the_check_for_overflow_finds_a_wide_line(tab: Browser, tmp_path: Path) -> None:
    (tmp_path / "wide.html").write_text(f"<!doctype html><p style='white-space: nowrap'>{'wide ' * 200}</p>")
    tab.open(tmp_path / "wide.html", 380)
    assert len(tab.run(OVERFLOWING)) == 0 or tab.run("document.documentElement.scrollWidth") > 380
    (tmp_path / "wide.html").write_text(
        "<!doctype html><p style='width: 500px'>wide</p><script>throw Error('broken')</script>"
    )
    tab.open(tmp_path / "wide.html", 380)
    assert tab.run(OVERFLOWING) == ["P wide"]
    assert tab.errors == ["broken"]


def column(tab: Browser, number: int) -> list[str]:
    rows = "[...document.querySelectorAll('table.sortable')[0].tBodies[0].rows]"
    return list(tab.run(f"{rows}.map(row => row.cells[{number}].firstChild.textContent)"))


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_the_order_over(tab: Browser, places: Path) -> None:
    tab.open(places / "molecules" / "report.html", 1200)
    assert column(tab, 0) == ["even", "third"]
    for order in (["even", "third"], ["third", "even"]):
        tab.click("table.sortable th button", 0)
        assert column(tab, 0) == order
    tab.click("table.sortable th button", 2)
    positives = [float(text) for text in column(tab, 2)]
    assert positives == sorted(positives, reverse=True)
    assert tab.run("document.querySelectorAll('th[aria-sort]').length") == 1
    tab.click("table.sortable th button", 2)
    assert [float(text) for text in column(tab, 2)] == sorted(positives)
    assert tab.errors == []


def test_details_open(tab: Browser, places: Path) -> None:
    tab.open(places / "molecules" / "report.html", 380)
    assert tab.run("document.querySelector('details pre').checkVisibility()") is False
    tab.click("summary")
    assert tab.run("document.querySelector('details pre').checkVisibility()") is True
    assert "widths" in tab.run("document.querySelector('details pre').innerText")
    assert tab.run(OVERFLOWING) == []


def test_dark_is_dark_and_paper_is_white(tab: Browser, places: Path) -> None:
    colour = "getComputedStyle(document.querySelector('main')).backgroundColor"
    for dark, expected in ((False, "rgb(255, 255, 255)"), (True, "rgb(22, 22, 22)")):
        tab.open(places / "molecules" / "report.html", 1200, dark)
        assert tab.run(colour) == expected
    assert tab.pdf().startswith(b"%PDF")
