"""What `import gcnbatch` offers: one list, imported on first use."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gcnbatch
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
    assert not {"numpy", "scipy", "sklearn", "pydantic", "h5py", "rdkit", "pycuda", "cuda"} & set(modules)


def test_the_list_is_what_type_checkers_see() -> None:
    tree = ast.parse(Path(str(gcnbatch.__file__)).read_text(encoding="utf-8"))
    shown = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        name.asname: str(line.module)
        for line in ast.walk(shown)
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    }
    assert declared == gcnbatch.PUBLIC


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


@pytest.mark.parametrize("name", gcnbatch.PUBLIC)
def test_no_module_has_the_name_of_something_public(name: str) -> None:
    assert find_spec(f"gcnbatch.{name}") is None  # else its import would replace the function


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gcnbatch' has no attribute 'trani'"):
        _ = gcnbatch.trani
