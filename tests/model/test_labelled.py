"""Training steps that compute the rows with labels alone in the last product have the gradients of all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cpu import CpuBackend, HostFeed
from gcnbatch.backends.registry import open_backend
from gcnbatch.config_sections import ChemGCNConfig, KipfConfig, TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.model.gcn import Loss, build, freeze_layers, uniform_weights
from gcnbatch.reference import ReferenceOps
from gcnbatch.runners.choice import make_runner
from gcnbatch.runners.task import RunnerTask
from tests.builders import build_graphset
from tests.model.cases import Case, Given

NODES, LABELLED = 40, np.array([0, 3, 4, 19, 39])
MODELS: dict[str, Any] = {
    "A (H W) last": KipfConfig(widths=(8,), dropout=0.3),
    "(A H) W last": KipfConfig(widths=(2,), dropout=0.3),
    "three layers": KipfConfig(widths=(5, 5), dropout=0.0),
    "dense layers behind": ChemGCNConfig(widths=(6, 5), norm="none", dense=(4,), head=(7,)),
    "layer norm": ChemGCNConfig(widths=(6, 5), norm="layer"),
}
NEED_ALL: dict[str, Any] = {
    "batch norm": ChemGCNConfig(widths=(6, 5)),
    "dropout behind": ChemGCNConfig(widths=(6, 5), norm="none", dropout=0.2),
    "a layer that reads an earlier one": ChemGCNConfig(widths=(5, 5), norm="layer", residual=True),
}


def graph(channels: int = 1) -> Any:
    size = {"max_nodes": NODES, "n_channels": channels, "edges_per_node": 3}
    found = build_graphset(1, level="node", target="multiclass", missing=0.0, **size)
    y = np.full_like(found.y, -1)
    y[LABELLED] = found.y[LABELLED]
    return replace(found, y=y)


def case(config: Any, labelled: bool) -> Case:
    """Return a case in float64 whose batch has its labelled rows or not."""
    graphs = graph(1 if isinstance(config, KipfConfig) else 2)
    source = BatchSource(graphs, config.adjacency)
    model = build(config, graphs.header, one_dense_graph=True)
    batch = HostFeed(source, graphs.y).gather(np.array([0]))
    assert batch.labelled is not None
    few = batch.labelled if labelled else None
    given = Given(batch.x, batch.adjacency, batch.node_ptr, batch.targets, None, few)
    loss = Loss(graphs.header.target, uniform_weights(graphs.header))
    found = Case(model, model.layout().initial(3), given, loss).astype(np.float64)
    if few is not None:
        cast = Case(model, {}, Given(few.x, few.adjacency, few.node_ptr, few.targets), loss).astype(np.float64).batch
        found = replace(found, batch=found.batch._replace(labelled=cast))
    return found


def gradients(given: Case) -> tuple[int, dict[str, Any]]:
    """Return the rows of the logits of a training step, and the gradients."""
    ops = ReferenceOps()
    ctx = given.context(ops)
    logits, saved = given.model.forward(ctx, given.batch.x)
    _, _, dlogits = given.loss(ops, logits, given.model.scored(ctx.batch).targets, given.loss.weights)
    return len(logits), given.model.backward(ctx, dlogits, saved)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_rows_with_labels_alone_have_the_gradients_of_all_rows(config: Any) -> None:
    rows, found = gradients(case(config, True))
    all_rows, expected = gradients(case(config, False))
    assert (rows, all_rows) == (len(LABELLED), NODES)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-14, err_msg=name)
        assert np.any(value), name


@pytest.mark.parametrize("config", NEED_ALL.values(), ids=NEED_ALL)
def test_models_whose_last_layers_mix_rows_compute_all_of_them(config: Any) -> None:
    assert gradients(case(config, True))[0] == NODES


def test_a_model_whose_last_convolution_is_frozen_computes_all_rows() -> None:
    given = case(MODELS["dense layers behind"], True)
    frozen = replace(given, model=freeze_layers(given.model, ["all-conv"]))
    assert gradients(frozen)[0] == NODES


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_predictions_have_all_rows(config: Any) -> None:
    given = case(config, True)
    assert given.outputs(ReferenceOps()).shape[0] == NODES


@pytest.mark.parametrize(
    "compiled", [pytest.param(False, id="NumPy"), pytest.param(True, id="compiled", marks=pytest.mark.numba)]
)
def test_the_cpu_backend_trains_on_the_labelled_rows(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = open_backend("cpu") if compiled else CpuBackend()
    graphs, config = graph(), MODELS["three layers"]
    source = BatchSource(graphs, config.adjacency)
    loss = Loss(graphs.header.target, uniform_weights(graphs.header))
    task = RunnerTask(build(config, graphs.header), loss, source, graphs.y, TrainConfig(), seed=3)
    counted = []
    cross_entropy = type(backend.ops).softmax_cross_entropy

    def count(ops: Any, logits: Any, *more: Any) -> Any:
        counted.append(len(logits))
        return cross_entropy(ops, logits, *more)

    monkeypatch.setattr(type(backend.ops), "softmax_cross_entropy", count)
    runner = make_runner(backend, [task])
    runner.begin_epoch([MemberEpoch(0, [np.array([0])], 0.01)])
    runner.step(0)
    assert counted == [len(LABELLED)]
    _, weight = runner.take_losses()[0]
    assert weight == len(LABELLED)
    assert len(runner.predict([np.array([0])])[0]) == NODES
