"""Numbers of `gcnbatch data info` against plain loops, and its figure for every kind of set."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings

from gcnbatch.data import describe_figure, synthetic
from gcnbatch.data.describe import Description, Distribution, Statistics, describe
from gcnbatch.data.describe_figure import draw
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.store import Dataset, write_graphset
from tests.builders import build_graphset, graphsets

PNG = b"\x89PNG\r\n\x1a\n"


def described(graphs: GraphSet, folder, memory_mb: int = 64) -> Description:
    write_graphset(folder / "set.h5", graphs)
    with Dataset(folder / "set.h5", memory_mb) as dataset:
        return describe(dataset)


def as_counts(distribution: Distribution) -> dict[int, int]:
    return dict(zip(distribution.values.tolist(), distribution.counts.tolist(), strict=True))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs=graphsets())
def test_the_description_equals_plain_loops(tmp_path, graphs):
    found = described(graphs, tmp_path)
    sizes, degrees, loops, channels = Counter(), Counter(), 0, Counter()
    for g in range(graphs.n_graphs):
        count = int(graphs.node_ptr[g + 1] - graphs.node_ptr[g])
        sizes[count] += 1
        neighbours = [0] * count
        for e in range(graphs.edge_ptr[g], graphs.edge_ptr[g + 1]):
            channels[graphs.header.channel_names[graphs.channel[e]]] += 1
            if graphs.src[e] == graphs.dst[e]:
                loops += 1
            else:
                neighbours[graphs.dst[e]] += 1
        degrees.update(neighbours)
    assert (found.graphs, found.nodes, found.edges) == (graphs.n_graphs, graphs.n_nodes, graphs.n_edges)
    assert as_counts(found.nodes_per_graph) == sizes
    assert as_counts(found.edges_per_graph) == Counter(np.diff(graphs.edge_ptr).tolist())
    assert as_counts(found.degree) == degrees
    assert found.self_loops == loops
    assert found.channels == {name: channels[name] for name in graphs.header.channel_names}
    dense = graphs.x.toarray() if sp.issparse(graphs.x) else graphs.x
    density = (dense != 0).sum() / dense.size if dense.size else None
    assert found.features.density == pytest.approx(density)
    assert found.edge_weights == ("none" if graphs.weight is None else "stored")
    assert found.groups == (None if graphs.groups is None else len(set(graphs.groups.tolist())))
    assert found.splits == {
        name: {part: len(rows) for part, rows in split.parts().items()} for name, split in graphs.splits.items()
    }
    json.dumps(found.as_dict(), allow_nan=False)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs=graphsets())
def test_labels_are_counted_per_task(tmp_path, graphs):
    for number, (task, column) in enumerate(zip(described(graphs, tmp_path).tasks, graphs.y.T, strict=True)):
        known = [
            value for value in column.tolist() if not (math.isnan(value) or (value < 0 and column.dtype == np.int32))
        ]
        assert task.missing == len(column) - len(known)
        if graphs.header.target == "binary":
            assert task.values == {"positive": known.count(1.0), "negative": known.count(0.0)}
        elif graphs.header.target == "multiclass":
            assert list(task.values) == list(graphs.header.class_names)
            assert list(task.values.values()) == [known.count(c) for c in range(len(graphs.header.class_names))]
        else:
            values = dict(task.values)
            if graphs.censored is not None:
                directions = graphs.censored[:, number].tolist()
                assert values.pop("unit") == graphs.header.units.get(task.name)
                assert (values.pop("above"), values.pop("below")) == (directions.count(1), directions.count(-1))
            if known:
                expected = {"min": min(known), "mean": np.mean(known), "std": np.std(known), "max": max(known)}
                assert values == pytest.approx(expected)
            else:
                assert values == dict.fromkeys(("min", "mean", "std", "max"))


def test_a_summary_of_numbers_worked_by_hand():
    # 20 numbers: one 1, ten 2s, eight 5s, one 40. 5 % of them is the first, the tenth is a 2, the nineteenth a 5.
    numbers = np.array([1] + [2] * 10 + [5] * 8 + [40])
    assert Distribution.of(numbers).summary() == Statistics(min=1, p5=1, median=2, mean=5.05, p95=5, max=40)
    assert Distribution.of(np.array([7])).summary() == Statistics(7, 7, 7, 7.0, 7, 7)
    assert Distribution.of(np.array([], dtype=np.int64)).summary() is None


def test_a_set_larger_than_memory_has_the_same_description(tmp_path):
    path = tmp_path / "large.h5"
    synthetic.write("reaction100", path, graphs=8_000)
    with Dataset(path, memory_mb=16) as sliced, Dataset(path) as whole:
        assert not sliced.fits_in_memory
        assert whole.fits_in_memory
        assert describe(sliced).as_dict() == describe(whole).as_dict()


def test_normalized_weights_are_reported_as_normalized(tmp_path):
    graphs = build_graphset(weights=True)
    assert described(graphs, tmp_path).edge_weights == "stored"
    graphs = replace(graphs, header=graphs.header.model_copy(update={"normalized": True}))
    assert described(graphs, tmp_path).edge_weights == "normalized"


@pytest.mark.parametrize(
    "options",
    [
        {"target": "binary", "n_tasks": 40},
        {"target": "multiclass", "missing": 0.5},
        {"target": "multiclass", "n_classes": 60, "level": "node"},
        {"target": "regression", "n_tasks": 1},
        {"target": "regression", "n_tasks": 3, "missing": 1.0},
        {"target": "regression", "n_tasks": 35, "missing": 0.0},
        {"target": "binary", "n_graphs": 0},
        {"target": "binary", "n_graphs": 1, "max_nodes": 0},
        {"target": "binary", "edges_per_node": 0},
    ],
)
def test_every_kind_of_set_has_a_figure(tmp_path, options):
    graphs = build_graphset(**options)
    draw(described(graphs, tmp_path), graphs.y, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("target", ["binary", "regression"])
def test_of_very_many_tasks_the_first_are_drawn(tmp_path, monkeypatch, target):
    labels = []
    monkeypatch.setattr(describe_figure, "_DRAWN", 40)
    monkeypatch.setattr(describe_figure, "save", lambda figure, path: labels.append(figure.axes[-1].get_ylabel()))
    graphs = build_graphset(target=target, n_tasks=50, missing=0.0)
    draw(described(graphs, tmp_path), graphs.y, tmp_path / "figure.png")
    assert labels == ["the first 40 of 50 tasks, in order"]


def test_a_heavy_tail_around_isolated_nodes_has_a_figure(tmp_path):
    hub = np.zeros(300, dtype=np.int32)
    leaves = np.arange(1, 301, dtype=np.int32)
    base = build_graphset(1, level="node", max_nodes=1, n_channels=1)
    graphs = replace(
        base,
        node_ptr=np.array([0, 9_000]),
        edge_ptr=np.array([0, 300]),
        src=leaves,
        dst=hub,
        channel=np.zeros(300, np.uint8),
        x=np.ones((9_000, base.n_features), np.float32),
        y=np.ones((9_000, 2), np.float32),
        ids=np.arange(9_000).astype(np.str_),
    )
    found = described(graphs, tmp_path)
    assert found.degree.summary() == Statistics(0, 0, 0, pytest.approx(300 / 9_000), 0, 300)
    draw(found, graphs.y, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)


def test_names_are_drawn_without_mathematics_markup(tmp_path):
    graphs = build_graphset(n_tasks=2)
    names = ("$\\frac{", "a task with a name that is far too long for a figure")
    graphs = replace(graphs, header=graphs.header.model_copy(update={"task_names": names, "name": "50 $ _x_"}))
    draw(described(graphs, tmp_path), graphs.y, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
