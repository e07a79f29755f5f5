"""Bytes and flops of every operation against hand-worked numbers."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from gcnbatch.backends.cpu import HostBatch
from gcnbatch.backends.ops import Ops
from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.lab.bench import traffic
from gcnbatch.reference.composed import ComposedOps


def shaped(*shape: int) -> SimpleNamespace:
    return SimpleNamespace(shape=shape)


def csr(rows: int, columns: int, entries: int) -> Csr:
    return Csr(np.zeros(rows + 1, np.int32), np.zeros(entries, np.int32), np.zeros(entries, np.float32), columns)


# N = 10 nodes, F = 3, P = 2, C = 2 channels, 7 edges, 5 stored features, B = 4 graphs, K = 6 outputs.
ADJACENCY = Adjacency(csr(10, 20, 7), csr(20, 10, 7), 2)
FEW = Adjacency(csr(3, 20, 2), csr(20, 3, 2), 2)  # the rows of three nodes
N_F, F_P, N_P, P, B_P, B_K = shaped(10, 3), shaped(3, 2), shaped(10, 2), shaped(2), shaped(4, 2), shaped(4, 6)
VECTOR, POINTERS, X = shaped(100), shaped(5), csr(10, 3, 5)


@pytest.mark.parametrize(
    ("operation", "arguments", "result", "n_bytes", "flops"),
    [
        ("matmul", (N_F, F_P), N_P, 4 * (30 + 6 + 20), 120),
        ("matmul_backward", (N_P, N_F, F_P), None, 4 * (20 + 30 + 6) + 4 * (6 + 30), 240),
        ("matmul_backward", (N_P, N_F, F_P, False), None, 4 * (20 + 30 + 6), 120),
        ("matmul_dx", (N_P, F_P), N_F, 4 * (20 + 6 + 30), 120),
        ("sparse_matmul", (X, F_P), N_P, 4 * 11 + 8 * 5 + 4 * (6 + 20), 20),
        ("sparse_matmul_backward", (N_P, X), F_P, 4 * 11 + 8 * 5 + 4 * (20 + 6), 20),
        ("bias_add", (N_P, P), N_P, 4 * (20 + 20 + 2), 20),
        ("bias_add_backward", (N_P,), P, 4 * (20 + 2), 20),
        ("linear", (N_F, F_P, P), N_P, 4 * (30 + 6 + 2 + 20), 140),
        ("linear_backward", (N_P, N_F, F_P), None, 4 * (20 + 30 + 6) + 4 * (6 + 30) + 8, 260),
        ("spmm", (ADJACENCY, shaped(10, 4)), N_P, 4 * 11 + 8 * 7 + 4 * (40 + 20), 28),
        ("spmm_backward", (ADJACENCY, N_P), None, 4 * 21 + 8 * 7 + 4 * (20 + 40), 28),
        ("spmm", (FEW, shaped(10, 4)), None, 4 * 4 + 8 * 2 + 4 * (40 + 6), 8),
        ("spmm_backward", (FEW, shaped(3, 2)), None, 4 * 21 + 8 * 2 + 4 * (6 + 40), 8),
        ("sddmm", (N_P, shaped(10, 4), shaped(7)), None, 4 * (20 + 40) + 12 * 7, 28),
        ("batch_norm", (N_P, P, P, P, P, 1e-5, 0.1, True), None, 4 * (40 + 12), 140),
        ("batch_norm", (N_P, P, P, P, P, 1e-5, 0.1, False), None, 4 * (40 + 8), 40),
        ("batch_norm_backward", (N_P, None, P), None, 4 * (80 + 10), 180),
        ("relu", (N_P,), N_P, 160, 20),
        ("relu_backward", (N_P, N_P), N_P, 240, 20),
        ("take", (N_P, shaped(7)), shaped(7, 2), 4 * (14 + 7 + 14), 0),
        ("dropout", (N_P, 0.5, None), None, 180, 20),
        ("dropout_backward", (N_P, N_P, 0.5), N_P, 180, 20),
        ("relu_dropout", (N_P, 0.5, None), None, 162, 40),
        ("relu_dropout_backward", (N_P, None), N_P, 162, 20),
        ("readout", (N_P, POINTERS, "sum"), None, 4 * (20 + 8 + 5), 20),
        ("readout_backward", (B_P, POINTERS, "mean", None), N_P, 4 * (8 + 20 + 5), 8),
        ("readout_backward", (B_P, POINTERS, "max", None), N_P, 4 * (8 + 20 + 5), 0),
        ("join", (B_P, None, shaped(3)), None, 4 * (16 + 24 + 6 + 4), 48),
        ("join_backward", (shaped(4, 5), 2), B_P, 64, 0),
        ("sigmoid_cross_entropy", (B_K, B_K, shaped(6)), None, 4 * (72 + 6 + 2), 408),
        ("softmax_cross_entropy", (B_K, shaped(4, 1), shaped(6)), None, 4 * (48 + 4 + 6 + 2), 144),
        ("mean_squared_error", (B_K, B_K), None, 4 * (72 + 2), 96),
        ("weighted_loss", (B_K, shaped(4, 18), "huber", shaped(6)), None, 4 * (48 + 72 + 6 + 2), 168),
        ("weighted_loss", (B_K, shaped(4, 3), "softmax", shaped(6)), None, 4 * (48 + 12 + 6 + 2), 156),
        ("layer_norm", (N_P, P, P, 1e-5), None, 4 * (40 + 4), 140),
        ("layer_norm_backward", (N_P, None, P), None, 4 * (80 + 6), 300),
        ("add", (N_P, N_P), None, 240, 20),
        ("maximum", (N_P, N_P), None, 240, 20),
        ("maximum_backward", (N_P, N_P, N_P), None, 400, 20),
        ("concatenate", ([N_P, N_P],), None, 320, 0),
        ("concatenate_backward", (N_P, [1, 1]), None, 160, 0),
        ("clip_norm", (VECTOR, 1.0), None, 800, 300),
        ("adam_step", (VECTOR,), None, 3600, 1800),
        ("sgd_step", (VECTOR,), None, 2800, 800),
    ],
)
def test_bytes_and_flops_by_hand(operation, arguments, result, n_bytes, flops) -> None:
    assert traffic.of(operation, arguments, {}, result) == (n_bytes, flops)


def test_gather_reads_and_writes_a_batch() -> None:
    targets, pointers = np.zeros((4, 6), np.float32), np.zeros(5, np.int64)
    matrices = 4 * 11 + 8 * 7 + 4 * 21 + 8 * 7
    dense = HostBatch(np.zeros((10, 3), np.float32), ADJACENCY, pointers, targets)
    assert traffic.of("gather", (0,), {}, dense) == (2 * (4 * 30 + matrices + 4 * (24 + 5)), 0)
    symmetric = Adjacency(csr(10, 10, 7), csr(10, 10, 7), 1)
    shared = Adjacency(symmetric.forward, symmetric.forward, 1)
    sparse = HostBatch(X, shared, pointers, targets)
    assert traffic.of("gather", (0,), {}, sparse) == (2 * (4 * 11 + 8 * 5 + 4 * 11 + 8 * 7 + 4 * (24 + 5)), 0)


def test_every_operation_has_a_formula_of_its_first_arguments() -> None:
    alone = vars(Ops).keys() - vars(ComposedOps).keys()
    operations = {name: function for name, function in vars(Ops).items() if name in alone and name[0] != "_"}
    assert traffic.FORMULAS.keys() == operations.keys() | {"gather"}
    for name, operation in operations.items():
        known = list(inspect.signature(operation).parameters)[1:]
        wanted = [given for given in inspect.signature(traffic.FORMULAS[name]).parameters if given != "result"]
        assert wanted == known[: len(wanted)], name


def test_an_unknown_operation_has_none() -> None:
    assert traffic.of("fused_step", (N_P,), {}, None) is None
