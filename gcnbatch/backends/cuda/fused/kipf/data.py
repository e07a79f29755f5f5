"""The graph as the fused step of Kipf's GCN reads it: computed once on the host, with NumPy and SciPy only.

Dimensions: N nodes; T labelled rows; R rows of Z that a labelled row reads; F features. U = A dropout(X), see
``cuda_src/fused/kipf/step.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.kipf.geometry import PRODUCT, THREAD_PRODUCTS, longest_first
from gcnbatch.backends.cuda.runtime.launch import PHILOX_ELEMENTS
from gcnbatch.data.batches import PreparedSet
from gcnbatch.data.graphs import Int64
from gcnbatch.data.sparse import ragged_rows

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """A CSR matrix as the kernels read it: int32 (rows + 1,), int32 (nnz,), float32 (nnz,)."""

    indptr: Int32
    indices: Int32
    data: Float32

    @classmethod
    def of(cls, matrix: Any) -> Rows:
        """Return the arrays of a SciPy CSR matrix."""
        return cls(matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data.astype(np.float32))


@dataclass(frozen=True)
class Products:
    """The products A_ij X_jf that each entry of U sums.

    Parameters
    ----------
    u : csr_array, (R, F)
        U without dropout; the columns of a row ascend.
    product_ptr : int32, (nnz+1,)
        Index of each entry's first product.
    factors : float32, (products,)
        A_ij X_jf.
    elements : int64, (products,)
        Index of X_jf among the stored values of sparse features, or among all values of dense ones.
    """

    u: Any
    product_ptr: Int32
    factors: Float32
    elements: Int64


def adjacency_of(prepared: PreparedSet) -> Any:
    """Return the adjacency (N, N) of a set with one channel; it shares the set's arrays."""
    rows = prepared.forward
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.row_length, dtype=np.int64)])
    return sp.csr_array((rows.data, rows.indices, indptr), shape=(len(rows.row_length),) * 2)


def features_of(prepared: PreparedSet) -> tuple[Any, Int64]:
    """Return X (N, F) in CSR, and each stored value's index in dropout."""
    x: Any = prepared.stored_x
    sparse: bool = sp.issparse(x)
    if sparse:
        return x, np.arange(x.nnz)
    found: Any = sp.csr_array(x.astype(np.float32, copy=False))
    rows = np.repeat(np.arange(x.shape[0], dtype=np.int64), np.diff(found.indptr))
    return found, rows * x.shape[1] + found.indices


def seen_rows(adjacency: Any, labelled: Int64) -> Int64:
    """Return the nodes whose Z the labelled nodes' logits read, ascending."""
    found: Int64 = np.unique(adjacency[labelled].indices).astype(np.int64)
    return found


def count_products(prepared: PreparedSet, adjacency: Any, rows: Int64) -> int:
    """Return the number of products in these rows of A X."""
    x: Any = prepared.stored_x
    sparse: bool = sp.issparse(x)
    lengths = np.diff(x.indptr) if sparse else np.count_nonzero(x, axis=1)
    return int(lengths[adjacency[rows].indices].sum(dtype=np.int64))


