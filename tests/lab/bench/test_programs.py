"""The programs in ``benchmarks`` import names that exist: most of them need a GPU, and no test runs them."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parents[3] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_names_that_a_benchmark_imports_exist(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(program.parent)  # as of a program that Python runs
    tree = ast.parse(program.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {
        (of.module, alias.name)
        for of in imports
        if of.module and of.module.startswith(("gcnbatch", "shared"))
        for alias in of.names
    }
    missing = [
        f"{module}.{name}"
        for module, name in sorted(names)
        if not hasattr(import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]
    assert not missing
