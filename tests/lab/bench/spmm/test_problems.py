"""Random batches, options and data sets of `bench spmm`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.data.writer import write_graphset
from gcnbatch.errors import InputError
from gcnbatch.lab.bench.spmm import problems
from gcnbatch.lab.bench.spmm.problems import FIGURES, BatchShape, chosen
from tests.builders import build_graphset

SPANS = st.tuples(st.integers(1, 12), st.integers(0, 20))


@settings(max_examples=40)
@given(st.integers(1, 9), SPANS, SPANS, st.integers(0, 2**40))
def test_a_random_batch_has_the_sizes_of_its_shape(
    batch: int, dims: tuple[int, int], spread: tuple[int, int], seed: int
) -> None:
    dim = (dims[0], sum(dims))
    per_row = (min(spread[0], dim[0]), min(sum(spread), dim[0]))
    found = problems.random_batch(BatchShape("some", batch, dim, per_row), seed)
    matrix, node_ptr = found.matrix, found.layout.node_ptr
    sizes, counts = np.diff(node_ptr), np.diff(matrix.indptr)
    assert found.layout.n_graphs == batch
    assert dim[0] <= sizes.min() <= sizes.max() <= dim[1]
    assert per_row[0] <= counts.min() <= counts.max() <= per_row[1]
    assert found.equal == (len(set(sizes)) == 1)
    graph = np.repeat(np.arange(batch), sizes)
    assert (graph[np.repeat(np.arange(len(graph)), counts)] == graph[matrix.indices]).all(), "block-diagonal"
    for row in range(matrix.shape[0]):
        columns = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
        assert (np.diff(columns) > 0).all(), "sorted, none twice"


def test_random_columns_are_uniform() -> None:
    indices = problems.random_batch(BatchShape("some", 400, (10, 10), (3, 3))).matrix.indices % 10
    assert np.bincount(indices).std() < 0.05 * len(indices) / 10


def test_a_seed_repeats_a_batch_whose_matrices_differ() -> None:
    shape = BatchShape("some", 2, (30, 30), (3, 3))
    one, again, other = (problems.random_batch(shape, seed).matrix for seed in (1, 1, 2))
    assert (one != again).nnz == 0
    assert (one != other).nnz > 0
    assert (one[:30, :30] != one[30:, 30:]).nnz > 0
    found = problems.random_batch(shape, 1)
    assert np.array_equal(found.dense(4), problems.random_batch(shape, 1).dense(4))
    assert found.dense(4).shape == (60, 4)


def test_flops_are_counted_as_in_the_papers() -> None:
    found = problems.random_batch(FIGURES["8a"])
    assert found.work(64).flops == 2 * 50 * 50 * 2 * 64
    assert found.work(64).bytes == 4 * 2501 + 8 * 5000 + 2 * 4 * 2500 * 64


def test_options_become_shapes() -> None:
    assert chosen([], None, None, None, None) == list(FIGURES.values())
    assert chosen(["9a", "all"], None, None, None, None) == list(FIGURES.values())
    assert [(shape.name, shape.columns) for shape in chosen(["9f", "8a", "9f"], None, None, None, (64, 2))] == [
        ("9f", (64, 2)),
        ("8a", (64, 2)),
    ]
    (free,) = chosen([], 7, "32-256", "1-5", None)
    assert free == BatchShape("free", 7, (32, 256), (1, 5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((["8c"], None, None, None, None), "--figure: '8c'; expected all, 8a, 8b, 9a, 9b, 9c, 9d, 9e, 9f, 10"),
        (
            (["8a"], 3, None, None, None),
            "--figure: free parameters beside it; expected one or the other. "
            "Leave out --figure, or --batch, --dim and --nnz-per-row.",
        ),
        (([], 0, None, None, None), "--batch: 0; expected at least 1"),
        (
            ([], None, "50", "51", None),
            "--nnz-per-row: 51 entries in a row of 50 columns; expected at most as many as columns (--dim)",
        ),
        (([], None, "9-3", None, None), "--dim: '9-3'; expected a count such as 50, or a range such as 32-256"),
        (([], None, None, "-1", None), "--nnz-per-row: '-1'; expected a count such as 50, or a range such as 32-256"),
        (
            ([], 10**9, None, None, None),
            "--batch: up to 150000000000 entries; expected at most 2147479552. Lower --batch or --dim.",
        ),
    ],
)
def test_inconsistent_options_are_refused(options: tuple, message: str) -> None:
    with pytest.raises(InputError) as caught:
        chosen(*options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("words", [["64;2"], ["0"], [64, ""]])
def test_columns_that_are_no_counts_are_refused(words: list) -> None:
    with pytest.raises(InputError) as caught:
        problems.counts("--columns", words)
    text = ",".join(map(str, words))
    assert str(caught.value) == f"--columns: '{text}'; expected counts from 1 to 65536, such as 64 or 2,64,512"


def test_a_problem_larger_than_memory_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        problems.check_memory("problem free", 3 << 30, 1 << 29, "Some GPU")
    assert str(caught.value) == (
        "problem free: takes 3.0 GiB; expected at most the 0.5 GiB free on Some GPU. Lower --batch, --dim or --columns."
    )
    with pytest.raises(InputError, match=r"problem free: takes .* GiB free on this machine"):
        chosen([], 10_000_000, None, None, (65536,))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_problem_from_a_data_set_is_a_batch_of_it(tmp_path: Path, channels: int) -> None:
    path = tmp_path / "set.h5"
    write_graphset(path, build_graphset(20, n_channels=channels))
    found = problems.from_dataset(path, 6, (64,), seed=3)
    assert found.layout.n_graphs == found.about["batch"] == 6
    assert found.matrix.shape == (found.layout.n_nodes, channels * found.layout.n_nodes)
    assert found.work(8).flops == 2 * 8 * found.matrix.nnz
    assert problems.from_dataset(path, None, (64,)).layout.n_graphs == 20
    with pytest.raises(InputError) as caught:
        problems.from_dataset(path, 21, (64,))
    assert str(caught.value) == f"--batch: 21; expected 1 to 20, the graphs of {path}"
