"""The kernels of the adjacency product, each in two scopes: a whole batch, and one graph and channel.

The configuration chooses the kernel. Both scopes of a kernel share their device code, so a comparison of the two
measures the number of launches alone.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gcnbatch.backends.cuda.batches.batch import GraphLayout
from gcnbatch.backends.cuda.runtime.launch import Launch, thread_per_output
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm import geometry
from gcnbatch.backends.cuda.spmm import table as spmm_table
from gcnbatch.errors import InputError, closest

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


class SpmmOperands(NamedTuple):
    """``out = A dense`` (or ``out += A dense``) for a sparse A of `n_rows` rows and dense operands of `width` columns.

    Element (i, p) of a dense operand is ``array[first + i * stride + p]``. A is a `DeviceCsr`, or the matrix of a
    `ChannelMatrices` that begins at `first_row` and `first_entry`.
    """

    out: DeviceArray
    dense: DeviceArray
    matrix: Any
    out_first: int
    dense_first: int
    out_stride: int
    dense_stride: int
    first_row: int
    first_entry: int
    n_entries: int
    n_rows: int
    width: int
    accumulate: int

    def csr(self) -> dict[str, Any]:
        """Return the operands as arguments of a CSR kernel."""
        matrix = self.matrix
        arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "data": matrix.data}
        return {"out": self.out, "dense": self.dense, "width": self.width, **arrays}

    def coo(self) -> dict[str, Any]:
        """Return the operands as arguments of a COO kernel."""
        matrix = self.matrix
        arrays = {"rows": matrix.rows, "columns": matrix.indices, "data": matrix.data}
        return {"out": self.out, "dense": self.dense, "width": self.width, **arrays}

    def csr_part(self) -> dict[str, Any]:
        """Return the arguments of a CSR kernel for the matrix of one graph and channel."""
        rows = {"first_row": self.first_row, "n_rows": self.n_rows, "accumulate": self.accumulate}
        return {**self.csr(), **rows, **self._parts()}

    def coo_part(self) -> dict[str, Any]:
        """Return the arguments of a COO kernel for the matrix of one graph and channel."""
        return {**self.coo(), "first_entry": self.first_entry, "n_entries": self.n_entries, **self._parts()}

    def _parts(self) -> dict[str, int]:
        """Return the offsets and strides of the dense operands."""
        return {
            "out_first": self.out_first,
            "dense_first": self.dense_first,
            "out_stride": self.out_stride,
            "dense_stride": self.dense_stride,
        }


class Blocks(NamedTuple):
    """The graphs of a block-diagonal matrix: `node_ptr` int32 (B+1,) with `rows_per_node` rows per node."""

    node_ptr: DeviceArray
    layout: GraphLayout
    rows_per_node: int

    @property
    def max_rows(self) -> int:
        """Rows of the largest graph's matrix."""
        return self.layout.max_nodes * self.rows_per_node


class SpmmKernel(Protocol):
    """A kernel of the adjacency product.

    `coo`: it needs the row of every entry. `pieces`: the kernels of `spmm.large` multiply large matrices instead.
    """

    coo: bool
    pieces: bool

    def batched(self, device: Device, operands: SpmmOperands, blocks: Blocks) -> None:
        """Launch the product of a whole block-diagonal matrix; it overwrites `out`, and all offsets are 0."""

    def graph(self, device: Device, operands: SpmmOperands) -> None:
        """Launch the product of the matrix of one graph and channel."""


class Naive:
    """The first rung (`spmm/naive.cu`): a thread per output, for readers and tests; "auto" never chooses it."""

    coo = False
    pieces = False

    def batched(self, device: Device, operands: SpmmOperands, blocks: Blocks) -> None:
        launch = thread_per_output(operands.n_rows, operands.width)
        device.launch("spmm_naive_batched", launch, n_rows=operands.n_rows, **operands.csr())

    def graph(self, device: Device, operands: SpmmOperands) -> None:
        launch = thread_per_output(operands.n_rows, operands.width)
        device.launch("spmm_naive_graph", launch, **operands.csr_part())


class RowSplit:
    """Our general kernel (`spmm_csr_*`): rows of the whole batch over the grid, sums in registers, 16-byte loads."""

    coo = False
    pieces = True

    def batched(self, device: Device, operands: SpmmOperands, blocks: Blocks) -> None:
        self.graph(device, operands)

    def graph(self, device: Device, operands: SpmmOperands) -> None:
        n_rows, width = operands.n_rows, operands.width
        vector = vector_width(width, operands.out, operands.dense)
        if (operands.out_first | operands.dense_first | operands.out_stride | operands.dense_stride) % 4:
            vector = 1
        shape = geometry.sparse_rows(n_rows, operands.n_entries, width, vector, device.multiprocessors)
        device.launch(f"spmm_csr_float{vector}", shape.launch, **shape.shares(), **operands.csr_part())


