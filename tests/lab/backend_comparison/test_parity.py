"""Parity accepts correct backends, and finds and locates wrong ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gcnbatch.config import resolve
from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.data.writer import write_graphset
from gcnbatch.lab.backend_comparison.parity import Parity
from gcnbatch.lab.backend_comparison.reference import Jitter, ReferenceBackend
from gcnbatch.lab.backend_comparison.workload import QUICK, Effort, Workload, opened
from gcnbatch.runners.ops import OpsRunner
from tests.builders import build_graphset
from tests.lab.backend_comparison import backends
from tests.lab.backend_comparison.backends import Another
from tests.training.runs import configure, write_set

EFFORT = Effort(parity_batches=3, parity_steps=4)
MODEL = {"widths": [8, 8], "dense": [8], "dropout": 0.2}


@pytest.fixture(scope="module")
def workload(small) -> Iterator[Workload]:
    tree = {"data": {"path": str(small)}, "model": MODEL, "train": {"batch_size": 12, "weight_decay": 0.01}}
    with opened(resolve(tree)) as found:
        yield found


@pytest.fixture(scope="module")
def parity(workload) -> Parity:
    return Parity(workload, EFFORT)


@pytest.mark.parametrize("ops", [None, backends.Backwards()], ids=["cpu", "another order of summation"])
def test_honest_backends_agree(parity: Parity, ops) -> None:
    found = parity.check(Another("cpu", ops))
    assert found.passed, found.worst
    assert np.allclose(found.losses, parity.losses, rtol=1e-5)


def test_everything_is_compared(parity: Parity, workload: Workload) -> None:
    found = parity.check(Another("cpu"))
    layout = workload.task.model.layout()
    by_place: dict[str, set[str]] = {}
    for deviation in found.deviations:
        by_place.setdefault(deviation.where, set()).add(deviation.name)
    assert list(by_place) == [
        "before training",
        "batch 1 (12 graphs)",
        "batch 2 (12 graphs)",
        "batch 3 (7 graphs)",
        *(where for step in range(1, 5) for where in (f"step {step}", f"after step {step}")),
    ]
    assert by_place["batch 3 (7 graphs)"] == {"loss", *layout.names(True)}
    moments = {f"{moment}/{name}" for moment in ("adam.m", "adam.v") for name in layout.names(True)}
    state = {*layout.names(True), *layout.names(False), *moments, "updates"}
    assert by_place["after step 4"] == by_place["after step 2"] == by_place["before training"] == state
    assert by_place["after step 1"] == state - {*layout.names(True)}, "Adam's first update is the sign of the gradient"


@pytest.mark.parametrize(
    ("ops", "where", "name"),
    [
        (backends.WrongBias(), "batch", ".bias"),
        (backends.OneWrongElement(), "batch", ".weight"),
        (backends.RoundedInputs(), "batch", ".weight"),
        (backends.WrongStatistics(), "after step 4", ".running_"),
        (backends.WrongUpdate(), "", ""),
        (backends.NotANumber(), "batch", ""),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_wrong_backends_are_found(parity: Parity, ops, where: str, name: str) -> None:
    found = parity.check(Another("cpu", ops))
    assert not found.passed
    failing = [deviation for deviation in found.deviations if not deviation.agrees]
    assert found.worst in failing
    assert any(deviation.where.startswith(where) and name in deviation.name for deviation in failing)


def test_a_wrong_update_leaves_gradients_alone(parity: Parity) -> None:
    found = parity.check(Another("cpu", backends.WrongUpdate()))
    assert all(deviation.agrees for deviation in found.deviations if deviation.where.startswith("batch"))


def test_the_rule_is_stated_with_its_numbers(parity: Parity) -> None:
    assert "16 times in float32" in parity.rule
    assert f"up to {8**0.5:.3g} units" in parity.rule
    assert "the 8 terms" in parity.rule


@pytest.mark.parametrize("seed", [0, 17, 21])  # whose ReLUs a run with rounded results alone leaves where they are
def test_tf32_is_allowed_its_rounding_and_no_more(tmp_path, seed: int) -> None:
    path = tmp_path / "data.h5"
    write_set(path, n_channels=1, n_features=20)
    assignments = ("model.widths=[128,128]", "model.readout=mean", "cuda.precision=tf32", f"seed={seed}")
    with opened(configure(f"data.path={path}", *assignments)) as workload:
        parity = Parity(workload, QUICK)
        assert "round their inputs to 11 bits" in parity.rule
        assert "32 times in float32" in parity.rule
        assert parity.check(Another("cpu", backends.RoundedInputs())).passed
        assert not parity.check(Another("cpu", backends.OneWrongElement())).passed
        assert not parity.check(Another("cpu", backends.NotANumber())).passed


@pytest.mark.parametrize("features", ["float32", "csr"])
def test_sparse_products_through_scipy_are_the_reference(tmp_path, features: str) -> None:
    path = tmp_path / "data.h5"
    write_graphset(path, build_graphset(12, features=features))
    with opened(resolve({"data": {"path": str(path)}, "model": MODEL})) as workload:
        results = []
        for by_loops in (True, False):
            runner = OpsRunner(ReferenceBackend(np.float64, by_loops), workload.task)
            results.append(runner.gradients(workload.batches[0]))
    (loss, gradients), (other_loss, others) = results
    assert loss == pytest.approx(other_loss, rel=1e-12)
    for name, gradient in gradients.items():
        assert gradient.dtype == np.float64
        np.testing.assert_allclose(others[name], gradient, rtol=1e-10, atol=1e-14)


def test_jitter_moves_floats_by_its_reach_and_nothing_else() -> None:
    jitter = Jitter(np.random.default_rng(0), units=8)
    value, before = np.full(10_000, 1.5, np.float32), np.float32(1.5)
    jitter.move(value)
    moved = np.abs(value - before) / before
    assert 4 * 2.0**-23 < moved.max() <= 9 * 2.0**-23
    mask = np.ones(5, bool)
    jitter.move(mask)
    assert mask.all()
    jitter.move(None)


@pytest.mark.parametrize("operation", ["matmul", "convolve", "join_linear"])
def test_operands_of_products_are_moved_in_copies(operation: str) -> None:
    """They move by the requested distance, or not at all; the model's own arrays stay unchanged."""
    ones, weights, zero, empty = (
        np.full(shape, n, np.float32) for shape, n in (((300, 1), 1), ((1, 1), 1), (1, 0), (0, 0))
    )
    rows = np.arange(301, dtype=np.int32)
    same = Csr(rows, rows[:-1], ones[:, 0], 300)
    features = GraphFeatures(ones[:, :0], rows[:-1])
    call = {
        "matmul": lambda ops: ops.matmul(ones, weights),
        "convolve": lambda ops: ops.convolve(Adjacency(same, same, 1), ones, weights, zero)[0],
        "join_linear": lambda ops: ops.join_linear(ones, features, empty, empty, 1.0, weights, zero)[0],
    }[operation]
    for operands, lowest, highest in ((0, 0, 0), (512, 512, 1100)):
        backend = ReferenceBackend(np.float32, by_loops=False, jitter=Jitter(np.random.default_rng(0), 0, operands))
        moved = np.abs(call(backend.ops) - 1).max() / 2.0**-23
        assert lowest <= moved <= highest
        assert (ones == 1).all()
        assert (weights == 1).all()
