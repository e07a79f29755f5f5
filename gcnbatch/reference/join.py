"""Features of whole graphs, scaled and joined to the readout."""

from __future__ import annotations

import numpy as np

from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.reference.arrays import Float


def join(r: Float, features: GraphFeatures, mean: Float, scale: Float, limit: float) -> Float:
    """Y = [R, Z] with Z = (X - mean) scale, cut to -limit … limit; 0 where X is NaN (missing), the mean of the others.

    Parameters
    ----------
    r : (B, P)
    features : GraphFeatures
        X (B, D).
    mean, scale : (D,)
    limit : float

    Returns
    -------
    y : (B, P + D)
    """
    x = features.values[features.rows]
    z = np.clip((x - mean) * scale, -limit, limit)
    z[np.isnan(x)] = 0
    return np.concatenate([r, z], axis=1)


def join_backward(dy: Float, width: int) -> Float:
    """Gradient of `join` by R, (B, P): the first `width` = P columns of dY (B, P + D)."""
    return dy[:, :width].copy()
