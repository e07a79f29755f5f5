"""All dense operations of a device in one class; each family has its own module."""

from __future__ import annotations

from gcnbatch.backends.cuda.ops.batch_norm import BatchNormOps
from gcnbatch.backends.cuda.ops.concatenate import ConcatenateOps
from gcnbatch.backends.cuda.ops.dropout import DropoutOps
from gcnbatch.backends.cuda.ops.join import JoinOps
from gcnbatch.backends.cuda.ops.layer_norm import LayerNormOps
from gcnbatch.backends.cuda.ops.loss import LossOps
from gcnbatch.backends.cuda.ops.matmul import MatmulOps
from gcnbatch.backends.cuda.ops.optimizer import OptimizerOps
from gcnbatch.backends.cuda.ops.readout import ReadoutOps
from gcnbatch.backends.cuda.ops.relu import ReluOps
from gcnbatch.backends.cuda.ops.relu_dropout import ReluDropoutOps


class DenseOps(
    MatmulOps,
    BatchNormOps,
    LayerNormOps,
    ReluOps,
    ConcatenateOps,
    DropoutOps,
    ReluDropoutOps,
    ReadoutOps,
    JoinOps,
    LossOps,
    OptimizerOps,
):
    """The dense part of `gcnbatch.backends.ops.Ops` on `DeviceArray`.

    Every method launches kernels on the device's stream and returns without waiting. Parameters and errors as
    `MatmulOps`.
    """