ROW_SPLIT = RowSplit()


class ShortRows:
    """Our kernels for batches of short rows (`spmm_rows_*`), without strides, offsets and groups.

    Parameters
    ----------
    form : str
        Vectors per thread "x" entries in flight; "m" masks loads beyond the end of a row.
    lanes : int
        Largest number of threads per row; a power of two.
    threads : int
        Threads per block.

    Notes
    -----
    If several vectors per thread do not divide the width, a form with one vector is launched; for unaligned operands,
    `SINGLE`; for more threads than 32 bits count, `RowSplit`. All of them add the entries of a row in order.
    """

    coo = False
    pieces = False
    NARROW = MappingProxyType({"2x1": "1x3m", "4x2": "1x3m", "2x5": "1x5m"})
    SINGLE = "1x5m"

    def __init__(self, form: str, lanes: int, threads: int) -> None:
        self.form, self.lanes, self.threads = form, lanes, threads

    def plan(self, n_rows: int, width: int, vector: int) -> tuple[str, Launch, int] | None:
        """Return the form for a size, its launch and lane_bits, or None if `RowSplit` must run."""
        size = (n_rows, width, vector)
        form, lanes = (self.form, self.lanes) if vector == 4 else (self.SINGLE, geometry.WARP)
        found = geometry.short_rows(*size, int(form[0]), lanes, self.threads)
        if found is None and form in self.NARROW:
            form = self.NARROW[form]
            found = geometry.short_rows(*size, 1, lanes, self.threads)
        return None if found is None else (form, *found)

    def batched(self, device: Device, operands: SpmmOperands, blocks: Blocks) -> None:
        n_rows, width = operands.n_rows, operands.width
        vector = vector_width(width, operands.out, operands.dense)
        found = self.plan(n_rows, width, vector)
        if found is None:
            ROW_SPLIT.batched(device, operands, blocks)
            return
        form, launch, lane_bits = found
        sizes = {"n_rows": n_rows, "lane_bits": lane_bits}
        device.launch(f"spmm_rows_float{vector}_{form}", launch, **sizes, **operands.csr())

    def graph(self, device: Device, operands: SpmmOperands) -> None:
        ROW_SPLIT.graph(device, operands)


class SwaCsr:
    """SWA SpMM for CSR as published: a sub-warp per row, every graph padded to the rows of the largest.

    `RowSplit` multiplies graphs that need more threads than its grid can have.
    """

    coo = False
    pieces = False

    def batched(self, device: Device, operands: SpmmOperands, blocks: Blocks) -> None:
        size = (blocks.layout.n_graphs, blocks.max_rows, operands.width)
        if not geometry.swa_csr_reaches(*size):
            ROW_SPLIT.batched(device, operands, blocks)
            return
        shape = geometry.swa_csr(*size)
        device.launch(
            "spmm_swa_csr_batched",
            shape.launch,
            node_ptr=blocks.node_ptr,
            rows_per_node=blocks.rows_per_node,
            column_block=shape.column_block,
            sub_bits=shape.sub_bits,
            blocks_per_graph=shape.blocks_per_graph,
            **operands.csr(),
        )

    def graph(self, device: Device, operands: SpmmOperands) -> None:
        if not geometry.swa_csr_reaches(1, operands.n_rows, operands.width):
            ROW_SPLIT.graph(device, operands)
            return
        shape = geometry.swa_csr(1, operands.n_rows, operands.width)
        sizes = {"column_block": shape.column_block, "sub_bits": shape.sub_bits}
        device.launch("spmm_swa_csr_graph", shape.launch, **sizes, **operands.csr_part())


