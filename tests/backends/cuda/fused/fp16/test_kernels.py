"""The kernels of the fp16 form on a GPU, one by one: weight gradients, staging, update, whole steps."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.backends.cuda.fused.fp16.form import Fp16
from gcnbatch.backends.cuda.fused.fp16.step import Fp16Workspace, padded
from gcnbatch.backends.cuda.fused.shared.epoch import BegunEpoch, Rates
from gcnbatch.backends.cuda.fused.shared.model import UpdateRule, member_values
from gcnbatch.backends.cuda.runtime.graph import Call
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.registry import open_backend
from gcnbatch.lab.backend_comparison.workload import opened
from gcnbatch.runners.choice import make_runner
from tests.backends.cuda.fused.fp16.workspaces import PANEL, ROWS, from_panels, to_panels, weight_panels, workspace
from tests.training.runs import configure, write_set

pytestmark = pytest.mark.gpu

Array = NDArray[Any]
MODEL = ("model.widths=[128,128]", "model.adjacency=stored")


@pytest.fixture(scope="module")
def device() -> Any:
    backend = open_backend("batched")
    assert isinstance(backend, CudaBackend)
    return backend.device


def run(device: Any, *calls: Call) -> None:
    for call in calls:
        call.start(device)


# ---- gradients of weights


@pytest.mark.parametrize("tiles", [1, 2, 7, 15])
@pytest.mark.parametrize(
    ("shapes", "P", "outputs", "graphs"),
    [
        (((75, 128), (512, 512), (512, 512)), 512, 100, 97),
        (((4, 64),), 128, 1, 1),
        (((150, 192), (384, 384)), 384, 130, 600),
    ],
    ids=["three layers of 512", "one panel", "odd panels"],
)
def test_weight_gradients_are_near_float64(
    device: Any, tiles: int, shapes: tuple[tuple[int, int], ...], P: int, outputs: int, graphs: int
) -> None:
    rng, capacity = np.random.default_rng(tiles), tiles + 2
    plan = geometry.weight_gradient(tuple((K, P) for _, K in shapes), (P, outputs), device.multiprocessors)
    products: list[dict[str, Any]] = []
    wanted: list[tuple[Any, Array, Array]] = []
    for number, (F, K) in enumerate(shapes):
        u, dy = (rng.standard_normal((ROWS * capacity, columns)).astype(np.float16) for columns in (K, P))
        of_tiles = rng.standard_normal((capacity, P)).astype(np.float32)
        u[:, F:] = 0
        # left by an earlier batch: the kernel must not read them
        u[ROWS * tiles :], dy[ROWS * tiles :], of_tiles[tiles:] = np.nan, np.nan, np.nan
        u_scale, scale = np.float32(2.0 ** (7 - number)), np.float32(2.0 ** (number - 90))
        partials, dbias = (poisoned(device, *shape) for shape in ((plan.splits, F, P), (P,)))
        panels = [device.upload(to_panels(x).view(np.uint16)) for x in (u, dy)]
        fields = {"u": panels[0], "dy": panels[1], "scale": device.upload(scale.reshape(1)), "partials": partials}
        fields |= {"bias_partials": device.upload(of_tiles), "dbias": dbias, "u_scale": float(u_scale)}
        products.append(fields | {"F": F, "P": P, "K": K})
        exact, found = (x[: ROWS * tiles].astype(np.float64) for x in (u[:, :F], dy))
        by = float(u_scale) * float(scale)
        wanted.append((partials, exact.T @ found / by, np.abs(exact).T @ np.abs(found) / by))
        wanted.append((dbias, of_tiles[:tiles].sum(axis=0, dtype=np.float64), np.full(P, 4 * tiles)))
    given, gradient = (
        rng.standard_normal((graphs + 3, P), np.float32),
        rng.standard_normal((graphs + 3, outputs), np.float32),
    )
    head, ones = poisoned(device, P + 1, outputs), np.column_stack([given, np.ones(graphs + 3)])[:graphs]
    wanted.append((head, ones.T @ gradient[:graphs], np.abs(ones.T) @ np.abs(gradient[:graphs])))
    layout = declared("fused/fp16/weight_gradient.cu").layout("GradientTile")
    shape, size = (device.upload(np.array(values, np.int32)) for values in ([tiles, 0], [0, graphs, 0, 0]))
    fields = {
        "products": padded(products, geometry.MAX_LAYERS),
        "places": device.upload(layout.pack_many(place._asdict() for place in plan.places)),
        "head": head,
        "input": device.upload(given),
        "gradient": device.upload(gradient),
        "shape": shape,
        "size": size,
        "n_products": len(shapes),
        "n_places": len(plan.places),
        "splits": plan.splits,
        "F": P,
        "P": outputs,
    }
    runs = []
    for _ in range(2):
        device.launch("fused_fp16_weight_gradient", plan.launch, **fields)
        runs.append([device.download(array) for array, *_ in wanted])
    for first, second, (_, want, scale_of_error) in zip(*runs, wanted, strict=True):
        np.testing.assert_array_equal(first, second)
        total = first.sum(axis=0, dtype=np.float64) if first.ndim == 3 else first
        np.testing.assert_array_less(np.abs(total - want), 2e-6 * scale_of_error + 1e-30)


def poisoned(device: Any, *shape: int) -> Any:
    return device.upload(np.full(shape, np.nan, np.float32))


@pytest.mark.parametrize(("F", "P"), [(75, 512), (128, 128), (4, 256)])
def test_weights_are_written_as_swizzled_panels(device: Any, F: int, P: int) -> None:
    weight = np.random.default_rng(F).standard_normal((F, P)).astype(np.float32)
    columns = geometry.columns_of_u(F)
    for both in (True, False):
        outputs = [device.upload(np.full(columns * P, np.nan, np.float16).view(np.uint16)) for _ in range(2)]
        fields = {"forward": outputs[0], "backward": outputs[1] if both else None, "weight": device.upload(weight)}
        device.launch("fused_fp16_weights", geometry.weights(P, columns), **fields, F=F, P=P, K=columns)
        for got, want in zip(outputs[: 1 + both], weight_panels(weight, columns), strict=False):
            np.testing.assert_array_equal(device.download(got), want.view(np.uint16).ravel())


# ---- staging


def begin_epoch(at: Fp16Workspace, plan: Any, epoch: int, rates: Array) -> None:
    """Upload an epoch's plan, its rates and label weights, (steps, 4); the learning rate of the last step for all."""
    packed = np.zeros((1, *at.plan.array.shape), np.int32)
    at.pack_plan(packed[0], plan, rates[:, 3])
    at.plan.begin(packed, 0, {0: BegunEpoch(0, plan.n_batches, epoch, Rates(rates[-1, 0], rates[:, 1:3]))})
    at.begin_epoch(packed)


