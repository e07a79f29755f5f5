"""The fused step of Kipf's GCN without a GPU: arrays of its graph, launches, schedule, refusals."""

from __future__ import annotations

from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch import philox
from gcnbatch.backends.cuda.fused.kipf import engine, geometry
from gcnbatch.backends.cuda.fused.kipf.data import KipfGraph, Rows, count_products
from gcnbatch.backends.cuda.fused.kipf.schedule import PROGRESS, SCHEDULED, StepSchedule, TrainingStep
from gcnbatch.backends.cuda.fused.kipf.step import Launches, Prediction
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel, UpdateRule
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.launch import PHILOX_ELEMENTS
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.config import Config
from gcnbatch.errors import InputError
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.resources import cuda_sources
from gcnbatch.runners.choice import make_runner, refusal
from gcnbatch.runners.fused_kipf import describe
from gcnbatch.runners.task import RunnerTask
from tests.backends.cuda.fused.host import HostDevice
from tests.backends.cuda.fused.test_refusals import fused_backend
from tests.training.runs import configure, write_set

ADAM = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
ONE_GRAPH = {"n_graphs": 1, "max_nodes": 60, "level": "node", "target": "multiclass", "n_channels": 1}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "sparse": ({"features": "csr"}, ()),
    "dense, no bits in whole bytes": ({}, ("model.widths=[5]",)),
    "kept input": ({"features": "csr"}, ("model.input_dropout=false",)),
    "no dropout, wide": ({}, ("model.dropout=0.0", "model.widths=[300]")),
}


@pytest.fixture(params=CASES)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    about, assignments = CASES[request.param]
    write_set(tmp_path / "data.h5", **{**ONE_GRAPH, **about})
    return node_level(tmp_path, *assignments)


def node_level(folder: Path, *assignments: str) -> Config:
    return configure(f"data.path={folder / 'data.h5'}", "model.kind=kipf", *assignments)


def graph_of(task: RunnerTask) -> KipfGraph:
    layers = describe(task.model)
    assert not isinstance(layers, str)
    assert task.source.prepared is not None
    rates = (layers.rate if key else 0.0 for key in (layers.x_dropout, layers.z_dropout))
    return KipfGraph(task.source.prepared, task.targets[:, 0], layers.hidden, layers.n_out, *rates)


def launches_of(task: RunnerTask, device: Any) -> Launches:
    layers, size = describe(task.model), task.model.layout().n_trainable
    assert not isinstance(layers, str)
    flat = [device.empty(size) for _ in range(6)]
    weights, totals = device.upload(task.loss.weights), device.empty(2, np.float64)
    model = DeviceModel(
        flat[0], device.empty(0), flat[1], (flat[2], flat[3]), flat[4], flat[5], weights, totals, *[device.empty(0)] * 2
    )
    return Launches(device, layers, model, graph_of(task), 3.0, ADAM, 7, StepSchedule(device, ADAM))


def matrix(rows: Rows, n_columns: int) -> Any:
    return sp.csr_array((rows.data, rows.indices, rows.indptr), shape=(len(rows.indptr) - 1, n_columns)).toarray()


def kept_bits(graph: KipfGraph, layers: Any, epoch: int, step: int) -> Any:
    """Return the dropout bits that the kernels draw."""
    size = PHILOX_ELEMENTS
    found = []
    for key, blocks in zip((layers.x_dropout, layers.z_dropout), np.split(graph.drawn, [graph.n_drawn_x]), strict=True):
        bits = philox.bits(7, key, epoch, step, size * (int(blocks.max(initial=-1)) + 1)).reshape(-1, size)[blocks]
        found.append(bits.ravel() >= floor(layers.rate * 2**32))
    return np.concatenate(found)


