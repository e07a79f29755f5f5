"""A headless Chromium that opens pages, through Playwright. Without one of both, the tests skip."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
SECONDS = 240.0
# Elements that reach beyond the window, but for those in a box that scrolls.
OVERFLOWING = """
[...document.querySelectorAll("body *")].filter((one) => {
  if (one.closest(".scroll")?.contains(one) && !one.matches(".scroll")) return false;
  const box = one.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1);
}).map((one) => `${one.tagName} ${one.textContent.slice(0, 40)}`)
"""


class Browser:
    """A tab. `errors` are console errors, refused requests and uncaught exceptions since the page was opened."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(1e3 * SECONDS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url[:100]))

    def open(self, page: Path | str, width: int = 1200, dark: bool = False) -> None:
        """Open a file or a URL in a window of this width, and wait until it is loaded."""
        self.errors, self.requests = [], []
        self._page.set_viewport_size({"width": width, "height": 900})
        self._page.emulate_media(color_scheme="dark" if dark else "light")
        self._page.goto(page if isinstance(page, str) else page.resolve().as_uri())

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        return self._page.evaluate(script)

    def click(self, selector: str, number: int = 0) -> None:
        """Click in the middle of an element, with the mouse."""
        self._page.locator(selector).nth(number).click()

    def press(self, key: str) -> None:
        """Press a key, such as ``Control+Enter``, where the focus is."""
        self._page.keyboard.press(key)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self._page.keyboard.insert_text(text)

    def wait(self, script: str) -> Any:
        """Return the value of an expression once it is true; pages forbid what Playwright's own function evaluates."""
        deadline = time.monotonic() + SECONDS
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, f"not true in {SECONDS:g} s: {script}"
            self._page.wait_for_timeout(50)
        return found

    def picture(self, path: Path) -> None:
        """Write the whole page as a PNG file."""
        self._page.screenshot(path=path, full_page=True)

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        found: bytes = self._page.pdf(print_background=True)
        return found

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.errors.append(message.text)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with a fresh profile; skip the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (extra 'dev')")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=program, args=OPTIONS)
        try:
            yield Browser(chromium.new_page())
        finally:
            chromium.close()
