"""The page in a real browser: keyboard, phone width, dark mode, a drawn molecule, a CSV; nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import OVERFLOWING, Browser, browser
from tests.serving.servers import Server, serving

DONE = "!/…|^$/.test(document.getElementById('state').textContent) && document.getElementById('state').textContent"
DROP = """
(() => {
  const data = new DataTransfer();
  data.items.add(new File([%r], "new.csv", { type: "text/csv" }));
  dispatchEvent(new DragEvent("drop", { dataTransfer: data }));
})()
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def alone(tab: Browser, runs: list[Path]) -> Iterator[Server]:
    with serving(runs[:1]) as found:
        yield found


def elsewhere(tab: Browser, server: Server) -> list[str]:
    return [url for url in tab.requests if not url.startswith((server.url, "data:", "blob:"))]


def predict(tab: Browser, text: str) -> None:
    """Type SMILES and ask for them, with the keyboard alone: the field has the focus."""
    tab.run("document.getElementById('smiles').focus()")
    tab.type(text)
    tab.press("Control+Enter")
    tab.wait("document.querySelector('#answer tr[data-smiles]') !== null")


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_it_predicts_and_explains_at_every_width(tab: Browser, alone: Server, width: int, dark: bool) -> None:
    tab.open(f"{alone.url}/", width, dark)
    tab.wait("document.activeElement.id === 'smiles'")
    predict(tab, "OCC(O)CO\nxx<i>")
    assert tab.run("document.getElementById('state').textContent") == "2 molecules"
    assert tab.run("document.querySelectorAll('#answer svg').length") == 1
    assert "not valid SMILES" in tab.run("document.getElementById('answer').textContent")
    assert tab.run("document.querySelectorAll('#answer i, #answer .explain').length") == 1
    tab.run("document.querySelector('.explain').focus()")
    tab.press("Enter")
    tab.wait("document.querySelectorAll('#explanation .cards li').length === 6")
    assert tab.run("document.activeElement.id") == "explanation"
    assert tab.run("document.querySelectorAll('#explanation figure svg').length") == 1
    assert tab.run(OVERFLOWING) == []
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.errors == []
    assert elsewhere(tab, alone) == []


def test_a_csv_is_dropped_and_downloaded(tab: Browser, alone: Server) -> None:
    tab.open(f"{alone.url}/")
    assert tab.run("document.getElementById('download').disabled")
    tab.run(DROP % "id,smiles\nfirst,CCO\nsecond,CCN\n")
    tab.wait("document.querySelectorAll('#answer tr[data-smiles]').length === 2")
    assert tab.run("[...document.querySelectorAll('#answer b')].map((one) => one.textContent)") == ["first", "second"]
    tab.run("URL.createObjectURL = (blob) => { window.saved = blob.text(); return '#'; }; 0")
    tab.click("#download")
    tab.wait("window.saved !== undefined")
    text = str(tab.run("window.saved"))
    assert text.splitlines()[0].startswith("id,smiles,even,")
    assert [line.split(",")[0] for line in text.splitlines()[1:]] == ["first", "second"]


def test_an_error_is_shown_and_the_page_goes_on(tab: Browser, alone: Server) -> None:
    tab.open(f"{alone.url}/")
    tab.click("#ask .buttons button")
    assert tab.wait(DONE) == "no SMILES: paste some, draw a molecule, or drop a CSV"
    assert tab.run("document.body.classList.contains('failed')")
    predict(tab, "CCO")
    assert tab.wait(DONE) == "1 molecule"


def test_a_drawn_molecule_is_predicted(tab: Browser, alone: Server) -> None:
    tab.open(f"{alone.url}/")
    tab.click("#draw summary")
    frame = "document.querySelector('iframe').contentWindow"
    tab.wait(f"document.querySelector('iframe') !== null && {frame}.drawing !== undefined")
    tab.click("iframe")  # in the middle of the editor: a bond
    tab.wait("document.getElementById('smiles').value === 'CC'")
    tab.click("#ask .buttons button")
    tab.wait("document.querySelector('#answer tr[data-smiles=\"CC\"]') !== null")
    assert tab.errors == []
    assert elsewhere(tab, alone) == []


def test_it_asks_for_a_key_and_a_model_where_these_are_needed(tab: Browser, runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("0123456789abcdef\n")
    with serving(runs, token_file=tmp_path / "keys") as server:
        tab.open(f"{server.url}/")
        tab.run("document.getElementById('smiles').focus()")
        tab.type("CCCCO")
        tab.click("#ask .buttons button")
        assert "a key is missing or wrong" in tab.wait(DONE)
        tab.run("document.getElementById('key').value = '0123456789abcdef'; 0")
        tab.run("document.getElementById('model').value = 'mixture'; 0")
        tab.click("#ask .buttons button")
        tab.wait("document.querySelectorAll('#answer th').length === 4")


def test_the_page_of_the_interface(tab: Browser, alone: Server) -> None:
    for width in (390, 1200):
        tab.open(f"{alone.url}/docs", width)
        assert tab.errors == []
        assert tab.run(OVERFLOWING) == []
        assert "POST /predict" in tab.run("document.body.textContent")
