"""The executable specification: every operation of `gcnbatch.backends.ops.Ops`, forward and backward, in plain NumPy.

This code is written to be read and to be correct, not to be fast. The functions accept any float type and compute in
it; the float64 result is the exact value that every backend is compared with. ``tests/reference`` checks the functions
against hand-worked numbers, central differences and dense algebra; ``tests/ops`` checks every backend against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcnbatch.reference.batch_norm import batch_norm, batch_norm_backward
from gcnbatch.reference.bias import bias_add, bias_add_backward
from gcnbatch.reference.composed import ComposedOps
from gcnbatch.reference.concatenate import add, concatenate, concatenate_backward, maximum, maximum_backward, take
from gcnbatch.reference.dropout import dropout, dropout_backward
from gcnbatch.reference.join import join, join_backward
from gcnbatch.reference.layer_norm import layer_norm, layer_norm_backward
from gcnbatch.reference.linear import linear, linear_backward
from gcnbatch.reference.loss import mean_squared_error, sigmoid_cross_entropy, softmax_cross_entropy, weighted_loss
from gcnbatch.reference.matmul import matmul, matmul_backward, matmul_dx, sparse_matmul, sparse_matmul_backward
from gcnbatch.reference.optimizer import adam_step, clip_norm, sgd_step
from gcnbatch.reference.readout import readout, readout_backward
from gcnbatch.reference.relu import relu, relu_backward
from gcnbatch.reference.relu_dropout import relu_dropout, relu_dropout_backward
from gcnbatch.reference.spmm import sddmm, spmm, spmm_backward

if TYPE_CHECKING:
    from gcnbatch.backends.ops import Ops


class ReferenceOps(ComposedOps):
    """The reference as a stateless implementation of `Ops` on NumPy arrays of any float type."""

    matmul = staticmethod(matmul)
    matmul_backward = staticmethod(matmul_backward)
    matmul_dx = staticmethod(matmul_dx)
    sparse_matmul = staticmethod(sparse_matmul)
    sparse_matmul_backward = staticmethod(sparse_matmul_backward)
    bias_add = staticmethod(bias_add)
    bias_add_backward = staticmethod(bias_add_backward)
    linear = staticmethod(linear)
    linear_backward = staticmethod(linear_backward)
    spmm = staticmethod(spmm)
    spmm_backward = staticmethod(spmm_backward)
    sddmm = staticmethod(sddmm)
    batch_norm = staticmethod(batch_norm)
    batch_norm_backward = staticmethod(batch_norm_backward)
    layer_norm = staticmethod(layer_norm)
    layer_norm_backward = staticmethod(layer_norm_backward)
    relu = staticmethod(relu)
    relu_backward = staticmethod(relu_backward)
    add = staticmethod(add)
    maximum = staticmethod(maximum)
    maximum_backward = staticmethod(maximum_backward)
    concatenate = staticmethod(concatenate)
    concatenate_backward = staticmethod(concatenate_backward)
    take = staticmethod(take)
    dropout = staticmethod(dropout)
    dropout_backward = staticmethod(dropout_backward)
    relu_dropout = staticmethod(relu_dropout)
    relu_dropout_backward = staticmethod(relu_dropout_backward)
    readout = staticmethod(readout)
    readout_backward = staticmethod(readout_backward)
    join = staticmethod(join)
    join_backward = staticmethod(join_backward)
    sigmoid_cross_entropy = staticmethod(sigmoid_cross_entropy)
    softmax_cross_entropy = staticmethod(softmax_cross_entropy)
    mean_squared_error = staticmethod(mean_squared_error)
    weighted_loss = staticmethod(weighted_loss)
    clip_norm = staticmethod(clip_norm)
    adam_step = staticmethod(adam_step)
    sgd_step = staticmethod(sgd_step)


if TYPE_CHECKING:
    _conforms: Ops = ReferenceOps()

__all__ = ["ReferenceOps"]
