"""Synthetic data sets: valid files, shapes, reproducibility, and labels that depend on edges."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import BernoulliNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gcnbatch.data import synthetic
from gcnbatch.data.graphs import GraphSet, concatenate
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from tests.builders import assert_graphsets_equal

SMALL = {"tox21": {"graphs": 300}, "reaction100": {"graphs": 300}, "quickstart": {"graphs": 100}}
SMALL |= {"citation": {"scale": 0.3}, "reddit": {"scale": 0.005}, "products": {"scale": 0.001}}
MOLECULES = synthetic.MANY_GRAPHS
NETWORKS = ("citation", "reddit", "products")


def make(preset, **options) -> GraphSet:
    parts = list(synthetic.generate(preset, **options))
    return parts[0] if preset in NETWORKS else concatenate(parts)


@pytest.fixture(scope="module")
def tox21() -> GraphSet:
    return make("tox21")


def edge_nodes(graphs: GraphSet):
    """Return the rows (src, dst) of every edge that is no self-loop, and its graph."""
    graph = np.repeat(np.arange(graphs.n_graphs), np.diff(graphs.edge_ptr))
    src, dst = (graphs.node_ptr[graph] + ends for ends in (graphs.src, graphs.dst))
    return src[src != dst], dst[src != dst], graph[src != dst]


def adjacency(graphs: GraphSet) -> sp.csr_array:
    src, dst, _ = edge_nodes(graphs)
    return sp.csr_array((np.ones(len(src)), (dst, src)), shape=(graphs.n_nodes,) * 2)


# ------------------------------------------------------------------------------------------------ shape


@pytest.mark.parametrize("preset", synthetic.PRESETS)
def test_a_written_preset_equals_the_generated_one_and_is_valid(tmp_path, preset):
    synthetic.write(preset, tmp_path / "set.h5", seed=3, **SMALL[preset])
    with Dataset(tmp_path / "set.h5") as dataset:
        assert_graphsets_equal(dataset.load(), make(preset, seed=3, **SMALL[preset]))


@pytest.mark.parametrize("preset", synthetic.PRESETS)
def test_the_seed_decides_everything(preset):
    first, again, other = (make(preset, seed=seed, **SMALL[preset]) for seed in (1, 1, 2))
    assert_graphsets_equal(first, again)
    assert first.n_edges != other.n_edges or not np.array_equal(first.src, other.src)
    assert not np.array_equal(first.y[:40], other.y[:40], equal_nan=True)


@pytest.mark.parametrize("preset", synthetic.PRESETS)
def test_edges_are_simple_undirected_and_every_node_has_one_self_loop(preset):
    graphs = make(preset, **SMALL[preset])
    neighbours = adjacency(graphs)
    assert (neighbours != neighbours.T).nnz == 0
    assert neighbours.max() == 1
    loops = graphs.n_edges - neighbours.nnz
    assert loops == graphs.n_nodes == len(np.unique(np.flatnonzero(neighbours.diagonal() == 0)))


@pytest.mark.parametrize("preset", MOLECULES)
def test_molecules_are_connected_with_at_most_four_bonds_per_atom(preset):
    graphs = make(preset, **SMALL[preset])
    neighbours = adjacency(graphs)
    assert sp.csgraph.connected_components(neighbours, directed=False)[0] == graphs.n_graphs
    assert neighbours.sum(axis=0).max() == 4
    assert graphs.x.dtype == np.int8
    assert graphs.x.shape[1] == graphs.header.n_features == len(graphs.header.feature_names) == 75


def test_tox21_has_the_shape_of_tox21(tox21):
    sizes = np.diff(tox21.node_ptr)
    assert tox21.n_graphs == 7_831
    assert sizes.mean() == pytest.approx(18.5, abs=0.6)
    assert sizes.min() <= 3
    assert 80 < sizes.max() <= 132
    assert tox21.n_edges / tox21.n_nodes == pytest.approx(3.1, abs=0.1)
    assert tox21.header.channel_names == ("bond",)
    assert tox21.y.shape == (7_831, 12)
    assert np.isnan(tox21.y).mean() == pytest.approx(0.22, abs=0.04)
    assert np.nanmean(tox21.y) == pytest.approx(0.5, abs=0.02)


def test_reaction100_fills_its_hundred_classes_with_graphs_of_at_most_fifty_nodes():
    graphs = make("reaction100", graphs=4_000)
    assert np.diff(graphs.node_ptr).max() == 50
    assert len(graphs.header.class_names) == len(set(graphs.header.class_names)) == 100
    assert np.bincount(graphs.y[:, 0], minlength=100).min() > 10
    assert sum(1 for _ in synthetic.generate("reaction100", graphs=4_000)) == 2


def test_bond_channels_sort_the_same_bonds_by_kind():
    plain, sorted_by_kind = (make("tox21", graphs=200, bond_channels=flag) for flag in (False, True))
    assert sorted_by_kind.header.channel_names == ("single", "double", "triple", "aromatic", "self")
    assert (adjacency(plain) != adjacency(sorted_by_kind)).nnz == 0
    loops = sorted_by_kind.src == sorted_by_kind.dst
    assert np.array_equal(loops, sorted_by_kind.channel == 4)
    assert (np.bincount(sorted_by_kind.channel) > 0).all()
    aromatic = plain.header.feature_names.index("aromatic")
    in_ring = np.zeros(plain.n_nodes, dtype=bool)
    graph = np.repeat(np.arange(200), np.diff(sorted_by_kind.edge_ptr))
    in_ring[(sorted_by_kind.node_ptr[graph] + sorted_by_kind.dst)[sorted_by_kind.channel == 3]] = True
    assert np.array_equal(plain.x[:, aromatic] == 1, in_ring)


def test_citation_has_the_shape_and_split_of_cora():
    graphs = make("citation")
    split = graphs.splits["standard"]
    assert (graphs.n_graphs, graphs.n_nodes, graphs.n_edges) == (1, 2_708, 2 * 5_278 + 2_708)
    assert graphs.x.shape == (2_708, 1_433)
    assert np.allclose(graphs.x.sum(axis=1), 1.0)
    assert np.array_equal(np.bincount(graphs.y[split.train, 0]), [20] * 7)
    assert (len(split.valid), len(split.test)) == (500, 1_000)
    degree = adjacency(graphs).sum(axis=0)
    assert degree.max() > 10 * np.median(degree)


def test_a_network_keeps_its_proportions_at_another_scale():
    graphs = make("reddit", scale=0.005)
    cost = synthetic.forecast("reddit", 0.005)
    assert (graphs.n_nodes, graphs.n_edges) == (cost.nodes, cost.edges) == (1_165, graphs.n_edges)
    assert (graphs.x.dtype, graphs.x.shape[1], len(graphs.header.class_names)) == (np.float16, 602, 41)
    sizes = np.array([len(rows) for rows in graphs.splits["standard"].parts().values()])
    assert sizes.sum() <= graphs.n_nodes
    assert sizes / sizes.sum() == pytest.approx([0.66, 0.10, 0.24], abs=0.01)


def test_the_forecast_at_full_scale_is_reddit():
    cost = synthetic.forecast("reddit", 1.0)
    assert cost.nodes == 232_965
    assert cost.edges == 114_615_892 + 232_965


@pytest.mark.slow
def test_a_large_network_takes_less_memory_than_twice_its_file(tmp_path):
    program = (
        "import os, re, sys\n"
        "from gcnbatch.data import synthetic, writer\n"
        "taken = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = taken()\n"
        "synthetic.write('reddit', sys.argv[1], scale=0.1)\n"
        "print((taken() - before) / os.path.getsize(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "reddit.h5"], capture_output=True, check=True)
    assert 0.5 < float(done.stdout) < 2


# ------------------------------------------------------------------------------------------------ labels


def bags(graphs: GraphSet):
    """Return, per graph, how often each distinct feature row occurs: all that a model without edges can know."""
    rows, kind = np.unique(np.packbits(graphs.x == 1, axis=1).view("S10"), return_inverse=True)
    graph = np.repeat(np.arange(graphs.n_graphs), np.diff(graphs.node_ptr))
    cell = graph * len(rows) + kind.ravel()
    return np.bincount(cell, minlength=graphs.n_graphs * len(rows)).reshape(graphs.n_graphs, len(rows))


def bonded_pairs(graphs: GraphSet):
    """Return, per graph, the number of edges for each pair of elements: what one look at neighbours adds."""
    elements = np.argmax(graphs.x[:, :44], axis=1)
    known, place = np.unique(elements, return_inverse=True)
    src, dst, graph = edge_nodes(graphs)
    width = len(known) ** 2
    cell = graph * width + place[src] * len(known) + place[dst]
    return np.bincount(cell, minlength=graphs.n_graphs * width).reshape(graphs.n_graphs, width)


def mean_auc(features, y) -> float:
    """Fit a logistic regression per task on the first half of the labelled rows; return the mean AUC on the others."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))
    scores = []
    for labels in y.T:
        known = np.flatnonzero(~np.isnan(labels))
        seen, unseen = np.array_split(known, 2)
        model.fit(features[seen], labels[seen])
        scores.append(roc_auc_score(labels[unseen], model.decision_function(features[unseen])))
    return float(np.mean(scores))


