"""docs/ONE_STEP.md: its names exist in the tree, and its launches are those of a step on the stand-in for PyCUDA.

The names of docs/FUSION.md exist, too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.runtime import device as devices
from gcnbatch.backends.cuda.spmm import table as spmm_table
from gcnbatch.backends.cuda.spmm.kernels import CANDIDATES
from gcnbatch.backends.ops import Ops
from gcnbatch.config import CudaConfig, resolve
from gcnbatch.config_tree import read_toml
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.writer import write_graphset
from gcnbatch.lab.backend_comparison.workload import Workload, opened
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.layers import Layer
from gcnbatch.reference.composed import ComposedOps
from gcnbatch.runners.choice import make_runner
from tests.backends.cuda.conftest import package_sources
from tests.backends.cuda.fake_pycuda import Fake
from tests.builders import build_graphset

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "ONE_STEP.md").read_text(encoding="utf-8")
FUSION = (ROOT / "docs" / "FUSION.md").read_text(encoding="utf-8")
NAMED = re.compile(r"\b((?:gcnbatch|cuda_src|configs|tests|docs)/[\w./]*\w)(?:::([\w.]+\w))?")
NAMES = sorted({*NAMED.findall(PAGE), *NAMED.findall(FUSION)})

AFTER_LAYERS = {"sigmoid_cross_entropy": "loss", "adam_step": "update"}  # operations between the layers: their phases
GRAPHS, ATOMS, FEATURES, NEIGHBOURS, TASKS = 50, 19, 75, 3, 12

# ---- names


@cache
def definitions(path: Path) -> frozenset[str]:
    """Return the names that a file defines: functions, classes, methods and variables in Python, kernels in CUDA."""
    if path.suffix == ".py":
        return frozenset(names_in(ast.parse(path.read_text(encoding="utf-8"))))
    entries = package_sources().entries.values()
    return frozenset(entry.name for entry in entries if entry.file == str(path.relative_to(ROOT / "cuda_src")))


def names_in(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names_in(node, f"{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def places_of(name: str) -> list[str]:
    """Return the files that define a name, and names with the same end: candidates for a moved definition."""
    last = name.rpartition(".")[2]
    files = [*ROOT.glob("gcnbatch/**/*.py"), *ROOT.glob("cuda_src/**/*.cu")]
    found = ((path, one) for path in files for one in definitions(path) if one.rpartition(".")[2] == last)
    return [f"{path.relative_to(ROOT)}::{one}" for path, one in found]


@pytest.mark.parametrize(("file", "name"), NAMES, ids=lambda part: part)
def test_the_pages_name_what_is_in_the_tree(file: str, name: str) -> None:
    path = ROOT / file
    assert path.exists(), f"{file} is not there; {name} is in {places_of(name)}"
    assert not name or name in definitions(path), f"{file} does not define {name}; it is in {places_of(name)}"


def test_the_check_of_names_finds_moved_names() -> None:
    assert "CohortLoop.train" in definitions(ROOT / "gcnbatch/training/loop.py")
    assert "CohortLoop.trains" not in definitions(ROOT / "gcnbatch/training/loop.py")
    assert places_of("spmm_naive_batched") == ["cuda_src/spmm/naive.cu::spmm_naive_batched"]
    assert {"gcnbatch/training/loop.py::CohortLoop.train"} <= set(places_of("Other.train"))


# ---- launches


class Row(NamedTuple):
    """A launch: a row of the page's table, or one recorded by the stand-in."""

    phase: str
    layer: str
    operation: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]


class Trail:
    """Logs the present layer and operation of the runner among the calls of the stand-in."""

    def __init__(self, machine: Fake) -> None:
        self._machine = machine
        self.at("gather", "", "")

    def at(self, phase: str, layer: str, operation: str) -> None:
        self.phase, self.layer = phase, layer
        self._machine.calls.append(("at", phase, layer, operation))

    def rows(self) -> Iterator[Row]:
        here: tuple[str, ...] = ()
        for name, *about in self._machine.calls:
            if name == "at":
                here = tuple(about)
            else:
                assert name == "launch", "a step neither copies nor waits"
                yield Row(*here, about[0], *map(tuple, about[1:3]))  # type: ignore[call-arg, arg-type]


class TracedOps(ComposedOps):
    """Operations that log their calls in a `Trail`."""

    def __init__(self, ops: Ops, trail: Trail) -> None:
        self._ops, self._trail = ops, trail

    def __getattr__(self, name: str) -> Any:
        def operation(*arguments: Any, **keywords: Any) -> Any:
            phase = AFTER_LAYERS.get(name)
            self._trail.at(*((phase, "") if phase else (self._trail.phase, self._trail.layer)), name)
            return getattr(self._ops, name)(*arguments, **keywords)

        return operation


class TracedLayer:
    """A layer that logs its calls in a `Trail`."""

    def __init__(self, layer: Layer, trail: Trail) -> None:
        self._layer, self._trail, self.name, self.specs = layer, trail, layer.name, layer.specs

    def forward(self, *arguments: Any) -> Any:
        self._trail.at("forward", self.name, "")
        return self._layer.forward(*arguments)

    def backward(self, *arguments: Any, **keywords: Any) -> Any:
        self._trail.at("backward", self.name, "")
        return self._layer.backward(*arguments, **keywords)


