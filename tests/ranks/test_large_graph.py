"""One graph on several ranks: each holds its rows; each step is that of one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends.cpu import CpuBackend
from gcnbatch.backends.registry import open_backend
from gcnbatch.config import resolve
from gcnbatch.data import synthetic
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graph_part import read_part
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.runners.distributed import DistributedRunner
from gcnbatch.runners.ops import OpsRunner
from tests.builders import build_graphset
from tests.ranks.one_graph import OneGraph, one_graph, write_reddit
from tests.ranks.threads import ThreadCommunicator, on_ranks

MODELS: dict[str, dict[str, Any]] = {
    "A X once": {"kind": "kipf", "widths": [16], "input_dropout": False},
    "four layers": {"kind": "kipf", "widths": [16, 12, 8], "dropout": 0.3},
    "wide layers": {"kind": "kipf", "widths": [128, 128]},
    "batch norm": {"widths": [16, 16], "dropout": 0.2},
}
SPLITS: dict[str, dict[str, Any]] = {"most nodes": {}, "few nodes": {"valid": 0.1, "test": 0.8}}  # that train


def write_one_graph(path: Path, **options: Any) -> Path:
    """Write a node-level set of one graph of random edges, some repeated."""
    write_graphset(path, build_graphset(1, level="node", max_nodes=60, edges_per_node=4, **options))
    return path


@pytest.mark.parametrize(
    "options",
    [{"n_channels": 1}, {"n_channels": 2, "weights": True}, {"n_channels": 2, "features": "csr"}],
    ids=["one channel", "weights", "sparse features"],
)
@pytest.mark.parametrize("ranks", [1, 2, 3, 70])
def test_parts_together_are_the_graph(options: dict[str, Any], ranks: int, tmp_path: Path) -> None:
    path = write_one_graph(tmp_path / "set.h5", **options)
    with Dataset(path) as dataset:
        whole = BatchSource(dataset.load()).batch(np.array([0]))
        channels = dataset.header.n_channels
        parts = on_ranks(ranks, lambda communicator: read_part(dataset, True, communicator, block=17))
    dense = dense_adjacency(whole, channels)
    for rank, part in enumerate(parts):
        first, stop = part.bounds[rank : rank + 2]
        adjacency = part.adjacency
        for name, of_rows, of_columns, expected in (
            ("forward", 1, channels, dense),
            ("transpose", channels, 1, dense.T),
        ):
            matrix, halo = getattr(adjacency, name), getattr(adjacency, f"of_{name}")
            others = [parts[owner].adjacency for owner in range(ranks)]
            halos = [getattr(other, f"of_{name}") for other in others]
            held = [parts[owner].bounds[owner] + halos[owner].sent[rank] for owner in range(ranks)]
            assert [len(nodes) for nodes in held] == list(halo.received)
            np.testing.assert_array_equal(halo.nodes, np.concatenate(held))
            assert list(halo.entries) == [len(getattr(other, name).data) for other in others]
            nodes = np.concatenate([np.arange(first, stop), halo.nodes]).astype(np.int64)
            columns = (nodes[:, None] * of_columns + np.arange(of_columns)).ravel()
            found = np.zeros(((stop - first) * of_rows, expected.shape[1]))
            for row in range(len(found)):
                at = slice(matrix.indptr[row], matrix.indptr[row + 1])
                np.add.at(found[row], columns[matrix.indices[at]], matrix.data[at])
            np.testing.assert_allclose(found, expected[first * of_rows : stop * of_rows], rtol=1e-6)


def dense_adjacency(whole: Any, channels: int) -> np.ndarray:
    """Return the adjacency of a batch of one graph of 60 nodes as an array."""
    forward, dense = whole.adjacency.forward, np.zeros((60, 60 * channels))
    for row in range(60):
        at = slice(forward.indptr[row], forward.indptr[row + 1])
        np.add.at(dense[row], forward.indices[at], forward.data[at])
    return dense


def test_a_symmetric_graph_has_one_matrix_on_every_rank_and_another_has_two(tmp_path: Path) -> None:
    path = tmp_path / "set.h5"
    synthetic.write("reddit", path, scale=0.002)
    with Dataset(path) as dataset:
        for part in on_ranks(3, lambda communicator: read_part(dataset, True, communicator)):
            assert part.adjacency.transpose is part.adjacency.forward
            assert part.adjacency.of_transpose is part.adjacency.of_forward
    with Dataset(write_one_graph(path, n_channels=1)) as dataset:
        for part in on_ranks(3, lambda communicator: read_part(dataset, True, communicator)):
            assert part.adjacency.transpose is not part.adjacency.forward


def test_parts_of_an_unweighted_graph_have_scales_whose_products_are_their_values(tmp_path: Path) -> None:
    path = tmp_path / "set.h5"
    synthetic.write("reddit", path, scale=0.002)
    with Dataset(path) as dataset:
        for part in on_ranks(2, lambda communicator: read_part(dataset, True, communicator)):
            matrix = part.adjacency.forward
            assert part.adjacency.of_forward.scales is not None
            rows, columns = part.adjacency.of_forward.scales
            row = np.repeat(np.arange(len(rows)), np.diff(matrix.indptr))
            np.testing.assert_allclose(rows[row] * columns[matrix.indices], matrix.data, rtol=1e-6)
    for options in ({"n_channels": 1, "weights": True}, {"n_channels": 2}):
        with Dataset(write_one_graph(path, **options)) as dataset:
            (part,) = on_ranks(1, lambda communicator, dataset=dataset: read_part(dataset, True, communicator))
            assert part.adjacency.of_forward.scales is None


@pytest.fixture(scope="module")
def reddit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reddit(tmp_path_factory.mktemp("reddit") / "set.h5", scale=0.002)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_steps_and_predictions_on_ranks_are_those_of_one_process(
    model: dict[str, Any], split: dict[str, Any], reddit: Path
) -> None:
    config = resolve({"data": {"path": str(reddit)}, "model": model, "split": split})
    with one_graph(config) as graph:
        graph.assert_agrees(graph.parity.observe(OpsRunner(CpuBackend(), graph.task)))
        assert graph.on_ranks.source.prepared is None
        for ranks in (2, 3):
            assert_ranks_agree(graph, open_backend("cpu"), ranks)


def assert_ranks_agree(graph: OneGraph, backend: Any, ranks: int, communicator: Any = ThreadCommunicator) -> None:
    """Compare what each of so many ranks computes with the reference."""
    found = on_ranks(
        ranks,
        lambda own: graph.parity.observe(DistributedRunner(backend, graph.on_ranks, own)),
        communicator,
    )
    for one in found:
        graph.assert_agrees(one)


class WrongHalo(ThreadCommunicator):
    """Exchanges rows of which the last is off by a hundredth."""

    def exchange(self, parts: Sequence[NDArray[Any]], rows: Sequence[int]) -> list[NDArray[Any]]:
        found = super().exchange(parts, rows)
        for part in found:
            if part.dtype == np.float32 and len(part):
                part[-1] *= np.float32(1.01)
        return found


class WrongSum(ThreadCommunicator):
    """Sums that are off by a thousandth."""

    def all_reduce(self, array: NDArray[Any]) -> None:
        super().all_reduce(array)
        if array.dtype == np.float32:
            array *= np.float32(1.001)


@pytest.mark.parametrize("communicator", [WrongHalo, WrongSum])
def test_what_ranks_send_each_other_must_be_right(communicator: type[ThreadCommunicator], reddit: Path) -> None:
    config = resolve({"data": {"path": str(reddit)}, "model": MODELS["A X once"]})
    with one_graph(config) as graph, pytest.raises(AssertionError, match="Deviation"):
        assert_ranks_agree(graph, open_backend("cpu"), 2, communicator)


def test_dropout_of_sparse_features_does_not_depend_on_the_ranks(tmp_path: Path) -> None:
    path = write_one_graph(tmp_path / "set.h5", n_channels=1, features="csr", target="multiclass", n_tasks=1)
    config = resolve({"data": {"path": str(path)}, "model": {"kind": "kipf", "dropout": 0.5}})
    with one_graph(config) as graph:
        for found in on_ranks(
            3, lambda communicator: graph.parity.observe(DistributedRunner(CpuBackend(), graph.on_ranks, communicator))
        ):
            graph.assert_agrees(found)
