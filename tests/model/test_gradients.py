"""Whole models: gradients by every parameter against central differences, and backends against float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends.cpu import CpuOps
from gcnbatch.config_sections import ChemGCNConfig, KipfConfig
from gcnbatch.lab.backend_comparison.parity import bounds, distance, longest_sum
from gcnbatch.lab.backend_comparison.reference import jittered, jitters
from gcnbatch.model.gcn import freeze_layers
from gcnbatch.reference import ReferenceOps
from tests.builders import build_graphset
from tests.model.cases import Case
from tests.ops.mutants import half, mutant

RUNS = 32  # of the reference in float32; these models take milliseconds
EMPTY_LAST = [4, 0, 2, 0, 5]  # a repeat, and of six graphs the fifth has one node, the sixth none


def chemgcn(model: dict[str, Any], **data: Any) -> Case:
    graphs = build_graphset(6, **{"n_features": 3, "missing": 0.2, "weights": True, "seed": 2, **data})
    return Case.of(ChemGCNConfig(**{"widths": (3, 2), **model}), graphs, EMPTY_LAST)


def kipf(model: dict[str, Any], **data: Any) -> Case:
    graphs = build_graphset(2, **{"level": "node", "target": "multiclass", "features": "csr", "seed": 1, **data})
    return Case.of(KipfConfig(**{"widths": (4,), **model}), graphs, [0, 1])


def one_network(model: dict[str, Any], **data: Any) -> Case:
    options = {"level": "node", "target": "multiclass", "n_channels": 1, "max_nodes": 9, "seed": 1, **data}
    config = KipfConfig(**{"widths": (4,), "input_dropout": False, **model})
    return Case.of(config, build_graphset(1, **options), [0], one_dense_graph=True)


def frozen(case: Case, *layers: str) -> Case:
    return replace(case, model=freeze_layers(case.model, layers))


CASES = {
    **{f"{readout}-{target}": chemgcn({"readout": readout}, target=target)
       for readout in ("sum", "mean", "max") for target in ("binary", "multiclass", "regression")},
    "no batch norm": chemgcn({"norm": "none"}),
    "dropout": chemgcn({"dropout": 0.4}),
    "layer norm": chemgcn({"norm": "layer", "dropout": 0.2}),
    "feed-forward network": chemgcn({"ffn": True, "dropout": 0.2}),
    "feed-forward network without norm": chemgcn({"ffn": True, "norm": "none", "widths": (3,)}),
    "virtual node": chemgcn({"widths": (3, 2, 2), "virtual_node": True, "residual": True}),
    "virtual node behind frozen layers": frozen(chemgcn({"widths": (3, 3, 3), "virtual_node": True}), "conv1"),
    "everything": chemgcn(
        {"widths": (3, 3), "ffn": True, "virtual_node": True, "residual": True, "jumping_knowledge": "cat",
         "norm": "layer", "readout": ("mean", "max"), "dense": (3,), "head": (2,)}
    ),
    "residual": chemgcn({"widths": (3, 3, 3), "residual": True, "norm": "none"}),
    "jumping knowledge": chemgcn({"widths": (3, 2, 4), "jumping_knowledge": "cat", "dense": (3,)}),
    "jumping knowledge by maximum": chemgcn({"widths": (3, 3, 3), "jumping_knowledge": "max", "residual": True}),
    "residual, jumping knowledge, three readouts": chemgcn(
        {"widths": (3, 3, 3), "residual": True, "jumping_knowledge": "cat", "readout": ("sum", "mean", "max")}
    ),
    "residual behind frozen layers": frozen(chemgcn({"widths": (3, 3, 3), "residual": True}), "conv1", "conv2"),
    "dense and head": chemgcn({"dense": (4, 3), "head": (3,), "dropout": 0.2}),
    "features of graphs": chemgcn({}, graph_features=3, n_counts=1),
    "features of graphs, head": chemgcn({"head": (3,), "dropout": 0.2}, graph_features=2),
    "stored adjacency": chemgcn({"adjacency": "stored"}),
    "one channel": chemgcn({}, n_channels=1),
    "four channels, one layer": chemgcn({"widths": (4,)}, n_channels=4),
    "sparse features": chemgcn({}, features="csr"),
    "no edges": chemgcn({}, edges_per_node=0),
    "nodes": chemgcn({}, level="node", target="multiclass"),
    "frozen layers": frozen(chemgcn({"widths": (3, 3, 2), "dropout": 0.3}), "conv1", "conv2"),
    "kipf": kipf({}),
    "kipf without dropout": kipf({"dropout": 0.0}),
    "kipf, three layers, dense features": kipf({"widths": (4, 3)}, features="float32"),
    "kipf, regression": kipf({}, target="regression"),
    "kipf, more classes than hidden features": kipf({"widths": (2,)}, n_classes=5, n_channels=1),
    "kipf, hidden layers of one width": one_network({"widths": (4, 4, 4)}),
    "kipf, hidden layers of one width, the first frozen": frozen(one_network({"widths": (4, 4)}), "conv1"),
    "kipf, A X in every step": one_network({"input_dropout": True, "widths": (8, 3)}),
    "kipf, one network, features propagated first": one_network({}),
    "kipf, one network, both layers propagated first": one_network({"widths": (2,)}, n_classes=5),
}  # fmt: skip


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_gradients_equal_central_differences(case: Case) -> None:
    ops, wide, step = ReferenceOps(), case.astype(np.float64), 1e-6
    found = wide.gradients(ops)
    assert found.keys() == set(case.model.layout().names(trainable=True)) - set(case.model.frozen_parameters())
    for name, gradient in found.items():
        expected = np.empty_like(gradient)
        for index in np.ndindex(gradient.shape):
            up, down = (wide.moved(name, index, sign * step).mean_loss(ops) for sign in (1, -1))
            expected[index] = (up - down) / (2 * step)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8, err_msg=name)
    assert any(np.any(gradient) for gradient in found.values())


def results(case: Case, ops: Any) -> dict[str, NDArray[Any]]:
    """Return gradients, loss and outputs by name."""
    return {**case.gradients(ops), "loss": np.asarray(case.mean_loss(ops)), "outputs": case.outputs(ops)}


@cache
def allowed(name: str) -> dict[str, tuple[NDArray[Any], float]]:
    """Return the float64 results of a case with the errors that `compare-backends` allows."""
    reference, narrow = ReferenceOps(), CASES[name].astype(np.float32)
    exact = results(CASES[name].astype(np.float64), reference)
    units = longest_sum(narrow.model) ** 0.5
    runs = (jittered(reference, jitter) if jitter else reference for jitter in jitters(RUNS, units))
    found = bounds(exact, (results(narrow, ops) for ops in runs))
    return {key: (exact[key], found[key]) for key in exact}


def error_ratios(name: str, ops: Any) -> dict[str, float]:
    """Return the error of operations over the allowed error, by name of result."""
    found = results(CASES[name].astype(np.float32), ops)
    assert list(found) == list(allowed(name))
    ratios = {}
    for key, (exact, bound) in allowed(name).items():
        assert found[key].dtype == np.float32 or found[key].ndim == 0
        error = distance(found[key], exact)
        ratios[key] = error / bound if error else 0.0
    return ratios


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_backend_agrees_with_the_reference(name: str) -> None:
    for key, ratio in error_ratios(name, CpuOps()).items():
        assert ratio <= 1, f"{key}: error is {ratio:.3g} of what is allowed"


MUTANTS = {
    "float16 weights": mutant(matmul=lambda right, x, w, *_: right(x, half(w))),
    "a term short": mutant(matmul=lambda right, x, w, *_: right(x[:, 1:], w[1:])),
    "a row short in the weights' gradient": mutant(
        matmul_backward=lambda right, dy, x, w, *_, **about: (right(dy, x, w)[0], right(dy[1:], x[1:], w)[1])
    ),
    "a row short in the bias's gradient": mutant(bias_add_backward=lambda right, dy, *_, **about: right(dy[1:])),
    "a node off in SpMM": mutant(spmm=lambda right, adjacency, h, zeros=0.0: np.roll(right(adjacency, h), 1, axis=0)),
    "float16 gradients in SpMM": mutant(spmm_backward=lambda right, adjacency, dy, *_: right(adjacency, half(dy))),
    "leaky ReLU": mutant(relu_backward=lambda right, dy, y, **about: np.where(y > 0, dy, np.float32(1e-3) * dy)),
    "epsilon ten times too large": mutant(
        batch_norm=lambda right, x, gamma, beta, mean, var, epsilon, *others, **about: right(
            x, gamma, beta, mean, var, 10 * epsilon, *others, **about
        )
    ),
    "dropout that does not scale": mutant(dropout_backward=lambda right, dy, mask, rate: dy * mask),
}


@pytest.mark.parametrize("fault", MUTANTS)
def test_mutants_of_the_cpu_backend_disagree(fault: str) -> None:
    assert max(error_ratios("dense and head", MUTANTS[fault].ops).values()) > 1


@pytest.mark.parametrize("fault", ["float16 weights", pytest.param("a term short", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_every_model_reveals_a_wrong_product(name: str, fault: str) -> None:
    assert max(error_ratios(name, MUTANTS[fault].ops).values()) > 1


def test_forward_and_backward_leave_their_inputs_unchanged(case: Case) -> None:
    narrow = case.astype(np.float32)
    before = {name: value.copy() for name, value in narrow.parameters.items()}
    x = narrow.batch.x
    kept = (x.data if hasattr(x, "indptr") else x).copy()
    ctx = narrow.context(CpuOps())
    narrow.model.backward(ctx, *reversed_pass(narrow, ctx))
    np.testing.assert_array_equal(x.data if hasattr(x, "indptr") else x, kept)
    for name, value in ctx.parameters.items():
        if "running" not in name:
            np.testing.assert_array_equal(value, before[name])


def reversed_pass(case: Case, ctx: Any) -> tuple[Any, Any]:
    logits, saved = case.model.forward(ctx, case.batch.x)
    return case.loss(ctx.ops, logits, case.batch.targets, case.loss.weights)[2], saved


def test_the_gradient_by_the_features_is_never_computed() -> None:
    asked: list[bool] = []

    class Watching(ReferenceOps):
        @staticmethod
        def linear_backward(dy: Any, x: Any, w: Any, need_dx: bool = True, *rest: Any) -> Any:
            asked.append(need_dx)
            return ReferenceOps.linear_backward(dy, x, w, need_dx, *rest)

    chemgcn({"widths": (3, 2), "head": (2,)}).gradients(Watching())
    assert asked == [True, True, True, False]  # output, head, second and first convolution


def test_gradients_are_written_to_the_given_arrays() -> None:
    case = chemgcn({"dense": (3,)})
    places = {name: np.full_like(case.parameters[name], np.nan) for name in case.model.layout().names(trainable=True)}
    ctx = case.context(CpuOps())
    ctx = type(ctx)(ctx.ops, ctx.parameters, ctx.batch, True, ctx.seed, ctx.clock, places)
    found = case.model.backward(ctx, *reversed_pass(case, ctx))
    for name, expected in case.gradients(CpuOps()).items():
        assert found[name] is places[name]
        np.testing.assert_array_equal(found[name], expected)