@pytest.mark.numerical(bound="no step")
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_batch_is_staged_in_tiles(device: Any, symmetric: bool, tmp_path: Path) -> None:
    """Two batches, the second smaller: it overwrites everything of the first that a kernel reads."""
    about = {"n_channels": 1, "max_nodes": 50, "n_features": 70, "edges_per_node": 1, "weights": not symmetric}
    write_set(tmp_path / "data.h5", 60, **about)
    model = (MODEL[0], "model.adjacency=symmetric") if symmetric else MODEL
    rng = np.random.default_rng(0)
    batches = [rng.permutation(60), rng.permutation(60)[:7]]
    at, plan, task = workspace(device, tmp_path / "data.h5", model, batches)
    begin_epoch(at, plan, 3, np.zeros((2, 4), np.float32))
    for step, batch in enumerate(batches):
        device.upload(np.array([step, 0, 0, 0], np.int32), at.plan.progress.view(0, 4))
        run(device, at.stage())
        assert_staged(device, at, task, batch, step, symmetric)
    device.upload(np.array([2, 0, 0, 0], np.int32), at.plan.progress.view(0, 4))
    run(device, at.stage())  # no step is left
    assert_staged(device, at, task, batches[1], 1, symmetric)


def assert_staged(device: Any, at: Fp16Workspace, task: Any, batch: Array, step: int, symmetric: bool) -> None:
    def get(array: Any) -> Array:
        found: Array = device.download(array)
        return found

    (N, B, *rest), tiles = get(at._size), int(get(at._shape)[0])
    assert (B, *rest) == (len(batch), step, 3)
    tile_ptr, tile_rows = get(at._tile_ptr)[: tiles + 1], get(at._tile_rows)[:tiles]
    node_ptr, n_nodes = get(at._node_ptr)[:B], get(at._n_nodes)[:B]
    graphs = device.download(at.plan.views["graphs"])[at_step(at, step)]
    assert sorted(graphs) == sorted(batch)
    assert tile_ptr[-1] == B
    whole = task.source.batch(graphs.astype(np.int64))
    assert whole.n_nodes == N
    np.testing.assert_array_equal(n_nodes, np.diff(whole.node_ptr))
    rows = np.concatenate([np.arange(first, first + n) for first, n in zip(node_ptr, n_nodes, strict=True)])
    for tile in range(tiles):
        own = slice(tile_ptr[tile], tile_ptr[tile + 1])
        first = ROWS * tile + np.concatenate([[0], np.cumsum(n_nodes[own])])
        np.testing.assert_array_equal(node_ptr[own], first[:-1])
        assert tile_rows[tile] == first[-1] - ROWS * tile
    adjacency = whole.adjacency.forward
    sides = [(adjacency, at._rows)] + ([] if symmetric else [(whole.adjacency.transpose, at._t_rows)])
    for of_batch, arrays in sides:
        indptr, indices, values = (get(array) for array in arrays)
        indptr = indptr[: ROWS * tiles + 1]
        lengths = np.zeros(ROWS * tiles, np.int64)
        lengths[rows] = np.diff(of_batch.indptr)
        np.testing.assert_array_equal(np.diff(indptr), lengths)
        assert indptr[0] == 0
        np.testing.assert_array_equal(values[: indptr[-1]], of_batch.data)
        np.testing.assert_array_equal(indices[: indptr[-1]], rows[of_batch.indices] % ROWS)
    u = from_panels(get(at._x).view(np.float16))[: ROWS * tiles]
    want, sums = np.zeros_like(u), np.zeros(ROWS * tiles, np.float32)
    matrix = np.zeros((N, N), np.float32)
    np.add.at(matrix, (np.repeat(np.arange(N), np.diff(adjacency.indptr)), adjacency.indices), adjacency.data)
    want[rows, : whole.x.shape[1]] = matrix.astype(np.float64) @ whole.x * at._features.scale
    sums[rows] = matrix.sum(axis=1, dtype=np.float64)
    np.testing.assert_allclose(u, want, rtol=2.0**-10, atol=1e-2)
    assert np.abs(u).max() > 100
    unused = np.setdiff1d(np.arange(ROWS * tiles), rows)
    assert (u[unused] == 0).all()
    np.testing.assert_allclose(get(at._row_sums)[: ROWS * tiles], sums, rtol=1e-6, atol=1e-6)
    targets = get(at._targets)[:B]
    np.testing.assert_array_equal(targets, task.targets[graphs])


