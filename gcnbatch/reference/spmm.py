"""Sparse adjacency times dense features, summed over adjacency channels.

Source: the graph convolution of ChemGCN (Nagasaka, Nukada, Kojima, Matsuoka: "Batched sparse matrix multiplication for
accelerating graph convolutional networks", CCGrid 2019). SpMM and the sum over channels are one operation here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.sparse import Adjacency
from gcnbatch.reference.arrays import Float


def spmm(adjacency: Adjacency, h: Float, zeros: float = 0.0) -> Float:
    """Y = sum_c A_c H_c, (R, P) for R rows of A, usually N, for H (N, C*P) with H_c in columns c*P … (c+1)*P-1.

    Row i of ``adjacency.forward`` has in column j*C + c the weight of the edge j→i of channel c. Repeated entries add
    up; a node without incoming edges gets zeros. `zeros`, the expected share of zeros in H, changes nothing here.
    """
    a, n_channels = adjacency.forward, adjacency.n_channels
    n_rows, width = len(a.indptr) - 1, h.shape[1] // n_channels
    y = np.zeros((n_rows, width), dtype=h.dtype)
    for i in range(n_rows):
        for entry in range(a.indptr[i], a.indptr[i + 1]):
            j, c = divmod(int(a.indices[entry]), n_channels)
            y[i] += a.data[entry] * h[j, c * width : (c + 1) * width]
    return y


def spmm_backward(adjacency: Adjacency, dy: Float, zeros: float = 0.0) -> Float:
    """Gradient of `spmm` by H: dH_c = A_cᵀ dY, (N, C*P), for dY (R, P) if the adjacency has R rows.

    Row j*C + c of ``adjacency.transpose`` has in column i the weight of the edge j→i of channel c.
    """
    a, n_channels = adjacency.transpose, adjacency.n_channels
    n_nodes, width = (len(a.indptr) - 1) // n_channels, dy.shape[1]
    dh = np.zeros((n_nodes, n_channels * width), dtype=dy.dtype)
    for j in range(n_nodes):
        for c in range(n_channels):
            row = j * n_channels + c
            for entry in range(a.indptr[row], a.indptr[row + 1]):
                dh[j, c * width : (c + 1) * width] += a.data[entry] * dy[a.indices[entry]]
    return dh


def sddmm(a: Float, b: Float, rows: NDArray[np.int32], columns: NDArray[np.int32]) -> Float:
    """Sampled products (E,): entry e is the sum over p of a[rows[e], p] * b[columns[e], p].

    `b` (Q, P), or (N, C*P) read as rows of P: row j*C + c is node j, channel c. As y_i is a sum of a_ijc h_jc, the
    gradient by the edge weight a_ijc is dy_i · h_jc: `a` is dY, `b` is H, and the edge is the entry (i, j*C + c).
    """
    width = a.shape[1]
    wide = b.reshape(b.size // width, width)
    return (a[rows] * wide[columns]).sum(axis=1)
