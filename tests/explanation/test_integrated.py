"""Integrated gradients: completeness, the planted cause, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from gcnbatch.data.batches import BatchSource
from gcnbatch.errors import InputError
from gcnbatch.explanation import Explainer, attribute, integrated
from gcnbatch.inference.models import load_models
from gcnbatch.reference.rounding import gamma
from gcnbatch.runners.choice import BackendChoice
from tests.builders import build_graphset
from tests.explanation.planted import planted
from tests.inference.runs import stored, train_on

GRAPHS = build_graphset(9, seed=3)


def explainer(run: Path, **options: Any) -> Explainer:
    return Explainer(load_models([run], print), BackendChoice("cpu"), **options)


@pytest.mark.parametrize("readout", ["max", "sum"])
def test_a_planted_motif_gets_the_weight(tmp_path: Path, readout: str) -> None:
    count, epochs = (300, 60) if readout == "max" else (600, 60)
    graphs, of_motif = planted(count)
    data = stored(tmp_path / "planted.h5", graphs)
    model = {"widths": [16, 16], "readout": readout}
    run = train_on(
        data, tmp_path / "run", model=model, train={"epochs": epochs, "batch_size": 32, "learning_rate": 5e-3}
    )
    found = attribute([run], graphs, backend="cpu")
    positive = np.repeat(graphs.y[:, 0] == 1, np.diff(graphs.node_ptr))
    assert 300 < of_motif.sum() < 0.3 * positive.sum()
    assert roc_auc_score(of_motif[positive], found.atoms[positive, 0]) >= 0.95


def test_more_steps_miss_less_of_the_difference(trained: tuple[Path, Path]) -> None:
    errors = [np.abs(explainer(trained[0], steps=steps).explain(GRAPHS).errors).max() for steps in (1, 8, 64)]
    assert errors[0] > 2 * errors[1] > 8 * errors[2] > 0


def test_rounds_reuse_positions_and_end_where_the_error_is_small(
    trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrated, "ROUNDS", [2, 6, 18])
    monkeypatch.setattr(integrated, "TOLERANCE", 0.004)
    found = explainer(trained[0]).explain(GRAPHS)
    assert set(found.steps.tolist()) == {2, 6, 18}
    for steps in (2, 6, 18):
        alone = explainer(trained[0], steps=steps, batch_nodes=7).explain(GRAPHS)
        own = np.repeat(found.steps == steps, np.diff(GRAPHS.node_ptr))
        np.testing.assert_allclose(found.nodes[own], alone.nodes[own], rtol=1e-4, atol=1e-6)
    done = found.steps < 18
    wanted = np.abs(found.outputs - found.baselines)
    assert (np.abs(found.errors) <= 0.004 * (1 + wanted))[done].all()


def test_attributions_add_up_and_self_loops_have_none(trained: tuple[Path, Path]) -> None:
    found = explainer(trained[0]).explain(GRAPHS)
    np.testing.assert_allclose(found.sums + found.baselines - found.errors, found.outputs)
    starts = GRAPHS.node_ptr[:-1][np.diff(GRAPHS.node_ptr) > 0]
    whole = np.add.reduceat(found.atoms, starts)
    np.testing.assert_allclose(whole, found.sums[np.diff(GRAPHS.node_ptr) > 0], atol=1e-12)
    loops = GRAPHS.src == GRAPHS.dst
    assert loops.any()
    assert not found.edges[loops].any()
    bonds = found.bonds()
    assert (bonds.begin < bonds.end).all()
    np.testing.assert_allclose(bonds.values.sum(axis=0), found.edges.sum(axis=0))
    assert len(np.unique(np.stack(bonds[:4]), axis=1).T) == len(bonds.graph)


def test_an_ensemble_is_the_mean_of_its_members(trained: tuple[Path, Path], second: Path) -> None:
    both = attribute([trained[0], second], GRAPHS, steps=4, backend="cpu", tasks=["task1"])
    single = [attribute([run], GRAPHS, steps=4, backend="cpu") for run in (trained[0], second)]
    assert both.names == ("task1",)
    for name in ("outputs", "nodes", "edges", "errors"):
        mean = (getattr(single[0], name) + getattr(single[1], name)) / 2
        np.testing.assert_allclose(getattr(both, name), mean[:, 1:], atol=1e-12)


def test_features_of_whole_graphs_share_the_sum(tmp_path: Path) -> None:
    graphs = build_graphset(40, graph_features=6, n_counts=3, seed=6)
    names = ("a", "b", "c", "read=0", "read=1", "only in a mixture=0")
    graphs = replace(graphs, header=graphs.header.model_copy(update={"graph_feature_names": names}))
    assert graphs.graph_features is not None
    data = stored(tmp_path / "data.h5", graphs)
    runs = [train_on(data, tmp_path / name, model={"graph_features": name}) for name in ("on", "off")]
    found = explainer(runs[0], steps=64).explain(graphs.take(np.arange(9)))
    joined, (member,) = found.joined, load_models(runs[:1], print)
    scaled = (graphs.graph_features.dense()[:9, :5] - member.weights["features.mean"]) * member.weights[
        "features.scale"
    ]
    np.testing.assert_array_equal(joined[:2], np.nonzero(np.nan_to_num(scaled)))
    np.testing.assert_allclose(found.joined_sums.sum(axis=0), joined.values.sum(axis=0))
    assert (np.abs(found.errors) < 0.02 * (1 + np.abs(found.outputs - found.baselines))).all()
    assert (np.abs(found.errors - found.joined_sums) > 0.02).any()  # without them, the sum misses the difference
    moved = replace(found.graphs, graph_features=np.full((9, 6), np.nan, np.float32))
    without = explainer(runs[0], steps=64).explain(moved)
    np.testing.assert_allclose(without.baselines, found.baselines, rtol=1e-5)
    assert not without.joined.values.size
    both = [attribute([run], graphs, steps=4, backend="cpu") for run in runs]
    mean = attribute(runs, graphs, steps=4, backend="cpu")
    np.testing.assert_allclose(mean.joined.values, both[0].joined.values / 2, atol=1e-12)
    np.testing.assert_allclose(mean.sums, (both[0].sums + both[1].sums) / 2, atol=1e-12)


@pytest.mark.parametrize(("target", "features"), [("multiclass", "float32"), ("regression", "csr")])
def test_outputs_are_those_of_the_model(tmp_path: Path, target: Any, features: str) -> None:
    graphs = build_graphset(30, target=target, features=features, n_tasks=2, seed=5)
    run = train_on(stored(tmp_path / "data.h5", graphs), tmp_path / "run")
    (member,) = load_models([run], print)
    found = attribute([run], graphs, steps=3, backend="cpu")
    source = BatchSource(graphs, member.adjacency)
    predicted = member.outputs(BackendChoice("cpu"), source)
    if target == "multiclass":
        most = gamma(1_000) * np.abs(found.nodes).max()  # an attribution adds up fewer products
        np.testing.assert_allclose(found.nodes.sum(axis=1), 0, atol=most)
        exponent = np.exp(found.outputs)
        np.testing.assert_allclose(exponent / exponent.sum(axis=1, keepdims=True), predicted, atol=1e-5)
        assert attribute([run], graphs, steps=1, backend="cpu", tasks=["class2"]).names == ("p(class2)",)
    else:
        np.testing.assert_allclose(found.outputs, predicted, rtol=1e-4, atol=1e-5)


def test_what_is_refused(trained: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--task: no output 'task9'; expected task0, task1. Did you mean 'task1'"):
        explainer(trained[0], tasks=["task9"])
    with pytest.raises(InputError, match=r"--task: no output 'zzz'; expected task0, task1$"):
        explainer(trained[0], tasks=["zzz"])
    with pytest.raises(InputError, match="number of features: 7; expected 4"):
        attribute([trained[0]], build_graphset(3, n_features=7), backend="cpu")
    nodes = train_on(stored(tmp_path / "nodes.h5", build_graphset(4, level="node", seed=1)), tmp_path / "run")
    with pytest.raises(InputError, match="predicts nodes; expected a model of graphs"):
        explainer(nodes)


def test_smiles_give_the_graphs_that_their_file_gives(chemistry: tuple[Path, Path, Path], tmp_path: Path) -> None:
    texts = ["CCO", "not a molecule", "c1ccncc1"]
    (tmp_path / "new.csv").write_text("\n".join(["structure", *texts]))
    found = [attribute([chemistry[0]], data, steps=2, backend="cpu") for data in (texts, tmp_path / "new.csv")]
    assert found[0].graphs.n_graphs == 2
    np.testing.assert_array_equal(found[0].nodes, found[1].nodes)