def molecules() -> GraphSet:
    """Return enough rings of atoms for one training batch, with the features of Tox21."""
    number = 2 * GRAPHS
    drawn = build_graphset(
        number, n_features=FEATURES, n_channels=1, features="uint8", n_tasks=TASKS, max_nodes=ATOMS, missing=0.1
    )
    node_ptr, atom = np.arange(number + 1) * ATOMS, np.arange(number * ATOMS * NEIGHBOURS) // NEIGHBOURS % ATOMS
    beside = np.arange(len(atom)) % NEIGHBOURS - 1
    x = np.random.default_rng(0).integers(0, 2, (number * ATOMS, FEATURES)).astype(np.uint8)
    edges = {"src": (atom + beside) % ATOMS, "dst": atom}
    edges = {name: values.astype(np.int32) for name, values in edges.items()}
    channel = np.zeros(len(atom), np.uint8)
    return replace(drawn, node_ptr=node_ptr, edge_ptr=NEIGHBOURS * node_ptr, channel=channel, x=x, **edges)


@pytest.fixture
def tox21(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workload]:
    """Return a workload of the shipped configuration on graphs like Tox21's."""
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    spmm_table.load.cache_clear()
    write_graphset(tmp_path / "tox21.h5", molecules())
    tree = read_toml(ROOT / "configs" / "tox21.toml") | {"data": {"path": str(tmp_path / "tox21.h5")}}
    with opened(resolve(tree)) as work:
        yield work
    spmm_table.load.cache_clear()


def recorded(machine: Fake, name: str, work: Workload) -> list[Row]:
    """Return the launches of a step on a backend, after a first step that makes all one-time allocations."""
    backend, trail = CudaBackend(name, devices._open[0], CudaConfig()), Trail(machine)
    backend.ops = TracedOps(backend.ops, trail)
    task = replace(work.task, model=Gcn(tuple(TracedLayer(layer, trail) for layer in work.task.model.layers)))
    runner = make_runner(backend, [task])
    for epoch in range(2):
        machine.calls.clear()
        runner.begin_epoch([MemberEpoch(epoch, work.batches, 1e-3)])
        assert len(machine.named("upload")) == 1, "the plan of an epoch is one copy"
        machine.calls.clear()
        trail.at("gather", "", "")
        runner.step(0)
    return list(trail.rows())


def listed() -> list[Row]:
    """Return the page's table of launches."""
    rows = []
    for line in PAGE.splitlines():
        if re.match(r"\| \d+ \|", line):
            _, phase, layer, operation, kernel, grid, block, _ = (part.strip() for part in line.strip("|").split("|"))
            sizes = ([*map(int, text.split(" x ")), 1, 1][:3] for text in (grid, block))
            rows.append(Row(phase, layer, operation, kernel.strip("`").partition("::")[2], *map(tuple, sizes)))
    return rows


def test_the_page_lists_the_launches_of_a_step(machine: Fake, tox21: Workload) -> None:
    rows = recorded(machine, "batched", tox21)
    assert listed() == rows
    assert re.findall(r"These are the (\d+) launches", PAGE) == [str(len(rows))]
    figure = re.findall(r"^ +(\w+) +(\d+) launch", PAGE, flags=re.MULTILINE)
    counts = {phase: int(count) for phase, count in figure}
    assert counts == Counter(row.phase for row in rows)
    numbered = re.findall(r"^### (\w+) \((\d+)(?: to (\d+))?\)", PAGE, flags=re.MULTILINE)
    assert {phase.lower(): int(last or first) - int(first) + 1 for phase, first, last in numbered} == counts


def test_the_page_has_the_sizes_of_its_step(tox21: Workload) -> None:
    parameters = tox21.task.model.layout().count()
    assert len(tox21.batches[0]) == GRAPHS
    for size in (
        f"{GRAPHS} graphs of {ATOMS} atoms: {GRAPHS * ATOMS} nodes",
        f"{GRAPHS * ATOMS * NEIGHBOURS:,} entries",
        f"F = {FEATURES} features",
        f"K = {TASKS} outputs",
        f"{parameters:,} parameters",
    ):
        assert size in PAGE.replace("\n", " "), size


def test_the_page_has_the_number_of_launches_of_nonbatched(machine: Fake, tox21: Workload) -> None:
    batched, each = (len(recorded(machine, name, tox21)) for name in ("batched", "nonbatched"))
    assert re.findall(r"takes (\d+) launches instead of (\d+)", PAGE) == [(str(each), str(batched))]


def test_the_page_names_the_spmm_kernel_of_the_table(tox21: Workload) -> None:
    table = spmm_table.load("Fake 90", frozenset(CANDIDATES))
    nodes = GRAPHS * ATOMS
    assert f"give `{spmm_table.choose(table, nodes, NEIGHBOURS * nodes, 64, GRAPHS, 4)}`" in PAGE
