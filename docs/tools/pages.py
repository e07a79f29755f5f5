"""Hook of MkDocs: pages that are made when the site is built, and links between the repository's Markdown files.

Markdown files outside ``docs/`` become pages. A page of ``docs/reference`` names what is generated into it in a comment
such as ``<!-- generated: commands -->``: the help of every command, the keys of the configuration, the public names of
the package. Nothing of that is kept in git.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "kernels/reading_order.md": "cuda_src/README.md",
    "kernels/fused.md": "cuda_src/fused/FUSED.md",
    "kernels/fused_history.md": "cuda_src/fused/FUSED_HISTORY.md",
    "datasets.md": "datasets/README.md",
    "reference/format.md": "datasets/FORMAT.md",
    "reference/results.md": "benchmarks/RESULTS.md",
    "reference/changes.md": "CHANGELOG.md",
}
_LINK = re.compile(r"(!?)\[([^\]\[]*)\]\(([^)\s]+)\)")
_GENERATED = re.compile(r"<!-- generated: (\w+) -->.*", re.DOTALL)


def on_startup(**_: Any) -> None:
    """Let notebooks find the command ``gcnbatch`` of this interpreter."""
    folder = str(Path(sys.executable).parent)
    if folder not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", "")])


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside ``docs/``."""
    from mkdocs.structure.files import File

    for name, source in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what is generated, and turn links between files of the repository into links between pages."""
    name = page.file.src_uri
    if found := _GENERATED.search(markdown):
        markdown = markdown[: found.start()] + "\n".join(GENERATORS[found[1]]())
    return relink(markdown, name)


def relink(markdown: str, name: str) -> str:
    """Return the page `name` with links that hold on the site; a link to a file without a page becomes its text.

    Parameters
    ----------
    markdown : str
        As in the repository, where links are relative to the file.
    name : str
        Of the page, relative to the folder of pages.
    """
    source = PurePosixPath(OUTSIDE.get(name, f"docs/{name}"))
    pages = {path: page for page, path in OUTSIDE.items()}

    def changed(match: re.Match[str]) -> str:
        image, text, link = match.groups()
        path, _, anchor = link.partition("#")
        if "://" in link or not path:
            return match[0]
        target = os.path.normpath(source.parent / path)
        to = pages.get(target, target.removeprefix("docs/") if target.startswith("docs/") else "")
        if not to:
            return text
        place = os.path.relpath(to, PurePosixPath(name).parent)
        return f"{image}[{text}]({place}{'#' + anchor if anchor else ''})"

    return _LINK.sub(changed, markdown)


# ------------------------------------------------------------------------------------------------ generated pages


def commands() -> Iterator[str]:
    """Yield the help of every command, as the terminal shows it."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from gcnbatch.cli.app import app

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        shown = CliRunner().invoke(app, [*path, "--help"], prog_name="gcnbatch", env={"COLUMNS": "100"})
        yield from (f"## gcnbatch {' '.join(path)}".rstrip(), "", "```text", shown.output.strip(), "```", "")
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*path, name))

    yield from walk(get_command(app), ())


def configuration() -> Iterator[str]:
    """Yield a table of keys for each section."""
    from gcnbatch.config import key_table

    section = None
    for key, default, allowed, meaning in key_table():
        prefix = key.rpartition(".")[0]
        if prefix != section:
            section = prefix
            yield from ("", f"## [{section}]" if section else "## At the top", "")
            yield from ("| key | default | allowed | meaning |", "|---|---|---|---|")
        cells = (f"`{key}`", f"`{default}`", allowed, meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def python() -> Iterator[str]:
    """Yield mkdocstrings' directives for the public names."""
    from gcnbatch import PUBLIC

    for name, module in PUBLIC.items():
        yield from (f"::: {module}.{name}", "")
    yield from ("## scikit-learn", "", "::: gcnbatch.sklearn", "    options: {show_root_heading: false}", "")


GENERATORS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "configuration": configuration,
    "python": python,
}
