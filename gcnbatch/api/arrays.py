"""Arrays of other libraries as NumPy arrays: DLPack, ``__cuda_array_interface__`` and whatever NumPy understands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.errors import InputError, MachineError

_ON_HOST, _CUDA = (1, 3), 2  # DLPack's kDLCPU and kDLCUDAHost; kDLCUDA


def to_host(value: Any, name: str) -> NDArray[Any]:
    """Return an array in host memory; an array of a device is copied.

    Parameters
    ----------
    value : array-like
        A NumPy array, an array of a device or of another library, or a sequence.
    name : str
        Its name, for messages.

    Raises
    ------
    InputError
        When it cannot be read as an array.

    Examples
    --------
    >>> to_host([1, 2], "y").tolist()
    [1, 2]
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        if (interface := getattr(value, "__cuda_array_interface__", None)) is not None:
            from gcnbatch.backends.cuda.runtime.foreign import download

            return download(interface)
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            device = value.__dlpack_device__()[0]
            if device in _ON_HOST:
                return np.from_dlpack(value)
            if device == _CUDA:
                from gcnbatch.backends.cuda.runtime.foreign import download_dlpack

                return download_dlpack(value)
            return np.from_dlpack(value, device="cpu", copy=True)
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, BufferError, KeyError) as error:
        reason = f"a {type(value).__name__} that cannot be read ({error})"
        raise InputError(name, reason, "an array", "Copy it to a NumPy array first.") from error
    except MachineError as error:
        error.advise(f"Or copy {name} to a NumPy array first.")
        raise
