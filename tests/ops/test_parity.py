"""One parity test per operation, over backends and named cases, outputs and every gradient; see `parity.assert_parity`.

Inputs of ReLU and of the readout are rounded to halves, so that zeros and ties occur. Gradients that a bias sums are
about 1: a sum that happens to vanish would be held to less than the rounding of its terms.
"""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch import philox
from gcnbatch.backends.base import DropoutKey
from tests.ops.adapters import Adapter
from tests.ops.cases import CASES, LARGE_CASES, Case, normal
from tests.ops.parity import assert_parity


def halves(values):
    return np.round(values * 2) / 2


CONVOLUTION = pytest.mark.parametrize("convolution", [False, True], ids=["dense layer", "graph convolution"])


def of_layer(case: Case, convolution: bool):
    """Return the columns P that a layer's products have, and its `graphs`: a convolution's has those of C channels."""
    return (case.columns, {"graphs": case.adjacency(case.rng())}) if convolution else (case.P, {})


@CONVOLUTION
def test_matmul(backend: Adapter, case: Case, convolution: bool):
    def run(ops, x, w, dy, graphs=None):
        dx, dw = ops.matmul_backward(dy, x, w, graphs=graphs)
        not_needed, dw_alone = ops.matmul_backward(dy, x, w, need_dx=False, graphs=graphs)
        assert not_needed is None
        return {"y": ops.matmul(x, w, graphs), "dx": dx, "dw": dw, "dw_alone": dw_alone}

    rng, (P, graphs) = case.rng(), of_layer(case, convolution)
    x, w, dy = (normal(rng, *shape) for shape in ((case.N, case.F), (case.F, P), (case.N, P)))
    assert_parity(backend, run, {"x": x, "w": w, "dy": dy, **graphs})


def test_sparse_matmul(backend: Adapter, case: Case):
    def run(ops, x, w, dy):
        return {"y": ops.sparse_matmul(x, w), "dw": ops.sparse_matmul_backward(dy, x)}

    rng = case.rng()
    w, dy = normal(rng, case.F, case.columns), normal(rng, case.N, case.columns)
    assert_parity(backend, run, {"x": case.sparse_features(rng), "w": w, "dy": dy})


@CONVOLUTION
def test_bias(backend: Adapter, case: Case, convolution: bool):
    def run(ops, y, b, dy, over, graphs=None):
        return {
            "out": ops.bias_add(y, b, graphs),
            "over": ops.bias_add(over, b, graphs, out=over),
            "db": ops.bias_add_backward(dy, graphs=graphs),
        }

    rng, (P, graphs) = case.rng(), of_layer(case, convolution)
    y, b, dy = normal(rng, case.N, P), normal(rng, P), 1 + normal(rng, case.N, P)
    assert_parity(backend, run, {"y": y, "b": b, "dy": dy, "over": y, **graphs})


@CONVOLUTION
def test_linear(backend: Adapter, case: Case, convolution: bool):
    def run(ops, x, w, b, dy, dw_out, db_out, graphs=None):
        dx, dw, db = ops.linear_backward(dy, x, w, out=(dw_out, db_out), graphs=graphs)
        not_needed, dw_alone, db_alone = ops.linear_backward(dy, x, w, need_dx=False, graphs=graphs)
        assert not_needed is None
        alone = {"dw_alone": dw_alone, "db_alone": db_alone}
        return {"y": ops.linear(x, w, b, graphs), "dx": dx, "dw_out": dw, "db_out": db, **alone}

    rng, (P, graphs) = case.rng(), of_layer(case, convolution)
    x, w, b, dy = (normal(rng, *shape) for shape in ((case.N, case.F), (case.F, P), (P,), (case.N, P)))
    out = {"dw_out": np.full_like(w, np.nan), "db_out": np.full_like(b, np.nan)}
    assert_parity(backend, run, {"x": x, "w": w, "b": b, "dy": 1 + dy, **out, **graphs})


@pytest.mark.parametrize(("N", "F", "P"), [(1850, 256, 300), (4100, 31, 33), (129, 512, 512), (3000, 513, 2)])
def test_linear_of_sizes_that_take_one_launch_or_several(backend: Adapter, N: int, F: int, P: int):
    def run(ops, x, w, b, dy):
        dx, dw, db = ops.linear_backward(dy, x, w)
        return {"y": ops.linear(x, w, b), "dx": dx, "dw": dw, "db": db}

    rng = np.random.default_rng(N)
    inputs = {"x": (N, F), "w": (F, P), "b": (P,), "dy": (N, P)}
    assert_parity(backend, run, {name: normal(rng, *shape) for name, shape in inputs.items()})


