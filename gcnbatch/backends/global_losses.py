"""Losses of a global batch, of which each rank holds some rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gcnbatch.backends.ops import Array, LossKind


class GlobalLosses:
    """The losses of `gcnbatch.backends.ops.Ops` over all ranks, from those of this rank's rows by `_local`."""

    _local: Any

    def sigmoid_cross_entropy(self, logits: Array, y: Array, pos_weight: Array, totals: Array | None = None) -> Any:
        """Sum of loss and weight of the global batch, and the gradient of their quotient by this rank's logits."""
        return self._of_all(self._local.sigmoid_cross_entropy, logits, y, pos_weight, totals=totals)

    def softmax_cross_entropy(self, logits: Array, y: Array, class_weight: Array, totals: Array | None = None) -> Any:
        """As `sigmoid_cross_entropy`."""
        return self._of_all(self._local.softmax_cross_entropy, logits, y, class_weight, totals=totals)

    def mean_squared_error(self, logits: Array, y: Array, totals: Array | None = None) -> Any:
        """As `sigmoid_cross_entropy`."""
        return self._of_all(self._local.mean_squared_error, logits, y, totals=totals)

    def weighted_loss(
        self, logits: Array, y: Array, kind: LossKind, parameters: Array, totals: Array | None = None
    ) -> Any:
        """As `sigmoid_cross_entropy`."""
        return self._of_all(self._local.weighted_loss, logits, y, kind, parameters, totals=totals)

    def _of_all(self, loss: Callable[..., Any], *about: Any, totals: Array | None) -> Any:
        """Return what a loss gives for the global batch; `about`: its arguments."""
        raise NotImplementedError
