"""Forests on a device: launches of mixture/forest.cu."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.mixtures import Nodes

TREE_THREADS: int = declared("mixture/forest.cu").constant("TREE_THREADS")


def rows(count: int) -> Launch:
    """Return the launch for so many rows: a block each.

    >>> rows(2048).grid
    (2048, 1, 1)
    """
    return Launch((count, 1, 1), (TREE_THREADS, 1, 1))


class DeviceForest:
    """`gcnbatch.backends.mixtures.Forest` on a device.

    Parameters
    ----------
    device : Device
    nodes : Nodes
        Uploaded when they are first needed, in the thread that predicts.
    """

    def __init__(self, device: Device, nodes: Nodes) -> None:
        self._device, self._nodes = device, nodes
        self._there: dict[str, DeviceArray] = {}

    def means(self, x: NDArray[np.int16]) -> NDArray[np.float64]:
        """Return the mean of the trees' values, (n, K), for rows x (n, P)."""
        device, K = self._device, self._nodes.values.shape[1]
        self._there = self._there or {name: device.upload(array) for name, array in self._nodes._asdict().items()}
        y, sizes = device.empty((len(x), K), np.float64), {"P": x.shape[1], "trees": len(self._nodes.roots), "K": K}
        device.launch("forest_mean", rows(len(x)), y=y, x=device.upload(x), **self._there, **sizes)
        return device.download(y)
