"""The frame of a page: head, styles, script, and a policy that forbids every request and every other script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from gcnbatch.pages.elements import Html
from gcnbatch.text import html

REPORT = "report.html"


def document(title: str, body: Iterable[Html], failed: bool = False, more: str = "", allowed: str = "") -> str:
    """Return a page as the text of a file.

    Parameters
    ----------
    title : str
    body : iterable of Html
        Content below the title.
    failed : bool
        Show the verdict as a failure.
    more : str
        Name, without ending, of a further style sheet and script of this folder.
    allowed : str
        Requests that the policy allows, as its directives.
    """
    style, program = ("".join(_part(f"{name}.{kind}") for name in ("page", more) if name) for kind in ("css", "js"))
    state = "failed" if failed else "passed"
    digest = base64.b64encode(hashlib.sha256(program.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy += f"; {allowed}" if allowed else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f'<body class="{state}">\n<main>\n<h1>{html(title)}</h1>\n'
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>{program}</script>\n</body>\n</html>\n"
    )


@cache
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
