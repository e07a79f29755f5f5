"""One model on several GPUs: what one rank trains, up to rounding; on one GPU with threads, on two with NCCL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.batches import one_graph as batches_of_one_graph
from gcnbatch.backends.cuda.ranks import halo, pipeline
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.registry import open_backend
from gcnbatch.config import resolve
from gcnbatch.data import synthetic
from gcnbatch.data.store import Dataset
from gcnbatch.lab.backend_comparison.parity import Parity
from gcnbatch.lab.backend_comparison.workload import Effort, opened
from gcnbatch.runners.distributed import DistributedRunner
from gcnbatch.runners.ops import OpsRunner
from tests.ranks.device_threads import on_device_ranks
from tests.ranks.launcher import mpirun
from tests.ranks.on_two_gpus import assert_two_repeat, assert_two_train_together, train_on_two
from tests.ranks.one_graph import OneGraph, assert_agrees, one_graph, part_of_ones, pattern_of_graph, write_reddit
from tests.ranks.processes import CASES, STEPS, Found
from tests.ranks.test_large_graph import MODELS, SPLITS, write_one_graph
from tests.training.runs import options, write_set

pytestmark = pytest.mark.gpu
EFFORT = Effort(parity_batches=3, parity_steps=3)


@pytest.mark.parametrize(
    ("model", "data", "train"),
    [
        (
            {"widths": [8, 7], "dense": [8], "head": [6], "dropout": 0.3, "readout": ["sum", "max"]},
            {"n_channels": 2},
            {},
        ),
        ({"widths": [8, 8], "norm": "layer", "virtual_node": True, "dropout": 0.2}, {"target": "multiclass"}, {}),
        ({"widths": [8, 8], "ffn": True, "residual": True}, {"target": "regression", "features": "csr"}, {}),
        ({"widths": [64, 64]}, {}, {"clip_norm": 0.1}),
    ],
    ids=["two readouts and dropout", "layer norm, classes", "sparse features, values", "clipped"],
)
@pytest.mark.parametrize("ranks", [1, 2, 3, 9])  # the last batch has fewer graphs than nine ranks
def test_ranks_train_what_one_process_trains(
    model: dict[str, Any], data: dict[str, Any], train: dict[str, Any], ranks: int, tmp_path: Path
) -> None:
    write_set(tmp_path / "set.h5", **data)
    train = {"batch_size": 12, "weight_decay": 0.01, **train}
    tree = {"data": {"path": str(tmp_path / "set.h5")}, "model": model, "train": train}
    backend: Any = open_backend("batched")
    with opened(resolve(tree)) as workload:
        parity = Parity(workload, EFFORT)
        found = on_device_ranks(
            backend,
            ranks,
            lambda own, communicator: parity.observe(DistributedRunner(own, workload.task, communicator)),
        )
        assert_agrees(parity, found[0])
        for other in found[1:]:
            for key, value in found[0].items():
                np.testing.assert_array_equal(other[key], value, err_msg=str(key))


@pytest.mark.parametrize(
    ("model", "split", "scale", "ranks"),
    [
        *((model, split, 0.02, 3) for model in MODELS for split in SPLITS),
        # More than a million entries a rank. The reference takes a minute for the widest of them.
        *((model, "most nodes", 0.1, 2) for model in MODELS),
        ("A X once", "few nodes", 0.1, 2),
    ],
)
@pytest.mark.usefixtures("short_chunks")
def test_steps_and_predictions_on_one_graph_are_those_of_one_process(
    model: str, split: str, scale: float, ranks: int, tmp_path: Path
) -> None:
    path, backend = write_reddit(tmp_path / "set.h5", scale), open_backend("batched")
    with one_graph(resolve({"data": {"path": str(path)}, "model": MODELS[model], "split": SPLITS[split]})) as graph:
        graph.assert_agrees(graph.parity.observe(OpsRunner(backend, graph.task)))
        for buffers in (0, 1, 2):
            assert_ranks_agree(graph, backend, ranks, buffers)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ranks push rows of small graphs, in chunks."""
    monkeypatch.setattr(halo, "PUSHED_NODES", 1)
    monkeypatch.setattr(pipeline, "CHUNK_ROWS", 100)
    for bounds in (pipeline.row_bounds, pipeline.product_bounds):
        bounds.cache_clear()
    yield
    for bounds in (pipeline.row_bounds, pipeline.product_bounds):
        bounds.cache_clear()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("width", "zeros"), [(128, 0.75), (104, 0.75), (128, 0.0), (47, 0.0), (130, 0.0), (200, 0.75)])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])  # of elements that are not zero
