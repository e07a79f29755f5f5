"""The methods that `bench spmm` compares, each as a call on operands on the device.

A method that cannot compute a problem raises `Absent` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.spmm import table as spmm_table
from gcnbatch.backends.cuda.spmm.kernels import CANDIDATES, Blocks, SpmmKernel, SpmmOperands, spmm_kernel, vector_width
from gcnbatch.backends.cuda.spmm.ops import launch_each
from gcnbatch.errors import BackendUnavailable
from gcnbatch.lab.bench.spmm.problems import SpmmProblem
from gcnbatch.lab.bench.vendor import SparseProduct, Vendor

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.batches.batch import DeviceAdjacency
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray

DENSIFIED_BYTES = 4 << 30  # most bytes of the matrices in dense form
MAX_LOOP = 1000  # most matrices for a loop


class Absent(Exception):
    """A method cannot compute this problem, or cannot run here; the message says why."""


class NotInstalled(Absent):
    """A method needs a library that is not installed, for every problem."""


class Prepared(NamedTuple):
    """A method with its operands: the call, and the kernel or algorithm that it chose."""

    call: Callable[[], object]
    choice: str = ""


@dataclass
class Operands:
    """A problem of one width on the device; every method writes `out`."""

    device: Device
    problem: SpmmProblem
    columns: int

    def __post_init__(self) -> None:
        self.host = self.problem.dense(self.columns)
        self.dense = self.device.upload(self.host)
        self.out = self.device.empty((self.problem.matrix.shape[0], self.columns))

    @cached_property
    def whole(self) -> Any:
        """The block-diagonal matrix, with a row number per entry."""
        return batch.adjacency(self.problem.adjacency, self.problem.layout, coo=True).map(self.device.upload)

    @cached_property
    def each(self) -> Any:
        """One matrix per graph and channel."""
        return batch.channel_adjacency(self.problem.adjacency, self.problem.layout, coo=True).map(self.device.upload)

    def poison(self) -> None:
        """Fill `out` with NaN, so that an unwritten element shows."""
        with self.device.errors():
            self.device.driver.memset_d8_async(self.out.ptr, 0xFF, self.out.nbytes, self.device.stream)


class Methods:
    """All methods on one device.

    Parameters
    ----------
    device : Device
    fastest_of : callable
        Takes calls by name and returns the name of the fastest.
    """

    def __init__(self, device: Device, fastest_of: Callable[[Mapping[str, Callable[[], None]]], str]) -> None:
        self._device, self._fastest_of = device, fastest_of
        self._vendor: Vendor | None = None
        self.no_vendor = ""
        try:
            self._vendor = Vendor(device)
        except BackendUnavailable as error:
            self.no_vendor = str(error)

    @contextmanager
    def prepared(self, name: str, operands: Operands) -> Iterator[Prepared]:
        """Yield the method `name` on these operands; free its library objects at the end.

        Raises
        ------
        Absent
            When the method cannot compute this problem.
        """
        with contextmanager(DEVICE_METHODS[name])(self, operands) as found:
            yield found

    def batched(self, operands: Operands, kernel: str) -> Iterator[Prepared]:
        """One of our kernels, in one launch for the batch."""
        about = (operands.device, spmm_kernel(kernel), operands.out, operands.dense, operands.whole)
        yield Prepared(lambda: launch_batch(*about), _choice(operands) if kernel == "auto" else "")

    def tf_loop(self, operands: Operands) -> Iterator[Prepared]:
        """TensorFlow's SparseTensorDenseMatMul, one call per matrix: zeros, then atomic additions."""
        _check_loop(operands)
        each, layout, kernel = operands.each, operands.problem.layout, spmm_kernel("tf")
        about = (operands.out, operands.dense.reshape(layout.n_nodes, -1), each.forward, layout, operands.columns)
        yield Prepared(lambda: launch_each(self._device, kernel, *about, sums_channels=True))

    def cusparse_loop(self, operands: Operands) -> Iterator[Prepared]:
        """cuSPARSE's CSR SpMM with its fastest algorithm, one call per matrix."""
        vendor = self._libraries()
        _check_loop(operands)
        layout, forward = operands.problem.layout, operands.each.forward
        if layout.n_channels > 1:
            raise Absent("one channel only: cuSPARSE's operands do not interleave channels")
        starts, pointers = _local_pointers(operands.problem)
        indptr, step, width = self._device.upload(pointers), 4 * operands.columns, operands.columns
        products = []
        for (first, n), place, start in zip(layout.graphs, forward.place_list, starts, strict=True):
            entries = 4 * place.first_entry
            where = (indptr.ptr + 4 * start, forward.indices.ptr + entries, forward.data.ptr + entries)
            dense, out = (array.ptr + step * first for array in (operands.dense, operands.out))
            products.append(SparseProduct(*where, dense, out, n, n, width, place.n_entries))
        yield from self._best(vendor, products, indptr)

    def cusparse(self, operands: Operands) -> Iterator[Prepared]:
        """cuSPARSE's CSR SpMM with its fastest algorithm, on the block-diagonal matrix."""
        vendor, csr = self._libraries(), operands.whole.forward
        rows, inner = operands.problem.matrix.shape
        where = (csr.indptr.ptr, csr.indices.ptr, csr.data.ptr, operands.dense.ptr, operands.out.ptr)
        product = SparseProduct(*where, rows, inner, operands.columns, csr.indices.size)
        yield from self._best(vendor, [product], csr)

    def cublas(self, operands: Operands) -> Iterator[Prepared]:
        """cuBLAS's fp32 gemmBatched, on the matrices in dense form."""
        vendor, layout = self._libraries(), operands.problem.layout
        if not operands.problem.equal or layout.n_channels > 1:
            raise Absent("matrices of one size only")
        shape = (layout.n_graphs, layout.max_nodes, layout.max_nodes)
        if 4 * np.prod(shape, dtype=np.float64) > DENSIFIED_BYTES:
            raise Absent("the matrices take more than 4 GiB with their zeros")
        matrices = self._device.upload(_densified(operands.problem, shape))
        yield Prepared(vendor.gemm_batched(operands.out, operands.dense, matrices, *shape[:2], operands.columns))

    def _best(self, vendor: Vendor, products: list[SparseProduct], kept: Any) -> Iterator[Prepared]:
        """Yield cuSPARSE's fastest algorithm; `kept` keeps the arrays alive that the descriptors point into."""
        with vendor.spmm(products) as calls:
            if not calls:
                raise Absent("cuSPARSE takes none of its algorithms for this size")
            best = self._fastest_of(calls)
            yield Prepared(calls[best], best)
        del kept

    def _libraries(self) -> Vendor:
        if self._vendor is None:
            raise NotInstalled(self.no_vendor)
        return self._vendor


