"""The inverse of a mixture's kernel on the GPU that trains the networks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends import registry
from gcnbatch.backends.mixtures import Inverse, MixtureOps
from gcnbatch.config_sections import CudaConfig
from gcnbatch.errors import DeviceLost, MachineError
from gcnbatch.mixture import Prepared
from gcnbatch.timeline import span
from gcnbatch.training import mixed

ON_GPU = 4096  # training rows from which a GPU inverts the kernel: for fewer, to open it takes longer than the host


class Gpu(NamedTuple):
    """How a process opens the backend that trains the networks.

    Parameters
    ----------
    name : str
        Of the backend.
    device : int
    options : CudaConfig
    least : int
        Training rows from which it inverts the kernel.
    """

    name: str
    device: int
    options: CudaConfig
    least: int


class Inverter:
    """Inverts the kernel of molecules on a GPU, which the first call opens; see `gcnbatch.mixture.kernel.Invert`.

    Attributes
    ----------
    note : str
        Why it could not: the GPU takes no further process, or lacks memory.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self.note = gpu, ""
        self._ops: MixtureOps | None = None

    def __call__(self, molecules: Prepared, weight: float, diagonal: NDArray[np.float64]) -> Inverse | None:
        """Return the inverse of the molecules' kernel with a diagonal (n,) added; None where it cannot."""
        try:
            if self._ops is None:
                with span("open the backend"):
                    self._ops = registry.open_backend(self._gpu.name, self._gpu.device, self._gpu.options).mixture_ops()
            return None if self._ops is None else self._ops.inverse(mixed.compared(molecules), weight, diagonal)
        except DeviceLost:
            raise
        except MachineError as error:
            self.note = f"the host fits the kernel: {error}"
            return None

    def release(self) -> None:
        """Give the memory of inverses back."""
        if self._ops is not None:
            self._ops.release()
