"""Products of a graph convolution and of joined features, each composed of two other operations.

Classes of operations inherit them from `ComposedOps`; a backend that computes one in less time overrides it.
"""

from __future__ import annotations

from typing import Any

from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.sparse import Adjacency, Array


class ComposedOps:
    """`convolve`, `join_linear` and their gradients of `gcnbatch.backends.ops.Ops`, by its other operations."""

    def convolve(self: Any, adjacency: Adjacency, x: Array, w: Array, b: Array) -> tuple[Array, Any]:
        """Return Y = sum_c A_c (X W_c + b_c), (N, P), for W (F, C*P) and b (C*P,); and X."""
        return self.spmm(adjacency, self.linear(x, w, b, adjacency)), x

    def convolve_backward(
        self: Any,
        adjacency: Adjacency,
        dy: Array,
        saved: Any,
        w: Array,
        need_dx: bool = True,
        out: tuple[Array, Array] | None = None,
    ) -> tuple[Array | None, Array, Array]:
        """Gradients of `linear`, for dZ_c = A_cᵀ dY; out: (dw, db)."""
        found: tuple[Array | None, Array, Array] = self.linear_backward(
            self.spmm_backward(adjacency, dy), saved, w, need_dx, out, adjacency
        )
        return found

    def join_linear(
        self: Any, r: Array, features: GraphFeatures, mean: Array, scale: Array, limit: float, w: Array, b: Array
    ) -> tuple[Array, Any]:
        """Return Y = X W + b, (B, Q), for X (B, P + D) that `join` returns, W (P + D, Q) and b (Q,); and X."""
        x = self.join(r, features, mean, scale, limit)
        return self.linear(x, w, b), x

    def join_linear_backward(
        self: Any,
        dy: Array,
        saved: Any,
        w: Array,
        width: int,
        need_dr: bool = True,
        out: tuple[Array, Array] | None = None,
    ) -> tuple[Array | None, Array, Array]:
        """Gradients by R (B, P), for `width` = P, by W and by b; out: (dw, db)."""
        dx, dw, db = self.linear_backward(dy, saved, w, need_dr, out)
        return None if dx is None else self.join_backward(dx, width), dw, db
