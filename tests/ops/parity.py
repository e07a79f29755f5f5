"""The rule that an operation of a backend is held to.

Every result is computed three times from the same float32 numbers: by the reference in float64 (taken as exact), by the
reference in float32 (whose distance from exact is what honest rounding costs), and by the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gcnbatch.backends.base import Array
from gcnbatch.data.sparse import Adjacency, Csr
from tests.ops.adapters import REFERENCE, Adapter
from tests.ops.cases import Sparse

Value = NDArray[Any] | Sparse
Results = dict[str, Array]


def assert_parity(backend: Adapter, run: Callable[..., Results], inputs: Mapping[str, Value]) -> None:
    """Hold ``run(ops, **inputs)`` on `backend` to the reference: shapes, float type, and an error no larger than

        2 * error of the reference in float32 + 1e-6 * max |reference|.

    `run` returns results by name. A result that has an input's name is that input, changed in place as the operation's
    contract says; every other input must come out unchanged.
    """
    exact = _evaluate(REFERENCE, run, inputs, np.float64)
    single = _evaluate(REFERENCE, run, inputs, np.float32)
    got = _evaluate(backend, run, inputs, np.float32)
    assert got.keys() == exact.keys()
    for name, want in exact.items():
        if want.ndim == 0:  # a device gives a scalar as an array of one
            got[name] = got[name].reshape(())
        assert got[name].shape == want.shape, name
        scale, error = np.max(np.abs(want), initial=0), _distance(got[name], want)
        bound = 2 * _distance(single[name], want) + 1e-6 * scale
        assert error <= bound, f"{name}: error {error:.3g} above {bound:.3g} (scale {scale:.3g})"


def _distance(got: NDArray[Any], want: NDArray[Any]) -> float:
    return float(np.max(np.abs(got.astype(np.float64) - want), initial=0))


def _evaluate(
    adapter: Adapter, run: Callable[..., Results], inputs: Mapping[str, Value], dtype: DTypeLike
) -> dict[str, NDArray[Any]]:
    def upload(array: NDArray[Any]) -> Array:
        return adapter.upload(array.astype(dtype) if array.dtype.kind == "f" else array)

    formed = {name: adapter.form(value) if isinstance(value, Sparse) else value for name, value in inputs.items()}
    held = {name: _map_arrays(value, upload) for name, value in formed.items()}
    results = {name: adapter.download(value) for name, value in run(adapter.ops, **held).items()}
    for name, result in results.items():
        assert result.ndim == 0 or result.dtype == dtype, name
    for name in inputs.keys() - results.keys():
        for before, after in zip(_arrays(formed[name]), _arrays(held[name]), strict=True):
            np.testing.assert_array_equal(adapter.download(after), before, err_msg=f"{name} was changed")
    return results


def _map_arrays(value: Any, function: Callable[[NDArray[Any]], Array]) -> Any:
    if hasattr(value, "map"):
        return value.map(function)
    if isinstance(value, Adjacency):
        both = (_map_arrays(matrix, function) for matrix in (value.forward, value.transpose))
        return Adjacency(*both, value.n_channels)
    if isinstance(value, Csr):
        return Csr(function(value.indptr), function(value.indices), function(value.data), value.n_cols)
    return function(value)


def _arrays(value: Any) -> list[Any]:
    found: list[Any] = []

    def note(array: Any) -> Any:
        found.append(array)
        return array

    _map_arrays(value, note)
    return found
