"""Measurement of SpGEMM: our kernel, cuSPARSE and SciPy on the same matrices, each checked before it is timed.

A time covers the whole call, from matrices in memory to the result in memory, including allocation. Devices are timed
with events around the call, the host with its clock. GFLOPS are 2 * products / time for every method; the compression
ratio is products / entries of the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends import registry
from gcnbatch.backends.cuda import entry
from gcnbatch.backends.cuda.spgemm.product import SpGemm
from gcnbatch.data.sparse import ScipyCsr
from gcnbatch.errors import BackendUnavailable, CheckFailed, InputError, closest
from gcnbatch.lab.bench.spgemm.matrices import SpgemmProblem
from gcnbatch.lab.bench.vendor import CusparseSpGemm, Vendor
from gcnbatch.lab.statistics import spread

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.backends.cuda.runtime.events import Observation

CONTENDERS = ("gcnbatch", "cusparse", "scipy")
TOLERANCE = 1e-5  # relative to the sum of the absolute products of an entry
SLOW = 0.5  # seconds; a longer call is timed once


class Scipy:
    """SciPy on one core of the host."""

    name = "scipy"
    drops_zeros = True  # whether sums equal to 0 are dropped from the result

    def load(self, problem: SpgemmProblem) -> Callable[[], Any]:
        """Load the operands; return the call that multiplies them."""
        return lambda: problem.left @ problem.right

    def result(self, found: Any) -> ScipyCsr:
        """Return the result of a call as a SciPy matrix."""
        return found

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Run a call once and return its time."""
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3

    def phases(self, call: Callable[[], Any]) -> dict[str, float]:
        """Return the milliseconds of each kernel of a call; empty if kernels cannot be observed."""
        return {}


