"""Pages that describe the tree agree with it: the map, the reading order of the kernels, and every link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.resources import cuda_sources

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "cuda_src"
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
KERNELS_README = (KERNELS / "README.md").read_text(encoding="utf-8")
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("benchmarks", "cuda_src", "datasets", "docs") for page in ROOT.glob(f"{folder}/**/*.md")),
]


def section(page: str, heading: str) -> str:
    """Return the text of a page below a heading."""
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def mapped() -> Iterator[Path]:
    """Yield the paths of the map: the parent of a name is the last one with less indentation."""
    above: list[tuple[int, Path]] = [(-1, ROOT)]
    for line in section(ARCHITECTURE, "The tree").split("```")[1].splitlines():
        if found := re.match(r"( *)(\S+)  ", line):
            depth = len(found[1])
            above = [(known, path) for known, path in above if known < depth]
            above.append((depth, above[-1][1] / found[2]))
            yield above[-1][1]


def test_the_map_matches_the_tree() -> None:
    paths = list(mapped())
    assert [path for path in paths if not path.exists()] == []
    folders = {
        path for place in ("gcnbatch", "cuda_src", "gcnbatch/backends/cuda") for path in (ROOT / place).iterdir()
    }
    sources = {path for path in folders if any(path.rglob("*.py")) or any(path.rglob("*.cu*"))}
    missing = sources - set(paths)
    assert missing == set(), "the map leaves out folders"


def test_every_kernel_file_is_in_the_reading_order() -> None:
    listed = re.findall(r"`([\w/]+\.cu)`", "\n".join(rows_of(section(KERNELS_README, "Read in this order"))))
    sources = [str(path.relative_to(KERNELS)) for path in KERNELS.rglob("*.cu")]
    assert sorted(listed) == sorted(sources)
    rungs = ("dense/relu.cu", "dense/bias.cu", "graph/readout.cu", "spmm/naive.cu", "dense/matmul_naive.cu")
    assert listed[: len(rungs)] == list(rungs)


def test_every_header_that_kernels_of_several_files_share_is_listed() -> None:
    listed = re.findall(r"`([\w/]+\.cuh)`", section(KERNELS_README, "Read in this order"))
    headers = {str(path.relative_to(KERNELS)) for path in KERNELS.rglob("*.cuh")}
    assert sorted(listed) == sorted(header for header in headers if not header.startswith("fused/"))


def test_every_folder_of_kernels_is_described() -> None:
    listed = [row.split("`")[1].rstrip("/") for row in rows_of(section(KERNELS_README, "Folders"))]
    folders = {path.parent for path in KERNELS.rglob("*.cu*")} | {KERNELS / "fused"}
    assert sorted(listed) == sorted(str(folder.relative_to(KERNELS)) for folder in folders)


def test_kernels_of_fused_steps_are_where_the_table_says() -> None:
    table = section(KERNELS_README, "Find a kernel of a fused step")
    entries = Sources(cuda_sources()).entries
    names = re.findall(r"`((?:fused|kipf)_\w+)(…?)`", table)
    assert len(names) > 10
    for name, more in names:
        assert [entry for entry in entries if entry == name or (more and entry.startswith(name))], name
    for file in re.findall(r"`(fused/\w+/\w+\.cu)`", table):
        assert (KERNELS / file).is_file(), file
    for row, place in (("launches", "gcnbatch/backends/cuda"), ("tests", "tests/backends/cuda")):
        cells = next(line for line in rows_of(table) if line.startswith(f"| {row}"))
        assert [path for path in re.findall(r"`(.+?)`", cells) if not (ROOT / place / path).exists()] == []


@pytest.mark.parametrize("page", ["docs/ARCHITECTURE.md", "CONTRIBUTING.md", "cuda_src/README.md"])
def test_paths_in_the_text_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    places = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    folders = "|".join(name for name in places if name != "runs")  # results of commands that ran here
    named = re.findall(rf"`((?:{folders})/[\w./]*)`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def rows_of(text: str) -> list[str]:
    """Return the rows of a table, without its header."""
    return [line for line in text.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "`code`", page.read_text(encoding="utf-8"))  # a SMILES looks like a link
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link or link.startswith("mailto:"):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings on GitHub."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
