"""A cohort as a fused engine receives it: models of one architecture, their data set and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.fused.shared.data import FusedSet
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel
from gcnbatch.backends.cuda.fused.shared.ranks import Ranks
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


class Labels:
    """The targets of a member, and the weights of its labels.

    Parameters
    ----------
    targets : DeviceArray, (G, T)
        float32 or int32.
    label_weights : float64, (G,)
        Sum of the weights of each graph's labels.
    """

    def __init__(self, targets: DeviceArray, label_weights: NDArray[np.float64]) -> None:
        self.targets, self._of_graphs = targets, label_weights

    def weights(self, batches: Sequence[Int64]) -> NDArray[np.float32]:
        """Return the weight of each batch's labels."""
        sizes = [len(graphs) for graphs in batches]
        starts = np.cumsum([0, *sizes[:-1]])
        return np.add.reduceat(self._of_graphs[np.concatenate(batches)], starts).astype(np.float32)


def upload_labels(device: Device, of_members: Sequence[tuple[NDArray[Any], NDArray[np.float64]]]) -> tuple[Labels, ...]:
    """Upload targets and label weights of each member; members with the same targets share an array."""
    uploaded: dict[int, DeviceArray] = {}
    for targets, _ in of_members:
        if id(targets) not in uploaded:
            uploaded[id(targets)] = device.upload(targets)
    return tuple(Labels(uploaded[id(targets)], label_weights) for targets, label_weights in of_members)


@dataclass(frozen=True)
class Cohort:
    """Models of one architecture on one data set.

    Parameters
    ----------
    device : Device
    stack : Stack
        The architecture. Of its rate of dropout only counts whether it is 0.
    model : DeviceModel
        The first member's arrays. With several members they lie in an arena.
    data : FusedSet
    labels : tuple of Labels
        One per member.
    clips : bool
        Whether gradients are clipped.
    ranks : Ranks or None
        The ranks that train the only model together.
    """

    device: Device
    stack: Stack
    model: DeviceModel
    data: FusedSet
    labels: tuple[Labels, ...]
    clips: bool = False
    ranks: Ranks | None = None

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.labels)