def test_u_equals_adjacency_times_features_after_dropout(config: Config) -> None:
    """U = A dropout(X) for the rows that labels read, with the dropout bits of the other backends."""
    with opened(config) as work:
        layers, graph = describe(work.task.model), graph_of(work.task)
        assert not isinstance(layers, str)
        batch = work.task.source.batch(np.array([0]))
        n, x = batch.n_nodes, batch.x
        forward = batch.adjacency.forward
        adjacency = sp.csr_array((forward.data, forward.indices, forward.indptr), shape=(n, n))
        bits = kept_bits(graph, layers, 3, 1)
        scale = np.float32(1 / (1 - layers.rate))
        dense = isinstance(x, np.ndarray)
        values = x.ravel() if dense else x.data
        if layers.x_dropout:
            drawn = philox.bits(7, layers.x_dropout, 3, 1, len(values)) >= floor(layers.rate * 2**32)
            values = values * drawn * scale
        dropped = values.reshape(x.shape) if dense else sp.csr_array((values, x.indices, x.indptr), (n, x.n_cols))
        expected = (adjacency @ dropped)[graph.rows]
        expected = expected if dense else expected.toarray()
        found = graph.u.data
        if layers.x_dropout:
            factors = np.where(bits[graph.products["bit"]], graph.products["value"], 0)
            found = np.add.reduceat(factors, graph.product_ptr[:-1])
        u = Rows(graph.u.indptr, graph.u.indices, found)
        np.testing.assert_allclose(matrix(u, layers.n_in), expected, rtol=1e-5, atol=1e-6)
        by_columns = np.empty_like(found)
        by_columns[graph.place] = found
        t_u = Rows(graph.u_by_columns.indptr, graph.u_by_columns.indices, by_columns)
        np.testing.assert_array_equal(matrix(t_u, len(graph.rows)), matrix(u, layers.n_in).T)
        whole = adjacency.toarray()
        np.testing.assert_array_equal(matrix(graph.a, len(graph.rows)), whole[graph.labelled][:, graph.rows])
        np.testing.assert_array_equal(matrix(graph.b, len(graph.labels)), whole[graph.labelled][:, graph.rows].T)
        if layers.z_dropout:
            mask = philox.bits(7, layers.z_dropout, 3, 1, n * layers.hidden).reshape(n, -1) >= floor(
                layers.rate * 2**32
            )
            places = graph.kept_first[:, None] + np.arange(layers.hidden)
            np.testing.assert_array_equal(bits[places], mask[graph.rows])
        prepared = work.task.source.prepared
        assert prepared is not None
        n_products = count_products(prepared, adjacency, graph.rows)
        assert n_products == (len(graph.products) or n_products) >= len(graph.u.data)


class Product:
    """Stand-in for the products of a prediction: the right shapes, no values."""

    def sparse_matmul(self, x: Any, w: DeviceArray) -> DeviceArray:
        return DeviceArray(1, (x.indptr.size - 1, w.shape[1]), w.dtype)

    def matmul(self, x: DeviceArray, w: DeviceArray) -> DeviceArray:
        return DeviceArray(1, (x.shape[0], w.shape[1]), w.dtype)


def test_every_launch_names_all_arguments_of_its_kernel(config: Config) -> None:
    entries = Sources(cuda_sources()).entries
    device, ops = HostDevice(), Product()
    with opened(config) as work:
        of = launches_of(work.task, device)
        assert work.task.source.prepared is not None
        prediction = Prediction(device, of.layers, of.weights, work.task.source.prepared)  # type: ignore[arg-type]
        n_nodes = len(work.task.targets)
    step = of.step()
    assert [call.entry for call in step] == ["kipf_forward", "kipf_loss", "kipf_backward", "kipf_update"]
    calls: list[Call] = [*step, *of.stage(), *of.gradients(of._model.totals)]
    logits, rest = prediction.calls(ops)  # type: ignore[arg-type]
    assert logits.shape == (n_nodes, of.layers.n_out)
    calls += rest
    for entry, launch, params in calls:
        assert entries[entry].offsets == (0,)
        assert len(entries[entry].pack(params)) > 0
        assert launch.shared < 48 * 1024
        assert launch.blocks > 0 or entry == "kipf_loss"


def test_expected_steps_are_not_uploaded_again() -> None:
    device: Any = HostDevice()
    schedule = StepSchedule(device, ADAM)
    first = [TrainingStep(0, 0, 2, 0.5, 1), TrainingStep(0, 1, 2, 0.5, 2)]
    assert not schedule.fits(first)
    schedule.replace(first)
    assert not schedule.fits(first)  # the dropout of the first step is not staged yet
    schedule.mark_staged()
    assert schedule.fits(first)
    schedule.advance(2)
    assert schedule.fits([TrainingStep(1, 0, 2, 0.5, 3)])
    assert not schedule.fits([TrainingStep(2, 0, 2, 0.5, 3)])
    assert not schedule.fits([TrainingStep(1, 0, 2, 0.1, 3)])
    schedule.advance(1)
    schedule.replace([TrainingStep(5, 0, 1, 0.25, 9)])
    packed = device.uploaded[schedule.progress.ptr]
    assert packed[:PROGRESS].tolist() == [0] * PROGRESS  # one step before the first
    assert packed[PROGRESS:].view(np.int32)[2:6].tolist() == [5, 0, 6, 0]
    rates = packed[PROGRESS + 2 * (SCHEDULED + 2) :].view(np.float32).reshape(-1, 4)
    np.testing.assert_allclose(rates[1, :3], [0.25, 1 / (1 - 0.9**9), 1 / (1 - 0.999**9)], rtol=1e-6)
    schedule.mark_staged()
    assert schedule.fits([TrainingStep(5 + i, 0, 1, 0.25, 9 + i) for i in range(9)])
    schedule.advance(SCHEDULED)
    assert not schedule.fits([TrainingStep(5 + SCHEDULED, 0, 1, 0.25, 9 + SCHEDULED)])


