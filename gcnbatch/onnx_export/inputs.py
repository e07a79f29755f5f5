"""The inputs of an exported model from a batch of graphs; see `gcnbatch.onnx_export.networks.Inputs`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.batches import GraphBatch
from gcnbatch.data.sparse import Csr

Arrays = dict[str, NDArray[Any]]


def inputs_of(batch: GraphBatch, features: NDArray[np.float32] | None) -> Arrays:
    """Return the inputs by name; `features` (B, D) are all those of its graphs, None if no model reads them."""
    forward, x = batch.adjacency.forward, batch.x
    if isinstance(x, Csr):
        x = sp.csr_array((x.data, x.indices, x.indptr), shape=(batch.n_nodes, x.n_cols)).toarray()
    into = np.diff(forward.indptr)
    found = {
        "x": x,
        "edges": _padded(forward.indices.astype(np.int64), into, 0),
        "weights": _padded(forward.data, into, 0),
        "nodes": _padded(np.arange(batch.n_nodes), np.diff(batch.node_ptr), -1),
    }
    return found if features is None else found | {"features": features}


def _padded(values: NDArray[Any], lengths: NDArray[Any], fill: int) -> NDArray[Any]:
    """Return a row of the next `lengths` values each, padded to the longest."""
    found = np.full((len(lengths), max(int(lengths.max(initial=0)), 1)), fill, values.dtype)
    found[np.arange(found.shape[1]) < lengths[:, None]] = values
    return found