@pytest.mark.parametrize("case", [*CASES, *LARGE_CASES], ids=lambda case: case.name)
def test_spmm(backend: Adapter, case: Case):
    def run(ops, adjacency, h, dy):
        return {"y": ops.spmm(adjacency, h), "dh": ops.spmm_backward(adjacency, dy)}

    rng = case.rng()
    h, dy = normal(rng, case.N, case.columns), normal(rng, case.N, case.P)
    assert_parity(backend, run, {"adjacency": case.adjacency(rng), "h": h, "dy": dy})


@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_training(backend: Adapter, case: Case, relu: bool):
    def run(ops, x, gamma, beta, running_mean, running_var, dy):
        y, saved = ops.batch_norm(x, gamma, beta, running_mean, running_var, 1e-5, 0.1, training=True, relu=relu)
        dx, dgamma, dbeta = ops.batch_norm_backward(dy, saved, gamma)
        grown = {"running_mean": running_mean, "running_var": running_var}
        return {"y": y, "dx": dx, "dgamma": dgamma, "dbeta": dbeta, **grown}

    assert_parity(backend, run, batch_norm_inputs(case))


@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_inference(backend: Adapter, case: Case, relu: bool):
    def run(ops, x, gamma, beta, running_mean, running_var, dy):
        y, _ = ops.batch_norm(x, gamma, beta, running_mean, running_var, 1e-5, 0.1, training=False, relu=relu)
        return {"y": y}

    assert_parity(backend, run, batch_norm_inputs(case))


def batch_norm_inputs(case: Case):
    """Columns far from mean 0 and variance 1, so that a variance taken as E[x²] - E[x]² would show."""
    rng = case.rng()
    mean, deviation = 30 * normal(rng, case.P), rng.uniform(0.1, 3, case.P).astype(np.float32)
    return {
        "x": mean + deviation * normal(rng, case.N, case.P),
        "gamma": normal(rng, case.P),
        "beta": normal(rng, case.P),
        "running_mean": normal(rng, case.P),
        "running_var": rng.uniform(0.5, 2, case.P).astype(np.float32),
        "dy": normal(rng, case.N, case.P),
    }


def test_relu(backend: Adapter, case: Case):
    def run(ops, x, dy, over, dover):
        y = ops.relu(x)
        return {
            "y": y,
            "dx": ops.relu_backward(dy, y),
            "over": ops.relu(over, out=over),
            "dover": ops.relu_backward(dover, over, out=dover),
        }

    rng = case.rng()
    x, dy = halves(normal(rng, case.N, case.P)), normal(rng, case.N, case.P)
    assert_parity(backend, run, {"x": x, "dy": dy, "over": x, "dover": dy})


KEY = DropoutKey(seed=2**63 - 1, purpose="conv1.dropout", epoch=3, step=41)
AT_THE_THRESHOLD = float(philox.bits(*KEY, 1)[0]) / 2**32  # element 0 is kept at this rate, and at no higher one


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, AT_THE_THRESHOLD])
def test_dropout(backend: Adapter, case: Case, rate: float):
    def run(ops, x, dy, entries):
        y, mask = ops.dropout(x, rate, KEY)
        y_entries, _ = ops.dropout(entries, rate, KEY)
        return {"y": y, "dx": ops.dropout_backward(dy, mask, rate), "y_entries": y_entries}

    rng = case.rng()
    # Gradients of 1 show every bit of the mask; the one-dimensional input is what the entries of sparse features are.
    x, dy = normal(rng, case.N, case.F), np.ones((case.N, case.F), np.float32)
    assert_parity(backend, run, {"x": x, "dy": dy, "entries": np.ones(3 * case.N, np.float32)})


@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
def test_readout(backend: Adapter, case: Case, kind: str):
    def run(ops, h, node_ptr, dr):
        r, saved = ops.readout(h, node_ptr, kind)
        return {"r": r, "dh": ops.readout_backward(dr, node_ptr, kind, saved)}

    rng = case.rng()
    h, dr = halves(normal(rng, case.N, case.P)), normal(rng, len(case.sizes), case.P)
    assert_parity(backend, run, {"h": h, "node_ptr": case.node_ptr, "dr": dr})


MISSING = pytest.mark.parametrize("missing", [0.0, 0.3, 1.0], ids=["all labelled", "some missing", "all missing"])


