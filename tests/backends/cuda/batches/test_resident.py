"""Host side of resident batches: epoch plans, matrices per channel, and device memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches import batch, resident, streaming
from gcnbatch.backends.cuda.batches import epoch_plan as plan
from gcnbatch.backends.cuda.batches.batch import ChannelAdjacency, ChannelMatrices, DeviceAdjacency, GraphLayout
from gcnbatch.backends.cuda.batches.resident import ResidentSet, can_reside, resident_bytes
from gcnbatch.backends.cuda.batches.streaming import StreamingSet, open_batches
from gcnbatch.backends.cuda.runtime.device import open_device
from gcnbatch.backends.cuda.spmm import pieces as spmm_pieces
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.data.synthetic import networks as synthetic_networks
from gcnbatch.errors import InputError, MachineError
from tests.builders import build_graphset, dense, graphsets, scipy_csr

quickly = settings(max_examples=40)
BATCHES = st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=5)


def numbers(batches: list[list[int]]) -> list[NDArray[np.int64]]:
    return [np.array(graphs, dtype=np.int64) for graphs in batches]


# ---- plans


@quickly
@given(BATCHES, st.lists(st.integers(0, 7), min_size=6, max_size=6))
def test_epoch_plan_equals_a_loop_over_graphs(batches: list[list[int]], sizes: list[int]) -> None:
    found = plan.plan_epoch(numbers(batches), {"nodes": np.array(sizes, dtype=np.int64)})
    assert found.graphs.tolist() == [g for graphs in batches for g in graphs]
    assert found.pointers["nodes"].dtype == np.int32
    assert len(found.pointers["nodes"]) == sum(len(graphs) + 1 for graphs in batches)
    for index, graphs in enumerate(batches):
        first, expected = 0, [0]
        for g in graphs:
            first += sizes[g]
            expected.append(first)
        assert found.pointer("nodes", index).tolist() == expected
        assert found.n_graphs(index) == len(graphs)
        start, number = found.places[index]
        assert found.packed[start : start + number].tolist() == graphs + expected
        assert found.totals["nodes"][index] == first
    assert len(found.packed) == sum(number for _, number in found.places)


@quickly
@given(st.lists(BATCHES, max_size=3), st.lists(st.integers(1, 9), max_size=3), st.integers(1, 4))
def test_plans_of_members_are_those_of_each_alone(any_sizes: list[list[list[int]]], rows: list[int], size: int) -> None:
    """Batches of all sizes; and of one size but for the last, in members of other numbers of rows."""
    sizes = {name: np.array([*numbers, 0]) for name, numbers in (("nodes", [3, 1, 4, 0, 5, 9]), ("edges", [2] * 6))}
    graphs = [np.arange(count) % 6 for count in rows]
    alike = [[own[start : start + size] for start in range(0, len(own), size)] for own in graphs]
    for members in ([numbers(batches) for batches in any_sizes], alike):
        for found, batches in zip(plan.plan_epochs(members, sizes), members, strict=True):
            expected = plan.plan_epoch(batches, sizes)
            assert found.pointers.keys() == expected.pointers.keys()
            for one, other in zip(arrays(found), arrays(expected), strict=True):
                assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())


def arrays(found: plan.EpochPlan) -> list[NDArray[Any]]:
    return [found.graphs, found.batch_ptr, *found.pointers.values()]


@pytest.mark.parametrize("members", [False, True])
def test_a_batch_beyond_32_bits_is_refused(members: bool) -> None:
    sizes, batches = {"edges": np.array([2**30, 2**30, 0])}, numbers([[0, 1], [0]])
    with pytest.raises(InputError) as caught:
        plan.plan_epochs([batches], sizes) if members else plan.plan_epoch(batches, sizes)
    assert str(caught.value) == (
        "batch size: a batch of 2147483648 edges; expected at most 2147479552. "
        "Lower train.batch_size or train.eval_batch_size."
    )


@quickly
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), max_size=4), st.integers(0, 100))
def test_column_plans_transpose_each_batch(batches: list[list[int]], seed: int) -> None:
    graphs = build_graphset(features="csr", seed=seed)
    x: Any = graphs.x
    source, n_features = BatchSource(graphs), x.shape[1]
    host = Csr(x.indptr, x.indices, x.data, n_features)
    found = plan.plan_columns(numbers(batches), host, graphs.node_ptr)
    for index, ids in enumerate(numbers(batches)):
        expected = scipy_csr(source.batch(ids).x).tocsc()
        start, stop = found.entry_start[index : index + 2]
        pointer = found.column_ptr[index * (n_features + 1) : (index + 1) * (n_features + 1)]
        np.testing.assert_array_equal(pointer, expected.indptr)
        np.testing.assert_array_equal(found.rows[start:stop], expected.indices)
        np.testing.assert_array_equal(source.batch(ids).x.data[found.order[start:stop]], expected.data)


# ---- matrices per graph and channel


def one_matrix(matrices: ChannelMatrices, place: int, n: int) -> NDArray[np.float32]:
    """Return one matrix as a dense array, from its CSR and from its COO form."""
    first_row, first_entry, n_entries = matrices.places[:, place]
    by_rows, by_entries = np.zeros((n, n), np.float32), np.zeros((n, n), np.float32)
    for i in range(n):
        for k in range(matrices.indptr[first_row + i], matrices.indptr[first_row + i + 1]):
            by_rows[i, matrices.indices[k]] += matrices.data[k]
    assert matrices.rows is not None
    for k in range(first_entry, first_entry + n_entries):
        by_entries[matrices.rows[k], matrices.indices[k]] += matrices.data[k]
    np.testing.assert_array_equal(by_rows, by_entries)
    return by_rows


def assert_split_by_channel(found: ChannelAdjacency, adjacency: Adjacency, layout: GraphLayout) -> None:
    """Assert that each matrix is its graph's and channel's block of the batch's adjacency, also in the transpose."""
    whole = dense(adjacency.forward)
    channels = layout.n_channels
    for b, (first, n) in enumerate(layout.graphs):
        rows = whole[first : first + n, first * channels : (first + n) * channels]
        for c in range(channels):
            place = b * channels + c
            np.testing.assert_array_equal(one_matrix(found.forward, place, n), rows[:, c::channels])
            np.testing.assert_array_equal(one_matrix(found.transpose, place, n), rows[:, c::channels].T)