class OnDevice:
    """A method on a device with the interface of `Scipy`: `multiply` takes two `Csr` of device arrays."""

    drops_zeros = False

    def __init__(self, name: str, device: Device, multiply: Callable[[Any, Any], Any]) -> None:
        self.name, self.device, self._multiply, self._ours = name, device, multiply, SpGemm(device)

    def load(self, problem: SpgemmProblem) -> Callable[[], Any]:
        """Return the call."""
        left = self._ours.upload(problem.left)
        right = left if problem.right is problem.left else self._ours.upload(problem.right)
        return lambda: self._multiply(left, right)

    def result(self, found: Any) -> ScipyCsr:
        """As SciPy's matrix."""
        return self._ours.download(found)

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Time a call."""
        self.device.synchronize()
        start = self.device.event()
        kept = call()
        passed = self.device.event().since(start) / 1e3
        del kept
        return passed

    def phases(self, call: Callable[[], Any]) -> dict[str, float]:
        """Time each kernel of a call."""
        observed: list[Observation] = []
        self.device.observer = observed
        try:
            call()
        finally:
            self.device.observer = None
        found: dict[str, float] = {}
        for one in observed:
            name = one.entry.removeprefix("spgemm_")
            found[name] = found.get(name, 0.0) + one.stop.since(one.start) / 1e3
        return found


Contender = Scipy | OnDevice


class SpgemmTiming(NamedTuple):
    """Measurement of one contender on one matrix; times in milliseconds."""

    matrix: str
    contender: str
    rows: int
    entries: int
    products: int
    results: int
    compression: float
    ms: float
    p20: float
    p80: float
    gflops: float
    error: float
    repetitions: int
    phases: dict[str, float]


def open_contenders(names: Sequence[str] | None, device: int = 0) -> tuple[list[Contender], list[str]]:
    """Open the contenders; return them, and notes: what cannot start here, and a device that none uses.

    Parameters
    ----------
    names : sequence of str or None
        Contenders to open; None: all that can start.

    Raises
    ------
    InputError
        Unknown name.
    BackendUnavailable
        A contender requested by name cannot start.
    """
    for name in names or ():
        if name not in CONTENDERS:
            raise InputError("--methods", f"'{name}'", ", ".join(CONTENDERS), closest(name, CONTENDERS))
    found: list[Contender] = []
    notes: list[str] = []
    for name in names or CONTENDERS:
        try:
            found.append(_open(name, device))
        except BackendUnavailable as error:
            if names:
                raise
            notes.append(f"{name} is left out: {error}")
    if all(isinstance(one, Scipy) for one in found):
        registry.report_on_host(Scipy.name, device, None, notes.append)
    return found, notes


def _open(name: str, number: int) -> Contender:
    if name == "scipy":
        return Scipy()
    device = entry.open_ready(number)
    if name == "gcnbatch":
        return OnDevice(name, device, SpGemm(device))
    return OnDevice(name, device, CusparseSpGemm(Vendor(device)))


def measure(
    problems: Iterable[SpgemmProblem], contenders: Sequence[Contender], repetitions: int
) -> Iterator[SpgemmTiming]:
    """Check and time every contender on every problem.

    Raises
    ------
    CheckFailed
        When a result differs from the float64 product.
    """
    for problem in problems:
        left, right = problem.left, problem.right
        products = int(np.diff(right.indptr).astype(np.int64)[left.indices].sum())
        expected = expect(problem)
        n_results = len(expected.indices)
        size = (left.shape[0], left.nnz, products, n_results, products / max(n_results, 1))
        for contender in contenders:
            call = contender.load(problem)
            error = deviation(contender, problem.name, contender.result(call()), expected)
            times = _times(contender, call, repetitions)
            median, p20, p80 = spread(times).values()
            ms = (median, p20, p80, 2e-6 * products / median)
            yield SpgemmTiming(problem.name, contender.name, *size, *ms, error, len(times), contender.phases(call))


class Expected(NamedTuple):
    """Exact product: its pattern, its values in float64, and those of |A| |B|."""

    indptr: NDArray[Any]
    indices: NDArray[Any]
    values: NDArray[np.float64]
    scale: NDArray[np.float64]


def expect(problem: SpgemmProblem) -> Expected:
    """Return the exact product of a problem, in float64."""
    left, right = (matrix.astype(np.float64) for matrix in (problem.left, problem.right))
    exact = _sorted(left @ right)
    if left.data.min(initial=1.0) > 0.0 and right.data.min(initial=1.0) > 0.0:
        return Expected(exact.indptr, exact.indices, exact.data, exact.data)
    ones = [sp.csr_array((np.ones(m.nnz), m.indices, m.indptr), shape=m.shape) for m in (left, right)]
    pattern, scale = _sorted(ones[0] @ ones[1]), _sorted(abs(left) @ abs(right))
    return Expected(pattern.indptr, pattern.indices, _at(pattern, exact), _at(pattern, scale))


def _sorted(matrix: Any) -> ScipyCsr:
    found = sp.csr_array(matrix)
    found.sort_indices()
    return found


def _at(pattern: Any, matrix: ScipyCsr) -> NDArray[np.float64]:
    """Return a matrix's values at the positions of a pattern, else 0; KeyError if the pattern lacks a position."""
    keys, wanted = (
        np.repeat(np.arange(len(m.indptr) - 1), np.diff(m.indptr)) * matrix.shape[1] + m.indices
        for m in (pattern, matrix)
    )
    places = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    if not (len(keys) or not len(wanted)) or not np.array_equal(keys[places], wanted):
        raise KeyError
    values = np.zeros(len(keys))
    values[places] = matrix.data
    return values


def deviation(contender: Contender, name: str, found: ScipyCsr, expected: Expected) -> float:
    """Return the largest error of a result, relative to the sum of the absolute products of an entry.

    Raises
    ------
    CheckFailed
        When its pattern or a value is wrong.
    """
    subject = f"{contender.name} on {name}"
    ordered = _sorted(found.copy())
    try:
        if not contender.drops_zeros and ordered.nnz != len(expected.indices):
            raise KeyError
        values = _at(expected, ordered)
    except KeyError:
        raise CheckFailed(
            subject, "a pattern that is not the product's", f"{len(expected.indices):,} entries"
        ) from None
    off = np.abs(values - expected.values)
    error = float(np.max(off / np.where(expected.scale > 0.0, expected.scale, 1.0), initial=0.0))
    if not error <= TOLERANCE:
        raise CheckFailed(subject, f"a value {error:.2g} off, relatively", f"at most {TOLERANCE:g}")
    return error


def _times(contender: Contender, call: Callable[[], Any], repetitions: int) -> list[float]:
    first = contender.milliseconds(call)  # warm: memory pools, caches
    if first > 1e3 * SLOW:
        return [first]
    return [contender.milliseconds(call) for _ in range(repetitions)]
