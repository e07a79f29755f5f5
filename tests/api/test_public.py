"""What `import gcnbatch` offers: one list, imported on first use."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import gcnbatch
from gcnbatch.cli.app import app
from tests.training.runs import environment

STARTED = """
import json, sys, time
before, began = set(sys.modules), time.process_time()
import gcnbatch
print(json.dumps([time.process_time() - began, sorted({name.partition(".")[0] for name in set(sys.modules) - before})]))
"""


def test_importing_the_package_takes_no_time_and_no_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED], capture_output=True, text=True, env=environment(), check=True
    )
    seconds, modules = json.loads(done.stdout)
    assert seconds < 0.15
    assert not {"numpy", "scipy", "sklearn", "pydantic", "h5py", "rdkit", "pycuda", "cuda", "starlette"} & set(modules)


def test_type_checkers_see_every_name_as_exported() -> None:
    tree = ast.parse(Path(str(gcnbatch.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
    names = [name for line in ast.walk(tree) if isinstance(line, ast.ImportFrom) for name in line.names]
    assert [name.asname for name in names] == list(gcnbatch.PUBLIC)  # a stub exports what it imports under a name


@pytest.mark.parametrize("name", gcnbatch.PUBLIC)
def test_a_public_name_is_documented_where_the_list_says(name: str) -> None:
    found = getattr(gcnbatch, name)
    assert found.__module__ == gcnbatch.PUBLIC[name]
    assert inspect.getdoc(found)
    assert name in dir(gcnbatch)
    if inspect.isfunction(found):
        assert ">>> " in str(found.__doc__)
        signature = inspect.signature(found)
        hints = [parameter.annotation for parameter in signature.parameters.values()]
        assert inspect.Signature.empty not in (*hints, signature.return_annotation)


def test_what_a_public_function_returns_is_public() -> None:
    returned = set()
    for name in gcnbatch.PUBLIC:
        if inspect.isfunction(found := getattr(gcnbatch, name)):
            returned |= set(re.findall(r"\b[A-Z]\w+", str(inspect.signature(found).return_annotation))) - {
                "Any",
                "None",
                "Path",
            }
    assert returned <= set(gcnbatch.PUBLIC)


FUNCTIONS = {
    "train": ("train", "resume"),
    "compare-runs": ("compare_runs",),
    "compare-backends": ("compare_backends",),
    "select": ("select", "campaign"),
    "data info": ("describe",),
    "data split": ("add_splits",),
    **{f"data {name}": (name,) for name in ("check", "synth", "khop", "shard")},
    **{f"data import {kind}": (f"import_{kind}",) for kind in ("smiles", "csv", "planetoid", "tudataset", "ogb")},
    **{f"bench {name}": (f"bench_{name}",) for name in ("spmm", "spgemm", "tune")},
    **{f"benchmark {name}": (name,) for name in ("moleculenet", "moleculeace", "admet")},
    **{f"kernels {name}": (f"{name}_kernels",) for name in ("build", "list", "clear")},
    **{name: (name,) for name in ("infer", "tune", "baseline", "explain", "serve", "report", "info")},
    **{name: (name,) for name in ("embed", "export", "card")},
}


def commands() -> dict[str, Any]:
    """Return the function of every command, by its words."""
    found, groups = {}, [("", get_command(app))]
    while groups:
        path, group = groups.pop()
        for name, inner in group.commands.items():
            if hasattr(inner, "commands"):
                groups.append((f"{path}{name} ", inner))
            else:
                found[f"{path}{name}"] = inspect.unwrap(inner.callback)
    return found


def test_every_command_calls_its_public_function() -> None:
    found = commands()
    assert set(found) == set(FUNCTIONS)
    assert {name for names in FUNCTIONS.values() for name in names} <= set(gcnbatch.PUBLIC)
    for command, names in FUNCTIONS.items():
        tree = ast.parse(textwrap.dedent(inspect.getsource(found[command])))
        called = {ast.unparse(call.func).rpartition(".")[2] for call in ast.walk(tree) if isinstance(call, ast.Call)}
        places = {line.module for line in ast.walk(tree) if isinstance(line, ast.ImportFrom)}
        modules = {
            f"{line.module}.{name.name}"
            for line in ast.walk(tree)
            if isinstance(line, ast.ImportFrom)
            for name in line.names
        }
        for name in names:
            assert name in called, command
            assert gcnbatch.PUBLIC[name] in places | modules, command


@pytest.mark.parametrize("name", gcnbatch.PUBLIC)
def test_no_module_has_the_name_of_something_public(name: str) -> None:
    assert find_spec(f"gcnbatch.{name}") is None  # else its import would replace the function


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gcnbatch' has no attribute 'trani'"):
        _ = gcnbatch.trani