@quickly
@given(graphsets(), st.data())
def test_channel_matrices_are_blocks_of_the_adjacency(graphs: Any, data: st.DataObject) -> None:
    everything = np.arange(graphs.n_graphs, dtype=np.int64)
    host = BatchSource(graphs, "stored").batch(everything)
    layout = GraphLayout(host.node_ptr, host.adjacency.n_channels)
    found = batch.channel_adjacency(host.adjacency, layout, coo=True)
    assert_split_by_channel(found, host.adjacency, layout)
    if graphs.n_graphs:
        numbers = st.lists(st.integers(0, graphs.n_graphs - 1), max_size=6)
        picked = np.array(data.draw(numbers), dtype=np.int64)
        some = BatchSource(graphs, "stored").batch(picked)
        layout = GraphLayout(some.node_ptr, some.adjacency.n_channels)
        forward, transpose = (matrices.take(picked, layout.n_channels) for matrices in (found.forward, found.transpose))
        assert_split_by_channel(ChannelAdjacency(forward, transpose, layout), some.adjacency, layout)


def test_a_symmetric_adjacency_is_split_once() -> None:
    matrix = Csr(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(2, np.float32), 2)
    layout = GraphLayout(np.array([0, 2]))
    found = batch.channel_adjacency(Adjacency(matrix, matrix, 1), layout, coo=True)
    assert found.transpose is found.forward
    moved = found.map(np.copy)
    assert moved.transpose is moved.forward


