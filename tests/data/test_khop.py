"""k-hop sets against dense powers: channels, values, normalisation, limits; propagated features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.backends.products import HostProducts, open_products
from gcnbatch.data import khop as khop_module
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.khop import Reach, adjacency, keep_largest, normalized, write
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from gcnbatch.options.datasets import HopOptions
from tests.builders import assert_graphsets_equal, build_graphset

HOST = HostProducts()
quickly = settings(max_examples=25)


def khop(graphs: GraphSet, folder: Path, **options: Any) -> GraphSet:
    """Return the k-hop version of a set, by way of files."""
    write_graphset(folder / "in.h5", graphs)
    with Dataset(folder / "in.h5") as source:
        write(source, folder / "out.h5", HopOptions(**options), HOST)
    with Dataset(folder / "out.h5") as result:
        return result.load()


def dense_channel(graphs: GraphSet, graph: int, channel: int | None = None) -> np.ndarray[Any, Any]:
    """Return one graph's adjacency, of one channel or of all, repeated edges added up."""
    n = int(np.diff(graphs.node_ptr)[graph])
    found = np.zeros((n, n))
    for edge in range(graphs.edge_ptr[graph], graphs.edge_ptr[graph + 1]):
        if channel is None or graphs.channel[edge] == channel:
            weight = 1.0 if graphs.weight is None else graphs.weight[edge]
            found[graphs.dst[edge], graphs.src[edge]] += weight
    return found


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("level", ["graph", "node"])
def test_channels_are_the_powers_of_each_graph(tmp_path: Path, weights: bool, level: Any) -> None:
    graphs = build_graphset(7, weights=weights, level=level, groups=True, splits=True, seed=3)
    result = khop(graphs, tmp_path, hops=3, mode="channels")
    assert result.header.channel_names == (*graphs.header.channel_names, "2 hops", "3 hops")
    assert result.header.source["khop"] == "3 hops, channels, walks"
    for graph in range(graphs.n_graphs):
        a = dense_channel(graphs, graph)
        for channel in range(2):
            np.testing.assert_allclose(
                dense_channel(result, graph, channel), dense_channel(graphs, graph, channel), rtol=1e-6
            )
        for hop in (2, 3):
            power = np.linalg.matrix_power(a, hop)
            scale = np.linalg.matrix_power(np.abs(a), hop).max(initial=1.0)
            np.testing.assert_allclose(dense_channel(result, graph, hop), power, atol=1e-5 * scale)
    np.testing.assert_array_equal(result.y, graphs.y)
    assert result.splits.keys() == graphs.splits.keys()


def test_binary_channels_of_a_set_without_weights_have_none(tmp_path: Path) -> None:
    graphs = build_graphset(5, seed=1)
    result = khop(graphs, tmp_path, hops=3, mode="channels", values="binary")
    assert result.weight is None
    for graph in range(graphs.n_graphs):
        reached = dense_channel(graphs, graph) > 0
        two = (reached.astype(int) @ reached) > 0
        np.testing.assert_array_equal(dense_channel(result, graph, 2), two)
        np.testing.assert_array_equal(dense_channel(result, graph, 3), (two.astype(int) @ reached) > 0)


@pytest.mark.parametrize("already", [False, True])
def test_every_channel_is_normalized_once(tmp_path: Path, already: bool) -> None:
    graphs = build_graphset(4, weights=True, seed=5)
    weight = np.abs(graphs.weight) + 0.1
    header = graphs.header.model_copy(update={"normalized": already})
    graphs = type(graphs)(**{**vars(graphs), "weight": weight, "header": header})
    result = khop(graphs, tmp_path, hops=2, mode="channels", normalize=not already)
    assert result.header.normalized
    for graph in range(graphs.n_graphs):
        for channel in range(3):
            own = channel < 2
            a = (
                dense_channel(graphs, graph, channel)
                if own
                else np.linalg.matrix_power(dense_channel(graphs, graph), 2)
            )
            rows, columns = a.sum(axis=1, keepdims=True), a.sum(axis=0, keepdims=True)
            scaled = np.divide(a, np.sqrt(rows * columns), out=np.zeros_like(a), where=a > 0)
            expected = a if own and already else scaled
            np.testing.assert_allclose(dense_channel(result, graph, channel), expected, atol=1e-6)


