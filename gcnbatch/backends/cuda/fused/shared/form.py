"""The base class of the forms of a fused step: their kernels, their arrays, and the models that they support.

``gcnbatch.backends.cuda.fused.forms`` lists the forms. Each form's rules are in its folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan
from gcnbatch.backends.cuda.fused.shared.arena import Memory, in_arena
from gcnbatch.backends.cuda.fused.shared.cohort import Cohort
from gcnbatch.backends.cuda.fused.shared.data import Capacity, Features
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.shared.step import Workspace
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.data.batches import PreparedSet
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
    ranks : int
        Ranks that train the model together; 0: it trains alone.
    """

    stack: Stack
    capability: tuple[int, int]
    precision: str
    channels: int
    largest: int
    ranks: int = 0


class Form(ABC):
    """A form of the step for a cohort, for training or for inference.

    Parameters
    ----------
    cohort : Cohort
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
    shares_launches : bool
        Whether it trains several members in the same launches.
    rounds_to_tf32 : bool
        Whether it reads U rounded to TF32.
    over_ranks : bool
        Whether it trains a model on several ranks, and no other.
    """

    name: ClassVar[str]
    condition: ClassVar[str] = ""
    fits_all: ClassVar[bool] = True
    most_rows: ClassVar[int] = MAX_ENTRIES
    shares_launches: ClassVar[bool] = False
    rounds_to_tf32: ClassVar[bool] = False
    over_ranks: ClassVar[bool] = False

    def __init__(self, cohort: Cohort, recorder: Recorder, training: bool) -> None:
        self._cohort, self._recorder, self.training = cohort, recorder, training
        self._stack, self._data = cohort.stack, cohort.data

    # -------------------------------------------------------------------------------------------- supported models

    @classmethod
    @abstractmethod
    def trains(cls, setting: Setting) -> bool:
        """Return whether the form can train the model on the set; a few batches may still not fit (`plans`)."""

    @classmethod
    def predicts(cls, stack: Stack, capability: tuple[int, int], precision: str) -> bool:
        """Return whether the form can predict with the model on the device; the form that trains does not matter."""
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
    def drops_columns(cls, k: int) -> bool:
        """Return whether the form reads U of k columns without those that are 0 in the whole set."""
        return False

    @classmethod
    def features(cls, device: Device, prepared: PreparedSet, node_ptr: Int64) -> Features | None:
        """Return device arrays of the data set that only this form reads, or None."""
        return None

    @classmethod
    def feature_bytes(cls, n_in: int, nodes: int) -> int:
        """Return the size in bytes of these arrays."""
        return 0

    # -------------------------------------------------------------------------------------------- batches

    def plans(self, of_members: Sequence[Sequence[Int64]]) -> Sequence[EpochPlan | None]:
        """Return the offsets of each graph in its batch, for each member; None where a batch does not fit the form."""
        return self._data.plans(of_members)

    def capacity(self, plans: Sequence[EpochPlan], graphs: int) -> Capacity:
        """Return the capacity for epochs of all members whose batches have at most `graphs` graphs."""
        return self._data.capacity(graphs)

    def about(self) -> dict[str, int]:
        """Return the device properties that training results depend on, by name."""
        return {}

    # -------------------------------------------------------------------------------------------- the step

    def workspace(self, capacity: Capacity, steps: int, graphs: int) -> Workspace:
        """Return the arrays and launches for epochs of up to `steps` steps and `graphs` graphs in total."""
        members = self._cohort.members
        return in_arena(self._cohort.device, members, lambda memory: self._made(memory, capacity, steps, graphs))

    @abstractmethod
    def _made(self, memory: Memory, capacity: Capacity, steps: int, graphs: int) -> Workspace:
        """Build the workspace in `memory`."""