# ---- what fits


class HostDevice:
    """A device in host memory: arrays are NumPy arrays, and kernels are only counted."""

    multiprocessors, l2_bytes = 132, 60 << 20
    copies = None  # nothing is streamed here

    def __init__(self) -> None:
        self.log: list[str] = []
        self.uploads = 0

    def upload(self, host: Any) -> Any:
        self.uploads += 1
        return np.array(host)

    def empty(self, shape: Any, dtype: Any = np.float32) -> Any:
        return np.empty(shape, dtype)

    def launch(self, entry: str, launch: Any, **arguments: Any) -> None:
        self.log.append(entry)


class CountingDevice(HostDevice):
    """A device that counts allocated bytes."""

    held = 0

    def upload(self, host: Any) -> Any:
        self.held += np.asarray(host).nbytes
        return super().upload(host)

    def empty(self, shape: Any, dtype: Any = np.float32) -> Any:
        found = super().empty(shape, dtype)
        self.held += found.nbytes
        return found


def assert_resident_bytes_are_exact(graphs: Any, kernel: str, per_graph: bool) -> None:
    """Assert that `resident_bytes` equals the allocated bytes, except for `node_ptr`."""
    source, device = BatchSource(graphs, graph_features=True), CountingDevice()
    assert source.prepared is not None
    needed = resident_bytes(source.prepared, graphs.y, kernel, per_graph)
    ResidentSet(device, source, graphs.y, kernel, per_graph)  # type: ignore[arg-type]
    assert device.held == needed + 4 * (graphs.n_graphs + 1)
    assert can_reside(source, graphs.y, needed, kernel, per_graph)
    assert not can_reside(source, graphs.y, needed - 1, kernel, per_graph)


@pytest.mark.parametrize("per_graph", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "swa_csr", "tf"])
@pytest.mark.parametrize("features", ["uint8", "float16", "csr"])
@pytest.mark.parametrize("n_graphs", [1, 6])
def test_resident_bytes_equal_the_allocated_bytes(n_graphs: int, features: str, kernel: str, per_graph: bool) -> None:
    assert_resident_bytes_are_exact(build_graphset(n_graphs, features=features, graph_features=3), kernel, per_graph)


@pytest.mark.parametrize("picked", [[4, 0, 4], [2]])
def test_features_of_graphs_are_read_where_the_set_lies(machine: Any, picked: list[int]) -> None:
    graphs, device = build_graphset(graph_features=2), open_device()
    own = graphs if len(picked) > 1 else graphs.take(picked)  # of one graph: the whole set
    ids = np.array(picked if len(picked) > 1 else [0])
    assert ResidentSet(device, BatchSource(own), own.y).gather(ids).graph_features is None
    joined = ResidentSet(device, BatchSource(own, graph_features=True), own.y).gather(ids).graph_features
    assert joined is not None
    found = joined.map(device.download)
    assert found.values.shape == own.graph_features.shape  # type: ignore[union-attr]
    np.testing.assert_array_equal(found.values[found.rows], graphs.graph_features.dense()[picked])  # type: ignore[index]