def list_products(adjacency: Any, features: Any, elements: Int64, scale: float) -> Products:
    """Return the products that are summed in ``adjacency @ (scale * features)``.

    Parameters
    ----------
    adjacency : csr_array, (R, N)
    features, elements
        As from `features_of`.
    """
    n_rows, n_columns = adjacency.shape[0], features.shape[1]
    entries, ptr = ragged_rows(features.indptr.astype(np.int64), adjacency.indices.astype(np.int64))
    of_edge = np.repeat(np.arange(len(adjacency.indices)), np.diff(ptr))
    row = np.repeat(np.arange(n_rows), np.diff(adjacency.indptr))[of_edge]
    place = row * n_columns + features.indices[entries]
    order = np.argsort(place, kind="stable")
    place, entries, of_edge = place[order], entries[order], of_edge[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    product_ptr = np.append(starts, len(place)).astype(np.int32)
    factors = adjacency.data[of_edge] * (features.data[entries] * np.float32(scale))
    values = np.add.reduceat(factors, starts) if len(starts) else factors
    rows, columns = np.divmod(place[starts], n_columns)
    indptr = np.searchsorted(rows, np.arange(n_rows + 1))
    u = sp.csr_array((values.astype(np.float32), columns, indptr), shape=(n_rows, n_columns))
    return Products(u, product_ptr, factors.astype(np.float32), elements[entries])


class KipfGraph:
    """One graph with labels, as the kernels read it.

    Parameters
    ----------
    prepared : PreparedSet
        A data set with one graph and one channel.
    labels : int32, (N,)
        Classes; -1: the node has no training label.
    hidden, n_out : int
        P and K.
    x_rate, z_rate : float
        Dropout rates of the features and of the hidden layer.

    Attributes
    ----------
    labelled : int64, (T,)
    rows : int64, (R,)
        Nodes whose Z is computed, ascending.
    a, b : Rows
        The labelled rows of A, (T, R), and their transpose.
    u, u_by_columns : Rows
        U of `rows`, in CSR and in CSC.
    place : int32, (nnz,)
        The position of each entry of `u` in `u_by_columns`.
    long_entries : int32
        The entries of `u` with so many products that a warp sums each.
    row_order, task_order : Order
        Order of the rows of Z, and of the rows of both weight matrices.
    drawn : int32, (D,)
        The Philox blocks to draw, those of X first.
    n_drawn_x : int
    product_ptr, products : int32, (nnz+1,); `PRODUCT`, (products,)
        As in the kernels; empty without dropout of X.
    kept_first : int32, (R,)
        As in the kernels; empty without dropout of Z.
    """

    def __init__(
        self,
        prepared: PreparedSet,
        labels: Int32,
        hidden: int,
        n_out: int,
        x_rate: float = 0.0,
        z_rate: float = 0.0,
    ) -> None:
        self._adjacency, self._features = adjacency_of(prepared), features_of(prepared)
        self.labelled = np.flatnonzero(labels >= 0)
        self.labels = labels[self.labelled].astype(np.int32)
        seen = self._adjacency[self.labelled]
        self.rows = seen_rows(self._adjacency, self.labelled)
        local = np.searchsorted(self.rows, seen.indices)
        labelled = sp.csr_array((seen.data, local, seen.indptr), shape=(len(self.labelled), len(self.rows)))
        self.a, self.b = Rows.of(labelled), Rows.of(labelled.T.tocsr())
        self._propagate(x_rate)
        self._order_tasks(hidden, n_out)
        self._number_bits(hidden, bool(x_rate), bool(z_rate))

    def _propagate(self, rate: float) -> None:
        features, elements = self._features
        self._terms = list_products(self._adjacency[self.rows], features, elements, 1.0 / (1.0 - rate))
        u = self._terms.u
        self.u = Rows.of(u)
        order = np.argsort(u.indices, kind="stable")
        row = np.repeat(np.arange(len(self.rows)), np.diff(u.indptr))
        column_ptr = np.searchsorted(u.indices[order], np.arange(u.shape[1] + 1)).astype(np.int32)
        self.u_by_columns = Rows(column_ptr, row[order].astype(np.int32), self.u.data[order])
        self.place = np.empty(len(order), np.int32)
        self.place[order] = np.arange(len(order), dtype=np.int32)
        self.long_entries = np.flatnonzero(np.diff(self._terms.product_ptr) > THREAD_PRODUCTS).astype(np.int32)

    def _order_tasks(self, hidden: int, n_out: int) -> None:
        self.row_order = longest_first(np.diff(self.u.indptr), hidden)
        lengths = np.append(np.diff(self.u_by_columns.indptr), np.full(hidden, len(self.rows)))
        columns = np.append(np.full(len(lengths) - hidden, hidden), np.full(hidden, n_out))
        self.task_order = longest_first(lengths, columns)

    def _number_bits(self, hidden: int, of_x: bool, of_z: bool) -> None:
        terms, size = self._terms, PHILOX_ELEMENTS
        elements = terms.elements if of_x else terms.elements[:0]
        blocks_x, rank = np.unique(elements // size, return_inverse=True)
        self.n_drawn_x = len(blocks_x)
        bits = rank * size + elements % size
        self.product_ptr = terms.product_ptr if of_x else terms.product_ptr[:0]
        self.products = np.empty(len(bits), PRODUCT)
        self.products["bit"] = bits
        self.products["value"] = terms.factors[: len(bits)]
        first = self.rows * hidden if of_z else self.rows[:0]
        wanted = (first[:, None] + np.arange(0, hidden + size - 1, size)) // size
        within = wanted <= (first[:, None] + hidden - 1) // size
        blocks_z = np.unique(wanted[within])
        ranks = self.n_drawn_x + np.searchsorted(blocks_z, first // size)
        self.kept_first = (ranks * size + first % size).astype(np.int32)
        self.drawn = np.concatenate([blocks_x, blocks_z]).astype(np.int32)
