"""The pages of the documentation: every block runs, every command has the options that it names."""

from __future__ import annotations

import csv
import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from gcnbatch.cli.app import app
from gcnbatch.cli.timeline import OPTION
from gcnbatch.tuning import page
from tests.site.pages import ROOT, SERVED, blocks, commands_in_text, run
from tests.training.runs import lighten

DOCS = ROOT / "docs"
ELSEWHERE = {
    "INSTALL_CUDA.md": "needs a toolkit or a driver; .ci/build_pycuda runs its steps",
    "CLUSTER.md": "needs an MPI library; tests/ranks runs its commands",
    "ONE_STEP.md": "needs a GPU; tests/backends/cuda/test_one_step.py runs its step",
    "ARCHITECTURE.md": "tests/test_adding_a_backend.py follows its recipe, tests/test_pages.py its map",
    "FUSION.md": "has no blocks",
    "TIMELINE.md": "tests/cli/test_timeline.py runs such a command: the program takes the option before its commands",
    "TASKS.md": "has no blocks",
    "kernels.md": "has no blocks",
}
TUTORIALS = sorted(page.name for page in (DOCS / "tutorials").glob("*.md"))
PAGES = ["index.md", "FILES.md", "MOLECULES.md", "TUNE.md", *(f"tutorials/{name}" for name in TUTORIALS)]
LONG = dict.fromkeys(
    ("MOLECULES.md", *(f"tutorials/{name}.md" for name in ("own_table", "select", "several_gpus", "trust"))),
    pytest.mark.slow,
)
WRITTEN = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tables that the first tutorial makes, and those that the guide on molecules names."""
    for library in ("rdkit", "pyarrow", "optuna", "tensorboardX"):
        pytest.importorskip(library, reason=f"{library} is not installed (the extra 'test')")
    folder = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(next(block for block in blocks(DOCS / "tutorials" / "own_table.md") if block.language == "python"), {})
    header, *rows = (folder / "assay.csv").read_text(encoding="utf-8").splitlines()
    (folder / "assay.csv").write_text("\n".join([header, *rows[::3]]) + "\n", encoding="utf-8")  # quicker
    return folder


@pytest.fixture
def place(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with the tables; plots, which have their own tests, are skipped."""
    shutil.copytree(tables, tmp_path / "page")
    monkeypatch.chdir(tmp_path / "page")
    lighten(monkeypatch)
    monkeypatch.setattr(page, "render", lambda *about: "")
    return tmp_path / "page"


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, ())) for name in PAGES])
def test_every_block_of_a_page_runs(name: str, place: Path) -> None:
    PREPARED.get(name, lambda folder: None)(place)
    names: dict[str, Any] = {"__name__": "page"}
    try:
        for block in blocks(DOCS / name):
            run(block, names)
    finally:
        if SERVED in names:
            process, _ = names[SERVED]
            process.terminate()
            process.communicate()


def prepare_molecules(folder: Path) -> None:
    """Write the files that the guide on molecules takes for granted."""
    from rdkit.Chem import MolFromSmiles, SDWriter

    from gcnbatch import import_smiles

    with (folder / "assay.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (folder / "assay.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["compound_id", "smiles", "hit"])
        table.writerows([row["id"], row["smiles"], row["hit"]] for row in rows)
    with (folder / "split.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["compound_id", "split"])
        parts = ("train", "train", "train", "valid", "test")
        table.writerows([row["id"], parts[at % 5]] for at, row in enumerate(rows))
    text = (folder / "library.csv").read_bytes()
    (folder / "library.csv.gz").write_bytes(gzip.compress(text))
    (folder / "library").mkdir()
    (folder / "library" / "part1.csv").write_bytes(text)
    (folder / "hits.smi").write_text("".join(f"{row['smiles']} {row['id']}\n" for row in rows[:2]), encoding="utf-8")
    (folder / "library.smi").write_text("".join(f"{row['smiles']} {row['id']}\n" for row in rows[:3]), encoding="utf-8")
    import_smiles(folder / "assay.csv", folder / "tox21.h5", target_columns=["hit"])
    with SDWriter(str(folder / "library.sdf")) as writer:
        for row in rows[:20]:
            writer.write(MolFromSmiles(row["smiles"]))


def prepare_search(folder: Path) -> None:
    """Write a small data set of the name that the guide on searching takes."""
    from gcnbatch.data import synthetic

    synthetic.write("tox21", folder / "tox21.h5", graphs=60)


COMMANDS = get_command(app)
PREPARED = {"MOLECULES.md": prepare_molecules, "TUNE.md": prepare_search}


def test_every_page_is_run_here_or_elsewhere() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages == {*PAGES, *ELSEWHERE, *(f"reference/{name}.md" for name in ("commands", "configuration", "python"))}


def options_of(words: list[str]) -> tuple[set[str], list[str]]:
    """Return the options that a command has, and its name and arguments; Typer's groups are walked."""
    command, at = COMMANDS, 1
    while at < len(words) and words[at] in getattr(command, "commands", {}):
        command, at = command.commands[words[at]], at + 1
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return known | {"--help", "-h", OPTION}, words[at:]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_have_the_options_that_they_name(page: Path) -> None:
    for words in commands_in_text(page):
        known, rest = options_of(words)
        named = [word.partition("=")[0] for word in rest if word.startswith("-") and word.strip("-")]
        assert set(named) <= known, (words, set(named) - known)