@pytest.mark.parametrize("per_graph", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "csr", "naive", "swa_csr", "swa_coo", "tf"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_resident_bytes_of_one_skewed_or_large_graph_equal_the_allocated_bytes(
    large: bool, weighted: bool, kernel: str, per_graph: bool, monkeypatch: Any
) -> None:
    graphs = synthetic_networks.generate("citation", 0, 0.4)
    if weighted:
        graphs = replace(graphs, weight=np.linspace(0.5, 1, graphs.n_edges).astype(np.float32))
    if large:
        monkeypatch.setattr(spmm_pieces, "LARGE_ENTRIES", 1)
        monkeypatch.setattr(spmm_pieces, "DENSE_ROWS", 1)
    assert_resident_bytes_are_exact(graphs, kernel, per_graph)


def test_open_batches_is_resident_if_the_set_fits_else_streams() -> None:
    graphs = build_graphset(300, n_features=500)
    source, device = BatchSource(graphs), HostDevice()

    def opened(resident: Any, budget: int) -> type:
        found = open_batches(device, source, graphs.y, resident, budget)  # type: ignore[arg-type]
        found.close()
        return type(found)

    assert opened("auto", 2 << 20) is ResidentSet
    assert opened("on", 2 << 20) is ResidentSet
    assert opened("auto", 1 << 20) is StreamingSet
    assert opened("off", 2 << 20) is StreamingSet
    with pytest.raises(MachineError) as caught:
        opened("on", 1 << 20)
    assert str(caught.value) == (
        "data set on the device: 1.5 MiB; expected at most 1.0 MiB and 32-bit indices. "
        "Set cuda.resident = 'auto', which streams it."
    )


def test_one_graph_that_does_not_fit_is_refused_with_its_size_before_the_upload(monkeypatch: Any) -> None:
    graphs = build_graphset(1, level="node", n_features=500, max_nodes=2_000, n_channels=1)
    source, device = BatchSource(graphs), HostDevice()
    with pytest.raises(MachineError) as caught:
        open_batches(device, source, graphs.y, "auto", 1 << 10)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "one graph on the device: 0.00 GiB needed (features 0.00, adjacency 0.00, targets 0.00); expected at most 0.00 "
        "GiB of what is free; the rest is for computing. Use --backend cpu or a GPU with more memory, or end other "
        "programs on this one (nvidia-smi lists them)."
    )
    assert device.uploads == 0
    monkeypatch.setattr(resident, "MAX_ENTRIES", 10)
    monkeypatch.setattr(streaming, "MAX_ENTRIES", 10)
    with pytest.raises(MachineError, match=r"[0-9,]+ stored edges; expected at most 10: 32-bit indices"):
        open_batches(device, source, graphs.y, "auto", 1 << 40)  # type: ignore[arg-type]


def test_one_large_graph_is_uploaded_in_pieces_and_without_its_values(monkeypatch: Any) -> None:
    monkeypatch.setattr(spmm_pieces, "LARGE_ENTRIES", 1)
    monkeypatch.setattr(spmm_pieces, "DENSE_ROWS", 1)
    graphs = synthetic_networks.generate("reddit", 0, 0.004)
    source = BatchSource(graphs)
    assert source.prepared is not None
    adjacency = ResidentSet(HostDevice(), source, graphs.y).gather(np.array([0])).adjacency  # type: ignore[arg-type]
    assert isinstance(adjacency, DeviceAdjacency)
    matrix: Any = adjacency.forward
    assert adjacency.transpose is matrix
    assert matrix.data.size == 0
    rows, columns = matrix.large.scales
    row = np.repeat(np.arange(graphs.n_nodes), np.diff(matrix.indptr))
    np.testing.assert_allclose(rows[row] * columns[matrix.indices], source.prepared.forward.data, rtol=3e-7)
    other = ResidentSet(HostDevice(), source, graphs.y, "swa_csr").gather(np.array([0])).adjacency  # type: ignore
    assert other.forward.large is None  # type: ignore[union-attr]
    assert other.forward.data.size == graphs.n_edges


def few_labels(graphs: Any) -> Any:
    """Return the targets of every fifth node alone."""
    y = np.full_like(graphs.y, -1)
    y[::5] = graphs.y[::5]
    return y