DEVICE_METHODS: Mapping[str, Callable[[Methods, Operands], Iterator[Prepared]]] = MappingProxyType(
    {
        "tf-loop": Methods.tf_loop,
        "cusparse-loop": Methods.cusparse_loop,
        "cublas": Methods.cublas,
        "cusparse": Methods.cusparse,
        "swa-coo": partial(Methods.batched, kernel="swa_coo"),
        "swa-csr": partial(Methods.batched, kernel="swa_csr"),
        "naive": partial(Methods.batched, kernel="naive"),
        "csr": partial(Methods.batched, kernel="csr"),
        "fastest": partial(Methods.batched, kernel="auto"),
    }
)
SCIPY = "scipy"
NAMES = (SCIPY, *DEVICE_METHODS)
RUNGS = ("naive", "csr")  # the ladder up to "fastest", for readers of the kernels; measured only by name
COMPARED = tuple(name for name in NAMES if name not in RUNGS)


def launch_batch(
    device: Device, kernel: SpmmKernel, out: DeviceArray, dense: DeviceArray, found: DeviceAdjacency
) -> None:
    """Launch one kernel for a whole batch: `out` (N, P) = A `dense` (N*C, P)."""
    matrix, width = found.forward, out.shape[1]
    operands = SpmmOperands(out, dense, matrix, 0, 0, width, width, 0, 0, matrix.indices.size, out.shape[0], width, 0)
    kernel.batched(device, operands, Blocks(found.node_ptr, found.layout, 1))


def _choice(operands: Operands) -> str:
    """Return the kernel that "auto" chooses."""
    problem, vector = operands.problem, vector_width(operands.columns, operands.out, operands.dense)
    size = (problem.matrix.shape[0], problem.matrix.nnz, operands.columns, problem.layout.n_graphs)
    return spmm_table.choose(spmm_table.load(operands.device.name, frozenset(CANDIDATES)), *size, vector) or "csr"


def _check_loop(operands: Operands) -> None:
    matrices = operands.problem.layout.n_graphs * operands.problem.layout.n_channels
    if matrices > MAX_LOOP:
        raise Absent(f"a loop over more than {MAX_LOOP} matrices")


def _local_pointers(problem: SpmmProblem) -> tuple[Any, Any]:
    """Return the start of each graph's own row pointers, and these pointers, each from 0, concatenated."""
    indptr, node_ptr = problem.adjacency.forward.indptr, problem.layout.node_ptr
    parts = [indptr[first : last + 1] - indptr[first] for first, last in pairwise(node_ptr)]
    starts = (node_ptr[:-1] + np.arange(len(parts))).tolist()
    return starts, np.concatenate(parts).astype(np.int32)


def _densified(problem: SpmmProblem, shape: tuple[int, int, int]) -> Any:
    """Return the matrices in dense form, (batch, dim, dim)."""
    coo, dim = problem.matrix.tocoo(), max(shape[1], 1)
    dense = np.zeros(shape, np.float32)
    np.add.at(dense, (coo.row // dim, coo.row % dim, coo.col % dim), coo.data)
    return dense