KIPF = ("model.kind=kipf",)


@pytest.mark.parametrize(
    ("backend", "about", "assignments", "what"),
    [
        ({}, {}, (), "a ChemGCN on a node-level data set"),
        ({}, {}, (*KIPF, "model.widths=[8,8]"), "a Kipf GCN of 3 layers"),
        ({}, {"n_graphs": 3}, KIPF, "a node-level data set of 3 graphs and 1 channel"),
        ({}, {"target": "binary"}, KIPF, "a node-level data set with 2 binary outputs"),
        ({}, {}, (*KIPF, "train.clip_norm=1.0"), "train.clip_norm on a node-level data set"),
        ({}, {}, (*KIPF, "model.widths=[20000]"), "layers that need 625 of 227 KiB of shared memory"),
        ({"free": 0}, {}, KIPF, "a data set of 0 MiB with 0 MiB of device memory for it"),
        (
            {"resident": "off"},
            {},
            KIPF,
            "cuda.precision other than fp32, cuda.spmm other than auto, or cuda.resident off",
        ),
    ],
)
def test_unsupported_tasks_are_refused_in_one_line(
    backend: dict[str, Any], about: dict[str, Any], assignments: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    write_set(tmp_path / "data.h5", **{**ONE_GRAPH, **about})
    with (
        opened(configure(f"data.path={tmp_path / 'data.h5'}", *assignments)) as work,
        pytest.raises(InputError) as error,
    ):
        make_runner(fused_backend(**backend), [work.task])
    assert str(error.value) == f"backend fused: it does not take {what}. Use --backend batched."


def test_graphs_with_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path / "data.h5", **ONE_GRAPH)
    backend = fused_backend()
    with opened(node_level(tmp_path)) as work:
        assert refusal(backend, work.task) is None
        graph = graph_of(work.task)
        monkeypatch.setattr(engine, "MAX_ENTRIES", 99)
        assert refusal(backend, work.task) == "more nodes or features than 32-bit indices can address"
        monkeypatch.undo()
        rows, products = len(graph.rows), len(graph.products)
        seen = f"labels with so many neighbours: A X of {rows} nodes, {products} products"
        monkeypatch.setattr(engine, "MAX_COST", 16 * len(graph.products))
        assert refusal(backend, work.task) == seen
        monkeypatch.setattr(engine, "MAX_COST", 16 * (len(graph.a.indices) - 1))
        assert refusal(backend, work.task) == f"labels with so many neighbours: {len(graph.a.indices)} edges"


@pytest.mark.parametrize(("hidden", "chunks"), [(1, 1), (16, 1), (128, 1), (130, 2), (1000, 8)])
def test_every_column_of_the_hidden_layer_is_updated(hidden: int, chunks: int) -> None:
    launch = geometry.update(task_blocks=5, hidden=hidden)
    assert launch.grid == (6, chunks, 1)
    assert chunks * (4 << geometry.lane_bits(hidden)) >= hidden


def test_short_tasks_share_blocks() -> None:
    lengths = np.array([3, 170, 0, 128, 129, 1])
    order = geometry.longest_first(lengths, 16)  # 64 threads, four lanes a row, eight rows each
    assert (order.tasks.tolist(), order.n_long, order.blocks) == ([1, 4, 3, 0, 5, 2], 2, 3)
    wide = geometry.longest_first(lengths[:2], np.array([65, 64]))  # more columns than a quarter of a block has threads
    assert (wide.tasks.tolist(), wide.n_long, wide.blocks) == ([1, 0], 2, 2)
    assert geometry.longest_first(lengths[:0], 16).blocks == 0