@quickly
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_keep_stores_the_largest_entries_of_each_row(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = sp.csr_array(rng.integers(-3, 4, (9, 12)) * (rng.random((9, 12)) < 0.6), dtype=np.float32)
    matrix.eliminate_zeros()
    kept = keep_largest(matrix, count).toarray()
    for row, whole in zip(kept, matrix.toarray(), strict=True):
        order = sorted(np.flatnonzero(whole), key=lambda column: (-abs(whole[column]), column))[:count]
        expected = np.zeros(12)
        expected[order] = whole[order]
        np.testing.assert_array_equal(row, expected)


def test_the_next_power_is_computed_from_the_kept_entries(tmp_path: Path) -> None:
    graphs = build_graphset(1, max_nodes=30, edges_per_node=3, n_channels=1, seed=2)
    result = khop(graphs, tmp_path, hops=3, mode="channels", keep=2)
    a = adjacency(graphs)
    two = keep_largest(HOST.multiply(a, a), 2)
    three = keep_largest(HOST.multiply(two, a), 2)
    np.testing.assert_array_equal(dense_channel(result, 0, 1), two.toarray())
    np.testing.assert_array_equal(dense_channel(result, 0, 2), three.toarray())


@quickly
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
def test_powers_computed_in_slabs_are_the_same(seed: int, entries: int, binary: bool) -> None:
    graphs = build_graphset(3, max_nodes=20, edges_per_node=3, weights=True, seed=seed)
    options = HopOptions(hops=3, mode="channels", values="binary" if binary else "walks", keep=3)
    whole = list(khop_module.powers(adjacency(graphs), options, HOST))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(khop_module, "SLAB_ENTRIES", entries)
        for found, expected in zip(khop_module.powers(adjacency(graphs), options, HOST), whole, strict=True):
            for name in ("indptr", "indices", "data"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("features", ["float32", "float16", "uint8", "csr"])
@pytest.mark.parametrize("normalize", [True, False])
def test_features_are_propagated_within_their_graphs(tmp_path: Path, features: str, normalize: bool) -> None:
    graphs = build_graphset(6, features=features, seed=4)
    result = khop(graphs, tmp_path, hops=3, mode="propagated", normalize=normalize)
    assert sp.issparse(result.x) == (features == "csr")
    assert result.x.dtype == np.float32
    step = adjacency(graphs)
    step = (normalized(step) if normalize else step).toarray().astype(np.float64)
    before = graphs.x.toarray() if features == "csr" else graphs.x.astype(np.float64)
    after = result.x.toarray() if features == "csr" else result.x
    np.testing.assert_allclose(after, np.linalg.matrix_power(step, 3) @ before, rtol=1e-4, atol=1e-5)
    for name in ("src", "dst", "channel", "edge_ptr"):
        np.testing.assert_array_equal(getattr(result, name), getattr(graphs, name))


def test_a_file_read_in_blocks_gives_the_same_khop_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = build_graphset(40, seed=8)
    whole = khop(graphs, tmp_path, hops=2, mode="channels")
    blocks = Dataset.blocks
    monkeypatch.setattr(Dataset, "blocks", lambda self: blocks(self, 300))
    assert_graphsets_equal(khop(graphs, tmp_path, hops=2, mode="channels"), whole)


def test_a_set_without_graphs_gives_a_khop_set_without_graphs(tmp_path: Path) -> None:
    assert khop(build_graphset(0), tmp_path, hops=2, mode="channels").header.n_channels == 3


def test_a_khop_set_has_no_featurizer(tmp_path: Path) -> None:
    graphs = build_graphset(3)
    header = graphs.header.model_copy(update={"featurizer": {"kind": "smiles"}})
    graphs = type(graphs)(**{**vars(graphs), "header": header})
    assert khop(graphs, tmp_path, hops=2, mode="channels").header.featurizer is None
    assert khop(graphs, tmp_path, hops=1, mode="propagated").header.featurizer is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hops": 1, "mode": "channels"}, "--hops: 1; expected 2 to 64 with --mode channels"),
        ({"hops": 0, "mode": "propagated"}, "--hops: 0; expected 1 to 64 with --mode propagated"),
        ({"hops": 65, "mode": "channels"}, "--hops: 65; expected 2 to 64 with --mode channels"),
        ({"hops": 2, "mode": "propagated", "keep": 3}, "--mode propagated: given with --keep or --values"),
        (
            {"hops": 3, "mode": "channels", "max_edges": 60},
            "edges expected of 3 hops; expected at most 60. Lower --hops",
        ),
    ],
)
def test_refused_options_leave_no_file(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        khop(build_graphset(8), tmp_path, **options)
    assert message in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.h5"]


def test_channels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    many = build_graphset(2, n_channels=200)
    with pytest.raises(InputError, match="--hops: 263 channels; expected at most 256"):
        khop(many, tmp_path, hops=64, mode="channels")
    twice = khop(build_graphset(2), tmp_path, hops=2, mode="channels")
    with pytest.raises(InputError, match="channels: there is one named '2 hops' already"):
        khop(twice, tmp_path, hops=2, mode="channels")


def test_a_product_that_overflows_float32_is_refused(tmp_path: Path) -> None:
    graphs = build_graphset(1, max_nodes=4, edges_per_node=4, weights=True)
    graphs = type(graphs)(**{**vars(graphs), "weight": np.full(graphs.n_edges, 1e30, np.float32)})
    with np.errstate(over="ignore"), pytest.raises(InputError, match="edges/weight"):
        khop(graphs, tmp_path, hops=2, mode="channels")


def test_a_large_memory_need_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcnbatch.data.khop.ANNOUNCED", 1000)
    write_graphset(tmp_path / "in.h5", build_graphset(40))
    told: list[str] = []
    with Dataset(tmp_path / "in.h5") as source:
        write(source, tmp_path / "out.h5", HopOptions(hops=2, mode="channels"), HOST, told.append)
    assert [line for line in told if line.startswith("this takes about ") and line.endswith(" MiB of memory")] == told[
        -1:
    ]


def test_the_forecast_is_close_to_the_result() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    matrix = sp.csr_array(sp.random_array((n, n), density=4 / n, rng=rng, format="csr"), dtype=np.float32)
    reach, power = Reach(matrix, 1), matrix
    for _ in range(3):
        reach.extend(matrix)
        power = sp.csr_array(matrix @ power)
        assert reach.entries() == pytest.approx(power.nnz, rel=0.1)
    lengths = np.diff(power.indptr)
    assert reach.entries(50) == pytest.approx(np.minimum(lengths, 50).sum(), rel=0.15)
    assert Reach(sp.csr_array((3, 4)), 1).entries() == 0.0


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InputError, match="--backend: 'gpu'; expected auto, cpu or cuda"):
        open_products("gpu")
