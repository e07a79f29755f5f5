"""Methods of `bench spmm` on stand-in libraries that compute what they are asked, and absent methods."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch.backends.cuda.spmm.kernels import CANDIDATES
from gcnbatch.cli.lab import bench_spmm
from gcnbatch.data.sparse import Csr
from gcnbatch.data.writer import write_graphset
from gcnbatch.errors import BackendUnavailable, InputError
from gcnbatch.lab.bench.spmm import methods, plots, problems, runs
from gcnbatch.lab.bench.spmm.methods import Absent, Methods, NotInstalled, Operands
from gcnbatch.lab.bench.spmm.problems import BatchShape
from gcnbatch.lab.bench.vendor import CusparseSpGemm, SparseProduct, Vendor
from tests.builders import build_graphset
from tests.lab.bench.spmm.libraries import CuBlas, CuSparse, HostDevice

EQUAL = problems.random_batch(BatchShape("equal", 4, (6, 6), (1, 3)), 1)
MANY = problems.random_batch(BatchShape("many", 1001, (1, 1), (1, 1)))
WIDE = problems.random_batch(BatchShape("wide", 1, (40_000, 40_000), (1, 1)))
MIXED = problems.random_batch(BatchShape("mixed", 5, (1, 9), (1, 1)), 2)


@pytest.fixture
def cusparse(monkeypatch: pytest.MonkeyPatch) -> CuSparse:
    """Replace nvmath by stand-ins."""
    package, bindings = ModuleType("nvmath"), ModuleType("nvmath.bindings")
    bindings.cublas, bindings.cusparse = CuBlas(), CuSparse()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvmath", package)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    return bindings.cusparse


def all_methods(best: Any = min) -> Methods:
    return Methods(HostDevice(), best)  # type: ignore[arg-type]


def product(name: str, problem: problems.SpmmProblem, columns: int) -> tuple[np.ndarray, str]:
    operands = Operands(HostDevice(), problem, columns)  # type: ignore[arg-type]
    with all_methods().prepared(name, operands) as (call, choice):
        call()
    return operands.out.owner, choice


@pytest.mark.parametrize("columns", [1, 5])
@pytest.mark.parametrize(
    ("name", "problem"), [("cublas", EQUAL), ("cusparse", EQUAL), ("cusparse", MIXED), ("cusparse-loop", MIXED)]
)
def test_library_methods_compute_the_product(
    cusparse: CuSparse, name: str, problem: problems.SpmmProblem, columns: int
) -> None:
    out, choice = product(name, problem, columns)
    assert np.allclose(out, problem.matrix @ problem.dense(columns), rtol=1e-5)
    assert choice == ("" if name == "cublas" else "CSR_ALG1")
    assert not any(cusparse.held.values()), "everything was given back"
    assert cusparse.streams == [7]


def test_the_library_multiplies_sparse_matrices(cusparse: CuSparse) -> None:
    device: Any = HostDevice()
    left, right = (problems.random_batch(BatchShape("square", 1, (9, 9), (1, 4)), seed).matrix for seed in (1, 2))
    uploaded = [
        Csr(*(device.upload(part) for part in (of.indptr, of.indices, of.data)), of.shape[1]) for of in (left, right)
    ]
    found = CusparseSpGemm(Vendor(device))(*uploaded)
    arrays = found.data.owner, found.indices.owner, found.indptr.owner
    assert np.allclose(sp.csr_array(arrays, shape=(9, 9)).toarray(), (left @ right).toarray())
    assert not any(cusparse.held.values()), "everything was given back"


def test_the_fastest_supported_algorithm_is_chosen(cusparse: CuSparse) -> None:
    offered = []

    def best(calls: Any) -> str:
        offered.extend(calls)
        return "CSR_ALG2"

    with all_methods(best).prepared("cusparse", Operands(HostDevice(), EQUAL, 2)) as (_, choice):  # type: ignore[arg-type]
        assert choice == "CSR_ALG2"
    assert offered == ["CSR_ALG1", "CSR_ALG1 preprocessed", "CSR_ALG2"]


@pytest.mark.parametrize(("name", "matrices"), [("cusparse", 1), ("cusparse-loop", 5)])
def test_a_preprocessed_call_multiplies_with_the_analysis_of_its_matrices(
    cusparse: CuSparse, name: str, matrices: int
) -> None:
    operands: Any = Operands(HostDevice(), MIXED, 2)  # type: ignore[arg-type]
    with all_methods(lambda calls: "CSR_ALG1 preprocessed").prepared(name, operands) as (call, choice):
        cusparse.multiplied.clear()
        call()
    assert choice == "CSR_ALG1 preprocessed"
    assert cusparse.multiplied == [("CSR_ALG1", True)] * matrices
    assert not any(cusparse.held.values()), "everything was given back"


def test_a_library_call_moves_to_other_arrays(cusparse: CuSparse) -> None:
    device: Any = HostDevice()
    operands = Operands(device, EQUAL, 3)
    csr, size = operands.whole.forward, (*EQUAL.matrix.shape, 3, EQUAL.matrix.nnz)
    addresses = (array.ptr for array in (csr.indptr, csr.indices, csr.data, operands.dense, operands.out))
    with Vendor(device).spmm([SparseProduct(*addresses, *size)]) as calls:
        dense, out = device.upload(2 * operands.host), device.empty(operands.out.shape)
        calls["CSR_ALG2"].move(0, dense.ptr, out.ptr)
        calls["CSR_ALG2"]()
    assert np.allclose(out.owner, 2 * (EQUAL.matrix @ operands.host), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "problem", "reason"),
    [
        ("cublas", MIXED, "matrices of one size only"),
        (
            "cusparse-loop",
            MANY,
            "a loop over more than 1000 matrices",
        ),
        ("tf-loop", MANY, "a loop over more than 1000 matrices"),
        (
            "cublas",
            WIDE,
            "the matrices take more than 4 GiB",
        ),
    ],
)
def test_an_unsupported_problem_is_absent_with_a_reason(
    cusparse: CuSparse, name: str, problem: problems.SpmmProblem, reason: str
) -> None:
    with pytest.raises(Absent, match=reason):
        product(name, problem, 1)


@pytest.mark.parametrize(
    ("name", "columns", "launched"),
    [
        ("swa-coo", 64, ["spmm_swa_coo_batched"]),
        ("swa-csr", 64, ["spmm_swa_csr_batched"]),
        ("naive", 64, ["spmm_naive_batched"]),
        ("csr", 64, ["spmm_csr_float4"]),
        ("tf-loop", 64, ["spmm_zero", "spmm_tf"] * 4),
    ],
)
def test_our_methods_launch_their_kernels(name: str, columns: int, launched: list[str]) -> None:
    operands: Any = Operands(HostDevice(), EQUAL, columns)  # type: ignore[arg-type]
    with Methods(operands.device, min).prepared(name, operands) as (call, choice):
        call()
    assert (operands.device.launched, choice) == (launched, "")


@pytest.mark.parametrize("columns", [3, 64])
def test_fastest_launches_the_kernel_that_it_names(columns: int) -> None:
    operands: Any = Operands(HostDevice(), EQUAL, columns)  # type: ignore[arg-type]
    with Methods(operands.device, min).prepared("fastest", operands) as (call, choice):
        call()
    vector = 4 if columns == 64 else 1
    plan = CANDIDATES[choice].plan(24, columns, vector)
    assert plan is not None
    assert operands.device.launched == [f"spmm_rows_float{vector}_{plan[0]}"]


def test_beyond_the_table_the_fastest_is_the_general_kernel() -> None:
    operands: Any = Operands(HostDevice(), WIDE, 64)  # type: ignore[arg-type]
    with Methods(operands.device, min).prepared("fastest", operands) as (call, choice):
        call()
    assert (operands.device.launched, choice) == (["spmm_csr_float4"], "csr")


def test_cublas_and_the_cusparse_loop_take_one_channel_only(cusparse: CuSparse, tmp_path: Path) -> None:
    write_graphset(tmp_path / "set.h5", build_graphset(5, n_channels=2))
    several = problems.from_dataset(tmp_path / "set.h5", 5, (3,))
    assert np.allclose(product("cusparse", several, 3)[0], several.matrix @ several.dense(3), rtol=1e-5, atol=1e-6)
    for name in ("cublas", "cusparse-loop"):
        with pytest.raises(Absent):
            product(name, several, 3)


def test_without_nvmath_library_methods_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    with pytest.raises(BackendUnavailable) as caught:
        Vendor(HostDevice())  # type: ignore[arg-type]
    assert str(caught.value).startswith("nvmath-python: cannot be imported (")
    assert str(caught.value).endswith("). pip install 'gcnbatch[bench]'")
    with pytest.raises(NotInstalled, match="nvmath-python: cannot be imported"):
        product("cublas", EQUAL, 1)


def test_a_library_that_does_not_start_makes_methods_absent(
    cusparse: CuSparse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> int:
        raise RuntimeError("no libcusparse")

    monkeypatch.setattr(cusparse, "create", missing)
    with pytest.raises(Absent) as caught:
        product("cusparse", EQUAL, 1)
    assert str(caught.value) == "cuBLAS, cuSPARSE: do not start (no libcusparse). pip install 'gcnbatch[bench]'"


def test_a_method_without_a_supported_algorithm_is_absent(cusparse: CuSparse, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*about: Any) -> int:
        raise cusparse.cuSPARSEError("not supported")

    monkeypatch.setattr(cusparse, "sp_mm_buffer_size", refuse)
    with pytest.raises(Absent, match="cuSPARSE takes none of its algorithms for this size"):
        product("cusparse", EQUAL, 1)


def test_methods_are_chosen_by_name() -> None:
    assert runs.chosen_methods([]) == tuple(name for name in methods.NAMES if name not in ("naive", "csr"))
    assert runs.chosen_methods(["cublas", "fastest", "cublas"]) == ("cublas", "fastest")
    assert set(plots.STYLES) == set(methods.NAMES)
    lines = inspect.getdoc(inspect.unwrap(bench_spmm)).partition("Methods:\n")[2].splitlines()
    told = [line.split()[0] for line in lines if line.startswith("  ")]
    assert tuple(told[: len(methods.NAMES)]) == methods.NAMES
    with pytest.raises(InputError) as caught:
        runs.chosen_methods(["cubla"])
    assert str(caught.value) == (
        "--methods: 'cubla'; expected scipy, tf-loop, cusparse-loop, cublas, cusparse, swa-coo, swa-csr, naive, csr, "
        "fastest. Did you mean 'cublas'?"
    )
