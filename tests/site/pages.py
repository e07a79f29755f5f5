"""Blocks of code in Markdown pages, and running them as a reader would, but quickly."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from gcnbatch.cli.app import app
from gcnbatch.data.endings import is_table
from tests.training.runs import environment

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)[ ]*(?:title=\"([^\"]+)\")?\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
SERVED, ADDRESS = "served", "http://127.0.0.1:8000/"
FEW = {"--epochs": "2", "--folds": "2", "--ensemble": "2", "--trials": "3"}  # whatever the page says


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the name of the file that it stands for, its text, and its line in the page."""

    language: str
    title: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        yield Block(found[1], found[2] or "", found[3], text.count("\n", 0, found.start()) + 1)


def lines(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a shell block as words, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def run(block: Block, names: dict[str, Any]) -> None:
    """Run a block in the current folder; `names` are the variables of the page's Python so far.

    An installation only has its extras checked. Commands of the package run in this process, with few epochs; so
    do those under mpirun: `tests/ranks` runs such commands on ranks. A server runs in a process,
    `names[SERVED]`, on a free port.
    """
    if served := names.get(SERVED):
        block = replace(block, text=block.text.replace(ADDRESS, served[1]))
    if block.language == "python":
        exec(compile("\n" * block.line + block.text, "page", "exec"), names)
    elif block.language == "toml":
        tomllib.loads(block.text)
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "sh":
        for words in lines(block):
            if words[:2] == ["gcnbatch", "serve"]:
                names[SERVED] = _serve(words)
            else:
                _run_command(words)
    else:
        assert block.language in ("", "text"), block.language


def _serve(words: list[str]) -> tuple[subprocess.Popen[str], str]:
    """Start a server; return its process and address."""
    command = [sys.executable, "-m", *words, "--port", "0", "--backend", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _run_command(words: list[str]) -> None:
    words = _of_a_rank(words)
    if words[0] == "gcnbatch":
        done = CliRunner().invoke(app, _short(words[1:]))
        assert done.exit_code == 0, (words, done.output, done.exception)
    elif words[0] in ("pip", "uv"):
        check_extras(" ".join(words))
    elif words[:3] != ["python3", "-m", "venv"] and words[0] != "." and (words[0] != "curl" or shutil.which("curl")):
        subprocess.run([sys.executable if words[0] == "python3" else words[0], *words[1:]], check=True)


def _of_a_rank(words: list[str]) -> list[str]:
    """Return the command that each rank of a command runs."""
    if words[0] == "OPENBLAS_NUM_THREADS=1":  # as all tests have
        words = words[1:]
    return words[3:] if words[:2] == ["mpirun", "-n"] else words


def _short(words: list[str]) -> list[str]:
    """Return the arguments with few epochs, folds, members and trials, and one process."""
    short = [FEW.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    if words[0] == "train" and is_table(words[1] if words[1:] else None):
        short += ["--set", "split.cross_fit=2"]
    if words[0] == "train" and "--resume" not in words:
        return [*short, "--quiet", *(() if "--epochs" in words else ("--epochs", FEW["--epochs"]))]
    if words[0] == "tune":
        asked = {"--trials": FEW["--trials"], "--jobs": "1"}
        more = [word for option in asked if option not in words for word in (option, asked[option])]
        return [*short, "--quiet", *more, "--set", f"train.epochs={FEW['--epochs']}"]
    return short


def check_extras(text: str) -> None:
    """Assert that an installation asks for extras that there are."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:gcnbatch|\.|\.whl)\[([\w,]+)\]", text):
        assert set(extras.split(",")) <= set(known), text


def commands_in_text(page: Path) -> Iterator[list[str]]:
    """Yield the commands ``gcnbatch …`` of a page, in blocks and in the text."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language == "sh":
            found = (_of_a_rank(words) for words in lines(block))
            yield from (words for words in found if words[0].endswith("gcnbatch"))
    for code in re.findall(r"`(gcnbatch [^`]+)`", _BLOCK.sub("", text)):
        yield code.split()