@pytest.mark.parametrize(("preset", "graphs", "reached"), [("tox21", 2_000, 0.85), ("quickstart", 1_000, 0.99)])
def test_binary_labels_depend_on_bonds_and_not_on_atoms_alone(preset, graphs, reached):
    data = make(preset, graphs=graphs)
    atoms = bags(data)
    assert mean_auc(atoms, data.y) == pytest.approx(0.5, abs=0.04)
    assert mean_auc(np.hstack([atoms, bonded_pairs(data)]), data.y) > reached


def test_reaction_classes_depend_on_bonds_and_not_on_atoms_alone():
    data = make("reaction100", graphs=5_000)
    labels = data.y[:, 0]
    symbols = [f"symbol={name}" for name in ("N", "O", "S", "P", "Si", "B", "Se", "As", "Ge", "Sn")]
    hetero = data.x[:, [data.header.feature_names.index(name) for name in symbols]].any(axis=1)
    assert len(np.unique(data.x[hetero], axis=0)) == 10
    assert np.array_equal(np.add.reduceat(hetero, data.node_ptr[:-1], dtype=int), np.full(data.n_graphs, 10))
    for features, low, high in ((bags(data), 0.0, 0.02), (bonded_pairs(data), 0.95, 1.0)):
        score = BernoulliNB().fit(features[:4_000], labels[:4_000]).score(features[4_000:], labels[4_000:])
        assert low <= score <= high


