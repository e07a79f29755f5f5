"""Products of very many rows on Hopper's tensor cores: their selection, their launches, and on a GPU their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ops import matmul_wgmma as wgmma
from gcnbatch.backends.cuda.ops.matmul_wgmma import WgmmaDenseOps, compiled_columns, product_launch, wgrad_launch
from gcnbatch.backends.cuda.ops.relu_dropout import Kept
from tests.backends.cuda.ops.recorder import CHIPS, H200, Recorder, covers, of, quickly
from tests.ops.adapters import open_adapter
from tests.ops.parity import Problem, assert_parity
from tests.ops.test_dropout import KEY

SHARED_BYTES = 227 * 1024  # that a block on Hopper may have, with 1 KB for what it declares statically
MANY = st.integers(1 << 15, 3_000_000)
# Rows that end within a tile; columns and depths of a tile, one more and one less; rows aligned to 16, 8 and 4 bytes.
SHAPES = [(40, 33, 33), (63, 47, 47), (64, 32, 128), (129, 192, 65), (1000, 100, 128), (3000, 128, 41), (517, 34, 64)]
SHAPES += [(20_000, 128, 128), (700, 602, 127)]


@pytest.fixture
def at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these kernels compute products of few rows, too."""
    for name, value in {"LEAST_WORK": 1, "LEAST_ROWS": 1, "NARROW": 0}.items():
        monkeypatch.setattr(wgmma, name, value)
    product_launch.cache_clear()
    wgrad_launch.cache_clear()


@pytest.fixture(autouse=True)
def _forget() -> Any:
    """Drop launches that a test has chosen at other limits."""
    yield
    product_launch.cache_clear()
    wgrad_launch.cache_clear()


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "compiled"),
    [
        (614_355, 128, 100, 128),
        (614_355, 47, 128, 64),
        (614_355, 64, 192, 64),
        (614_355, 32, 128, None),
        (614_355, 129, 128, None),
        (614_355, 128, 193, None),
        (30_000, 128, 128, None),
        (80_000, 128, 47, None),
        (100_000, 128, 47, 128),
    ],
)
def test_products_of_many_rows_with_few_columns_are_computed_here(rows, columns, depth, compiled) -> None:
    found = product_launch(rows, columns, depth, H200)
    assert (found and found[0]) == compiled


def test_weight_gradients_of_many_rows_are_computed_here() -> None:
    assert wgrad_launch(614_355, 602, 128, H200) is not None
    for N, F, P in ((614_355, 32, 128), (614_355, 602, 129), (614_355, 602, 16), (30_000, 602, 128)):
        assert wgrad_launch(N, F, P, H200) is None


@pytest.mark.parametrize(("precision", "capability"), [("tf32", (9, 0)), ("fp32", (8, 0)), ("fp32", (10, 0))])
def test_other_precisions_and_gpus_use_the_tiles(precision: Any, capability: tuple[int, int]) -> None:
    device = Recorder(compute_capability=capability)
    ops = BatchedOps(device, precision, "auto")  # type: ignore[arg-type]
    x, w, dy = of(device, (600_000, 128), (128, 128), (600_000, 128))
    ops.matmul(x, w)
    ops.matmul_backward(dy, x, w)
    assert not [entry for entry in device.entries if "wgmma" in entry]


def test_a_product_and_its_gradients_are_a_launch_each(device: Recorder) -> None:
    ops = WgmmaDenseOps(device)
    x, w, b, dy = of(device, (614_355, 100), (100, 128), (128,), (614_355, 128))
    ops.linear(x, w, b)
    ops.linear_backward(dy, x, w)
    expected = ["matmul_wgmma_128_forward", "matmul_wgmma_128_dgrad", "matmul_wgmma_128_wgrad", "bias_add_backward"]
    assert device.entries == expected
    forward, dgrad, wgrad, _ = (arguments for *_, arguments in device.launched)
    assert forward["bias"] is b
    assert [forward[name] for name in ("ldy", "ldx", "ldw", "N", "F", "P")] == [128, 100, 128, 614_355, 100, 128]
    assert [dgrad[name] for name in ("lddx", "lddy", "ldw", "N", "F", "P")] == [100, 128, 128, 614_355, 100, 128]
    assert [wgrad[name] for name in ("lddw", "ldx", "lddy", "accumulate")] == [128, 100, 128, False]


