"""The site: links between pages, figures, notebooks."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.site.pages import ROOT

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def hook() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "tools" / "pages.py"))


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("TUNE.md", "[a](MOLECULES.md#3-split)", "[a](MOLECULES.md#3-split)"),
        ("ONE_STEP.md", "[F](../cuda_src/fused/FUSED.md#narrow)", "[F](kernels/fused.md#narrow)"),
        ("tutorials/trust.md", "[D](../../datasets/README.md)", "[D](../datasets.md)"),
        ("kernels/fused.md", "[H](FUSED_HISTORY.md)", "[H](fused_history.md)"),
        ("kernels/reading_order.md", "[s](../docs/ONE_STEP.md)", "[s](../ONE_STEP.md)"),
        ("kernels.md", "![p](figures/cohort.svg)", "![p](figures/cohort.svg)"),
        ("reference/changes.md", "[no page](SECURITY.md)", "no page"),
        ("index.md", "[up](#2-train), [out](https://a.b/c.md)", "[up](#2-train), [out](https://a.b/c.md)"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(
    hook: dict[str, Any], page: str, before: str, after: str
) -> None:
    assert hook["relink"](before, page) == after


def test_pages_from_outside_the_folder_exist(hook: dict[str, Any]) -> None:
    assert [path for path in hook["OUTSIDE"].values() if not (ROOT / path).is_file()] == []


def test_generated_pages_have_every_command_key_and_public_name(hook: dict[str, Any]) -> None:
    from gcnbatch import PUBLIC
    from gcnbatch.config import keys

    pages = {name: "\n".join(make()) for name, make in hook["GENERATORS"].items()}
    for command in ("train", "data import smiles", "bench spmm", "kernels build", "compare-runs"):
        assert f"## gcnbatch {command}\n" in pages["commands"]
    assert "Usage: gcnbatch train [OPTIONS]" in pages["commands"]
    assert [key for key in keys() if f"| `{key}` |" not in pages["configuration"]] == []
    assert [name for name, module in PUBLIC.items() if f"::: {module}.{name}\n" not in pages["python"]] == []


def test_figures_are_those_that_the_script_draws() -> None:
    figures = runpy.run_path(str(DOCS / "tools" / "figures.py"))["FIGURES"]
    for name, draw in figures.items():
        assert (DOCS / "figures" / name).read_text(encoding="utf-8") == draw(), "run python docs/tools/figures.py"
    assert {path.name for path in (DOCS / "figures").iterdir()} == set(figures)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_figures_of_the_summary_are_those_of_the_tables() -> None:
    _, summary, tables = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8").split("\n## ", 2)
    rows = [[cell.strip() for cell in line.split("|")[2:4]] for line in summary.splitlines() if re.search(r"\d", line)]
    for cell in (cell for row in rows for cell in row if row != ["", ""]):
        figure = re.match(r"[\d.,]+( M)?", cell)
        assert not figure or f" {figure[0].strip(',')} " in tables.replace("*", ""), cell


def test_declared_parameters_stand_on_the_page_of_python() -> None:
    griffe = pytest.importorskip("griffe")
    loaded = griffe.load(
        "gcnbatch.api.files",
        extensions=griffe.load_extensions(str(DOCS / "tools" / "declared.py")),
        search_paths=[ROOT],
    )
    shown = loaded["shard"]
    assert [one.name for one in shown.parameters][:3] == ["path", "out", "max_bytes"]
    assert "Most graphs of a shard, in place of `max_bytes`." in shown.docstring.value