class SwaCoo:
    """SWA SpMM for SparseTensor as published: a sub-warp per non-zero, atomics; cases 1, 2 and 3 of the paper."""

    coo = True
    pieces = False

    def batched(self, device: Device, operands: SpmmOperands, blocks: Blocks) -> None:
        shape = geometry.swa_coo(blocks.layout.n_graphs, blocks.max_rows, operands.n_entries, operands.width)
        if shape.case == 3:
            self._case_3(device, operands, shape)
            return
        device.launch(
            "spmm_swa_coo_batched",
            shape.launch,
            indptr=operands.matrix.indptr,
            node_ptr=blocks.node_ptr,
            rows_per_node=blocks.rows_per_node,
            column_block=shape.column_block,
            partition_bits=shape.partition_bits,
            sub_bits=shape.sub_bits,
            **operands.coo(),
        )

    def graph(self, device: Device, operands: SpmmOperands) -> None:
        shape = geometry.swa_coo(1, operands.n_rows, operands.n_entries, operands.width)
        if shape.case == 3:
            self._case_3(device, operands, shape)
            return
        sizes = {"column_block": shape.column_block, "sub_bits": shape.sub_bits, "n_rows": operands.n_rows}
        device.launch(
            "spmm_swa_coo_graph", shape.launch, accumulate=operands.accumulate, **sizes, **operands.coo_part()
        )

    def _case_3(self, device: Device, operands: SpmmOperands, shape: geometry.SwaCooGeometry) -> None:
        zero_unless_adding(device, operands)
        device.launch("spmm_swa_coo_global", shape.launch, sub_bits=shape.sub_bits, **operands.coo_part())


class TensorFlow:
    """TensorFlow's SparseTensorDenseMatMul: a thread per (non-zero, column), global atomics, a launch for zeros.

    `RowSplit` multiplies matrices that need more threads than its grid can have.
    """

    coo = True
    pieces = False

    def batched(self, device: Device, operands: SpmmOperands, blocks: Blocks) -> None:
        self.graph(device, operands)

    def graph(self, device: Device, operands: SpmmOperands) -> None:
        if not geometry.tf_reaches(operands.n_entries, operands.width):
            ROW_SPLIT.graph(device, operands)
            return
        zero_unless_adding(device, operands)
        launch = geometry.entries_by_columns(operands.n_entries, operands.width)
        device.launch("spmm_tf", launch, **operands.coo_part())


def zero_unless_adding(device: Device, operands: SpmmOperands) -> None:
    """Zero the output of a kernel that adds atomically, unless the product accumulates."""
    if not operands.accumulate:
        launch = geometry.entries_by_columns(operands.n_rows, operands.width)
        device.launch(
            "spmm_zero",
            launch,
            out=operands.out,
            out_first=operands.out_first,
            out_stride=operands.out_stride,
            n_rows=operands.n_rows,
            width=operands.width,
        )


def vector_width(width: int, *operands: DeviceArray) -> int:
    """Return 4 if rows of `width` floats can be read as float4, else 1."""
    addresses = 0
    for operand in operands:
        addresses |= operand.ptr
    return 1 if width % 4 or addresses % 16 else 4


# Candidates of "auto", as form/lanes/threads. All add the entries of a row in order.
CANDIDATES = {
    f"{form}/{lanes}/{threads}": ShortRows(form, lanes, threads)
    for form, lanes, threads in (
        ("1x3m", 16, 256),
        ("1x5m", 16, 128),
        ("1x5m", 16, 256),
        ("1x3", 32, 256),
        ("2x1", 8, 256),
        ("2x1", 32, 256),
        ("2x5", 8, 128),
        ("2x5", 32, 128),
        ("4x2", 8, 256),
        ("4x2", 32, 128),
    )
}
_KNOWN = frozenset(CANDIDATES)


class Auto:
    """The candidate that the device's table names; for sizes beyond the table and for one graph, `RowSplit`."""

    coo = False
    pieces = True

    def batched(self, device: Device, operands: SpmmOperands, blocks: Blocks) -> None:
        vector = vector_width(operands.width, operands.out, operands.dense)
        size = (operands.n_rows, operands.n_entries, operands.width, blocks.layout.n_graphs)
        table = spmm_table.load(device.name, _KNOWN)
        name = spmm_table.choose(table, *size, vector)
        (CANDIDATES[name] if name else ROW_SPLIT).batched(device, operands, blocks)

    def graph(self, device: Device, operands: SpmmOperands) -> None:
        ROW_SPLIT.graph(device, operands)


KERNELS: dict[str, SpmmKernel] = {
    "auto": Auto(),
    "csr": ROW_SPLIT,
    "naive": Naive(),
    "swa_csr": SwaCsr(),
    "swa_coo": SwaCoo(),
    "tf": TensorFlow(),
}


def spmm_kernel(name: str) -> SpmmKernel:
    """Return the kernel of this name.

    Raises
    ------
    InputError
        Unknown name.
    """
    if name not in KERNELS:
        raise InputError("spmm kernel", f"'{name}'", ", ".join(KERNELS), closest(name, KERNELS))
    return KERNELS[name]
