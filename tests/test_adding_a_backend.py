"""The recipe "Add a backend" of ARCHITECTURE.md: its code, as printed, becomes a backend that every command knows."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from gcnbatch import backends
from gcnbatch.backends import registry
from gcnbatch.reference import ReferenceOps
from tests.entries import register
from tests.ops.adapters import host_adapters
from tests.training.runs import options, write_set

PAGE = Path(__file__).parents[1] / "docs" / "ARCHITECTURE.md"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write both code blocks of the page to the files that it names."""
    recipe = PAGE.read_text(encoding="utf-8").partition("\n## Add a backend\n")[2].partition("\n## ")[0]
    module, entry = (textwrap.dedent(code) for code in re.findall(r" *```python\n(.*?) *```", recipe, re.DOTALL))
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "toy.py").write_text(module, encoding="utf-8")
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path / "backends")])
    monkeypatch.delitem(sys.modules, "gcnbatch.backends.toy", raising=False)
    register(monkeypatch, *registry.BACKENDS[:-1], eval(entry, vars(registry)), registry.BACKENDS[-1])


@pytest.fixture
def call(command):
    return command


@pytest.mark.usefixtures("light")
def test_every_command_knows_the_new_backend(toy: None, call, tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5")
    data = ("--data", tmp_path / "data.h5", *options("train.epochs=1"))
    code, out, err = call("train", *data, "--backend", "toy", "--json", "-o", tmp_path / "run")
    assert (code, json.loads(out)["backend"]) == (0, "toy"), err
    table = ("--backend", "toy", "-o", tmp_path / "out.csv", "--json")
    code, out, err = call("infer", tmp_path / "run", tmp_path / "data.h5", *table)
    assert (code, json.loads(out)["backend"]) == (0, "toy"), err
    report = ("--quick", "--json", "-o", tmp_path / "report")
    code, out, err = call("compare-backends", *data, "--backends", "cpu,toy", *report)
    assert code == 0, err
    assert [one["name"] for one in json.loads(out)["backends"] if one["ready"]] == ["cpu", "toy"]
    assert json.loads(out)["operations"]["toy"]
    assert "toy         ready: NumPy, once more" in call("info")[1].splitlines()
    assert "'cpu', 'toy', 'nonbatched'" in call("train", *data, "--backend", "tow")[2]


@pytest.mark.usefixtures("light")
def test_auto_finds_the_new_backend(toy: None, call, tmp_path: Path) -> None:
    if registry.entry("batched").probe().ready:
        pytest.skip("a GPU's backends come before it")
    write_set(tmp_path / "data.h5")
    data = ("--data", tmp_path / "data.h5", *options("train.epochs=1"))
    assert json.loads(call("train", *data, "--json", "-o", tmp_path / "run")[1])["backend"] == "toy"


def test_the_parity_tests_include_the_new_backend(toy: None) -> None:
    adapter, reference = host_adapters()["toy"](), ReferenceOps()
    assert type(adapter.ops).__name__ == "ToyOps"
    x = np.array([[-1.5, 0.0], [2.0, np.nan]], np.float32)
    found = adapter.download(adapter.ops.relu(adapter.upload(x)))
    np.testing.assert_array_equal(found, reference.relu(x))