@MISSING
def test_sigmoid_cross_entropy(backend: Adapter, case: Case, missing: float):
    def run(ops, logits, y, pos_weight):
        total, number, dlogits = ops.sigmoid_cross_entropy(logits, y, pos_weight)
        return {"total": total, "number": number, "dlogits": dlogits}

    rng, shape = case.rng(), (case.N, case.F)
    y = np.where(rng.random(shape) < missing, np.nan, rng.integers(0, 2, shape)).astype(np.float32)
    pos_weight = rng.uniform(0.5, 20, case.F).astype(np.float32)
    # Scaled by 30 the logits reach beyond 88, where exp overflows in float32.
    assert_parity(backend, run, {"logits": 30 * normal(rng, *shape), "y": y, "pos_weight": pos_weight})


@MISSING
def test_softmax_cross_entropy(backend: Adapter, case: Case, missing: float):
    def run(ops, logits, y, class_weight):
        total, weight, dlogits = ops.softmax_cross_entropy(logits, y, class_weight)
        return {"total": total, "weight": weight, "dlogits": dlogits}

    rng = case.rng()
    y = np.where(rng.random((case.N, 1)) < missing, -1, rng.integers(0, case.F, (case.N, 1))).astype(np.int32)
    class_weight = rng.uniform(0.5, 3, case.F).astype(np.float32)
    logits = 30 * normal(rng, case.N, case.F)
    assert_parity(backend, run, {"logits": logits, "y": y, "class_weight": class_weight})


def test_softmax_cross_entropy_without_weight(backend: Adapter):
    def run(ops, logits, y, class_weight):
        total, weight, dlogits = ops.softmax_cross_entropy(logits, y, class_weight)
        return {"total": total, "weight": weight, "dlogits": dlogits}

    logits = np.array([[1, 2], [3, -1]], np.float32)
    inputs = {"logits": logits, "y": np.array([[0], [0]], np.int32), "class_weight": np.array([0, 1], np.float32)}
    assert_parity(backend, run, inputs)


@MISSING
def test_mean_squared_error(backend: Adapter, case: Case, missing: float):
    def run(ops, logits, y):
        total, number, dlogits = ops.mean_squared_error(logits, y)
        return {"total": total, "number": number, "dlogits": dlogits}

    rng, shape = case.rng(), (case.N, case.F)
    y = np.where(rng.random(shape) < missing, np.nan, rng.normal(size=shape)).astype(np.float32)
    assert_parity(backend, run, {"logits": normal(rng, *shape), "y": y})


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e3])
def test_clip_norm(backend: Adapter, case: Case, max_norm: float):
    def run(ops, gradients):
        ops.clip_norm(gradients, max_norm)
        return {"gradients": gradients}

    assert_parity(backend, run, {"gradients": normal(case.rng(), case.N * case.F)})
    assert_parity(backend, run, {"gradients": np.zeros(case.F, np.float32)})


def test_adam_step(backend: Adapter, case: Case):
    def run(ops, parameters, gradients, m, v, weight_decay, l2):
        for step in range(1, 4):
            ops.adam_step(parameters, gradients, m, v, step, 1e-2, 0.9, 0.999, 1e-8, weight_decay, l2)
        return {"parameters": parameters, "m": m, "v": v}

    inputs = optimizer_inputs(case)
    zeros = np.zeros_like(inputs["parameters"])
    assert_parity(backend, run, {**inputs, "m": zeros, "v": zeros})


def test_sgd_step(backend: Adapter, case: Case):
    def run(ops, parameters, gradients, velocity, weight_decay, l2):
        for _ in range(3):
            ops.sgd_step(parameters, gradients, velocity, 1e-2, 0.9, weight_decay, l2)
        return {"parameters": parameters, "velocity": velocity}

    inputs = optimizer_inputs(case)
    assert_parity(backend, run, {**inputs, "velocity": np.zeros_like(inputs["parameters"])})


def optimizer_inputs(case: Case):
    """Parameters of a dense layer of the case's widths; every other one decays, and some have no gradient."""
    rng, count = case.rng(), case.F * case.P
    every_other = (np.arange(count) % 2).astype(np.float32)
    return {
        "parameters": normal(rng, count),
        "gradients": normal(rng, count) * (rng.random(count) < 0.8).astype(np.float32),
        "weight_decay": np.float32(0.1) * every_other,
        "l2": np.float32(5e-4) * (1 - every_other),
    }
