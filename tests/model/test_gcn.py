"""The layers that a configuration describes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gcnbatch.config_sections import ChemGCNConfig, KipfConfig
from gcnbatch.model.gcn import Gcn, build, freeze_layers
from gcnbatch.model.junctions import Add
from gcnbatch.reference import ReferenceOps
from tests.builders import build_graphset, dense
from tests.model.cases import Case


def names(model: Gcn) -> list[str]:
    return [layer.name for layer in model.layers]


def computed(model: Gcn) -> list[str]:
    return [layer.name for layer in model.fused.layers]


def header(**options: Any) -> Any:
    return build_graphset(**options).header


def test_a_chemgcn_stacks_convolution_norm_relu_dropout_dense_readout_head() -> None:
    config = ChemGCNConfig(widths=(4, 5), dropout=0.1, dense=(6,), head=(7,))
    hidden = lambda name: [f"{name}.relu", f"{name}.dropout"]
    assert names(build(config, header())) == [
        *("conv1", "norm1", "conv1.dropout", "conv2", "norm2", "conv2.dropout"),
        *("dense1", *hidden("dense1"), "readout", "head1", *hidden("head1"), "output"),
    ]


def test_optional_layers_are_absent_unless_configured() -> None:
    plain = build(ChemGCNConfig(widths=(4,), norm="none"), header())
    assert names(plain) == ["conv1", "conv1.relu", "readout", "output"]
    nodes = build(ChemGCNConfig(widths=(4,)), header(level="node"))
    assert names(nodes) == ["conv1", "norm1", "output"]


def test_a_kipf_gcn_has_dropout_before_every_convolution() -> None:
    of_nodes = header(level="node", target="multiclass", n_classes=7)
    assert names(build(KipfConfig(), of_nodes)) == ["conv1.dropout", "conv1", "conv1.relu", "conv2.dropout", "conv2"]
    assert names(build(KipfConfig(dropout=0.0, widths=(8, 8)), of_nodes)) == [
        *("conv1", "conv1.relu", "conv2", "conv2.relu", "conv3")
    ]
    assert build(KipfConfig(), of_nodes).layout().slots["conv2.weight"].spec.shape == (16, 14)  # two channels


def test_a_convolution_propagates_at_its_narrower_side() -> None:
    of_nodes = header(level="node", target="multiclass", n_classes=7, n_channels=1)
    plain = KipfConfig(dropout=0.0, widths=(4,))
    assert computed(build(plain, of_nodes)) == ["conv1", "conv1.relu", "conv2.propagate", "conv2"]
    both = ["conv1.propagate", "conv1", "conv1.relu", "conv2.propagate", "conv2"]
    assert computed(build(plain, of_nodes, True)) == both
    wide = KipfConfig(widths=(16,), input_dropout=False)
    assert computed(build(wide, of_nodes, True)) == ["conv1.propagate", "conv1", "conv2"]
    width = of_nodes.n_features
    for out, propagates in ((width // 2, False), (width // 2 + 1, True)):
        dropped = build(KipfConfig(widths=(out,)), of_nodes, True)
        assert ("conv1.propagate" in computed(dropped)) == propagates
        assert dropped.constant_layers == 0, "dropout changes the features in every step"
    assert "conv1.propagate" not in computed(build(KipfConfig(widths=(width,)), of_nodes))
    channels = header(level="node", target="multiclass", n_classes=7, n_channels=2)
    assert "conv1.propagate" not in computed(build(plain, channels, True))
    for one in (True, False):
        model = build(plain, of_nodes, one)
        assert names(model) == ["conv1", "conv1.relu", "conv2"]
        assert model.layout().slots.keys() == {"conv1.weight", "conv2.weight"}


def test_sparse_products_are_told_the_zeros_behind_relu_and_dropout() -> None:
    graphs = build_graphset(1, level="node", target="multiclass", n_channels=1, max_nodes=9, n_classes=5)
    told: list[float] = []

    class Noting(ReferenceOps):
        def spmm(self, adjacency: Any, h: Any, zeros: float = 0.0) -> Any:
            told.append(zeros)
            return super().spmm(adjacency, h, zeros)

        def spmm_backward(self, adjacency: Any, dy: Any, zeros: float = 0.0) -> Any:
            told.append(zeros)
            return super().spmm_backward(adjacency, dy, zeros)

    case = Case.of(KipfConfig(widths=(8, 8), dropout=0.5), graphs, [0])
    assert [type(layer).__name__ for layer in case.model.fused.layers] == [
        *("Dropout", "FusedProduct", "FusedConv", "FusedProduct")
    ]
    case.gradients(Noting())
    assert told == [0.0, 0.75, 0.0, 0.0, 0.75, 0.75]  # forward, then from the last layer back
    told.clear()
    case.outputs(Noting())
    assert told == [0.0, 0.5, 0.0]


@pytest.mark.parametrize("config", [KipfConfig(widths=(3,), input_dropout=False), KipfConfig(widths=(64,))])
def test_both_orders_of_a_convolution_agree(config: KipfConfig) -> None:
    graphs = build_graphset(1, level="node", target="multiclass", n_channels=1, max_nodes=9, n_classes=5)
    found = [Case.of(config, graphs, [0], one_dense_graph=one).astype(np.float64) for one in (True, False)]
    once, always = ([name for name in computed(case.model) if "propagate" in name] for case in found)
    assert set(once) - set(always) == {"conv1.propagate"}
    once, always = (case.outputs(ReferenceOps()) for case in found)
    np.testing.assert_allclose(once, always, rtol=1e-12)


def hidden(case: Case, layer: int, h: Any) -> Any:
    """Return ReLU(A (H W + b)) of one channel."""
    p, a = case.parameters, dense(case.batch.adjacency.forward)
    return np.maximum(a @ (h @ p[f"conv{layer}.weight"] + p[f"conv{layer}.bias"]), 0)


def test_residual_jumping_knowledge_and_concatenated_readouts_equal_their_formulas() -> None:
    graphs = build_graphset(4, n_channels=1)
    config = ChemGCNConfig(widths=(5, 5), norm="none", residual=True, jumping_knowledge="cat", readout=("max", "sum"))
    case = Case.of(config, graphs, [1, 0]).astype(np.float64)
    first = hidden(case, 1, case.batch.x)
    h = np.concatenate([first, hidden(case, 2, first) + first], axis=1)
    parts = np.split(h, [case.batch.node_ptr[1]])
    readout = np.array([[*part.max(axis=0), *part.sum(axis=0)] for part in parts])
    expected = readout @ case.parameters["output.weight"] + case.parameters["output.bias"]
    np.testing.assert_allclose(case.outputs(ReferenceOps()), expected, rtol=1e-12)


def test_jumping_knowledge_by_maximum_equals_its_formula() -> None:
    graphs = build_graphset(4, n_channels=1)
    config = ChemGCNConfig(widths=(5, 5, 5), norm="none", jumping_knowledge="max")
    case = Case.of(config, graphs, [0]).astype(np.float64)
    first = hidden(case, 1, case.batch.x)
    second = hidden(case, 2, first)
    readout = np.maximum(np.maximum(first, second), hidden(case, 3, second)).sum(axis=0, keepdims=True)
    expected = readout @ case.parameters["output.weight"] + case.parameters["output.bias"]
    np.testing.assert_allclose(case.outputs(ReferenceOps()), expected, rtol=1e-12)


def test_a_feed_forward_network_and_a_virtual_node_equal_their_formulas() -> None:
    graphs = build_graphset(4, n_channels=1)
    config = ChemGCNConfig(widths=(5, 4), norm="none", ffn=True, virtual_node=True, readout=("mean",))
    case = Case.of(config, graphs, [1, 0]).astype(np.float64)
    p, cut = case.parameters, [case.batch.node_ptr[1]]

    def network(i: int, h: Any) -> Any:
        inside = np.maximum(h @ p[f"ffn{i}.expand.weight"] + p[f"ffn{i}.expand.bias"], 0)
        return np.maximum(h + inside @ p[f"ffn{i}.reduce.weight"] + p[f"ffn{i}.reduce.bias"], 0)

    h = network(1, hidden(case, 1, case.batch.x))
    virtual = [
        np.maximum(part.mean(axis=0) @ p["virtual1.weight"] + p["virtual1.bias"], 0) for part in np.split(h, cut)
    ]
    h = np.concatenate([part + v for part, v in zip(np.split(h, cut), virtual, strict=True)])
    h = network(2, hidden(case, 2, h))
    readout = np.stack([part.mean(axis=0) for part in np.split(h, cut)])
    expected = readout @ p["output.weight"] + p["output.bias"]
    np.testing.assert_allclose(case.outputs(ReferenceOps()), expected, rtol=1e-12)
    assert freeze_layers(case.model, ["conv1"]).frozen_parameters()[-1] == "virtual1.bias"


def test_a_residual_connection_needs_equal_widths_and_a_convolution_before() -> None:
    model = build(ChemGCNConfig(widths=(4, 4, 5, 5), residual=True, dropout=0.1), header(n_features=4))
    assert [layer for layer in names(model) if "residual" in layer] == ["conv2.residual", "conv4.residual"]
    assert [layer.of for layer in model.layers if isinstance(layer, Add)] == ["conv1.dropout", "conv3.dropout"]


def test_frozen_layers_compute_as_in_prediction_and_keep_their_statistics() -> None:
    case = Case.of(ChemGCNConfig(widths=(4, 3), dropout=0.5), build_graphset(6), [0, 1, 2])
    model, ctx = freeze_layers(case.model, ["all-conv"]), case.context(ReferenceOps())
    logits, saved = model.forward(ctx, case.batch.x)
    np.testing.assert_array_equal(logits, case.outputs(ReferenceOps()))
    for name, value in ctx.parameters.items():
        np.testing.assert_array_equal(value, case.parameters[name], err_msg=name)
    assert model.backward(ctx, logits, saved).keys() == {"output.weight", "output.bias"}
    assert model.frozen_parameters()[-1] == "norm2.running_var"


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("level", ["graph", "node"])
def test_logits_have_a_row_per_target(level: Any, target: Any) -> None:
    graphs = build_graphset(6, level=level, target=target, n_tasks=4, n_classes=5)
    case = Case.of(ChemGCNConfig(widths=(3,)), graphs, [0, 5, 1])
    assert case.outputs(ReferenceOps()).shape == (len(case.batch.targets), 5 if target == "multiclass" else 4)


def test_a_kipf_gcn_equals_its_formula() -> None:
    """Check Â ReLU(Â X W0) W1 by dense algebra."""
    graphs = build_graphset(3, level="node", target="multiclass", n_channels=1, features="csr", seed=4)
    case = Case.of(KipfConfig(widths=(6,)), graphs, [1, 0, 2]).astype(np.float64)
    a, x = dense(case.batch.adjacency.forward), dense(case.batch.x)
    first, second = (case.parameters[f"conv{i}.weight"] for i in (1, 2))
    expected = a @ np.maximum(a @ x @ first, 0) @ second
    np.testing.assert_allclose(case.outputs(ReferenceOps()), expected, rtol=1e-12)


def test_a_chemgcn_equals_its_formula() -> None:
    """Check sum_c A_c (X W_c + b_c), batch norm with running statistics, ReLU, mean readout, output layer."""
    graphs = build_graphset(4, n_channels=2, weights=True)
    case = Case.of(ChemGCNConfig(widths=(5,), readout="mean"), graphs, [3, 0]).astype(np.float64)
    p, n = case.parameters, int(case.batch.node_ptr[-1])
    a = dense(case.batch.adjacency.forward).reshape(n, n, 2)
    h = sum(
        a[:, :, c] @ (case.batch.x @ p["conv1.weight"][:, 5 * c : 5 * c + 5] + p["conv1.bias"][5 * c : 5 * c + 5])
        for c in range(2)
    )
    h = p["norm1.gamma"] * (h - p["norm1.running_mean"]) / np.sqrt(p["norm1.running_var"] + 1e-5) + p["norm1.beta"]
    h = np.maximum(h, 0)
    cut = case.batch.node_ptr[1]
    readout = np.stack([h[:cut].mean(axis=0), h[cut:].mean(axis=0)])
    expected = readout @ p["output.weight"] + p["output.bias"]
    np.testing.assert_allclose(case.outputs(ReferenceOps()), expected, rtol=1e-12)
