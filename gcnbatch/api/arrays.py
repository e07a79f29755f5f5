"""Arrays and targets that a program gives, in the form of a data set.

Arrays may be of any library: DLPack, ``__cuda_array_interface__`` and whatever NumPy understands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.common import compact
from gcnbatch.data.importers.targets import Targets
from gcnbatch.data.importers.times import read_times
from gcnbatch.data.schema import TARGET_TYPES, UNLABELLED, Target
from gcnbatch.data.sparse import is_sparse
from gcnbatch.errors import InputError, MachineError

if TYPE_CHECKING:
    import scipy.sparse as sp

_ON_HOST, _CUDA = (1, 3), 2  # DLPack's kDLCPU and kDLCUDAHost; kDLCUDA
_KEPT = ("u1", "i1", "f2", "f4")  # types of features that stay as they are


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


def targets(
    y: Any, rows: int, task: Target | None, task_names: Sequence[str] | None, class_names: Sequence[str]
) -> Targets:
    """Return the targets of `rows` rows.

    Parameters
    ----------
    y : array-like, (R,) or (R, K), or None
        NaN or None where missing; classes from 0, -1, NaN or None where missing.
    task : {"binary", "regression", "multiclass"} or None
        None: binary if all are 0, 1 or missing, else regression.
    task_names, class_names : sequence of str
        None or empty: ``task0`` …, ``0`` ….

    Raises
    ------
    InputError
        For other shapes and values.

    Examples
    --------
    >>> found = targets([[0, None], [1, 2.5]], 2, None, None, ())
    >>> found.kind, found.task_names, found.y.tolist()
    ('regression', ('task0', 'task1'), [[0.0, nan], [1.0, 2.5]])
    >>> found = targets([2, 0, -1], 3, "multiclass", ["topic"], ["a", "b", "c"])
    >>> found.y.tolist(), found.class_names
    ([[2], [0], [-1]], ('a', 'b', 'c'))
    """
    if y is None:
        return Targets(np.full((rows, 1), np.nan, TARGET_TYPES["binary"][0]), "binary", (UNLABELLED,))
    values = _numbers(y, "y", "numbers; NaN or None where missing")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) != rows or not values.shape[1]:
        raise InputError("y", f"shape {values.shape}", f"({rows},) or ({rows}, K): a row per row of the data")
    names = tuple(task_names or [f"task{column}" for column in range(values.shape[1])])
    if len(names) != values.shape[1]:
        raise InputError("task_names", f"{len(names)} names", f"{values.shape[1]}, one per column of y")
    if task == "multiclass":
        return _classes(values, names, class_names)
    kind: Target = task or ("binary" if bool(np.isin(values[~np.isnan(values)], (0, 1)).all()) else "regression")
    expected = "0, 1 or NaN" if kind == "binary" else "finite numbers or NaN"
    wrong = ~(np.isnan(values) | ((values == 0) | (values == 1) if kind == "binary" else np.isfinite(values)))
    _refuse(values, wrong, expected)
    return Targets(values.astype(TARGET_TYPES[kind][0]), kind, names)


def _numbers(value: Any, name: str, expected: str) -> NDArray[np.float64]:
    """Return the values as float64, with NaN for None."""
    array = to_host(value, name)
    if array.dtype.kind == "c":
        raise InputError(name, "complex numbers", "numbers")
    try:
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(name, str(error), expected) from error


def _classes(values: NDArray[np.float64], names: tuple[str, ...], class_names: Sequence[str]) -> Targets:
    if len(names) != 1:
        raise InputError("y", f"{len(names)} columns of classes", "one")
    codes = np.where(np.isnan(values), -1, values)
    count = len(class_names) or int(codes.max(initial=0)) + 1
    _refuse(values, (codes < -1) | (codes >= count) | (codes != np.round(codes)), f"a class 0 to {count - 1}, or -1")
    known = tuple(map(str, class_names or range(count)))
    if count < 2:
        raise InputError("y", "only one class", "at least 2")
    return Targets(codes.astype(np.int32), "multiclass", names, known)


def _refuse(values: NDArray[np.float64], wrong: NDArray[np.bool_], expected: str) -> None:
    if wrong.any():
        row, column = map(int, np.argwhere(wrong)[0])
        raise InputError(f"y[{row}, {column}]", f"{values[row, column]:g}", expected)


def own_features(values: Any, names: Sequence[str] | None, rows: int) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return the user's features of molecules (R, D), and their names."""
    if values is None:
        return np.zeros((rows, 0), np.float32), ()
    array = _numbers(values, "features", f"({rows}, D) numbers")
    if array.ndim != 2 or len(array) != rows or np.isinf(array.astype(np.float32)).any():
        raise InputError("features", f"{array.shape}", f"({rows}, D) finite 32-bit numbers, or NaN where missing")
    given = [f"feature{number}" for number in range(array.shape[1])] if names is None else [str(name) for name in names]
    if len(given) != array.shape[1]:
        raise InputError("feature_names", f"{len(given)}", f"{array.shape[1]}, one per column")
    return array.astype(np.float32), tuple(given)


def times_of(values: Any, graphs: int) -> NDArray[np.float64] | None:
    """Return the time of each graph (G,), NaN where missing: days since 1970 of dates, or the numbers themselves."""
    if values is None:
        return None
    found = np.asarray(values)
    if found.shape != (graphs,):
        raise InputError("times", f"{found.shape}", f"({graphs},), one per graph")
    if found.dtype.kind == "M":
        days = found.astype("datetime64[us]").astype(np.int64) / 86_400e6
        return np.where(np.isnat(found), np.nan, days)
    if found.dtype.kind in "UO" and not all(value is None or isinstance(value, Real) for value in found.tolist()):
        return read_times("times", ["" if value is None else str(value) for value in found.tolist()])[0]
    if found.dtype.kind not in "biufO":
        raise InputError("times", str(found.dtype), "numbers, dates, or texts of dates")
    return found.astype(np.float64)


def node_features(x: Any) -> NDArray[Any] | sp.csr_array:
    """Return features (N, F) in one of the types of the format."""
    if is_sparse(x):
        sparse: Any = x
        import scipy.sparse as sp

        return sp.csr_array(sparse.astype(np.float32))
    array = to_host(x, "x")
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise InputError("x", f"{array.dtype} {array.shape}", "numbers of shape (N, F)")
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    return array if kind in _KEPT else compact(array) if array.dtype.kind in "biu" else array.astype(np.float32)


def integers(values: Any, kind: type[np.integer[Any]], name: str) -> NDArray[Any]:
    """Return whole numbers in this type.

    Raises
    ------
    InputError
        For other types and shapes, and numbers that are too large.
    """
    array = to_host(values, name)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InputError(name, f"{array.dtype} {array.shape}", "whole numbers of one dimension")
    limits = np.iinfo(kind)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise InputError(name, f"{array.min()} to {array.max()}", f"{limits.min} to {limits.max}")
    return array.astype(kind, copy=False)


def ids_of(ids: Iterable[str] | None, rows: int) -> NDArray[np.str_]:
    """Return the id of each row; without any, row numbers from 1."""
    names = np.array([str(row + 1) for row in range(rows)] if ids is None else [str(one) for one in ids], dtype=np.str_)
    if len(names) != rows:
        raise InputError("ids", f"{len(names)}", f"{rows}, one per row")
    return names


def weights(values: Any, name: str) -> NDArray[np.float32] | None:
    """Return weights as float32; None where none are given."""
    return None if values is None else to_host(values, name).astype(np.float32, copy=False)
