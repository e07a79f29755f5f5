"""The fused backend without a GPU: uploads, launches of a step, choice of the form, epoch planning."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse as sp

from gcnbatch.backends.cuda.fused import engine
from gcnbatch.backends.cuda.fused.forms import prediction_form, training_forms
from gcnbatch.backends.cuda.fused.fp16.form import Fp16
from gcnbatch.backends.cuda.fused.narrow.form import Narrow
from gcnbatch.backends.cuda.fused.planned_epoch import EngineEpoch
from gcnbatch.backends.cuda.fused.shared import data
from gcnbatch.backends.cuda.fused.shared.epoch import Rates, StagedEpoch
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.shared.model import UpdateRule
from gcnbatch.backends.cuda.fused.wide.form import Wide, WideTf32
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.weighted_targets import join
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.model.gcn import Loss
from gcnbatch.resources import cuda_sources
from gcnbatch.runners.fused_graphs import label_weights
from gcnbatch.runners.fused_stack import describe
from tests.backends.cuda.fused.fp16 import workspaces as fp16
from tests.backends.cuda.fused.host import HostDevice, workspace
from tests.backends.cuda.models import MODELS
from tests.training.runs import configure, write_set

CASES = {
    "plain": (),
    "everything": ("model.dense=[16]", "model.head=[8]", "model.dropout=0.25", "train.clip_norm=1.0"),
    "no norm, wide": ("model.norm=none", "model.widths=[300,20]", "model.readout=max", "train.optimizer=sgd"),
}
FORMS = (Narrow, WideTf32, Wide)
for_each_form = pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])


@for_each_form
@pytest.mark.parametrize("assignments", CASES.values(), ids=CASES)
def test_every_launch_names_all_arguments_of_its_kernel(
    assignments: tuple[str, ...], form: type[Form], tmp_path: Path
) -> None:
    write_set(tmp_path / "data.h5", n_channels=3, graph_features=2)
    rule = UpdateRule("sgd" in str(assignments), 0.9, 0.999, 1e-8, "clip" in str(assignments))
    entries = Sources(cuda_sources()).entries
    for training in (True, False):
        device, at = workspace(tmp_path / "data.h5", assignments, training, form)
        calls: list[Call] = [*at.pack(), at.stage(), *at.forward()]
        if training:
            calls += [*at.backward(), *at.update(rule), at.gradients(rule, device.empty(2, np.float64))]
        for entry, launch, arguments in calls:
            assert len(entries[entry].pack(arguments)) > 0
            assert launch.blocks > 0
            assert launch.shared < 100 * 1024 or form is not Narrow
    first = f"fused_wide_product_{form.products}" if issubclass(form, Wide) else "fused_narrow_forward"
    assert len([call for call in calls if call.entry.startswith(first)]) == len(at._stack.nodes)


def test_a_step_of_two_layers_is_six_launches(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", n_channels=1)
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[64,64]",), training=True)
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    calls = [*at.forward(), *at.backward(), *at.update(rule)]
    names = [call.entry.removeprefix("fused_narrow_") for call in calls]
    forward, backward = ["forward_first_64x1", "forward_64x1"], ["backward_64x1", "backward_first_64x1"]
    assert names == [*forward, "readout_64x1", *backward, "update"]
    entries = Sources(cuda_sources()).entries
    assert all(entries[call.entry].pack(call.arguments) for call in calls)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("fp16,")])
def test_batches_of_fp16_models_have_several_tiles(name: str, tmp_path: Path) -> None:
    """The GPU tests of these models therefore cover several tiles; the model \"fp16\" has one."""
    about, assignments = MODELS[name]
    write_set(tmp_path / "data.h5", **about)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", *assignments)) as work:
        batches = work.batches
    device: Any = HostDevice()
    _, plan, _ = fp16.workspace(device, tmp_path / "data.h5", assignments, batches)
    assert plan.tile_counts[:-1].min() > 1  # the last batch may be a single graph


@pytest.mark.parametrize("steps", [0, 1, 8, 9, 72, 73, 126, 1000])
def test_graphs_of_an_epoch_cover_its_steps_and_have_nearly_equal_lengths(steps: int) -> None:
    found = engine.graph_steps(steps)
    assert sum(found) == steps
    assert max(found, default=0) <= engine.MAX_GRAPH_STEPS
    assert len(set(found[1:])) <= 2


