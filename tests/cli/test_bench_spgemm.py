"""``gcnbatch bench spgemm`` through the program's entry point, on the host."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from gcnbatch.errors import CheckFailed
from gcnbatch.lab.bench.spgemm import matrices
from gcnbatch.lab.bench.spgemm import runs as spgemm
from gcnbatch.lab.bench.spgemm.runs import Scipy


def test_bench_spgemm_on_the_host(call, tmp_path) -> None:
    arguments = ("bench", "spgemm", "--scale", 0.002, "--methods", "scipy", "--repeats", 2)
    code, out, err = call(*arguments, "-o", tmp_path / "report", "--device", 1)
    assert (code, err) == (0, "not used: --device; scipy computes on the host\n")
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["matrix", "contender"]
    assert [line.split()[0] for line in lines[1:]] == list(matrices.CLASSES)
    saved = json.loads((tmp_path / "report" / "spgemm.json").read_text())
    assert [row["repetitions"] for row in saved["rows"]] == [2] * 4
    assert (tmp_path / "report" / "spgemm.png").stat().st_size > 5000
    assert json.loads(call(*arguments, "--json")[1])["rows"][1]["matrix"] == "power_law"


def test_bench_spgemm_reads_matrix_market_files_and_data_sets(call, quick, tmp_path) -> None:
    rng = np.random.default_rng(0)
    wide = sp.random_array((20, 50), density=0.2, rng=rng)
    scipy.io.mmwrite(tmp_path / "wide.mtx", wide)
    code, out, _ = call("bench", "spgemm", tmp_path / "wide.mtx", quick, "--methods", "scipy", "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    counts = np.bincount(wide.tocoo().col, minlength=50)
    assert [row["matrix"] for row in rows] == ["wide.mtx", "quick.h5"]
    assert (rows[0]["rows"], rows[0]["entries"], rows[0]["products"]) == (20, wide.nnz, (counts**2).sum())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--classes", "stencl"], "--classes: 'stencl'; expected molecules, power_law, stencil, uniform. Did you mean"),
        (["--classes", "zzz"], "--classes: 'zzz'; expected molecules, power_law, stencil, uniform\n"),
        (["--methods", "zzz"], "--methods: 'zzz'; expected gcnbatch, cusparse, scipy\n"),
        (["--methods", "scipi"], "--methods: 'scipi'; expected gcnbatch, cusparse, scipy. Did you mean 'scipy'?"),
        (["--scale", "0"], "--scale: 0; expected above 0, at most 16"),
        (["no.mtx", "--methods", "scipy"], "no.mtx: "),
    ],
)
def test_bench_spgemm_refuses_wrong_options(call, arguments, message) -> None:
    code, out, err = call("bench", "spgemm", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_files_that_are_not_matrix_market_are_refused(call, tmp_path) -> None:
    (tmp_path / "text.mtx").write_text("not a matrix\n")
    code, _, err = call("bench", "spgemm", tmp_path / "text.mtx", "--methods", "scipy")
    assert code == 2
    assert "expected a Matrix Market file" in err
    scipy.io.mmwrite(tmp_path / "complex.mtx", sp.coo_array(np.array([[1j]])))
    assert "complex values; expected real" in call("bench", "spgemm", tmp_path / "complex.mtx")[2]


def test_a_wrong_result_is_found_before_it_is_timed() -> None:
    problem = matrices.of_class("uniform", 0.0005)

    class Off(Scipy):
        def result(self, found):
            wrong = found.copy()
            wrong.data[3] *= 1.001
            return wrong

    class Short(Scipy):
        def result(self, found):
            return found[:, : found.shape[1] // 2]

    with pytest.raises(CheckFailed, match=r"scipy on uniform: a value 0.001 off"):
        list(spgemm.measure([problem], [Off()], 1))
    with pytest.raises(CheckFailed, match="scipy on uniform: a pattern that is not the product's"):
        list(spgemm.measure([problem], [Short()], 1))


def test_zero_sums_and_stored_zeros_are_in_the_pattern() -> None:
    left = sp.csr_array(np.array([[1, -1], [0, 2]], np.float32))
    right = sp.csr_array(([1, 1, 0], [0, 0, 1], [0, 1, 3]), shape=(2, 2), dtype=np.float32)
    problem = matrices.SpgemmProblem("zeros", left, right)
    expected = spgemm.expect(problem)
    assert expected.indices.tolist() == [0, 1, 0, 1]
    assert expected.values.tolist() == [0, 0, 2, 0]
    (row,) = spgemm.measure([problem], [Scipy()], 1)
    assert (row.results, row.error) == (4, 0.0)


def test_the_figure_and_the_summary_compare_ours_with_cusparse(call, tmp_path) -> None:
    from gcnbatch.lab.bench.spgemm import report

    problem = matrices.of_class("molecules", 0.002)
    (row,) = spgemm.measure([problem], [Scipy()], 1)
    rows = [
        row._replace(contender="gcnbatch", ms=1.0, phases={"bound": 0.2, "hash": 0.6}),
        row._replace(contender="cusparse", ms=3.0),
        row._replace(matrix="b$2", contender="gcnbatch", ms=2.0, phases={"sort": 1.0}),
        row._replace(matrix="b$2", contender="cusparse", ms=24.0),
    ]
    assert report.summary(rows) == ["cuSPARSE takes 6.00 times as long in the geometric mean, 3.00 at least"]
    assert report.cells(rows[0])[-1] == "bound 200 hash 600"
    report.save(rows, tmp_path)
    assert json.loads((tmp_path / "spgemm.json").read_text())["speedup_over_cusparse"] == {
        "molecules": 3.0,
        "b$2": 12.0,
    }
