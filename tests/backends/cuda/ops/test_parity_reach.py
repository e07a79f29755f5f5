"""Launches of the op parity tests, recorded on the stand-in for PyCUDA: every kernel, on batches of several graphs."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.runtime.launch import thread_per_output
from gcnbatch.backends.cuda.spmm import geometry
from tests.backends.cuda.conftest import package_sources
from tests.backends.cuda.fake_pycuda import Fake
from tests.ops import adapters, test_matmul
from tests.ops.adapters import CUDA, FORMS, Adapter
from tests.ops.cases import CASES, LARGE_CASES, Case
from tests.ops.catalogue import DENSE, OF_SIZES
from tests.ops.parity import evaluate

SOURCES = package_sources()
DENSE_NAMES = ("matmul", "sparse_matmul", "bias", "batch_norm", "relu", "dropout", "loss", "optimizer")
DENSE_NAMES += ("add", "concatenate", "layer_norm", "maximum", "relu_dropout", "take")
DENSE_FILES = {"graph/readout.cu", "graph/join.cu", "spmm/sddmm.cu", *(f"dense/{name}.cu" for name in DENSE_NAMES)}
CHANNELS = next(case for case in CASES if case.name == "four channels")
B, C = len(CHANNELS.sizes), CHANNELS.C
EACH = B * C  # launches of a loop over graphs and channels


@pytest.fixture(autouse=True)
def _nothing_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the check for a compiler, because the stand-in's kernels need none."""
    monkeypatch.setattr(adapters, "open_backend", lambda name: None)


def zeros(adapter: Adapter, *shape: int) -> Any:
    return adapter.upload(np.zeros(shape, np.float32))


def multiply(adapter: Adapter, case: Case) -> None:
    """Multiply with the case's adjacency and with its transpose."""
    graphs = adapter.form(case.adjacency(case.rng())).map(adapter.upload)
    adapter.ops.spmm(graphs, zeros(adapter, case.N, case.columns))
    adapter.ops.spmm_backward(graphs, zeros(adapter, case.N, case.P))


def launched(machine: Fake) -> set[str]:
    """Return the kernels launched since the last call."""
    found = {name for name, *_ in machine.named("launch")}
    machine.calls.clear()
    return found


@pytest.mark.slow  # it is about the tests of operations alone
def test_operations_other_than_spmm_launch_the_same_kernels_with_every_spmm(machine: Fake) -> None:
    """So their tests run with one SpMM kernel per backend; together they reach every kernel."""
    reached: dict[str, set[str]] = {}
    problems = [*OF_SIZES.values(), *(make(case) for make in DENSE.values() for case in CASES)]
    for name, (form, spmm) in CUDA.items():
        adapter = adapters.open_cuda(form, spmm)
        for problem in problems:
            evaluate(adapter, problem, np.float32)
        reached[name] = launched(machine)
    for name, (form, _) in CUDA.items():
        assert reached[name] == reached[form], name
    kernels = {name for name, entry in SOURCES.entries.items() if entry.file in DENSE_FILES and "tf32" not in name}
    assert set().union(*(reached[form] for form in FORMS)) == kernels


def test_parity_runs_every_spmm_kernel_on_several_graphs(machine: Fake) -> None:
    for name in CUDA.values():
        adapter = adapters.open_cuda(*name)
        for case in (*CASES, *LARGE_CASES):
            if len(case.sizes) > 1:
                multiply(adapter, case)
    files = ("spmm/coo.cu", "spmm/csr.cu", "spmm/naive.cu")
    kernels = {name for name, entry in SOURCES.entries.items() if entry.file in files}
    assert kernels <= {name for name, *_ in machine.named("launch")}


@pytest.mark.parametrize(
    ("name", "kernel", "launches"),
    [
        ("batched", "spmm_csr_float1", 2),
        ("batched-naive", "spmm_naive_batched", 2),
        ("batched-swa_csr", "spmm_swa_csr_batched", 2),
        ("batched-swa_coo", "spmm_swa_coo_batched", 2),
        ("nonbatched", "spmm_csr_float1", 2 * EACH),
        ("nonbatched-naive", "spmm_naive_graph", 2 * EACH),
        ("nonbatched-swa_csr", "spmm_swa_csr_graph", 2 * EACH),
        ("nonbatched-swa_coo", "spmm_swa_coo_graph", 2 * EACH),
    ],
)
def test_a_batch_is_one_launch_or_one_per_graph_and_channel(
    machine: Fake, name: str, kernel: str, launches: int
) -> None:
    multiply(adapters.open_cuda(*CUDA[name]), CHANNELS)
    assert [entry for entry, *_ in machine.named("launch")] == [kernel] * launches


@pytest.mark.parametrize("spmm", ["swa_csr", "swa_coo"])
def test_published_kernels_have_blocks_for_every_graph_of_a_batch(machine: Fake, spmm: str) -> None:
    multiply(adapters.open_cuda("batched", spmm), CHANNELS)
    rows, width = max(CHANNELS.sizes), CHANNELS.P
    alone = {
        "swa_csr": [geometry.swa_csr(1, n, width) for n in (rows, C * rows)],
        "swa_coo": [geometry.swa_coo(1, n, 1, width) for n in (rows, C * rows)],
    }
    assert [grid for _, grid, *_ in machine.named("launch")] == [
        (B * of_one.launch.grid[0], *of_one.launch.grid[1:]) for of_one in alone[spmm]
    ]


def test_dense_products_of_a_convolution_loop_over_graphs_and_channels(machine: Fake) -> None:
    adapter, case = adapters.open_cuda(*CUDA["nonbatched"]), CHANNELS
    graphs = adapter.form(case.adjacency(case.rng())).map(adapter.upload)
    x, w, b = (zeros(adapter, *shape) for shape in ((case.N, case.F), (case.F, case.columns), (case.columns,)))
    adapter.ops.linear_backward(adapter.ops.linear(x, w, b, graphs), x, w, graphs=graphs)
    launched = Counter(re.sub(r"matmul_\d+x\d+_", "", entry) for entry, *_ in machine.named("launch"))
    assert launched == {"forward": EACH, "bias_add_forward": EACH, "dgrad": B, "wgrad": EACH, "bias_add_backward": EACH}


def test_naive_matmul_launches_a_thread_per_output(machine: Fake) -> None:
    case = next(case for case in CASES if case.N > 32)
    evaluate(adapters.open_naive_matmul(), test_matmul.dense(case, convolution=False), np.float32)
    results = {"forward": (case.N, case.P), "dgrad": (case.N, case.F), "wgrad": (case.F, case.P)}
    found = {entry.removeprefix("matmul_naive_"): grid for entry, grid, *_ in machine.named("launch")}
    assert found == {name: thread_per_output(*shape).grid for name, shape in results.items()}


def test_large_cases_have_the_sizes_in_their_names() -> None:
    parts, rows, wide = LARGE_CASES
    for per_node in (1, parts.C):
        found = geometry.swa_coo(len(parts.sizes), per_node * max(parts.sizes), 1, parts.P)
        last = (1 << found.partition_bits) - 1
        assert (found.case, last * found.column_block >= parts.P) == (2, True)
    assert geometry.swa_coo(len(rows.sizes), max(rows.sizes), 1, rows.P).case == 3
    assert geometry.swa_csr(len(wide.sizes), max(wide.sizes), wide.P).launch.grid[1] > 1
