"""Every problem of the operation tests, by name, for tests that cover all of them."""

from __future__ import annotations

from collections.abc import Callable

from tests.ops import (
    test_batch_norm,
    test_bias,
    test_concatenate,
    test_convolve,
    test_dropout,
    test_join,
    test_layer_norm,
    test_linear,
    test_loss,
    test_matmul,
    test_optimizer,
    test_readout,
    test_relu,
    test_relu_dropout,
    test_sddmm,
    test_spmm,
)
from tests.ops.cases import Case
from tests.ops.parity import Problem

DENSE_MODULES = {
    "matmul": test_matmul,
    "sddmm": test_sddmm,
    "bias": test_bias,
    "linear": test_linear,
    "batch norm": test_batch_norm,
    "layer norm": test_layer_norm,
    "ReLU": test_relu,
    "concatenate": test_concatenate,
    "dropout": test_dropout,
    "ReLU and dropout": test_relu_dropout,
    "readout": test_readout,
    "join": test_join,
    "loss": test_loss,
    "optimizer": test_optimizer,
}
DENSE: dict[str, Callable[[Case], Problem]] = {
    f"{operation}: {name}": make
    for operation, module in DENSE_MODULES.items()
    for name, make in module.PROBLEMS.items()
}
OF_SIZES = {f"linear of {size}": test_linear.linear_of(*size) for size in test_linear.SIZES}
PROBLEMS = DENSE | {"SpMM": test_spmm.spmm, "convolution": test_convolve.convolve}
