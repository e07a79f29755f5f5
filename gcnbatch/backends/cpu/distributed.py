"""Operations of backend ``cpu`` on a rank's part of a global batch.

A rank holds some rows of the batch. Operations within a row, a node or a graph stay local. Sums over all rows, of
batch norm and of the loss, are global: ranks exchange a few numbers per column.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cpu.ops import Float, add_to, update_running
from gcnbatch.backends.global_losses import GlobalLosses
from gcnbatch.backends.ops import Adjacency, OpsOnPart, PartialOps
from gcnbatch.data.graph_part import Halo, HaloAdjacency
from gcnbatch.ranks.communicator import Communicator
from gcnbatch.reference.composed import ComposedOps

Totals = NDArray[np.float64] | None


def distributed_ops(local: PartialOps, ranks: Communicator, sync_batch_norm: bool) -> OpsOnPart:
    """Return operations on parts of global batches; see `DistributedOps`."""
    return cast(OpsOnPart, DistributedOps(local, ranks, sync_batch_norm))


class DistributedOps(GlobalLosses, ComposedOps):
    """`gcnbatch.backends.ops.Ops` on this rank's rows; all others are those of `local`.

    Gradients by parameters are this rank's addends: their sum over the ranks is the gradient on the global batch.

    Parameters
    ----------
    local : PartialOps
    ranks : Communicator
    sync_batch_norm : bool
        Whether batch-norm statistics are those of the global batch, else those of this rank's rows.
    """

    def __init__(self, local: PartialOps, ranks: Communicator, sync_batch_norm: bool) -> None:
        self._local, self._ranks, self._sync = local, ranks, sync_batch_norm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def in_chunks(self) -> AbstractContextManager[None]:
        """Do nothing: operations end before they return."""
        return nullcontext()

    def close(self) -> None:
        """Do nothing."""

    def spmm(self, adjacency: Adjacency, h: Float, zeros: float = 0.0) -> Float:
        """Product of this rank's rows, with its halo fetched from the other ranks."""
        whole = self._with_halo(h, adjacency.of_forward) if isinstance(adjacency, HaloAdjacency) else h
        return self._local.spmm(adjacency, whole)

    def spmm_backward(self, adjacency: Adjacency, dy: Float, zeros: float = 0.0) -> Float:
        """Gradient of `spmm` by this rank's rows, as `spmm` with its rows of the transpose."""
        whole = self._with_halo(dy, adjacency.of_transpose) if isinstance(adjacency, HaloAdjacency) else dy
        return self._local.spmm_backward(adjacency, whole)

    def _with_halo(self, h: Float, halo: Halo) -> Float:
        return np.concatenate([h, *self._ranks.exchange([h[rows] for rows in halo.sent], halo.received)])

    def batch_norm(
        self,
        x: Float,
        gamma: Float,
        beta: Float,
        running_mean: Float,
        running_var: Float,
        epsilon: float,
        momentum: float,
        training: bool,
        relu: bool = False,
    ) -> tuple[Float, Any]:
        """Normalise by the statistics of the global batch."""
        about = epsilon, momentum
        if not (training and self._sync):
            return self._local.batch_norm(x, gamma, beta, running_mean, running_var, *about, training, relu)
        n, mean, var = self._moments(x)
        if n:
            update_running(running_mean, running_var, mean, var, n, momentum)
        y, saved = self._local.batch_norm(x, gamma, beta, mean, var, *about, False, relu)
        return y, (saved, n)

    def _moments(self, x: Float) -> tuple[int, Float, Float]:
        """Return number, mean and biased variance of all ranks' rows, by the update of Chan, Golub and LeVeque (1979).

        One exchange suffices, and no variance is a difference of large sums.
        """
        own = np.array([np.full(x.shape[1], len(x)), *self._local.batch_norm_moments(x)], np.float64)
        counts, means, variances = self._ranks.all_gather(own).swapaxes(0, 1)
        n = counts.sum(axis=0)
        mean = (counts * means).sum(axis=0) / np.maximum(n, 1)
        var = (counts * (variances + (means - mean) ** 2)).sum(axis=0) / np.maximum(n, 1)
        return int(n[0]) if len(n) else 0, mean.astype(np.float32), var.astype(np.float32)

    def batch_norm_backward(
        self, dy: Float, saved: Any, gamma: Float, out: tuple[Float, Float] | None = None
    ) -> tuple[Float, Float, Float]:
        """Gradients of `batch_norm`; dgamma and dbeta are this rank's addends."""
        if not self._sync:
            return self._local.batch_norm_backward(dy, saved, gamma, out)
        local_saved, n = saved
        dgamma, dbeta, dy = self._local.batch_norm_sums(dy, local_saved, out)
        sums = np.stack([dgamma, dbeta])
        self._ranks.all_reduce(sums)
        return self._local.batch_norm_dx(dy, local_saved, gamma, sums[0], sums[1], n), dgamma, dbeta

    def _of_all(self, loss: Callable[..., Any], *about: Any, totals: Totals) -> tuple[float, float, Float]:
        own, weight, gradient = loss(*about)
        both = np.array([own, weight], np.float64)
        self._ranks.all_reduce(both)
        total, weights = (float(value) for value in both)
        return add_to(totals, total, weights), weights, gradient * np.float32(weight / weights if weights else 0.0)