def at_step(at: Fp16Workspace, step: int) -> slice:
    ptr = at._device.download(at.plan.views["batch_ptr"])
    return slice(ptr[step], ptr[step + 1])


# ---- update


@pytest.mark.numerical(bound="one step")
@pytest.mark.parametrize("sgd", [False, True])
@pytest.mark.parametrize("max_norm", [0.0, 0.5])
def test_update_sums_gradients_and_packs_the_weights(device: Any, sgd: bool, max_norm: float, tmp_path: Path) -> None:
    write_set(tmp_path / "data.h5", 60, n_channels=1, max_nodes=40, n_features=70)
    batches = [np.arange(50), np.arange(37)]
    at, plan, task = workspace(device, tmp_path / "data.h5", MODEL, batches)
    rates = np.array([[0.1, 0, 0, 0], [0.01, 2.0, 3.0, 5.0]], np.float32)
    rule = UpdateRule(sgd, 0.9, 0.99, 1e-3, max_norm > 0, decays=True)
    of, layout, rng = at._model, task.model.layout(), np.random.default_rng(7)
    before = {}
    for name in ("trainable", "weight_decay", "l2"):
        before[name] = (rng.standard_normal(layout.n_trainable) * (1 if name == "trainable" else 0.1)).astype(
            np.float32
        )
        device.upload(before[name], getattr(of, name))
    moments = [np.abs(rng.standard_normal(layout.n_trainable)).astype(np.float32) for _ in range(2)]
    wanted = fill_gradients(device, at, rng, layout.n_trainable)
    used = np.zeros(layout.n_trainable, bool)  # False: gaps between slots
    for slot in layout.slots.values():
        if slot.spec.trainable:
            used[slot.start : slot.stop] = True
    losses = rng.random(at.tiles)
    device.upload(member_values(0, 0.0, max_norm), of.values)
    for _ in range(2):
        device.upload(before["trainable"], of.trainable)
        for moment, value in zip(of.moments, moments, strict=True):
            device.upload(value, moment)
        device.upload(np.zeros(2), of.totals)
        begin_epoch(at, plan, 0, rates)
        device.upload(np.array([1, int(np.diff(plan.batch_ptr)[1]), 37, 1], np.int32), at.plan.progress.view(0, 4))
        device.upload(losses, at._losses)
        run(device, *at.pack(), *at.update(rule))
        found = device.download(of.trainable)
    m, v = (moment.astype(np.float64) for moment in moments)
    gradient = wanted.copy()
    if max_norm:
        gradient *= min(1.0, max_norm / np.linalg.norm(gradient))
    p, decay, penalty = (before[name].astype(np.float64) for name in ("trainable", "weight_decay", "l2"))
    g = gradient + penalty * p
    m = 0.9 * m + (g if sgd else 0.1 * g)
    v = 0.99 * v + 0.01 * g**2
    update = m if sgd else m * 2.0 / (np.sqrt(v * 3.0) + 1e-3)
    want = p - 0.01 * (update + decay * p)
    np.testing.assert_allclose(found[used], want[used], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(device.download(of.moments[0])[used], m[used], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(device.download(of.totals), [losses.sum(), 5.0], rtol=1e-6)
    for number, layer in enumerate(at._stack.nodes):
        weight = found[layer.weight : layer.weight + layer.n_in * layer.n_out].reshape(layer.n_in, layer.n_out)
        forward, backward = weight_panels(weight, geometry.columns_of_u(layer.n_in))
        packed = device.download(at._packed[number])
        np.testing.assert_array_equal(packed[0], forward.view(np.uint16).ravel())
        if number:
            np.testing.assert_array_equal(packed[1], backward.view(np.uint16).ravel())


def fill_gradients(device: Any, at: Fp16Workspace, rng: Any, count: int) -> Array:
    """Store partial sums of random gradients, as a step of the second batch would; return the gradients."""
    want = np.zeros(count)

    def fill(array: Any) -> Array:
        values = rng.standard_normal(array.shape, np.float32)
        device.upload(values, array)
        found: Array = values.astype(np.float64)
        return found

    for number, layer in enumerate(at._stack.nodes):
        arrays, norm = at._arrays(number), layer.norm
        assert norm is not None
        for start, found in (
            (layer.weight, fill(arrays.partials).sum(axis=0)),
            (layer.bias, fill(arrays.dbias)),
            (norm.gamma, fill(arrays.dgamma)),
            (norm.beta, fill(arrays.dbeta)),
        ):
            want[start : start + found.size] = found.ravel()
    (head,) = at._stack.graphs
    gradient = fill(at._head_dw)
    want[head.weight : head.weight + head.n_in * head.n_out] = gradient[:-1].ravel()
    want[head.bias : head.bias + head.n_out] = gradient[-1]
    return want


def test_panels_and_back() -> None:
    matrix = np.random.default_rng(0).standard_normal((2 * ROWS, 3 * PANEL))
    np.testing.assert_array_equal(from_panels(to_panels(matrix)), matrix)


# ---- whole steps


SCALES = {"plain": (1.0, 1.0), "small weights": (1e-3, 1.0), "large weights": (1e2, 1.0), "tiny gradients": (1.0, 1e-8)}


@pytest.mark.numerical(bound="gradients of one state, held to those in TF32")
@pytest.mark.parametrize("shape", ["binary", "multiclass"])
@pytest.mark.parametrize(("weights", "outputs"), SCALES.values(), ids=SCALES)
def test_fp16_gradients_are_as_accurate_as_tf32(
    weights: float, outputs: float, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms have similar errors relative to the CPU, for large and small weights and gradients."""
    write_set(tmp_path / "data.h5", 80, n_channels=1, max_nodes=40, n_features=30, target=shape, missing=0.0)
    config = configure(f"data.path={tmp_path / 'data.h5'}", "model.widths=[256,256,256]", "cuda.precision=tf32")
    found = []
    with opened(config) as work:
        state = make_runner(open_backend("cpu"), [work.task]).state()
        changed = {
            name: value * np.float32(outputs if name.startswith("output") else weights) if is_matrix(name) else value
            for name, value in state.items()
        }
        for name, is_fp16 in (("cpu", False), ("fused", True), ("fused", False)):
            with monkeypatch.context() as patched:
                if not is_fp16:
                    patched.setattr(Fp16, "trains", classmethod(lambda *_: False))
                runner = make_runner(open_backend(name, options=config.cuda), [work.task])
            runner.load_state(changed)
            found.append(runner.gradients(np.arange(60))[1])
            if name == "fused":
                assert [form.name == "fp16" for form in runner._engine._single] == [is_fp16]  # type: ignore[attr-defined]
    exact, in_fp16, in_tf32 = found
    for name, value in exact.items():
        length = max(float(np.linalg.norm(value)), 1e-30)
        near, also = (float(np.linalg.norm(other[name] - value)) / length for other in (in_fp16, in_tf32))
        assert near < 2 * also + 1e-4, (name, near, also)


def test_single_launches_give_the_bits_of_captured_graphs(tmp_path: Path) -> None:
    """A profiler sees three kernels a step; parameters equal those of captured graphs."""
    write_set(tmp_path / "data.h5", 60, n_channels=1, max_nodes=40)
    config = configure(f"data.path={tmp_path / 'data.h5'}", "model.widths=[128,128]", "cuda.precision=tf32")
    states = []
    with opened(config) as work:
        for observed in (False, True):
            backend = open_backend("fused", options=config.cuda)
            runner = make_runner(backend, [work.task])
            runner.begin_epoch([MemberEpoch(0, work.repeated(4), 1e-3)])
            runner.step(0)
            with backend.meter.traced() if observed else nullcontext([]) as found:
                for step in (1, 2, 3):
                    runner.step(step)
            kernels = ["fused_fp16_step_128", "fused_fp16_weight_gradient", "fused_fp16_update"] if observed else []
            assert [one.name for one in found] == 3 * kernels
            states.append(runner.state())
            runner.close()
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)


def is_matrix(name: str) -> bool:
    return name.endswith(".weight")


def test_an_epoch_that_does_not_fit_tiles_is_trained_in_tf32(tmp_path: Path) -> None:
    """Epochs alternate between fp16 and TF32, with predictions between: each form uses the latest weights.

    So each epoch has the bits of a runner that loads the state before it.
    """
    write_set(tmp_path / "data.h5", 60, n_channels=1, max_nodes=40)
    config = configure(
        f"data.path={tmp_path / 'data.h5'}", "model.widths=[128,128]", "cuda.precision=tf32", "train.batch_size=16"
    )
    with opened(config) as work:

        def made() -> Any:
            return make_runner(open_backend("fused", options=config.cuda), [work.task])

        def train(runner: Any, epoch: int, limit: int) -> dict[str, Array]:
            runner._engine._forms[0].__dict__["most_tiles"] = limit
            runner.begin_epoch([MemberEpoch(epoch, work.repeated(3), 1e-3)])
            for step in range(3):
                runner.step(step)
                predicted = runner.predict([np.arange(60)])[0]
            assert runner._engine._now.name == ("fp16" if limit > 1 else "wide (TF32)")
            return runner.state() | {"predicted": predicted}

        alternating = made()
        for epoch, limit in enumerate((66, 1, 66, 1)):
            fresh = made()
            fresh.load_state(alternating.state())
            found, expected = (train(runner, epoch, limit) for runner in (alternating, fresh))
            fresh.close()
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, err_msg=name)
        alternating.close()
