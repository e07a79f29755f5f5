"""A headless Chromium that opens pages, through the DevTools protocol on a pipe: no library, port or network.

The protocol: https://chromedevtools.github.io/devtools-protocol. With ``--remote-debugging-pipe``, Chromium reads
commands from descriptor 3 and writes answers and events to descriptor 4: JSON, each ended by a NUL.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
    "--remote-debugging-pipe",
]
# Moves the two descriptors to 3 and 4, over higher ones, because either could be 3 or 4 already.
START = """
import os, sys
from fcntl import F_DUPFD, fcntl
for number, place in [(fcntl(int(sys.argv[k]), F_DUPFD, 10), k + 2) for k in (1, 2)]:
    os.dup2(number, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
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

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._buffer, self._last = commands, answers, b"", 0
        self._session = ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, page: Path | str, width: int = 1200, dark: bool = False) -> None:
        """Open a file or a URL in a window of this width, and wait until it is loaded."""
        self.errors, self.requests = [], []
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self._wait("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, selector: str, number: int = 0) -> None:
        """Click in the middle of an element, with the mouse."""
        place = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.run(f"{place}.scrollIntoView({{block: 'center', inline: 'center'}})")
        x, y = self.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({place}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int, text: str = "", modifiers: int = 0) -> None:
        """Press a key where the focus is; 2: with Ctrl."""
        about = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self._call("Input.insertText", text=text)

    def wait(self, script: str) -> Any:
        """Return the value of an expression once it is true."""
        deadline = time.monotonic() + SECONDS
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, f"not true in {SECONDS:g} s: {script}"
            time.sleep(0.05)
        return found

    def picture(self, path: Path) -> None:
        """Write the whole page as a PNG file."""
        found = self._call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        command: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._last:
                assert "error" not in message, message
                return message["result"]

    def _wait(self, event: str) -> None:
        while self._read().get("method") != event:
            pass

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no answer from the browser in {SECONDS:g} s"
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser ended"
            self._buffer += part
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(str(about["args"]))
        elif event == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"][:100])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with a fresh profile; skip the test where there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    inward, outward = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(inward[0]), str(outward[1]), program, *OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(inward[0], outward[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(inward[0])
    os.close(outward[1])
    try:
        yield Browser(inward[1], outward[0])
    finally:
        os.close(inward[1])  # Chromium ends when its commands end
        os.close(outward[0])
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