@pytest.mark.parametrize("form", ["exchanged", "in slices", "pushed", "pushed, one buffer", "pushed, few entries"])
@pytest.mark.usefixtures("short_chunks")
def test_products_of_whole_numbers_over_ranks_are_exact(
    ranks: int, width: int, zeros: float, share: float, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halo, "LARGE_ENTRIES", 1)
    monkeypatch.setattr(halo, "is_large", lambda entries, lengths: form != "pushed, few entries")
    monkeypatch.setattr(halo, "MEAN_ROW", 1)
    monkeypatch.setattr(halo, "DENSE_SHARE", 0.0 if form == "in slices" else halo.DENSE_SHARE)
    monkeypatch.setattr(halo, "long_rows", lambda lengths: np.arange(len(lengths)) % 2 == 0)
    synthetic.write("reddit", tmp_path / "set.h5", scale=0.005)
    rng = np.random.default_rng(width)
    with Dataset(tmp_path / "set.h5") as dataset:
        pattern = pattern_of_graph(dataset)
        nodes = pattern.shape[0]
        x = np.where(rng.random((nodes, width)) < share, rng.integers(1, 9, (nodes, width)), 0).astype(np.float32)

        def products(own: Any, communicator: Any) -> list[Any]:
            part = part_of_ones(dataset, communicator)
            first, stop = part.bounds[communicator.rank : communicator.rank + 2]
            batch = own.part_feed(part, np.zeros((nodes, 1), np.int32), communicator).batch(0)
            ops, h = own.distributed_ops(own.communicator(communicator), True), own.device.upload(x[first:stop])
            calls = [ops.spmm, ops.spmm_backward, ops.spmm]  # the last has room for packed rows from the first
            return [own.device.download(call(batch.adjacency, h, zeros)) for call in calls]

        buffers = {"exchanged": 0, "in slices": 0, "pushed, one buffer": 1}.get(form, 2)
        found = on_device_ranks(open_backend("batched"), ranks, products, buffers)
    for parts in zip(*found, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), pattern @ x)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("spmm", ["auto", "naive", "swa_csr", "swa_coo", "tf"])
def test_every_adjacency_product_takes_a_part_of_a_graph(spmm: str, split: dict[str, Any], tmp_path: Path) -> None:
    path = write_one_graph(tmp_path / "set.h5", n_channels=2, target="multiclass", n_tasks=1)
    model = {"widths": [8, 8], "norm": "layer"}
    config = resolve({"data": {"path": str(path)}, "model": model, "split": split, "cuda": {"spmm": spmm}})
    with one_graph(config) as graph:
        for ranks in (2, 70):  # more ranks than nodes
            assert_ranks_agree(graph, open_backend("batched", 0, config.cuda), ranks)


@pytest.mark.parametrize(
    ("model", "scale"),
    # With 0.3, the rows of a tenth of the nodes have a million entries.
    [*((model, 0.02) for model in MODELS), ("A X once", 0.3), ("four layers", 0.3)],
)
def test_the_rows_with_labels_alone_train_like_all_rows(
    model: str, scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_reddit(tmp_path / "set.h5", scale)
    about = {"data": {"path": str(path)}, "model": MODELS[model], "split": SPLITS["few nodes"]}
    with one_graph(resolve(about)) as graph:
        graph.assert_agrees(graph.parity.observe(OpsRunner(open_backend("batched"), graph.task)))
        monkeypatch.setattr(batches_of_one_graph, "labelled_rows", lambda targets: None)
        graph.assert_agrees(graph.parity.observe(OpsRunner(open_backend("batched"), graph.task)))


def assert_ranks_agree(graph: OneGraph, backend: Any, ranks: int, buffers: int = 2) -> None:
    """Compare what each of so many ranks computes with the reference; without receive buffers, rows are exchanged."""
    for found in on_device_ranks(
        backend,
        ranks,
        lambda own, communicator: graph.parity.observe(DistributedRunner(own, graph.on_ranks, communicator)),
        buffers=buffers,
    ):
        graph.assert_agrees(found)


# ------------------------------------------------------------------------------------------------ NCCL, two GPUs


@cache
def needs_two_gpus() -> None:
    from gcnbatch.backends.cuda.runtime import nccl
    from gcnbatch.errors import BackendUnavailable

    if (count := len(loader.devices())) < 2:
        pytest.skip(f"{count} GPU; this needs two")
    try:
        nccl.load_nccl()
    except BackendUnavailable as error:
        pytest.skip(str(error))


def test_rows_that_gpus_push_are_those_that_products_read(tmp_path: Path) -> None:
    needs_two_gpus()
    synthetic.write("reddit", tmp_path / "set.h5", scale=0.005)
    ranks = min(len(loader.devices()), 4)
    said, _ = mpirun(ranks, tmp_path / "set.h5", code="from tests.ranks.pushed_products import main; main()")
    assert said.split() == ["exact"]


TO_RUN = options("model.widths=[64,64]", "model.dropout=0.2", "train.epochs=4", "train.weight_decay=0.01")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder with the runs `two` and `again`, and what the first on two GPUs said."""
    needs_two_gpus()
    folder = tmp_path_factory.mktemp("on_two")
    return folder, train_on_two(folder, "batched", TO_RUN, chosen=("--backend", "batched"))


def test_a_run_on_two_gpus_trains_one_model(on_two: tuple[Path, str]) -> None:
    assert_two_train_together(*on_two, "batched")


def test_two_runs_on_two_gpus_are_equal_to_the_bit(on_two: tuple[Path, str]) -> None:
    assert_two_repeat(on_two[0])


def test_steps_on_two_gpus_are_those_of_one_process(tmp_path: Path) -> None:
    needs_two_gpus()
    out, _ = mpirun(2, "batched", tmp_path, code=STEPS)
    found = [Found(**json.loads(line)) for line in out.splitlines()]
    assert len(found) == len(CASES) + 1
    for one in found:
        assert one.ratio <= 1, one
        assert one.equal, one


def test_more_ranks_than_gpus_are_refused(tmp_path: Path) -> None:
    from gcnbatch.backends.cuda.runtime import loader

    needs_two_gpus()
    write_set(tmp_path / "set.h5")
    count = len(loader.devices())
    _, said = mpirun(
        count + 1, "train", "--data", tmp_path / "set.h5", "--backend", "batched", "-o", tmp_path / "run", check=2
    )
    assert f"device: {count}; expected 0 to {count - 1}" in said
    assert "Start no more ranks on a host than it has GPUs." in said
