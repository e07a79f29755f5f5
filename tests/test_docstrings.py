"""The examples in docstrings and Markdown run and print the shown output."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.test_architecture import MODULES, PACKAGE, ROOT

PROMPT = re.compile(r"^\s*>>> ", flags=re.MULTILINE)
EXAMPLES = {path: len(PROMPT.findall(path.read_text(encoding="utf-8"))) for path in MODULES}


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("path", [path for path, count in EXAMPLES.items() if count], ids=lambda path: path.stem)
def test_examples_in_docstrings_print_the_shown_output(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    examples = [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]
    runner = doctest.DocTestRunner()
    for number, test in enumerate(examples):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        runner.run(test)
    found = [example for test in examples for example in test.examples]
    assert runner.failures == 0, capsys.readouterr().out
    # doctest overlooks prompts outside of docstrings that it can reach, and does not count skipped ones.
    assert len(found) == EXAMPLES[path]
    assert not any(doctest.SKIP in example.options for example in found)


def test_python_in_markdown_is_run() -> None:
    """FORMAT.md's example runs in tests/data/test_store.py, README's in tests/api.

    Those of ``docs/`` run in tests/site.
    """
    pages = [
        *ROOT.glob("*.md"),
        *(page for place in ("datasets", "cuda_src") for page in ROOT.glob(f"{place}/**/*.md")),
    ]
    with_python = {
        page.name for page in pages if re.search(r"```(python|pycon)|^>>> ", page.read_text("utf-8"), re.MULTILINE)
    }
    assert with_python == {"FORMAT.md", "README.md"}
