"""Architecture: imports point downwards and have no cycles, and only the CUDA backends need CUDA."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from gcnbatch.backends import registry
from gcnbatch.cli import app
from tests.training.runs import environment

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gcnbatch"

PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")


def section(heading: str) -> list[str]:
    """Return the lines of the page below a heading."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines()


def names_in(text: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", text)


# The rules stand in the page: rooms with their arrows, and below them the modules of the base in floors.
ARROWS = {
    names_in(cells[1])[0]: set(names_in(cells[3]))
    for cells in (line.split("|") for line in section("Rooms"))
    if len(cells) == 5 and names_in(cells[1])
}
BASE = re.split(r"^\d+\. ", "\n".join(section("The base")), flags=re.MULTILINE)[1:]
FLOOR = {name: number for number, floor in enumerate(BASE) for name in names_in(floor)}
ARROWS["__main__"] = {"cli"}  # the program
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
KNOW_BACKENDS = ("backends", "backends.registry", "runners")


def module_of(path: Path) -> str:
    """Return the dotted path of a module below the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


NAMES = {f"gcnbatch.{module_of(path)}" for path in MODULES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the package that a module imports anywhere, except for type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "gcnbatch":
                yield from (f"gcnbatch.{alias.name}" for alias in node.names if alias.name != "__version__")
            elif node.module is not None:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                yield from (names & NAMES) or {node.module}
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from imported(node)


def module_graph(package: Path) -> dict[str, set[str]]:
    """Return the modules of `package` that each of its modules imports, including imports in functions and for types.

    ``from a import b`` imports ``a.b`` if that is a module, else ``a``. A parent package (``a`` for ``a.b``) is not an
    edge.
    """
    paths = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        named: set[str] = set()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {part if part in paths else str(node.module) for part in inner}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        graph[name] = named & paths.keys()
    return graph


def shortest_cycles(graph: Mapping[str, set[str]]) -> set[tuple[str, ...]]:
    """Return a shortest cycle through each module that is on one; each cycle once, beginning with its smallest name."""
    found = set()
    for start in graph:
        ways = deque([(start,)])
        seen: set[str] = set()
        while ways:
            way = ways.popleft()
            if start in graph[way[-1]]:
                least = way.index(min(way))
                found.add(way[least:] + way[:least])
                break
            news = sorted(graph[way[-1]] - seen)
            seen.update(news)
            ways.extend((*way, name) for name in news)
    return found


def part_of(module: str) -> str:
    """Return the part that a module belongs to: itself, if it is in the base, or its room."""
    return module if module in FLOOR else module.partition(".")[0]


@cache
def imported_by(path: Path) -> tuple[str, ...]:
    """Return what `imported` yields for the module in a file."""
    return tuple(imported(tree_of(path)))


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the parts that a module imports, except its own, with the module's name."""
    for name in imported_by(path):
        package, _, rest = name.partition(".")
        if package == "gcnbatch" and rest and part_of(rest) != part_of(module_of(path)):
            yield part_of(rest), name


@cache
def below(room: str) -> frozenset[str]:
    """Return the rooms to which the arrows of a room lead."""
    return frozenset().union(*({room} | below(room) for room in ARROWS[room]))


def test_every_module_belongs_to_a_room_or_to_the_base() -> None:
    assert {part_of(module_of(path)) for path in MODULES} == {*FLOOR, *ARROWS}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_import_only_what_their_room_stands_on(path: Path) -> None:
    own = part_of(module_of(path))
    for other, name in imports_of(path):
        if own in ARROWS:
            assert other in FLOOR or other in below(own), f"{own} imports {name}"
        else:
            assert FLOOR.get(other, len(BASE)) < FLOOR[own], f"{own} imports {name}"


def test_every_arrow_between_rooms_is_needed() -> None:
    used: dict[str, set[str]] = {room: set() for room in ARROWS}
    for path in MODULES:
        if (own := part_of(module_of(path))) in ARROWS:
            used[own] |= {other for other, _ in imports_of(path) if other in ARROWS}
    for room, arrows in ARROWS.items():
        direct = {other for other in used[room] if not any(other in below(way) for way in used[room])}
        assert arrows == direct, room


def test_the_laboratory_is_imported_by_the_interface_alone() -> None:
    importers = {part_of(module_of(path)) for path in MODULES for other, _ in imports_of(path) if other == "lab"}
    assert importers <= {"api", "cli"}


def test_there_are_no_import_cycles() -> None:
    graph = module_graph(PACKAGE)
    graph["gcnbatch.cli.app"] |= {f"gcnbatch.cli.{name}" for name in app._MODULES.values()}  # imported by name
    del graph["gcnbatch"]
    cycles = shortest_cycles({module: named - {"gcnbatch"} for module, named in graph.items()})
    assert not cycles, "\n".join(" -> ".join((*cycle, cycle[0])) for cycle in sorted(cycles))


def test_cycles_through_functions_and_type_annotations_are_found(tmp_path: Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").write_text("from p import a\n")
    (package / "a.py").write_text("import p.b\nimport sys\n")
    (package / "b.py").write_text("def f():\n    from p.c import g\n")
    (package / "c.py").write_text("if TYPE_CHECKING:\n    from p import a\n")
    (package / "d.py").write_text("from p.a import x\n")
    assert shortest_cycles(module_graph(package)) == {("p.a", "p.b", "p.c")}


def backend_names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the places where a module names a single backend.

    These are names that are compared, matched or bound to a variable, alone or in a list, and opened backends that are
    declared as `Any`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue | ast.Assign | ast.AnnAssign):
            children = list(ast.iter_child_nodes(node))
            lists = [child for child in children if isinstance(child, ast.Tuple | ast.List | ast.Set)]
            for child in (*children, *(element for found in lists for element in found.elts)):
                if isinstance(child, ast.Constant) and child.value in registry.names():
                    yield f"line {node.lineno}: {child.value!r}"
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.annotation) == "Any":
            opens = re.search(r"\b(open_backend|backend_for)\b|\.open\(", ast.unparse(node.value))
            yield from [f"line {node.lineno}: {ast.unparse(node)}"] if opens else []


@pytest.mark.parametrize(
    "text",
    ['if backend.name == "fused": pass', 'x = name in ("cpu", "fused")', 'FUSED = "fused"', "b: Any = open_backend(x)"],
)
def test_the_search_for_backend_names_finds_them(text: str) -> None:
    assert list(backend_names_in(ast.parse(text)))


def test_no_module_above_the_runners_names_a_backend() -> None:
    for path in MODULES:
        if part_of(module_of(path)) not in KNOW_BACKENDS:
            assert not list(backend_names_in(tree_of(path))), path


@pytest.mark.parametrize("library", ["pycuda", "cuda"])
def test_only_the_cuda_backends_name_cuda(library: str) -> None:
    for path in MODULES:
        names = imported_by(path)
        if any(name.partition(".")[0] == library for name in names):
            assert PACKAGE / "backends" / "cuda" in path.parents, path


def test_importing_all_other_modules_imports_no_cuda_and_no_tensorboard() -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES]
    others = [name for name in names if ".cuda" not in name and not name.endswith("__main__")]
    if find_spec("numba") is None:
        others.remove("gcnbatch.backends.cpu.compiled")  # needs the extra `fast`
    text = f"""
import importlib, sys
for name in {others!r}:
    importlib.import_module(name.removesuffix(".__init__"))
print([name for name in sys.modules if name.partition(".")[0] in ("pycuda", "cuda", "tensorboardX")])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(), check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
