"""What a form of the fused step is: kernels for certain models, the arrays that they need, and what they take.

``gcnbatch.backends.cuda.fused.forms`` lists the forms. A form's rules live in its folder.
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
    """What the choice of a form depends on.

    Parameters
    ----------
    stack : Stack
    capability : (major, minor)
        Compute capability of the device.
    precision : {"fp32", "tf32"}
        Of matrix products, as asked for.
    channels : int
        Of the set's adjacency.
    largest : int
        Nodes of the set's largest graph.
    """

    stack: Stack
    capability: tuple[int, int]
    precision: str
    channels: int
    largest: int


class Form(ABC):
    """A form of the step for one model on one data set: in training, or in inference.

    Parameters
    ----------
    device : Device
    stack : Stack
    model : DeviceModel
        Without packed weights.
    data : FusedSet
    seed : int
        Of dropout.
    recorder : Recorder
    training : bool

    Attributes
    ----------
    name : str
    condition : str
        The models that it takes, for messages; empty: no less than other forms.
    fits_all : bool
        Whether the form plans every batch that fits the device.
    most_rows : int
        Nodes that a batch may have.
    model : DeviceModel
        With packed weights, and in inference the shifts of batch norm.
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

    # -------------------------------------------------------------------------------------------- what it takes

    @classmethod
    @abstractmethod
    def trains(cls, setting: Setting) -> bool:
        """Return whether the form trains such a model on such a set, or nearly all of its batches."""

    @classmethod
    def predicts(cls, capability: tuple[int, int], precision: str) -> bool:
        """Return whether the form predicts on such a device, whatever trains the model."""
        return False

    @classmethod
    def launches(cls, stack: Stack) -> list[Launch]:
        """Return launches whose shared memory depends on the layers' sizes."""
        return []

    # -------------------------------------------------------------------------------------------- the data set

    @classmethod
    def columns(cls, n_in: int, channels: int) -> int:
        """Return the columns of the set's U, if the form reads it."""
        raise NotImplementedError(cls.name)

    @classmethod
    def rounded(cls, u: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return rows of U as the set stores them."""
        return u

    @classmethod
    def features(cls, device: Device, source: BatchSource) -> Features | None:
        """Return device arrays of the set that only this form reads, or None."""
        return None

    @classmethod
    def feature_bytes(cls, n_in: int, nodes: int) -> int:
        """Return the bytes of these arrays."""
        return 0

    # -------------------------------------------------------------------------------------------- batches

    def plan(self, batches: Sequence[Int64]) -> EpochPlan | None:
        """Return where each graph of these batches goes, or None if a batch does not fit."""
        return self._data.plan(batches)

    def capacity(self, plan: EpochPlan, graphs: int) -> Capacity:
        """Return the capacity that the batches of an epoch, of at most so many graphs, need."""
        return self._data.capacity(graphs)

    def about(self) -> dict[str, int]:
        """Return the numbers of the device on which the results of training depend."""
        return {}

    # -------------------------------------------------------------------------------------------- the step

    @abstractmethod
    def _packed_weights(self) -> tuple[DeviceArray, ...]:
        """Return arrays for the weights of each node layer as the kernels read them."""

    @abstractmethod
    def workspace(self, capacity: Capacity, steps: int, graphs: int) -> Workspace:
        """Return arrays and launches for epochs of so many steps and graphs in all."""
