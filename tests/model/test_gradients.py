"""Whole models: gradients by every parameter against central differences, and of every backend against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cpu import CpuOps
from gcnbatch.config import ChemGCNConfig, KipfConfig
from gcnbatch.reference import ReferenceOps
from tests.builders import build_graphset
from tests.model.cases import Case

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


CASES = {
    **{f"{readout}-{target}": chemgcn({"readout": readout}, target=target)
       for readout in ("sum", "mean", "max") for target in ("binary", "multiclass", "regression")},
    "no batch norm": chemgcn({"batch_norm": False}),
    "dropout": chemgcn({"dropout": 0.4}),
    "dense and head": chemgcn({"dense": (4, 3), "head": (3,), "dropout": 0.2}),
    "stored adjacency": chemgcn({"adjacency": "stored"}),
    "one channel": chemgcn({}, n_channels=1),
    "four channels, one layer": chemgcn({"widths": (4,)}, n_channels=4),
    "sparse features": chemgcn({}, features="csr"),
    "no edges": chemgcn({}, edges_per_node=0),
    "nodes": chemgcn({}, level="node", target="multiclass"),
    "kipf": kipf({}),
    "kipf without dropout": kipf({"dropout": 0.0}),
    "kipf, three layers, dense features": kipf({"widths": (4, 3)}, features="float32"),
    "kipf, regression": kipf({}, target="regression"),
    "kipf, more classes than hidden features": kipf({"widths": (2,)}, n_classes=5, n_channels=1),
    "kipf, one network, features propagated first": one_network({}),
    "kipf, one network, both layers propagated first": one_network({"widths": (2,)}, n_classes=5),
}  # fmt: skip


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_gradients_are_central_differences(case: Case) -> None:
    ops, wide, step = ReferenceOps(), case.astype(np.float64), 1e-6
    found = wide.gradients(ops)
    assert found.keys() == set(case.model.layout().names(trainable=True))
    for name, gradient in found.items():
        expected = np.empty_like(gradient)
        for index in np.ndindex(gradient.shape):
            up, down = (wide.moved(name, index, sign * step).mean_loss(ops) for sign in (1, -1))
            expected[index] = (up - down) / (2 * step)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8, err_msg=name)
    assert any(np.any(gradient) for gradient in found.values())


def assert_as_close(found: Any, own: Any, exact: Any, what: str) -> None:
    """Error against float64 at most twice that of NumPy's float32, plus 1e-6 of the scale."""
    scale = float(np.abs(exact).max(initial=0.0))
    allowed = 2 * float(np.abs(own - exact).max(initial=0.0)) + 1e-6 * scale
    assert float(np.abs(found - exact).max(initial=0.0)) <= allowed, what


def test_the_cpu_backend_agrees_with_the_reference(case: Case) -> None:
    reference, narrow, wide = ReferenceOps(), case.astype(np.float32), case.astype(np.float64)
    exact, own, found = wide.gradients(reference), narrow.gradients(reference), narrow.gradients(CpuOps())
    assert list(found) == list(exact)
    for name, value in found.items():
        assert value.dtype == np.float32
        assert_as_close(value, own[name], exact[name], name)
    assert_as_close(narrow.mean_loss(CpuOps()), narrow.mean_loss(reference), wide.mean_loss(reference), "loss")
    assert_as_close(narrow.outputs(CpuOps()), narrow.outputs(reference), wide.outputs(reference), "outputs")


def test_a_pass_leaves_its_inputs_alone(case: Case) -> None:
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


def test_the_gradient_by_the_features_is_never_formed() -> None:
    asked: list[bool] = []

    class Watching(ReferenceOps):
        @staticmethod
        def linear_backward(dy: Any, x: Any, w: Any, need_dx: bool = True, *rest: Any) -> Any:
            asked.append(need_dx)
            return ReferenceOps.linear_backward(dy, x, w, need_dx, *rest)

    chemgcn({"widths": (3, 2), "head": (2,)}).gradients(Watching())
    assert asked == [True, True, True, False]  # output, head, second and first convolution


def test_gradients_go_where_they_are_asked_to() -> None:
    case = chemgcn({"dense": (3,)})
    places = {name: np.full_like(case.parameters[name], np.nan) for name in case.model.layout().names(trainable=True)}
    ctx = case.context(CpuOps())
    ctx = type(ctx)(ctx.ops, ctx.parameters, ctx.batch, True, ctx.seed, ctx.clock, places)
    found = case.model.backward(ctx, *reversed_pass(case, ctx))
    for name, expected in case.gradients(CpuOps()).items():
        assert found[name] is places[name]
        np.testing.assert_array_equal(found[name], expected)
