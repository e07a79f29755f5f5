"""Products of whole numbers over ranks of GPUs that push rows into each other's memory; every rank checks its rows.

mpirun -n 2 python -m tests.ranks.pushed_products SET.h5
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import numpy as np

from gcnbatch.backends.cuda.ranks import halo, landing, pipeline
from gcnbatch.backends.registry import open_backend
from gcnbatch.data.store import Dataset
from gcnbatch.ranks import world
from gcnbatch.ranks.launch import launched
from tests.ranks.one_graph import part_of_ones, pattern_of_graph

WIDTHS = ((128, 0.75), (128, 0.0), (47, 0.0), (200, 0.75), (130, 0.0))  # with expected shares of zeros


def check(ranks: Any, path: str) -> None:
    """Multiply, and compare this rank's rows."""
    backend: Any = open_backend("batched", ranks.device(0))
    host = ranks.communicator()
    with Dataset(path) as dataset:
        pattern, part = pattern_of_graph(dataset), part_of_ones(dataset, host)
    first, stop = part.bounds[ranks.rank : ranks.rank + 2]
    rng, device = np.random.default_rng(0), backend.device
    communicator = backend.communicator(host)
    for is_large, buffers in product((True, False), (1, 2)):
        halo.is_large = lambda entries, lengths, found=is_large: found
        landing.MEMORY_SHARES = {buffers: 0.5}
        feed = backend.part_feed(part, np.zeros((pattern.shape[0], 1), np.int32), host)
        assert feed.landing is not None, "ranks push"
        assert feed.landing.alternates == (buffers == 2)
        adjacency, ops = feed.batch(0).adjacency, backend.distributed_ops(communicator, True)
        for width, zeros in WIDTHS:
            x = np.where(rng.random((pattern.shape[0], width)) < 0.25, rng.integers(1, 9, (pattern.shape[0], width)), 0)
            once = pattern @ x.astype(np.float32)
            own = device.upload(x[first:stop].astype(np.float32))
            with ops.in_chunks():  # the second product reads the first, row by row
                one = ops.spmm(adjacency, own, zeros)
                two = ops.spmm_backward(adjacency, one, zeros)
            np.testing.assert_array_equal(device.download(one), once[first:stop])
            np.testing.assert_array_equal(device.download(two), (pattern @ once)[first:stop])
        feed.close()
        ops.close()
    communicator.close()


def main() -> None:
    """Join the ranks, check, and leave."""
    halo.PUSHED_NODES, pipeline.CHUNK_ROWS = 1, 100
    here = launched()
    assert here is not None, "under a launcher"
    ranks = world.join(here, [])
    check(ranks, sys.argv[1])
    if ranks.communicator().all_gather(np.ones(1)).all() and ranks.rank == 0:
        print("exact", flush=True)
    ranks.data.Barrier()
    if ranks.rank == 0:
        ranks.end(0)
    else:
        ranks.follow()


if __name__ == "__main__":
    main()