@pytest.mark.parametrize(
    ("preset", "scale", "most"),
    [
        ("citation", 1.0, 0.9),
        pytest.param("reddit", 0.03, 0.955, marks=pytest.mark.slow),
        pytest.param("products", 0.01, 0.86, marks=pytest.mark.slow),
    ],
)
def test_neighbours_predict_node_classes_far_better_than_the_node_itself(preset, scale, most):
    data = make(preset, scale=scale)
    split, labels = data.splits["standard"], data.y[:, 0]
    loops = adjacency(data) + sp.eye_array(data.n_nodes)
    average = sp.diags_array(1.0 / loops.sum(axis=1)) @ loops
    x = data.x.toarray() if sp.issparse(data.x) else data.x.astype(np.float64)
    alone, near = (
        LogisticRegression(C=10.0, max_iter=200)
        .fit(features[split.train], labels[split.train])
        .score(features[split.test], labels[split.test])
        for features in (x, average @ (average @ x))
    )
    assert alone < 0.5
    assert alone + 0.3 < near < most


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "tox12"}, "preset: 'tox12'; expected tox21, reaction100, quickstart, citation, reddit, products"),
        ({"preset": "tox21", "seed": -1}, "--seed: -1; expected a whole number from 0"),
        ({"preset": "tox21", "graphs": 0}, "--graphs: 0; expected at least 1"),
        ({"preset": "tox21", "scale": 2.0}, "--scale: given for tox21, which is many graphs. Use --graphs"),
        ({"preset": "reddit", "graphs": 5}, "--graphs: given for reddit, which is one graph. Use --scale"),
        ({"preset": "reddit", "scale": 0.0}, "--scale: 0; expected above 0, at most 4"),
        ({"preset": "reddit", "scale": float("nan")}, "--scale: nan; expected above 0, at most 4"),
        ({"preset": "citation", "bond_channels": True}, "--bond-channels: given for citation, which has no bonds"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(tmp_path, arguments, message):
    with pytest.raises(InputError) as caught:
        synthetic.generate(**arguments)
    assert message in str(caught.value)
    with pytest.raises(InputError):
        synthetic.write(path=tmp_path / "set.h5", **arguments)
    assert not list(tmp_path.iterdir())


def test_an_unlike_preset_is_answered_with_all_names_once():
    with pytest.raises(InputError) as caught:
        synthetic.generate("zzz")
    assert str(caught.value) == "preset: 'zzz'; expected tox21, reaction100, quickstart, citation, reddit, products"
