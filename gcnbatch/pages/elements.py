"""Elements of a page: text, tables, facts, pictures, sections.

Each function escapes the texts that it gets (`gcnbatch.text`) and returns `Html`. A text of a file thus cannot become
markup, and the type checker refuses a plain text where markup is expected.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NewType

from gcnbatch.text import html

Html = NewType("Html", str)
Cell = str | tuple[str, str]  # a figure, or a figure and a smaller line below it
MISSING = "–"


def join(parts: Iterable[Html], separator: str = "\n") -> Html:
    """Return elements one after the other."""
    return Html(separator.join(parts))


def paragraph(text: str, kind: str = "") -> Html:
    """Return a paragraph; `kind` is a class of the style sheet: "lead", "note" or "verdict"."""
    return Html(f"<p{_class(kind)}>{html(text)}</p>")


def section(title: str, *content: Html) -> Html:
    """Return a section with a heading; nothing without content."""
    shown = [part for part in content if part]
    if not shown:
        return Html("")
    return Html(f"<section><h2>{html(title)}</h2>\n" + "\n".join(shown) + "\n</section>")


def details(summary: str, *content: Html) -> Html:
    """Return content that a click on the summary shows."""
    return Html(f"<details><summary>{html(summary)}</summary>\n" + "\n".join(content) + "\n</details>")


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Return names and values, a line each."""
    lines = "".join(f"<dt>{html(name)}</dt><dd>{html(value)}</dd>" for name, value in pairs)
    return Html(f"<dl>{lines}</dl>")


def code(text: str) -> Html:
    """Return text with its line breaks, in a fixed font."""
    return Html("<pre>" + "\n".join(html(line) for line in text.splitlines()) + "</pre>")


def table(
    header: Sequence[str], rows: Sequence[Sequence[Cell]], words: Sequence[int] = (0,), sortable: bool = True
) -> Html:
    """Return a table that scrolls in its own box.

    Parameters
    ----------
    header : K texts
    rows : sequence of K cells each
    words : sequence of int
        Columns of text; the others are right-aligned.
    sortable : bool
        A click on a heading sorts the rows.
    """
    styles = [_class("words" if column in words else "") for column in range(len(header))]
    head = "".join(f"<th{style}>{html(name)}</th>" for style, name in zip(styles, header, strict=True))
    lines = [
        "<tr>" + "".join(f"<td{style}>{_cell(cell)}</td>" for style, cell in zip(styles, row, strict=True)) + "</tr>"
        for row in rows
    ]
    return Html(
        f'<div class="scroll" tabindex="0"><table{_class("sortable" if sortable and len(rows) > 1 else "")}>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def cards(entries: Iterable[tuple[Html, Sequence[str]]]) -> Html:
    """Return cards with a drawing and lines of text; the first line is the card's name."""
    shown = []
    for drawing, (name, *lines) in entries:
        texts = "".join(f"<span>{html(line)}</span>" for line in lines)
        shown.append(f"<li>{drawing}<strong>{html(name)}</strong>{texts}</li>")
    return Html(f'<ul class="cards">{"".join(shown)}</ul>') if shown else Html("")


def toolbar(*controls: Html) -> Html:
    """Return controls side by side; `explanations.js` listens to them."""
    return Html(f'<form class="toolbar">{"".join(controls)}<output id="shown"></output></form>')


def choice(name: str, label: str, options: Iterable[tuple[str, str]]) -> Html:
    """Return a list of (value, text) to choose from, the first one chosen."""
    shown = "".join(f'<option value="{html(value)}">{html(text)}</option>' for value, text in options)
    return Html(f'<label>{html(label)} <select id="{html(name)}">{shown}</select></label>')


def field(name: str, label: str, kind: str) -> Html:
    """Return a field to type in; `kind` is "search" or "number"."""
    step = ' step="any"' if kind == "number" else ""
    return Html(f'<label>{html(label)} <input id="{html(name)}" type="{html(kind)}"{step}></label>')


class Pictures:
    """PNG files as parts of a page, as long as they fit into a number of bytes.

    Parameters
    ----------
    most_bytes : int
        Bytes of all pictures; a larger one is named in place of shown.
    """

    def __init__(self, most_bytes: int = 600_000) -> None:
        self._left = most_bytes

    def show(self, path: Path, description: str) -> Html:
        """Return the picture, or nothing if there is no such file. `description` is read to those who cannot see it."""
        if not path.is_file() or path.is_symlink():
            return Html("")
        size = path.stat().st_size
        if size > self._left:
            return paragraph(f"{description}: see {path.name}, which is too large for this page.", "note")
        self._left -= size
        return picture(path.read_bytes(), description)


def picture(png: bytes, description: str) -> Html:
    """Return a PNG file as a picture that scrolls in its own box."""
    source = f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
    return Html(f'<figure class="scroll" tabindex="0"><img alt="{html(description)}" src="{source}"></figure>')


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return html(cell)
    return f"{html(cell[0])}<small>{html(cell[1])}</small>" if cell[1] else html(cell[0])


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