@pytest.fixture(params=[False, True], ids=["small", "large"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether every matrix counts as large, once each."""
    if request.param:
        monkeypatch.setattr(spmm_pieces, "LARGE_ENTRIES", 1)
        monkeypatch.setattr(spmm_pieces, "DENSE_ROWS", 1)
    return bool(request.param)


def test_the_rows_with_labels_are_uploaded_beside_the_graph(large: bool) -> None:
    graphs = synthetic_networks.generate("reddit", 0, 0.004)
    source, targets = BatchSource(graphs), few_labels(graphs)
    device: Any = HostDevice()
    batch = ResidentSet(device, source, targets).gather(np.array([0]))
    assert batch.labelled is not None
    np.testing.assert_array_equal(batch.labelled.targets, targets[::5])
    assert batch.labelled.x is batch.x
    assert source.prepared is not None
    whole = dense(source.prepared.whole.adjacency.forward)
    adjacency: Any = batch.labelled.adjacency
    for matrix, expected in ((adjacency.forward, whole[::5]), (adjacency.transpose, whole.T[:, ::5])):
        row = np.repeat(np.arange(len(expected)), np.diff(matrix.indptr))
        values = matrix.data
        if large:
            assert values.size == 0
            values = matrix.large.scales.rows[row] * matrix.large.scales.columns[matrix.indices]
        found = np.zeros_like(expected)
        np.add.at(found, (row, matrix.indices), values)
        np.testing.assert_allclose(found, expected, rtol=3e-7)
    assert adjacency.layout.n_nodes == graphs.n_nodes  # of the rows of the transpose


@pytest.mark.parametrize(("kernel", "per_graph"), [("swa_csr", False), ("tf", False), ("auto", True)])
def test_kernels_that_read_the_bounds_of_graphs_multiply_all_rows(kernel: str, per_graph: bool) -> None:
    graphs = synthetic_networks.generate("reddit", 0, 0.004)
    device: Any = HostDevice()
    found = ResidentSet(device, BatchSource(graphs), few_labels(graphs), kernel, per_graph).gather(np.array([0]))
    assert found.labelled is None


@pytest.mark.usefixtures("large")
def test_resident_bytes_bound_those_of_the_rows_with_labels() -> None:
    graphs = synthetic_networks.generate("reddit", 0, 0.004)
    source = BatchSource(graphs)
    assert source.prepared is not None

    def taken(targets: Any) -> int:
        device: Any = CountingDevice()
        ResidentSet(device, source, targets)
        return int(device.held)

    few = few_labels(graphs)
    more = taken(few) - taken(graphs.y)
    counted = resident_bytes(source.prepared, few) - resident_bytes(source.prepared, graphs.y)
    assert 0 < more <= counted <= 3 * more


def test_only_unweighted_one_channel_sets_that_gcnbatch_normalises_have_scales() -> None:
    graphs = synthetic_networks.generate("citation", 0, 0.2)
    twice = replace(
        graphs, src=np.append(graphs.src, 0), dst=np.append(graphs.dst, 0), edge_ptr=graphs.edge_ptr + np.array([0, 1])
    )
    twice = replace(twice, channel=np.append(graphs.channel, np.uint8(0)))

    def scales(changed: Any, adjacency: str = "symmetric") -> Any:
        prepared = BatchSource(changed, adjacency).prepared
        assert prepared is not None
        return prepared.scales

    assert scales(graphs) is not None
    assert scales(graphs, "stored") is None
    assert scales(replace(graphs, weight=np.ones(graphs.n_edges, np.float32))) is None
    assert scales(replace(graphs, header=graphs.header.model_copy(update={"channel_names": ("a", "b")}))) is None
    assert scales(twice) is None


def test_a_set_of_one_graph_is_never_copied() -> None:
    graphs = build_graphset(1, level="node", features="csr", target="multiclass")
    device = HostDevice()
    found = ResidentSet(device, BatchSource(graphs), graphs.y)  # type: ignore[arg-type]
    uploads = device.uploads
    found.begin_epoch(numbers([[0], [0]]))
    first, second, third = found.batch(0), found.batch(1), found.gather(np.array([0]))
    assert first is second is third
    assert (device.uploads, device.log) == (uploads, [])
    np.testing.assert_array_equal(first.x.column_ptr, graphs.x.tocsc().indptr)  # type: ignore[union-attr]
