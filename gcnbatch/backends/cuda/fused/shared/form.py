"""The base class of the forms of a fused step: their kernels, their arrays, and the models that they support.

``gcnbatch.backends.cuda.fused.forms`` lists the forms. Each form's rules are in its folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.data import Capacity, Features, FusedSet
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.shared.step import Workspace
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.sparse import MAX_ENTRIES

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.backends.cuda.runtime.graph import Recorder


@dataclass(frozen=True)
class Setting:
    """The properties on which the choice of a form depends.

    Parameters
    ----------
    stack : Stack
    capability : (major, minor)
        Compute capability of the device.
    precision : {"fp32", "tf32"}
        The configured precision of matrix products.
    channels : int
        Channels of the set's adjacency.
    largest : int
        Nodes of the set's largest graph.
    """

    stack: Stack
    capability: tuple[int, int]
    precision: str
    channels: int
    largest: int


class Form(ABC):
    """A form of the step for one model on one data set, for training or for inference.

    Parameters
    ----------
    device : Device
    stack : Stack
    model : DeviceModel
        The model without packed weights.
    data : FusedSet
    seed : int
        Seed of dropout.
    recorder : Recorder
    training : bool

    Attributes
    ----------
    name : str
    condition : str
        The models that the form supports, for messages; empty: all.
    fits_all : bool
        Whether every batch that fits the device fits the form.
    most_rows : int
        Maximum number of nodes in a batch.
    model : DeviceModel
        The model with packed weights and, for inference, the shifts of batch norm.
    """

    name: ClassVar[str]
    condition: ClassVar[str] = ""
    fits_all: ClassVar[bool] = True
    most_rows: ClassVar[int] = MAX_ENTRIES

    def __init__(
        self,
        device: Device,
        stack: Stack,
        model: DeviceModel,
        data: FusedSet,
        seed: int,
        recorder: Recorder,
        training: bool,
    ) -> None:
        self._device, self._stack, self._data, self._seed, self._recorder = device, stack, data, seed, recorder
        self.training = training
        shifts = () if training else tuple(device.zeros(layer.n_out) for layer in stack.nodes)
        self.model = replace(model, packed=self._packed_weights(), shifts=shifts)

    # -------------------------------------------------------------------------------------------- supported models

    @classmethod
    @abstractmethod
    def trains(cls, setting: Setting) -> bool:
        """Return whether the form can train the model on the set; a few batches may still not fit (`plan`)."""

    @classmethod
    def predicts(cls, capability: tuple[int, int], precision: str) -> bool:
        """Return whether the form can predict on the device; the form that trains does not matter."""
        return False

    @classmethod
    def launches(cls, stack: Stack) -> list[Launch]:
        """Return the launches whose shared memory depends on the layers' sizes."""
        return []

    # -------------------------------------------------------------------------------------------- the data set

    @classmethod
    def columns(cls, n_in: int, channels: int) -> int:
        """Return the columns of U in the data set; raise if the form does not read U."""
        raise NotImplementedError(cls.name)

    @classmethod
    def rounded(cls, u: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return U rounded as the form stores it."""
        return u

    @classmethod
    def features(cls, device: Device, source: BatchSource) -> Features | None:
        """Return device arrays of the data set that only this form reads, or None."""
        return None

    @classmethod
    def feature_bytes(cls, n_in: int, nodes: int) -> int:
        """Return the size in bytes of these arrays."""
        return 0

    # -------------------------------------------------------------------------------------------- batches

    def plan(self, batches: Sequence[Int64]) -> EpochPlan | None:
        """Return the offsets of each graph in its batch, or None if a batch does not fit the form."""
        return self._data.plan(batches)

    def capacity(self, plan: EpochPlan, graphs: int) -> Capacity:
        """Return the capacity for an epoch whose batches have at most `graphs` graphs."""
        return self._data.capacity(graphs)

    def about(self) -> dict[str, int]:
        """Return the device properties that training results depend on, by name."""
        return {}

    # -------------------------------------------------------------------------------------------- the step

    @abstractmethod
    def _packed_weights(self) -> tuple[DeviceArray, ...]:
        """Return arrays for each node layer's weights in the layout that the kernels read."""

    @abstractmethod
    def workspace(self, capacity: Capacity, steps: int, graphs: int) -> Workspace:
        """Return the arrays and launches for epochs of `steps` steps and `graphs` graphs in total."""