def test_a_step_of_wide_layers_is_two_launches_forward_and_three_backward_a_layer(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5")
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[256,256]", "model.dropout=0.5"), True, WideTf32)
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    names = [call.entry.removeprefix("fused_wide_") for call in (*at.forward(), *at.backward(), *at.update(rule))]
    first, second = ["product_tf32", "dropout"], ["propagate", "product_tf32"]
    back = ["propagate_backward", "product_dx_tf32", "product_dw_tf32", "propagate_backward", "product_dw_tf32"]
    assert names == [*first, *second, "readout", *back, "update"]


def test_an_fp16_step_is_three_launches(tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", 60, n_channels=1)
    device: Any = HostDevice()
    at, plan, _ = fp16.workspace(device, tmp_path / "data.h5", ("model.widths=[256,256]",), [np.arange(60)])
    packed = np.zeros((1, *at.plan.array.shape), np.int32)
    at.pack_plan(packed[0], plan, np.zeros(1, np.float32))
    at.begin_epoch(packed)
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    calls = [*at.forward(), *at.backward(), *at.update(rule)]
    assert [call.entry for call in calls] == ["fused_fp16_step_256", "fused_fp16_weight_gradient", "fused_fp16_update"]
    entries = Sources(cuda_sources()).entries
    for entry, launch, arguments in (*at.pack(), at.stage(), *calls, at.gradients(rule, device.empty(2, np.float64))):
        assert len(entries[entry].pack(arguments)) > 0
        assert launch.blocks > 0


def widths_of(layers: int) -> str:
    return f"model.widths={[128] * layers}"


FP16: dict[str, tuple[tuple[str, ...], dict[str, int], bool]] = {
    "fits": ((), {}, True),
    "dropout": (("model.dropout=0.5",), {}, False),
    "no norm": (("model.norm=none",), {}, False),
    "layers of other widths": (("model.widths=[256,128]",), {}, False),
    "a width without a kernel": (("model.widths=[200,200]",), {}, False),
    "a dense layer on nodes": (("model.dense=[256]",), {}, False),
    "two dense layers on graphs": (("model.head=[16]",), {}, False),
    "channels": ((), {"n_channels": 2}, False),
    "a large graph": ((), {"max_nodes": 145}, False),
    "many features": ((), {"n_features": 513}, False),
    "the most layers": ((widths_of(8),), {}, True),
    "a layer more": ((widths_of(9),), {}, False),
    "the most outputs": ((), {"n_tasks": 160}, True),
    "an output more": ((), {"n_tasks": 161}, False),
}


@pytest.mark.parametrize(("assignments", "about", "fits"), FP16.values(), ids=FP16)
def test_which_models_the_fp16_form_trains(
    assignments: tuple[str, ...], about: dict[str, int], fits: bool, tmp_path: Path
) -> None:
    graphs = write_set(tmp_path / "data.h5", **{"n_channels": 1, **about})
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", "model.widths=[256,256]", *assignments)) as work:
        stack = describe(work.task)
    largest = int(np.diff(graphs.node_ptr).max())
    setting = Setting(stack, (9, 0), "tf32", about.get("n_channels", 1), largest)
    assert training_forms(setting) == ((Fp16, WideTf32) if fits else (WideTf32,))
    assert training_forms(replace(setting, precision="fp32")) == (Wide,)


@pytest.mark.parametrize(
    ("widths", "capability", "precision", "forms"),
    [
        ("64,64", (9, 0), "fp32", (Narrow,)),
        ("256,256", (9, 0), "fp32", (Wide,)),
        ("256,256", (9, 0), "tf32", (WideTf32,)),
        ("256,256", (8, 0), "tf32", ()),
        ("64,64", (9, 0), "tf32", ()),
        ("256,256", (8, 0), "fp32", (Narrow,)),
    ],
)
def test_training_forms_depend_on_weights_and_gpu(
    widths: str, capability: tuple[int, int], precision: str, forms: tuple[type[Form], ...], tmp_path: Path
) -> None:
    write_set(tmp_path / "data.h5")
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", f"model.widths=[{widths}]")) as work:
        stack = describe(work.task)
    assert training_forms(Setting(stack, capability, precision, channels=3, largest=50)) == forms


def test_a_model_of_bond_types_and_properties_trains_in_cohorts(tmp_path: Path) -> None:
    """Nine channels of 86 atom features: layers of 64 columns have 44,000 weights on average."""
    write_set(tmp_path / "data.h5", n_channels=9, n_features=86)
    with opened(configure(f"data.path={tmp_path / 'data.h5'}", "model.widths=[64,64]")) as work:
        stack = describe(work.task)
    (form,) = training_forms(Setting(stack, (9, 0), "fp32", channels=9, largest=50))
    assert form.shares_launches


def test_capacity_is_that_of_the_epochs_largest_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = write_set(tmp_path / "data.h5")
    monkeypatch.setattr(data, "ROWS_AT_ONCE", 4)
    device: Any = HostDevice()
    with opened(configure(f"data.path={tmp_path / 'data.h5'}")) as work:
        held = data.FusedSet(device, work.task.source, Narrow)
    sizes, most = np.diff(graphs.node_ptr), held.capacity(8)
    order = np.argsort(sizes, kind="stable")
    batches = [order[:5], order[5:13]]
    needed = held.capacity_of(held.plan(batches), 8)
    assert needed == most._replace(rows=-(-int(sizes[order[5:13]].sum()) // 4) * 4)
    assert most.holds(needed)
    assert not needed.holds(most)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_set_stores_u_of_the_first_layer(channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U = [A_1 X | … | A_C X | row sums | 0]; the host computes it in chunks of bounded size."""
    graphs = write_set(tmp_path / "data.h5", n_channels=channels, n_graphs=12)
    source = BatchSource(graphs)
    assert source.prepared is not None
    monkeypatch.setattr(data, "NODES_AT_ONCE", 16)
    k = Narrow.columns(source.header.n_features, channels)
    parts = list(data.propagated(source.prepared, source.node_ptr, k))
    found = np.concatenate([part for _, part in parts])
    assert len(parts) > 2
    batch = source.batch(np.arange(source.n_graphs))
    rows = batch.adjacency.forward
    stacked = sp.csr_array((rows.data, rows.indices, rows.indptr), shape=(batch.n_nodes, batch.n_nodes * channels))
    dense, n_in = stacked.toarray().astype(np.float64), batch.x.shape[1]
    expected = np.zeros_like(found)
    for c in range(channels):
        expected[:, c * n_in : (c + 1) * n_in] = dense[:, c::channels] @ batch.x
        expected[:, channels * n_in + c] = dense[:, c::channels].sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert found.shape[1] % 8 == 0


@pytest.mark.parametrize("channels", [2, 5])
@pytest.mark.parametrize("few", [False, True], ids=["all rows", "few rows"])
def test_the_set_stores_the_columns_of_u_that_are_not_zero(few: bool, channels: int, tmp_path: Path) -> None:
    """A narrow form with many columns drops those that no entry makes other than 0; it keeps all row sums."""
    graphs = write_set(tmp_path / "data.h5", n_channels=channels, n_graphs=12, n_features=100)
    x = graphs.x.copy()
    x[:, 3:60] = 0
    if few:
        x = x[np.arange(len(x)) % 4]
    source, device = BatchSource(replace(graphs, x=x)), HostDevice()
    assert source.prepared is not None
    source.prepared.compact()
    assert (source.prepared.x is not x) == few
    held: Any = data.FusedSet(cast(Any, device), source, Narrow)
    of_u = channels * 101
    u = np.concatenate([part for _, part in data.propagated(source.prepared, source.node_ptr, of_u)])
    columns, places = device.uploaded[held.columns.ptr], device.uploaded[held.places.ptr]
    used = columns[columns < of_u]
    assert held.k == len(columns) < of_u
    assert held.k % 8 == 0
    assert len(used) > held.k - 8
    assert not u[:, np.setdiff1d(np.arange(of_u), used)].any()
    assert used[held.first_sum :].tolist() == list(range(of_u - channels, of_u))
    assert places[used].tolist() == list(range(len(used)))
    assert (places >= 0).sum() == len(used)


@pytest.mark.parametrize("are_symmetric", [False, True])
def test_rows_by_channel_are_those_of_the_transpose_if_all_channels_are_symmetric(
    are_symmetric: bool, tmp_path: Path
) -> None:
    graphs = write_set(tmp_path / "data.h5", n_channels=3, n_graphs=12)
    if are_symmetric:
        src, dst = np.concatenate([graphs.src, graphs.dst]), np.concatenate([graphs.dst, graphs.src])
        channel, graph = np.tile(graphs.channel, 2), np.tile(np.repeat(np.arange(12), np.diff(graphs.edge_ptr)), 2)
        order = np.argsort(graph, kind="stable")
        edges = {"src": src[order], "dst": dst[order], "channel": channel[order], "edge_ptr": 2 * graphs.edge_ptr}
        graphs = replace(graphs, **edges, weight=None)
    source, device = BatchSource(graphs), HostDevice()
    assert source.prepared is not None
    held: Any = data.FusedSet(cast(Any, device), source, Narrow)
    assert (held.channel_rows is held.t_rows) == are_symmetric
    indptr, indices, values = (device.uploaded[array.ptr] for array in held.channel_rows)
    rows = source.prepared.forward
    entries, starts = np.split(np.arange(len(rows.indices)), np.cumsum(rows.row_length)[:-1]), indptr[:-1]
    for number, (start, end) in enumerate(zip(starts, indptr[1:], strict=True)):
        node, channel = divmod(number, 3)
        own = entries[node][rows.indices[entries[node]] % 3 == channel]
        assert indices[start:end].tolist() == (rows.indices[own] // 3).tolist()
        assert values[start:end].tolist() == rows.data[own].tolist()


def test_few_columns_of_u_are_all_stored(tmp_path: Path) -> None:
    source, device = BatchSource(write_set(tmp_path / "data.h5", n_channels=1)), HostDevice()
    held: Any = data.FusedSet(cast(Any, device), source, Narrow)
    assert held.places is None
    assert device.uploaded[held.columns.ptr][: held.first_sum + 1].tolist() == list(range(held.first_sum + 1))


def test_label_weights_equal_those_of_the_losses() -> None:
    y = np.array([[1, np.nan], [0, 1], [np.nan, np.nan]], np.float32)
    weights = np.array([2.0, 3.0], np.float32)
    assert label_weights(y, Loss("binary", weights)).tolist() == [1, 2, 0]
    classes = np.array([[1], [-1], [0]], np.int32)
    assert label_weights(classes, Loss("multiclass", weights)).tolist() == [3, 0, 2]
    own = np.array([[0.5], [7], [2]])
    assert label_weights(join(y, own, 0), Loss("regression", weights, "huber")).tolist() == [0.5, 14, 0]
    assert label_weights(join(classes, own, 0), Loss("multiclass", weights, "softmax")).tolist() == [1.5, 0, 4]


def test_an_expected_epoch_is_planned_and_packed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its upload equals that of an unexpected epoch, which `begin_epoch` plans and packs."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("driver"))
    monkeypatch.setattr(loader, "driver_cuda_version", lambda: (13, 0))
    write_set(tmp_path / "data.h5")
    at: Any
    device: Any
    device, at = workspace(tmp_path / "data.h5", (), True)
    monkeypatch.setattr(HostDevice, "launch", lambda *call, **arguments: None, raising=False)
    done: list[str] = []
    plans, pack = data.FusedSet.plans, StagedEpoch.pack
    monkeypatch.setattr(data.FusedSet, "plans", lambda *given: (done.append("planned"), plans(*given))[1])
    monkeypatch.setattr(StagedEpoch, "pack", lambda *given: (done.append("packed"), pack(*given))[1])
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    fused = engine.FusedEngine(at._cohort, rule, (Narrow,), Wide)
    first, second, rates = (
        list(np.arange(16).reshape(2, 8)),
        list(np.arange(16, 32).reshape(2, 8)),
        Rates(1.0, np.ones((2, 2), np.float32)),
    )
    uploads = []
    for batches, expected in ((first, None), (second, second), (second, first), (second, None)):
        if expected is not None:
            fused.expect([expected])
        done.clear()
        fused.begin_epoch([EngineEpoch(0, batches, rates, 0)])
        assert done == ([] if expected is batches else ["planned", "packed"])
        uploads.append(device.uploaded[fused._training[fused._forms[0]].workspace.plan.progress.ptr])
    np.testing.assert_array_equal(uploads[1], uploads[2])
    np.testing.assert_array_equal(uploads[1], uploads[3])
    assert (uploads[0] != uploads[1]).any()


def test_an_epoch_expected_after_the_last_step_begins_before_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is as guessed, nothing follows; else rates and first step, and the first batch is staged again."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("driver"))
    monkeypatch.setattr(loader, "driver_cuda_version", lambda: (13, 0))
    graph = SimpleNamespace(launch=lambda: None, close=lambda: None)
    monkeypatch.setattr(engine.Recorder, "record", lambda *given: graph)
    staged: list[str] = []
    monkeypatch.setattr(HostDevice, "launch", lambda self, entry, launch, /, **arguments: staged.append(entry))
    monkeypatch.setattr(HostDevice, "observer", None, raising=False)
    write_set(tmp_path / "data.h5")
    at: Any
    _, at = workspace(tmp_path / "data.h5", (), True)
    sent: list[tuple[bool, np.ndarray[Any, Any]]] = []
    monkeypatch.setattr(
        HostDevice, "send_rows", lambda self, host, out, pitch, ahead=False: sent.append((ahead, host.copy()))
    )
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    fused = engine.FusedEngine(at._cohort, rule, (Narrow,), Wide)
    batches, corrections = list(np.arange(16).reshape(2, 8)), np.ones((2, 2), np.float32)
    epoch = EngineEpoch(3, batches, Rates(1.0, corrections), 0)

    def run() -> None:
        for _ in batches:
            fused.step()
        fused.flush()
        sent.clear()
        staged.clear()

    fused.begin_epoch([epoch])
    _, whole = sent[-1]
    fused.step()
    sent.clear()
    fused.expect([batches], [epoch])  # a step is still to run
    fused.begin_epoch([epoch])
    ((is_ahead, again),) = sent
    assert not is_ahead
    np.testing.assert_array_equal(again, whole)

    run()
    fused.expect([batches], [epoch])
    assert staged == ["fused_stage"]
    fused.begin_epoch([epoch._replace(rates=Rates(1.0, corrections.copy()))])
    ((is_ahead, ahead),) = sent
    assert is_ahead
    assert staged == ["fused_stage"]
    np.testing.assert_array_equal(ahead, whole)

    others = [epoch._replace(epoch=4), epoch._replace(first=1), epoch._replace(rates=Rates(2.0, corrections))]
    guesses: list[list[EngineEpoch] | None] = [None, *([other] for other in others)]
    for guess in guesses:
        run()
        fused.expect([batches], guess)
        fused.begin_epoch([epoch])
        (is_ahead, ahead), (is_front_ahead, front) = sent
        assert (is_ahead, is_front_ahead) == (True, False)
        assert staged == ["fused_stage"] * (1 if guess is None else 2)
        assert front.shape[1] < ahead.shape[1] == whole.shape[1]
        ahead[:, : front.shape[1]] = front
        np.testing.assert_array_equal(ahead, whole)

    run()
    fused.expect([batches], [epoch])
    fused.parameters_changed()  # staging scales features of graphs by some
    fused.begin_epoch([epoch])
    assert staged.count("fused_stage") == 2


# form of training, compute capability, precision, kernels of the products
PREDICTIONS: dict[str, tuple[type[Form], tuple[int, int], str, list[str]]] = {
    "narrow": (Narrow, (8, 0), "fp32", ["fused_narrow_forward"] * 2),
    "narrow, where there are wide kernels": (Narrow, (9, 0), "fp32", ["fused_wide_product_3xtf32"] * 2),
    "wide": (WideTf32, (9, 0), "tf32", ["fused_wide_product_tf32"] * 2),
}


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize(("form", "capability", "precision", "multiplied"), PREDICTIONS.values(), ids=PREDICTIONS)
def test_prediction_weights_are_packed_again_after_every_change(
    form: type[Form],
    capability: tuple[int, int],
    precision: str,
    multiplied: list[str],
    replayed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("driver"))
    monkeypatch.setattr(loader, "driver_cuda_version", lambda: (13, 0))
    monkeypatch.setattr(HostDevice, "observer", None if replayed else [], raising=False)  # [] stands for a profiler
    launched: list[str] = []
    graphs, entries = np.arange(8), Sources(cuda_sources()).entries

    def launch(_: HostDevice, entry: str, launch: Launch, **arguments: Any) -> None:
        assert entries[entry].pack(arguments)
        launched.append(entry)

    monkeypatch.setattr(HostDevice, "launch", launch, raising=False)
    write_set(tmp_path / "data.h5")
    device, at = workspace(tmp_path / "data.h5", ("model.widths=[16,24]",), True, form)
    device.compute_capability = capability
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    fused = engine.FusedEngine(at._cohort, rule, (form,), prediction_form(at._stack, capability, precision))
    assert fused.eval_batch_size == engine.EVAL_GRAPHS
    graph = SimpleNamespace(launch=lambda: launched.append("graph"), close=lambda: None)
    monkeypatch.setattr(fused._recorder, "record", lambda calls, steps, carveout: graph)
    packing = "fused_wide_weights" if "product" in multiplied[0] else "fused_narrow_pack"

    def folds() -> bool:
        launched.clear()
        fused.predict([graphs])
        assert [name for name in launched if "product" in name or "forward" in name] == multiplied
        return packing in launched

    assert folds()
    assert not folds()
    fused.parameters_changed()
    assert folds()
    fused.gradients(graphs, device.empty(2, np.float64))  # changes the running statistics
    assert folds()
    fused.begin_epoch([EngineEpoch(0, [graphs], Rates(1.0, np.ones((1, 2), np.float32)), 0)])
    assert not folds()
    launched.clear()
    fused.step()
    assert ("graph" in launched) == replayed
    assert folds()
    assert not folds()


@pytest.mark.parametrize("joined", [0, 2], ids=["nodes", "features of graphs"])
def test_predictions_stage_graphs_once_until_others_come(
    joined: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("driver"))
    monkeypatch.setattr(loader, "driver_cuda_version", lambda: (13, 0))
    launched: list[str] = []
    monkeypatch.setattr(HostDevice, "launch", lambda _, entry, launch, **given: launched.append(entry), raising=False)
    write_set(tmp_path / "data.h5", 20, graph_features=joined)
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[16,24]",), True)
    rule = UpdateRule(sgd=False, beta1=0.9, beta2=0.999, epsilon=1e-8, clips=False)
    fused = engine.FusedEngine(at._cohort, rule, (Narrow,), Narrow)

    def stages(graphs: Any) -> bool:
        launched.clear()
        (found,) = fused.predict([graphs])
        assert found is not None
        assert len(found) == len(graphs)
        assert launched.count("fused_narrow_forward") == 2
        assert launched[-1] == "fused_logits"
        return "fused_stage" in launched

    graphs = np.arange(8)
    assert stages(graphs)
    assert not stages(graphs)
    assert not stages(graphs.copy())
    graphs[0] = 9
    assert stages(graphs), "the caller changed its array"
    assert stages(graphs[:7])
    assert not stages(graphs[:7])
    assert stages(np.arange(12)), "in a larger workspace"
    fused.parameters_changed()
    assert stages(np.arange(12)), "the features' scaling may have changed"
    fused.gradients(np.arange(12), DeviceArray(64, (2,), np.dtype(np.float64)))
    assert not stages(np.arange(12)), "gradients have a workspace of their own"


@pytest.mark.parametrize(("form", "packing"), [(Narrow, "fused_narrow_pack"), (Wide, "fused_wide_weights")])
def test_prediction_weights_contain_batch_norm(form: type[Form], packing: str, tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5")
    _, at = workspace(tmp_path / "data.h5", ("model.widths=[16,24]",), False, form)
    for layer, call in zip(at._stack.nodes, at.pack(), strict=True):
        given, norm = call.arguments, layer.norm
        assert norm is not None
        assert call.entry == packing
        assert isinstance(given, dict)
        at_places = {
            "shift": at._model.shifts.view(norm.running_mean, layer.n_out),
            "gamma": at._model.parameter(norm.gamma, layer.n_out),
            "beta": at._model.parameter(norm.beta, layer.n_out),
            "running_mean": at._model.buffer(norm.running_mean, layer.n_out),
            "running_var": at._model.buffer(norm.running_var, layer.n_out),
        }
        assert {name: given[name].ptr for name in at_places} == {name: array.ptr for name, array in at_places.items()}
        assert given["epsilon"] == norm.epsilon


def test_comments_of_kernels_name_functions_of_the_geometry_that_exist() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (cuda_sources() / "fused").rglob("*.cu*")]
    named = {match for text in texts for match in re.findall(r"`(\w+)\.geometry\.(\w+)`", text)}
    assert named
    for folder, function in named:
        assert callable(getattr(import_module(f"gcnbatch.backends.cuda.fused.{folder}.geometry"), function))
