"""`gcnbatch.backends.mixtures.MixtureOps` on a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.mixture.forest import DeviceForest
from gcnbatch.backends.cuda.mixture.inverse import DeviceInverse
from gcnbatch.backends.cuda.mixture.similarity import DeviceSimilarity
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.mixtures import Compared, Nodes


class DeviceMixtureOps(NamedTuple):
    """What fits and predicts with members of a mixture; all arrays are the host's."""

    device: Device

    def similarity(self, landmarks: Compared, weight: float) -> DeviceSimilarity:
        return DeviceSimilarity(self.device, landmarks, weight)

    def inverse(self, molecules: Compared, weight: float, diagonal: NDArray[np.float64]) -> DeviceInverse:
        return DeviceInverse(self.device, self.similarity(molecules, weight).blocks(molecules), diagonal)

    def forest(self, nodes: Nodes) -> DeviceForest:
        return DeviceForest(self.device, nodes)

    def release(self) -> None:
        self.device.release()
