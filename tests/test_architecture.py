"""The house keeps its order: imports point downwards, and nothing but the CUDA backends needs CUDA."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.train.runs import environment

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gcnbatch"

# From the ground up; a part may import itself and the parts of floors below.
FLOORS = (
    ("errors",),
    ("fileio", "philox", "resources", "worker"),
    ("config", "environment", "figures"),
    ("data",),
    ("predictions", "reference"),
    ("backends",),
    ("model",),
    ("train",),
    ("infer", "bench"),
    ("compare",),
    ("cli",),
    ("__main__",),
)
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the package that a module imports anywhere but for type checking alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "gcnbatch":
                yield from (f"gcnbatch.{alias.name}" for alias in node.names if alias.name != "__version__")
            elif node.module is not None:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from imported(node)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_every_module_has_its_floor() -> None:
    assert {part_of(path) for path in MODULES} <= set(FLOOR)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    own = part_of(path)
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        package, _, rest = name.partition(".")
        if package == "gcnbatch" and rest:
            other = rest.partition(".")[0]
            assert other == own or FLOOR[other] < FLOOR[own], f"{own} imports {name}"


@pytest.mark.parametrize("library", ["pycuda", "cuda"])
def test_only_the_cuda_backends_name_cuda(library: str) -> None:
    for path in MODULES:
        names = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
        if any(name.partition(".")[0] == library for name in names):
            assert PACKAGE / "backends" / "cuda" in path.parents, path


def test_importing_everything_else_imports_no_cuda() -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES]
    others = [name for name in names if ".cuda" not in name and not name.endswith("__main__")]
    if find_spec("numba") is None:
        others.remove("gcnbatch.backends.compiled")  # needs the extra `fast`
    text = f"""
import importlib, sys
for name in {others!r}:
    importlib.import_module(name.removesuffix(".__init__"))
print([name for name in sys.modules if name.partition(".")[0] in ("pycuda", "cuda")])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(), check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
