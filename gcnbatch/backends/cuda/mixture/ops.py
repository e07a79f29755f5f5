"""`gcnbatch.backends.base.MixtureOps` on a device."""

from __future__ import annotations

from typing import NamedTuple

from gcnbatch.backends.base import Compared, Nodes
from gcnbatch.backends.cuda.mixture.forest import DeviceForest
from gcnbatch.backends.cuda.mixture.similarity import DeviceSimilarity
from gcnbatch.backends.cuda.runtime.device import Device


class DeviceMixtureOps(NamedTuple):
    """What predicts with the members of a mixture beside the networks; all arrays are the host's."""

    device: Device

    def similarity(self, landmarks: Compared, weight: float) -> DeviceSimilarity:
        return DeviceSimilarity(self.device, landmarks, weight)

    def forest(self, nodes: Nodes) -> DeviceForest:
        return DeviceForest(self.device, nodes)
