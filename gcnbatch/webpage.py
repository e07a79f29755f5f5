"""Reports as one self-contained HTML file: the frame of a page, with embedded styles and no script."""

from __future__ import annotations

from collections.abc import Sequence

from gcnbatch.text import html

STYLE = """
:root { --ink: #1b1f24; --soft: #5b6570; --line: #dfe3e8; --good: #00704f; --bad: #b3261e; --wash: #f5f7f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 48px 64px; background: #fff; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 40px 0 10px; padding-top: 14px; border-top: 1px solid var(--line); }
p { margin: 8px 0; }
.soft, .note { color: var(--soft); }
.note { font-size: 13px; max-width: 86ch; }
.verdict { margin: 22px 0; padding: 14px 18px; border-left: 5px solid var(--good); background: #eef7f3; }
.verdict { font-size: 17px; }
.failed .verdict { border-color: var(--bad); background: #fdf0ef; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 5px 18px 5px 0; text-align: right; white-space: nowrap; vertical-align: top; }
th { font-weight: 600; border-bottom: 2px solid var(--ink); white-space: normal; vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
td:first-child { white-space: pre; }
.words { text-align: left; white-space: normal; }
figure { margin: 18px 0; }
img { max-width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; font-size: 13px; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print {
  body { background: #fff; font-size: 11px; }
  main { max-width: none; padding: 0; }
  table { font-size: 10px; }
  th, td { padding-right: 10px; }
  figure, table, .verdict { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


def document(title: str, body: Sequence[str], state: str = "") -> str:
    """Return a page.

    Parameters
    ----------
    title : str
        Plain text.
    body : sequence of str
        Elements, as HTML.
    state : str
        Class of the body; ``failed`` colours the verdict.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f'<body class="{html(state)}">\n<main>\n' + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )
