"""Sizes around 2^31 nodes and entries, with arrays that nobody allocates: launches reach every row, indices fit, and
what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given
from hypothesis import strategies as st

from gcnbatch.backends.cuda.fused.kipf.engine import most_elements
from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ops import common, matmul_tall
from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS, MAX_GRID_X, MAX_GRID_YZ
from gcnbatch.backends.cuda.spmm import geometry
from gcnbatch.data.batches import PreparedRows
from gcnbatch.data.sparse import MAX_ENTRIES
from gcnbatch.errors import InputError
from tests.backends.cuda.ops.recorder import CHIPS, H200, Recorder, of, quickly

INT32 = 2**31 - 1
MOST_ELEMENTS = 2**37  # 512 GiB of floats, more than any device has
MANY = st.one_of(
    st.integers(MAX_ENTRIES - 5000, MAX_ENTRIES),
    st.integers(2**28, MAX_ENTRIES),
    st.sampled_from([2**29 - 1, 2**30, 2**30 + 1, MAX_ENTRIES]),
)
WIDTH = st.one_of(st.integers(1, 70), st.sampled_from([128, 512, 602, 4096, 65_536]))


def unallocated(length: int, dtype: type = np.int32) -> Any:
    """Return an array of this length that takes no memory."""
    return np.broadcast_to(np.ones(1, dtype), (length,))


@quickly
@given(N=MANY, P=WIDTH, chips=CHIPS)
def test_dense_launches_reach_every_row_and_no_index_exceeds_32_bits(N: int, P: int, chips: int) -> None:
    tiles = common.row_tiles(N, P)
    assert N <= tiles.grid[0] * tiles.block[1] <= INT32
    sums = common.column_reduction(N, P, chips)
    assert N <= sums.launch.grid[0] * sums.rows_per_chunk <= INT32
    if P <= 32:
        plan = matmul_tall.wgrad((N, 602, P), chips)
        assert N <= plan.parts * plan.rows_per_part <= INT32


@quickly
@given(N=MANY, F=WIDTH, P=WIDTH, precision=st.sampled_from(["fp32", "tf32"]))
def test_products_of_many_rows_have_a_valid_grid(N: int, F: int, P: int, precision: Any) -> None:
    device = Recorder()
    ops = BatchedOps(device, precision, "auto")  # type: ignore[arg-type]
    x, w, dy = of(device, (N, F), (F, P), (N, P))
    ops.matmul(x, w)
    ops.matmul_backward(x, w, dy)
    for _, launch, arguments in device.launched:  # `Recorder` packs them: a count above 32 bits raises
        assert launch.grid[0] <= MAX_GRID_X
        if part := arguments.get("rows_per_part"):
            assert (-(-N // part) - 1) * part < N <= INT32


@quickly
@given(N=MANY, per_row=st.integers(0, 40), P=WIDTH, vector=st.sampled_from([1, 4]))
def test_sparse_launches_reach_every_row_or_are_not_used(N: int, per_row: int, P: int, vector: int) -> None:
    entries = min(N * per_row, MAX_ENTRIES)
    assume(P % vector == 0)
    rows = geometry.sparse_rows(N, entries, P, vector, H200)
    each = BLOCK_THREADS >> (rows.lane_bits + rows.group_bits)
    assert N <= rows.launch.grid[0] * each * rows.passes <= INT32
    if short := geometry.short_rows(N, P, vector, 1, 32, 256):
        launch, lane_bits = short
        assert N << lane_bits <= launch.grid[0] * launch.threads <= 2**32
    if geometry.swa_csr_reaches(1, N, P):
        swa = geometry.swa_csr(1, N, P)
        assert N << swa.sub_bits <= swa.launch.grid[0] * BLOCK_THREADS <= 2**32
    assert geometry.gather(1, N * P, H200).grid[1] <= MAX_GRID_YZ


@quickly
@given(N=MANY, P=WIDTH)
def test_operations_on_many_rows_pass_counts_of_32_bits_only(N: int, P: int) -> None:
    assume(N * P <= MOST_ELEMENTS)
    device = Recorder()
    ops = BatchedOps(device, "fp32", "auto")  # type: ignore[arg-type]
    x, dy, b = of(device, (N, P), (N, P), (P,))
    ops.relu(x)
    ops.bias_add(x, b)
    ops.bias_add_backward(dy)
    assert len(device.launched) == 3


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_beyond_the_limit_is_refused_before_anything_is_allocated(channels: int) -> None:
    nodes = MAX_ENTRIES // channels + 1
    rows = PreparedRows.__new__(PreparedRows)
    rows.row_length, rows.per_node, rows.stride = unallocated(nodes), 1, channels
    with pytest.raises(InputError, match=rf"a batch of {nodes * channels} nodes times channels; expected at most"):
        rows.gather(np.array([0]), unallocated(nodes, np.int64), np.array([0, nodes]))


@pytest.mark.parametrize("more", [0, 1])
def test_kipf_counts_padded_columns_features_and_dropout_bits(more: int) -> None:
    def count(nodes: int, width: int, outputs: int = 2, stored: int = 0, features: int = 1) -> int:
        x = sp.csr_array((1, features), dtype=np.float32)
        x.indptr = np.array([0, stored])
        return most_elements(nodes, x, width, outputs)

    assert (count(MAX_ENTRIES // 36 + more, 33) > MAX_ENTRIES) is bool(more)  # 33 columns are padded to 36
    assert (count(MAX_ENTRIES // 8 + more, 1, 7) > MAX_ENTRIES) is bool(more)
    assert (count(1, 16, features=MAX_ENTRIES // 16 - 17 + more) > MAX_ENTRIES) is bool(more)
    assert (count(1000, 16, stored=MAX_ENTRIES - 16_016 + more) > MAX_ENTRIES) is bool(more)