def test_a_gradient_of_a_part_of_the_rows_reads_its_own_bits(device: Recorder) -> None:
    dx, dy, w = of(device, (100_000, 64), (100_000, 128), (64, 128))
    bits = device.empty((1_600_005,), np.uint8)
    kept = Kept(bits, 40, 2.0)
    WgmmaDenseOps(device).multiply_dgrad(dx, dy, w, (100_000, 64, 128), (64, 128, 128), kept, first=6_400_000)
    ((entry, _, arguments),) = device.launched
    assert entry == "matmul_wgmma_64_dgrad"
    assert arguments["kept"] == {"bits": bits, "first": 6_400_040, "scale": 2.0}


@quickly
@given(MANY, st.integers(33, 128), st.integers(1, 192), CHIPS)
def test_weights_fit_in_shared_memory(rows: int, columns: int, depth: int, chips: int) -> None:
    found = product_launch(rows, columns, depth, chips)
    if found is None:
        assert rows * depth < wgmma.LEAST_WORK
        return
    compiled, launch = found
    assert compiled == compiled_columns(columns) >= columns
    assert launch.grid == (chips, 1, 1)
    assert 2 * 4 * depth * compiled <= launch.shared <= SHARED_BYTES - 1024


@quickly
@given(MANY, st.integers(33, 2000), st.integers(33, 128), CHIPS)
def test_parts_of_a_weight_gradient_cover_every_row_once(N: int, F: int, P: int, chips: int) -> None:
    found = wgrad_launch(N, F, P, chips)
    assert found is not None
    compiled, plan = found
    blocks, columns, parts = plan.launch.grid
    assert columns == 1
    assert covers(blocks, wgmma.GRADIENT_ROWS, F)
    assert covers(parts, plan.rows_per_part, N)
    assert plan.rows_per_part % wgmma.DEPTH == 0
    assert plan.launch.blocks <= max(chips, blocks)
    assert plan.partials_bytes == (4 * plan.launch.blocks * wgmma.GRADIENT_ROWS * compiled if parts > 1 else 0)


def problem(N: int, F: int, P: int) -> Problem:
    rng = np.random.default_rng(N)
    shapes = {"x": (N, F), "w": (F, P), "b": (P,), "dy": (N, P)}

    def run(ops: Any, x: Any, w: Any, b: Any, dy: Any) -> dict[str, Any]:
        dx, dw, db = ops.linear_backward(dy, x, w)
        return {"y": ops.linear(x, w, b), "dx": dx, "dw": dw, "db": db}

    return Problem(run, {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})


@pytest.mark.usefixtures("at_any_size")
def test_shapes_reach_every_kernel_for_one_and_for_several_blocks() -> None:
    columns = {(kind, found[0]) for N, F, P in SHAPES for kind, found in kinds(N, F, P).items() if found is not None}
    assert columns == {(kind, width) for kind in ("forward", "dgrad", "wgrad") for width in wgmma.COLUMNS}
    assert {kinds(*shape)["wgrad"][1].launch.grid[0] > 1 for shape in SHAPES} == {False, True}
    assert {kinds(*shape)["wgrad"][1].launch.grid[2] > 1 for shape in SHAPES} == {False, True}


def kinds(N: int, F: int, P: int) -> dict[str, Any]:
    """Return what is chosen for a product and its gradients."""
    products = {"forward": product_launch(N, P, F, H200), "dgrad": product_launch(N, F, P, H200)}
    return products | {"wgrad": wgrad_launch(N, F, P, H200)}


def hopper() -> Any:
    backend = open_adapter("batched")
    if backend.ops.device.compute_capability != wgmma.HOPPER:
        pytest.skip("wgmma needs a GPU of compute capability 9.0")
    return backend


@pytest.mark.gpu
@pytest.mark.usefixtures("at_any_size")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_agree_with_the_reference(shape: tuple[int, int, int]) -> None:
    assert_parity(hopper(), problem(*shape))


@pytest.mark.gpu
@pytest.mark.usefixtures("at_any_size")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_truncated_sums_of_one_sign_do_not_add_up(shape: tuple[int, int, int]) -> None:
    """In units of 2^-24: two for each of 12 truncated sums of a stage, 8 for the split, sums of stages and parts."""
    backend, (N, F, P) = hopper(), shape
    rng = np.random.default_rng(P)
    x, w, dy = (rng.uniform(0.5, 1.5, size).astype(np.float32) for size in ((N, F), (F, P), (N, P)))
    given = [backend.upload(array) for array in (dy, x, w)]
    exact = {"y": x.astype(float) @ w, "dx": dy.astype(float) @ w.T, "dw": x.T.astype(float) @ dy}
    dx, dw = backend.ops.matmul_backward(*given)
    for name, got, depth in (("y", backend.ops.matmul(given[1], given[2]), F), ("dx", dx, P), ("dw", dw, N)):
        error = np.abs(backend.download(got) / exact[name] - 1).max()
        assert error <= 2.0**-24 * (2 * 12 + 8 + 2 * -(-depth // wgmma.DEPTH)), name


@pytest.mark.gpu
@pytest.mark.usefixtures("at_any_size")
@pytest.mark.parametrize("shape", [(1000, 100, 128), (3001, 64, 41), (130, 47, 33)], ids=str)
def test_a_gradient_before_relu_and_dropout_has_the_bits_of_two_operations(shape: tuple[int, int, int]) -> None:
    backend, (N, F, P) = hopper(), shape
    ops, rng = backend.ops, np.random.default_rng(0)
    x, dy, w = (backend.upload(rng.normal(size=size).astype(np.float32)) for size in ((N, F), (N, P), (F, P)))
    for first in (0, 13):
        _, kept = ops.relu_dropout(x, 0.5, KEY._replace(first=first))
        expected = ops.relu_dropout_backward(ops.matmul_dx(dy, w), kept)
        assert np.array_equal(backend.download(ops.matmul_dx(dy, w, None, kept)), backend.download(expected))


@pytest.mark.gpu
@pytest.mark.usefixtures("at_any_size")
def test_products_repeat_to_the_bit_and_rows_do_not_depend_on_others() -> None:
    backend = hopper()
    ops, rng = backend.ops, np.random.default_rng(0)
    x, dy = (backend.upload(rng.normal(size=size).astype(np.float32)) for size in ((50_001, 100), (50_001, 128)))
    w = backend.upload(rng.normal(size=(100, 128)).astype(np.float32))
    y = backend.download(ops.matmul(x, w))
    assert np.array_equal(backend.download(ops.matmul(x.view(100 * 33, (1000, 100)), w)), y[33:1033])
    for call in (lambda: ops.matmul(x, w), lambda: ops.matmul_backward(dy, x, w)[1]):
        assert np.array_equal(backend.download(call()), backend.download(call()))
    assert np.array_equal(backend.download(ops.matmul(x, w)), y)


@pytest.mark.gpu
@pytest.mark.usefixtures("at_any_size")
def test_operands_may_be_columns_of_wider_arrays_and_gradients_are_added() -> None:
    backend = hopper()
    ops, rng = backend.ops, np.random.default_rng(0)
    N, F, P = 777, 40, 48
    x, wide, w = (rng.normal(size=size).astype(np.float32) for size in ((N, F + 7), (N, 2 * P + 2), (F, 2 * P + 2)))
    on = {name: backend.upload(array) for name, array in {"x": x, "wide": wide, "w": w}.items()}
    ops.multiply(
        on["wide"].view(P + 1, ()), on["x"].view(7, ()), on["w"].view(P, ()), (N, F, P), (2 * P + 2, F + 7, 2 * P + 2)
    )
    got = backend.download(on["wide"])
    assert_close(got[:, P + 1 : 2 * P + 1], x[:, 7:], w[:, P : 2 * P])
    assert np.array_equal(got[:, : P + 1], wide[:, : P + 1])
    assert np.array_equal(got[:, 2 * P + 1 :], wide[:, 2 * P + 1 :])
    before = rng.normal(size=(F, P)).astype(np.float32)
    dw, dy = backend.upload(before), backend.upload(np.ascontiguousarray(wide[:, :P]))
    ops.multiply_wgrad(dw, on["x"].view(7, ()), dy, (N, F, P), (P, F + 7, P), accumulate=True)
    assert_close(backend.download(dw) - before, x[:, 7:].T, wide[:, :P])


def assert_close(got: Any, left: Any, right: Any) -> None:
    """Compare with a product, within a rounding of each term, and two of the sum and of what it was added to."""
    exact, terms = left.astype(float) @ right, np.abs(left).astype(float) @ np.abs(right)
    assert np.all(np.abs(got - exact) <= 2.0**-24 * (left.shape[1] * terms + 2 * np.abs(exact) + 8))
